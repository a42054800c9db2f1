"""FedAGHN, pFedLA, HeurpFedLA and pFedGAT: mixtures of the clients' models and their learning."""

from dataclasses import replace

import pytest
import tiny
import torch
from naive import FED, build_method
from torch import Tensor

from fedweave.client.task import RowClassification
from fedweave.engine.engine import run, run_round
from fedweave.engine.executors import Batched, Executor, Loop
from fedweave.engine.records import Settings
from fedweave.engine.start import begin
from fedweave.engine.uploads import UploadPath
from fedweave.families import GeneratedModels
from fedweave.families.mixtures import mask_newcomers
from fedweave.graphs.controls import GraphControl
from fedweave.models import build
from fedweave.tensors import trees
from fedweave.tensors.gradients import pull_back
from fedweave.tensors.trees import Tree
from fedweave.threats.privacy import Privacy
from tests.generated_models import EVERYBODY, fixture


def noise(models: Tree, seed: int = 0) -> Tree:
    """Random tensors of the shapes of `models`."""
    g = torch.Generator().manual_seed(seed)
    return {name: torch.randn(value.shape, generator=g, dtype=value.dtype) for name, value in models.items()}


def gradient(method: GeneratedModels, server: Tree, cotangent: Tree, ids: Tensor = EVERYBODY) -> Tree:
    """The gradient of the server's step."""
    return pull_back(lambda phi: method.generate(phi, server["fixed"], ids), server["phi"], lambda start: cotangent)[0]


def per_layer(method: GeneratedModels, models: Tree) -> list[Tensor]:
    """Every layer of stacked models, flattened: L times [N, P_l]."""
    return [trees.to_matrix({name: models[name] for name in names}) for names in method.task.layers.values()]


def test_fedaghn_weights() -> None:
    """Rows sum to one, and the self weight is p / (1 + p). Before the first update the other weights are equal."""
    method, federation, state = fixture("fedaghn")
    alpha, p = method.collaboration(state.server), state.server["phi"]["p"]
    torch.testing.assert_close(alpha.sum(-1), torch.ones_like(alpha[..., 0]))
    torch.testing.assert_close(alpha.diagonal(dim1=1, dim2=2), (p / (1 + p)).T)
    first = method.collaboration(begin(method, federation, 0, Loop()).server)
    others = ~torch.eye(tiny.CLIENTS, dtype=torch.bool)
    torch.testing.assert_close(first[:, others], torch.full_like(first[:, others], 1 / 1.03 / (tiny.CLIENTS - 1)))


def test_fedaghn_gradient_is_the_closed_form() -> None:
    """Autograd equals the explicit ⟨∂θ̄/∂p, Δ⟩ and ⟨∂θ̄/∂q, Δ⟩."""
    method, _, state = fixture("fedaghn")
    fixed, phi = state.server["fixed"], state.server["phi"]
    delta = noise(fixed["models"])
    actual = gradient(method, state.server, delta)
    others = ~torch.eye(tiny.CLIENTS, dtype=torch.bool)
    for layer, (theta, d) in enumerate(zip(per_layer(method, fixed["models"]), per_layer(method, delta), strict=True)):
        p, q, c = phi["p"][:, layer, None], phi["q"][:, layer, None], fixed["cosines"][layer]
        weights = torch.exp(q * c) * others
        s = weights / weights.sum(1, keepdim=True)
        by_p = (theta - s @ theta) / (1 + p) ** 2
        by_q = (s * (c - (s * c).sum(1, keepdim=True))) @ theta / (1 + p)
        torch.testing.assert_close(actual["p"][:, layer], (by_p * d).sum(1), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(actual["q"][:, layer], (by_q * d).sum(1), rtol=1e-9, atol=1e-12)


def test_fedaghn_compares_the_updates_of_clients() -> None:
    """Δθ_j = θ_j − θ̄_j of a client's last round, and cosines between them in each layer."""
    method, federation, state = fixture("fedaghn")
    sent = method.download(state.server, EVERYBODY)[1]
    settings = Settings(rounds=1, seed=2, participation=3)
    after = run_round(method, state, federation, settings, Loop())[0].server["fixed"]
    before, layers = state.server["fixed"], method.task.layers.values()
    moved = [i for i in range(tiny.CLIENTS) if not torch.equal(*(f["models"]["fc.bias"][i] for f in (before, after)))]
    assert len(moved) == 3
    expected = {
        name: torch.stack([after["models"][name][i] - rows[i] if i in moved else old for i, old in enumerate(olds)])
        for (name, rows), olds in zip(sent.items(), (before["updates"][name] for name in sent), strict=True)
    }
    for c, names in zip(after["cosines"], layers, strict=True):
        flat = trees.to_matrix(trees.select(expected, names))
        torch.testing.assert_close(c, torch.cosine_similarity(flat[:, None], flat, dim=-1))


def test_fedaghn_sign() -> None:
    """On clients with planted groups, the printed rule lowers the self weight, and descent raises it."""
    runs = {sign: fixture("fedaghn", 8, server_sign=sign, p0=0.2, server_lr=0.1) for sign in ("literal", "descent")}
    p = {sign: state.server["phi"]["p"].mean() for sign, (_, _, state) in runs.items()}
    assert p["literal"] < 0.2 < p["descent"]


def test_fedaghn_ablations() -> None:
    """Frozen scalars do not change, an absent p puts oneself into the softmax, an absent q is 1, tied scalars sum their
    gradients.
    """
    _, _, frozen = fixture("fedaghn", p="frozen", q="frozen")
    assert (frozen.server["phi"]["p"] == 0.03).all()
    assert (frozen.server["phi"]["q"] == 0.5).all()
    method, _, state = fixture("fedaghn", p="absent", q="absent")
    torch.testing.assert_close(method.collaboration(state.server), state.server["fixed"]["cosines"].softmax(-1))
    tied, _, state = fixture("fedaghn", rounds=1, tied=True)
    free = replace(tied, tied=False)
    wide = {
        **state.server,
        "phi": {name: value.expand(-1, len(tied.task.layers)) for name, value in state.server["phi"].items()},
    }
    cotangent = noise(state.server["fixed"]["models"])
    narrow, each = gradient(tied, state.server, cotangent), gradient(free, wide, cotangent)
    torch.testing.assert_close(narrow, {name: value.sum(1, keepdim=True) for name, value in each.items()})


def test_fedaghn_without_an_update_has_similarity_zero() -> None:
    """A zero update has cosine 0 with all clients, not NaN."""
    method, _, state = fixture("fedaghn")
    zero = trees.tree_map(torch.zeros_like, state.server["fixed"]["models"])
    after = method.remember(state.server["fixed"], EVERYBODY, zero, {"model": zero})
    assert (after["cosines"] == 0).all()


def test_pfedla_gradient_is_the_closed_form() -> None:
    """The gradient of a logit is α_j ⟨θ_j − θ̄_i, cotangent⟩ per layer. Logits and biases of the heads have the same
    gradient.
    """
    method, _, state = fixture("pfedla")
    models = state.server["fixed"]["models"]
    cotangent, alpha = noise(models), method.collaboration(state.server)
    torch.testing.assert_close(alpha.sum(-1), torch.ones_like(alpha[..., 0]))
    actual = gradient(method, state.server, cotangent)["network"]["heads.bias"].unflatten(1, (-1, tiny.CLIENTS))
    for layer, (theta, d) in enumerate(zip(per_layer(method, models), per_layer(method, cotangent), strict=True)):
        mixed = alpha[layer] @ theta
        expected = alpha[layer] * (d @ theta.T - (d * mixed).sum(1, keepdim=True))
        torch.testing.assert_close(actual[:, layer], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("overrides", [{}, {"relu_norm": True}, {"tied": True}])
def test_pfedla_changes_participants_only(overrides: dict) -> None:
    """Vectors, networks and models of absent clients keep their bits. Rows of weights are mixtures."""
    method, federation, state = fixture("pfedla", **overrides)
    after, _, _ = run_round(method, state, federation, Settings(rounds=3, seed=5, participation=2), Loop())
    alpha = method.collaboration(after.server)
    assert (alpha >= 0).all()
    torch.testing.assert_close(alpha.sum(-1), torch.ones_like(alpha[..., 0]))
    changed = torch.zeros(tiny.CLIENTS, dtype=torch.bool)
    for a, b in zip(trees.tree_leaves(state.server), trees.tree_leaves(after.server), strict=True):
        changed |= (a != b).flatten(1).any(1)
    assert changed.sum() == 2


def test_heurpfedla_keeps_layers() -> None:
    """A retained layer is bit for bit that of the client's last upload. It gives its head no gradient, and is not
    counted.
    """
    method, _, state = fixture("heurpfedla", kind="images", retain=2)
    (_, own), models = method.download(state.server, EVERYBODY), state.server["fixed"]["models"]
    mixed = method.generate(state.server["phi"], state.server["fixed"], EVERYBODY)
    taught = (
        gradient(method, state.server, noise(models))["network"]["heads.bias"]
        .unflatten(1, (-1, tiny.CLIENTS))
        .abs()
        .sum(-1)
    )
    sent = 0
    for layer, (name, names) in enumerate(method.task.layers.items()):
        stays = own["retained"][:, layer]
        assert not (stays.any() and set(names) <= set(method.task.norms)), name
        assert (taught[stays, layer] == 0).all()
        assert (taught[~stays, layer] > 0).all()
        for n in names:
            assert torch.equal(mixed[n][stays], models[n][stays])
            sent += 4 * int((~stays).sum()) * models[n][0].numel()
    assert (own["retained"].sum(1) == 2).all()
    assert method.traffic({}, own, {"model": models}, tiny.CLIENTS) == (sent, 4 * trees.to_matrix(models).numel())


@pytest.mark.parametrize("rank_bn", [False, True])
def test_heurpfedla_retains_normalisation_layers_on_request_alone(rank_bn: bool) -> None:
    """Also where more layers are to be retained than there are."""
    method = build_method("heurpfedla", "images", retain=99, rank_bn=rank_bn)
    server = begin(method, tiny.TASKS["images"][1](), 0, Loop()).server
    rankable = [rank_bn or not {*names} <= {*method.task.norms} for names in method.task.layers.values()]
    assert all(rankable) == rank_bn
    assert torch.equal(method.attach(server, EVERYBODY)["retained"], torch.tensor([rankable]).expand(tiny.CLIENTS, -1))


@pytest.mark.parametrize("word", ["uniform", "self"])
def test_a_control_of_the_graph_changes_no_retained_layer(word: str) -> None:
    """Equal self weights would retain the first layer for all clients, which is another method."""
    method, _, state = fixture("heurpfedla", kind="images", retain=2)
    phi, fixed = state.server["phi"], state.server["fixed"]
    controlled = replace(method, control=GraphControl(word))
    assert not torch.equal(*(m.alpha(phi, fixed, EVERYBODY) for m in (method, controlled)))
    stays = method.retained_layers(phi, fixed, EVERYBODY)
    assert len({*map(tuple, stays.tolist())}) > 1
    for server in (
        controlled.download(state.server, EVERYBODY)[1]["retained"],
        controlled.retained_layers(phi, fixed, EVERYBODY),
    ):
        assert torch.equal(server, stays)
    mixed, models = controlled.generate(phi, fixed, EVERYBODY), fixed["models"]
    for layer, names in enumerate(method.task.layers.values()):
        assert all(torch.equal(mixed[n][stays[:, layer]], models[n][stays[:, layer]]) for n in names)


@pytest.mark.parametrize("retain", [0, 1, 2])
def test_heurpfedla_records_the_graph_that_clients_receive(retain: int) -> None:
    """The recorded weights give the sent models. Rows of retained layers are those of the identity."""
    method, _, state = fixture("heurpfedla", kind="images", retain=retain)
    (_, own), models = method.download(state.server, EVERYBODY), state.server["fixed"]["models"]
    graph = method.collaboration(state.server)
    for name, mixture in method.mix_models(graph, models).items():
        torch.testing.assert_close(mixture, own[name])
    stays, itself = own["retained"].T, torch.eye(tiny.CLIENTS, dtype=graph.dtype)
    assert int(stays.sum()) == retain * tiny.CLIENTS
    assert torch.equal(graph[stays], itself.expand_as(graph)[stays])
    assert (graph[~stays] > 0).all()


@pytest.mark.parametrize("executor", [Loop(), Batched()])
def test_heurpfedla_continues_from_its_own_layers(executor: Executor) -> None:
    """Noise on the uploads has no effect on them: a client that retains all layers trains like Local."""
    task, federation = (make() for make in tiny.TASKS["rows"])
    last = {}
    for name, upload_path, options in (
        ("heurpfedla", UploadPath(Privacy(clip=0.1, noise=1.0)), {"retain": 99}),
        ("local", UploadPath(), {}),
    ):
        settings = Settings(rounds=3, seed=2, participation=3, upload_path=upload_path)
        *_, last[name] = run(tiny.method(name, task, "rows", **options), federation, settings, executor)
    assert torch.equal(last["heurpfedla"].scores["pre"]["test"], last["local"].scores["pre"]["test"])
    torch.testing.assert_close(
        *(trees.to_matrix(report.models["pre"]) for report in last.values()), rtol=1e-9, atol=1e-10
    )


@pytest.mark.parametrize(
    ("shape", "norm", "retained", "mib"),
    [
        ((1, 28, 28), False, (), 491.08),
        ((1, 28, 28), False, ("fc3",), 488.65),
        ((1, 28, 28), False, ("fc1", "fc3"), 312.52),
        ((3, 32, 32), True, (), 693.96),
        ((3, 32, 32), True, ("fc1",), 418.96),
        ((3, 32, 32), True, ("fc1", "conv2"), 382.24),
        ((3, 32, 32), True, ("fc1", "conv2", "fc3"), 379.81),
    ],
)
def test_heurpfedla_traffic_is_the_papers(
    shape: tuple[int, ...], norm: bool, retained: tuple[str, ...], mib: float
) -> None:
    """The paper's communication table, 750 client rounds of its EMNIST and CIFAR-10 models."""
    task = RowClassification(lambda: build("lenet16", shape, 10, batch_norm=norm))
    method = tiny.method("heurpfedla", task, "rows")
    layers = {name.rpartition(".")[2]: i for i, name in enumerate(task.layers)}
    mask = torch.zeros(1, len(layers), dtype=torch.bool)
    mask[0, [layers[name] for name in retained]] = True
    model = {name: torch.zeros(1, *size) for name, size in task.shapes().items()}
    down, up = method.traffic({}, {**model, "retained": mask}, {"model": model}, 1)
    assert 750 * (down + up) / 2**20 == pytest.approx(mib, abs=0.02)


def test_direct_matrix_steps_along_inner_products() -> None:
    """∂L/∂R_ij = ⟨g_i, θ_j⟩. Rows stay mixtures."""
    method, _, state = fixture("direct_matrix", server_lr=0.5)
    models = state.server["fixed"]["models"]
    g = noise(models)
    torch.testing.assert_close(
        gradient(method, state.server, g)["matrix"], trees.to_matrix(g) @ trees.to_matrix(models).T
    )
    matrix = state.server["phi"]["matrix"]
    assert (matrix >= 0).all()
    torch.testing.assert_close(matrix.sum(1), torch.ones_like(matrix[0]))


def test_a_client_with_weight_on_newcomers_only_keeps_its_model() -> None:
    """The weights of newcomers without an upload are moved to the other sources in proportion, or else to oneself."""
    alpha = torch.tensor([[[0.1, 0.3, 0.6], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]]])
    fixed = {"without_upload": torch.tensor([False, False, True])}
    expected = torch.tensor([[[0.25, 0.75, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    torch.testing.assert_close(mask_newcomers(alpha, torch.arange(3), fixed), expected)
    torch.testing.assert_close(mask_newcomers(alpha[:, 1:], torch.tensor([1, 2]), fixed), expected[:, 1:])


@pytest.mark.parametrize("name", ["fedamp", "heurfedamp"])
def test_clients_without_an_upload_have_no_weight(name: str) -> None:
    """Under partial participation, models without training have no weight yet."""
    method = build_method(name)
    *_, report = run(method, FED, Settings(rounds=1, seed=2, participation=2), Loop())
    without_upload = ~report.state.server["seen"]
    alpha = method.collaboration(report.state.server)
    others = ~torch.eye(5, dtype=torch.bool)
    assert not alpha[:, others & without_upload].any()
    assert alpha[:, others & ~without_upload].all()
