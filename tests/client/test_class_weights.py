"""Weights of classes: their values, their effect on the losses of every method, and refused input."""

import warnings

import numpy as np
import pytest
import torch

import fedweave as fw
from fedweave.comparison.plan import plan
from fedweave.engine.schedule import evaluation_cohort
from fedweave.runs import build

DRAWS = np.random.default_rng(5)
X = DRAWS.normal(size=(400, 3)).astype(np.float32)
Y = np.where(X[:, 0] + DRAWS.normal(size=400) > 1.6, "rare", "common")
OWNER = np.arange(400) % 2
QUIET = {"rounds": 10, "progress": False, "device": "cpu", "lr": 0.1, "batch_size": 16}


def people() -> fw.Federation:
    return fw.Federation.from_arrays(X, Y, client=OWNER, name="people")


def prepared(**train: object) -> build.PreparedRun:
    planned = plan(people(), ["local"], train={"rounds": 1, **train})
    return build.prepare(planned.study.run("people-local"), *planned.inputs)


def test_every_class_has_the_same_total_weight() -> None:
    federation = prepared(class_weights="balanced").federation
    for rows, weights in zip(federation.train, federation.own["class_weight"], strict=True):
        of_rows = weights[federation.shared["y"][rows[rows >= 0]]]
        labels = federation.shared["y"][rows[rows >= 0]]
        assert float(of_rows.mean()) == pytest.approx(1)
        assert float(of_rows[labels == 0].sum()) == pytest.approx(float(of_rows[labels == 1].sum()))
    assert "class_weight" not in prepared().federation.own


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_the_loss_is_weighted(executor: str) -> None:
    bench = prepared(class_weights="balanced", executor=executor)
    task = bench.method.task
    data = evaluation_cohort(bench.federation, 0, 0).client_data(0)
    rows = data.train[data.train >= 0]
    model = task.init(0)
    losses = task.row_loss(task.forward(model, data, rows), task.targets(data, rows))
    expected = (losses * data.arrays["class_weight"][task.targets(data, rows)]).mean()
    assert torch.allclose(task.objective(data)(model, rows, data.key)[0], expected)


@pytest.mark.acceptance
def test_weights_help_the_rare_class() -> None:
    """A test above checks the effect on the loss, in a fraction of the time."""
    recall = {}
    for weights in (None, "balanced"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done = fw.compare(
                people(), ["local", "ditto"], seeds=1, metric="balanced_accuracy", class_weights=weights, **QUIET
            )
        recall[weights] = done.leaderboard().set_index("method")["mean"].sort_index()
    assert (recall["balanced"] > recall[None] + 5).all()


def test_class_weights_are_refused_for_forecasts() -> None:
    series = fw.Federation.from_dataset(
        "us-income", "natural", clients=48, window=5, horizon=5, gap=4, split={"train": 0.5, "val": 0.2, "test": 0.3}
    )
    with pytest.raises(fw.BadInput, match=r"train\.class_weights needs classes, us-income has none; leave it out"):
        fw.fit("local", series, model="tpt_mlp", class_weights="balanced", **QUIET)
