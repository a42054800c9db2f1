"""A frozen body runs once: scores, models and predictions are those of a body that runs in every step."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedweave as fw
from fedweave.client.frozen_body import HeadModel, has_frozen_body
from fedweave.comparison.plan import Plan, plan
from fedweave.files import stored
from fedweave.models.own_module import wrap
from fedweave.runs import build, frozen_bodies, repetition
from fedweave.runs.history import History
from fedweave.tensors import trees

CLIENTS, ROWS = 3, 20
pytestmark = pytest.mark.filterwarnings("ignore:One seed")


class Body(nn.Module):
    """Convolution, batch normalisation and dropout below a head; it counts the images that it reads."""

    images = 0

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten())
        self.fc = nn.Linear(4 * 36, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Body.images += len(x)
        return self.fc(self.body(x))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a body that has read nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Body.images = 0
    return stored.folder() / frozen_bodies.FEATURES


def federation(seed: int = 0) -> fw.Federation:
    """Three clients with twenty images of two classes each."""
    draws = np.random.default_rng(seed)
    images = draws.integers(0, 256, size=(CLIENTS * ROWS, 1, 8, 8), dtype=np.uint8)
    owner = [f"client {i % CLIENTS}" for i in range(len(images))]
    return fw.Federation.from_arrays(images, images[:, 0, :4].mean((1, 2)) > 127, client=owner, name="toy")


def planned(method: str, adapter: str | None = "head", **train: object) -> Plan:
    """A comparison of one method over the frozen body."""
    settings = {"rounds": 2, "lr": 0.1, "batch_size": 8, **train}
    return plan(federation(), [method], model=Body, adapter=adapter, seeds=[3], train=settings)


def play(planned: Plan, features: bool) -> tuple[History, build.PreparedRun]:
    """The one repetition, with features that are computed before training or in every step."""
    prepared = build.prepare(planned.study.run(next(iter(planned.study.runs))), *planned.inputs, features=features)
    return repetition.run_repetition(prepared, 3), prepared


@pytest.mark.parametrize("executor", ["loop", "batched"])
@pytest.mark.parametrize("method", ["fedavg_ft", "fedaghn", "knn_per", "fedproto", "fedrod"])
def test_scores_and_models_are_those_of_a_body_that_runs_in_every_step(method: str, executor: str) -> None:
    """To rounding; names, traffic and layers are the same."""
    (once, prepared), (always, plain) = (play(planned(method, executor=executor), on) for on in (True, False))
    assert isinstance(prepared.method.task.template, HeadModel)
    assert not isinstance(plain.method.task.template, HeadModel)
    assert prepared.method.task.layers == plain.method.task.layers
    for name, values in once.scores.items():
        np.testing.assert_allclose(values, always.scores[name], rtol=1e-4, atol=1e-3)
    assert [row[4:] for row in once.ledger] == [row[4:] for row in always.ledger]
    first, second = (trees.flatten_paths(history.snapshot["models"]) for history in (once, always))
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=1e-3, atol=1e-4)


def test_the_body_reads_each_image_once_and_later_runs_read_a_file(cache: Path) -> None:
    """Of all methods; a file of other rows or of another body is not taken."""
    body = Body
    plan_of = planned("fedavg")
    body.images = 0
    play(plan_of, True)
    (file,) = cache.glob("*.npy")
    first = body.images
    assert first <= CLIENTS * ROWS + 2 * frozen_bodies.PROBED + 4  # the rows, and tries of the model
    play(planned("ditto"), True)
    assert [*cache.glob("*.npy")] == [file]
    features = np.load(file)
    assert features.shape == (CLIENTS * ROWS, 4 * 36)
    plan_of = planned("fedavg")
    body.images = 0
    play(plan_of, True)
    assert body.images <= frozen_bodies.PROBED + 4


def test_files_differ_by_rows_and_by_weights(cache: Path) -> None:
    settings = {"rounds": 1, "batch_size": 8}

    class Other(Body):
        """The same values, read otherwise."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.body(1 - x))

    for seed, model in ((0, Body), (1, Body), (0, Other)):
        play(plan(federation(seed), ["local"], model=model, adapter="head", seeds=[3], train=settings), True)
    assert len([*cache.glob("*.npy")]) == 3


def test_several_cores_share_the_rows(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process computes parts; the features are in the order of the rows."""
    play(planned("local"), True)
    (file,) = cache.glob("*.npy")
    whole = np.load(file)
    file.unlink()
    monkeypatch.setattr(frozen_bodies, "CHUNK", 7)
    monkeypatch.setattr(frozen_bodies, "cores", lambda: 3)
    play(planned("local"), True)
    np.testing.assert_allclose(np.load(file), whole, rtol=1e-5, atol=1e-6)


def test_the_oldest_files_go(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all are too large together; the one in use stays."""
    monkeypatch.setattr(frozen_bodies, "KEPT", 40_000)
    cache.mkdir(parents=True)
    old = cache / "old.npy"
    np.save(old, np.zeros(2000))
    os.utime(old, (1, 1))
    play(planned("local"), True)
    (file,) = cache.glob("*.npy")
    assert file != old


def test_a_folder_that_cannot_be_written_is_not_needed(cache: Path) -> None:
    cache.parent.parent.mkdir(parents=True)
    cache.parent.write_text("a file where the folder would be")
    with_file, _ = play(planned("fedavg"), True)
    assert with_file.rounds


def test_augmented_images_are_read_in_every_step(cache: Path) -> None:
    """A line says so."""
    with pytest.warns(UserWarning, match=r"train\.augment changes its images in every step"):
        _, prepared = play(planned("fedavg", augment=1), True)
    assert not isinstance(prepared.method.task.template, HeadModel)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("change", "frozen"),
    [
        (lambda net: net, False),
        (lambda net: net.body.requires_grad_(False), False),  # statistics of batch normalisation move
        (lambda net: net.body[0].requires_grad_(False), False),
    ],
)
def test_a_body_that_changes_is_not_frozen(change, frozen: bool) -> None:
    def make(shape, outputs):
        net = Body(shape, outputs)
        change(net)
        return net

    assert has_frozen_body(wrap(make, (1, 8, 8), 2)()) == frozen
    assert has_frozen_body(wrap(make, (1, 8, 8), 2, adapter="head")())
    assert not has_frozen_body(wrap(lambda shape, outputs: nn.Linear(4, outputs), (4,), 2)())
    headed = wrap(
        lambda s, o: nn.Sequential(Body(s, 3).body, nn.Sequential(nn.Dropout(), nn.Linear(144, o))),
        (1, 8, 8),
        2,
        head="1",
        adapter="head",
    )
    assert not has_frozen_body(headed())  # the head has dropout


def test_stored_models_predict_raw_rows(tmp_path: Path) -> None:
    """Predictions of new images need no features of them."""
    images = np.random.default_rng(5).integers(0, 256, size=(4, 1, 8, 8), dtype=np.uint8)
    result = fw.fit("fedavg_ft", federation(), model=Body, adapter="head", rounds=2, batch_size=8, lr=0.1)
    run = result.run.folder
    models = torch.load(next(run.glob("models-*.pt")), weights_only=True)["models"]
    assert {*models} == {"fc.weight", "fc.bias"}
    assert len(result.predict(images, "client 1")) == 4
