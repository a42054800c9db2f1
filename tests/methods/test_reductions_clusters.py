"""IFCA, FedEM, FedDBE, FedProto and FedAS at the limits of their settings, under privacy, and with kept optimisers."""

import itertools
from dataclasses import replace

import pytest
import tiny
import torch
from naive import FED, SEED, build_method, last_report, network
from torch import Tensor

from fedweave.client.data import shuffled_batches
from fedweave.client.solvers import Adam
from fedweave.engine.engine import run
from fedweave.engine.executors import Batched, Loop
from fedweave.engine.records import Report, Settings
from fedweave.engine.schedule import Training, cohort, participants
from fedweave.engine.start import begin
from fedweave.engine.uploads import UploadPath
from fedweave.tensors import trees
from fedweave.tensors.trees import Params
from fedweave.threats.privacy import Privacy
from fedweave.threats.robust import Robust

METHODS = ("ifca", "fedem", "feddbe", "fedproto", "fedas")


def same_models(left: Params, right: Params) -> None:
    """`left` has every parameter and statistic of `right`."""
    for name, value in right.items():
        torch.testing.assert_close(left[name], value, rtol=1e-9, atol=1e-11)


def deployed_models(report: Report, point: str = "pre") -> Params:
    """Personalized models [N, ...], without other deployed tensors."""
    models = report.models[point]
    return models.get("components", models.get("model", models))


# Settings -> the simpler method that the method equals with them.
REDUCTIONS: list[tuple[str, dict[str, object], str]] = [
    ("ifca", {"clusters": 1}, "fedavg"),
    ("fedem", {"components": 1}, "fedavg"),
    ("feddbe", {"kappa": 0.0, "memory": False}, "fedavg"),
    ("fedproto", {"lam": 0.0, "prediction": "head"}, "local"),
    ("fedas", {"align_epochs": 0, "weights": "rows"}, "fedper"),
]
EDGES = [(*row, kind) for row in REDUCTIONS for kind in ("images", "nodes")]
EDGES += [(*row, "series") for row in REDUCTIONS if row[2] == "fedavg"]  # the others need classes


@pytest.mark.parametrize(("name", "settings", "simpler", "kind"), EDGES)
def test_a_method_equals_its_simpler_method(name: str, settings: dict[str, object], simpler: str, kind: str) -> None:
    """The same models with their statistics and the same scores. Images and nodes keep moments over rounds."""
    left, right = last_report(name, kind, **settings), last_report(simpler, kind)
    same_models(deployed_models(left), deployed_models(right))
    for part, value in right.scores["pre"].items():
        torch.testing.assert_close(left.scores["pre"][part], value, rtol=1e-9, atol=1e-9)
    assert left.loss == pytest.approx(right.loss, rel=1e-9)


def test_gradients_of_one_cluster_are_fedavg_of_one_full_batch_step() -> None:
    """IFCA's first option without clusters, on images with BatchNorm and momentum too."""
    for kind in ("rows", "images"):
        left = last_report("ifca", kind, clusters=1, averaging="gradients")
        right = last_report("fedavg", kind, training=replace(left.method.training, batch_size=0, epochs=1))
        same_models(deployed_models(left), deployed_models(right))


@pytest.mark.parametrize(
    ("name", "off", "on"),
    [
        ("ifca", {"clusters": 1}, {"clusters": 3}),
        ("ifca", {"averaging": "models"}, {"averaging": "gradients"}),
        ("fedem", {"components": 1}, {"components": 2}),
        ("feddbe", {"kappa": 0.0}, {"kappa": 1.0}),
        ("feddbe", {"memory": False}, {"memory": True}),
        ("feddbe", {"momentum": 0.5}, {"momentum": 1.0}),
        ("fedproto", {"lam": 0.0}, {"lam": 1.0}),
        ("fedas", {"align_epochs": 0}, {"align_epochs": 1}),
        ("fedas", {"weights": "rows"}, {"weights": "fisher"}),
    ],
)
def test_settings_change_the_results(name: str, off: dict, on: dict) -> None:
    """For other settings, a method trains other models. The difference is more than a hundredth of the training."""
    first, second = (deployed_models(last_report(name, rounds=2, **settings), "post") for settings in (off, on))
    initial = dict(network(build_method(name)).state_dict())
    assert {*first} & {*second} >= {*initial}
    difference = max(float((first[n] - second[n]).abs().max()) for n in initial)
    learnt = max(float((first[n] - value).abs().max()) for n, value in initial.items())
    assert difference > 0.01 * learnt


@pytest.mark.parametrize("name", METHODS)
def test_executors_agree_with_noise_newcomers_and_kept_optimisers(name: str) -> None:
    """With private uploads, partial participation, newcomers and Adam that clients keep, both executors agree."""
    path = UploadPath(Privacy(clip=1.0, noise=0.01))
    settings = Settings(rounds=3, seed=1, participation=0.6, newcomers=1, join_round=2, upload_path=path)
    memory = {"solver": Adam(lr=0.02), "training": Training(batch_size=4, epochs=2, keep_optimizer=True)}
    reports = [[*run(build_method(name, **memory), FED, settings, executor)][-1] for executor in (Loop(), Batched(2))]
    first, second = (trees.tree_leaves((r.state.server, r.state.clients, r.state.optimizers)) for r in reports)
    for x, y in zip(first, second, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-8)
    assert reports[0].scores["pre"]["test"].isfinite().all()
    silent = [*run(build_method(name, **memory), FED, replace(settings, upload_path=UploadPath()), Loop())][-1]
    pairs = zip(first, trees.tree_leaves((silent.state.server, silent.state.clients)), strict=False)
    assert max(float((x - y).abs().max()) for x, y in pairs if x.is_floating_point()) > 1e-4


def test_numbers_of_training_rows_get_no_noise_on_joining() -> None:
    """They are public: under privacy, the consensual mean of FedDBE has the same weights of clients."""
    method = build_method("feddbe")
    # Noise of a thousand on every mean, and on numbers if they had noise
    path = UploadPath(Privacy(clip=1e6, noise=1e-3))
    noisy, plain = (
        begin(method, FED.select(torch.arange(2)), SEED, Loop(), p).server["model"]["memory/consensus"]
        for p in (path, UploadPath())
    )
    assert 10 < (noisy - plain).abs().max() < 1e4


def test_under_noise_fedproto_sends_every_class() -> None:
    """The ledger counts them. Without noise a client sends its own classes."""
    sent = []
    for path in (UploadPath(), UploadPath(Privacy(clip=1.0, noise=0.1))):
        *_, report = run(build_method("fedproto"), FED, Settings(rounds=1, seed=SEED, upload_path=path), Loop())
        sent.append(report.bytes_up)
    classes, width = report.state.server["prototypes"].shape
    own = sum(len(FED.shared["y"][rows[rows >= 0]].unique()) for rows in FED.train)
    assert sent[0] == 4 * (own * width + tiny.CLIENTS * classes)  # bytes, as models are sent in float32
    assert sent[1] == 4 * tiny.CLIENTS * classes * (width + 1) >= sent[0]


def test_a_pass_has_its_own_order() -> None:
    """It has every training row once. Another purpose has another order, and none is that of the file."""
    data = cohort(FED, torch.tensor([0]), Training(batch_size=4, epochs=2), 2, SEED, 0).client_data(0)
    rows = data.train[data.train >= 0]
    passes = [torch.cat(shuffled_batches(data, 4, False, *purpose)) for purpose in ((5,), (4, 0), (4, 1))]
    assert all(torch.equal(one.sort().values, rows.sort().values) for one in passes)
    orders = [one.tolist() for one in (*passes, rows)]
    assert all(a != b for a, b in itertools.combinations(orders, 2))


def test_a_cluster_that_no_client_selects_keeps_its_model() -> None:
    """The same holds in a round with one participant. Absent clients keep their labels."""
    settings = Settings(rounds=1, seed=SEED, participation=2)
    method = build_method("ifca", clusters=3)
    state = begin(method, FED, SEED, Loop())
    *_, report = run(method, FED, settings, Loop())
    labels = report.state.server["labels"]
    present = participants(SEED, 0, FED.ids, 2)
    absent = torch.tensor([i for i in range(tiny.CLIENTS) if i not in present.tolist()])
    assert (labels[absent] == -1).all()
    assert (labels[present] >= 0).all()
    for j in {0, 1, 2} - {*labels[present].tolist()}:
        same_models(trees.at(report.state.server["models"], j), trees.at(state.server["models"], j))
    graph: Tensor = method.collaboration(report.state.server)[0]
    torch.testing.assert_close(graph.sum(1), torch.ones(tiny.CLIENTS, dtype=graph.dtype))
    assert torch.equal(graph[absent], torch.eye(tiny.CLIENTS, dtype=graph.dtype)[absent])


@pytest.mark.parametrize("name", ["fedem", "feddbe"])
def test_a_robust_rule_replaces_the_mean(name: str) -> None:
    """It is the median of the uploads in each component. State that only the server has does not change."""
    path = UploadPath(robust=Robust(rule="median"))
    *_, report = run(build_method(name), FED, Settings(rounds=1, seed=SEED, upload_path=path), Loop())
    models = report.models["post"].get("components", report.models["post"])
    server = report.state.server["model"]
    for key, value in server.items():
        if key != "memory/consensus":
            torch.testing.assert_close(value, models[key].sort(0).values[2], rtol=1e-9, atol=1e-12)
