"""A Flower app as a contestant, in the environment of `make flower`; its ServerApp and ClientApp know nothing of us."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import fedweave as fw
from fedweave.errors import BadInput
from fedweave.methods import METHODS

APP = Path(__file__).with_name("flower_app")


@pytest.fixture(autouse=True)
def _keep_methods():
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


@pytest.mark.acceptance
@pytest.mark.timeout(600)
def test_fedavg_as_a_flower_app_agrees_with_ours(flower: Path) -> None:
    """Full batches of a convex loss: only the first values of the model differ."""
    draws = np.random.default_rng(3)
    x = draws.normal(size=(240, 4)).astype(np.float32)
    y = np.where(2 * x[:, 0] - x[:, 1] + draws.logistic(size=240) > 0, "yes", "no")
    federation = fw.Federation.from_arrays(x, y, client=[f"c{i % 4}" for i in range(240)])
    theirs = fw.contestants.flower(APP, predict="logistic.task:predict", python=flower, settings={"learning_rate": 0.5})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fw.compare(
            federation, ["fedavg", theirs], model=lambda shape, k: nn.Sequential(nn.Flatten(), nn.Linear(4, k)),
            rounds=20, batch_size=0, lr=0.5, seeds=1, metric="log_loss", central=False, progress=False,
        )  # fmt: skip
    scores = result.leaderboard().set_index("method")["mean"]
    assert abs(scores["flower_app"] - scores["fedavg"]) < 0.02
    assert result["flower_app"].rounds["bytes_up"].item() > 20 * 4 * 10 * 8


def test_what_is_no_app_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no pyproject\.toml in .*; give the folder of a Flower app"):
        fw.contestants.flower(tmp_path, predict="a:b")
    with pytest.raises(BadInput, match=r"flower: python: .* is not there; make flower"):
        fw.contestants.flower(APP, predict="a:b", python=tmp_path / "none")
