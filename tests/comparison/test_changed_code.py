"""A folder of results whose code reads other values than before, as after an edit of a notebook or a script."""

import functools
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import make_scorer
from torch import nn

import fedweave as fw
from fedweave.methods import METHODS
from fedweave.metrics import METRICS
from fedweave.models.source import find_reads

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
DRAWS = np.random.default_rng(0)
X = DRAWS.normal(size=(120, 4))
PEOPLE = fw.Federation.from_arrays(X, X[:, 0] > 0, client=["Ann", "Bob", "Cy"] * 40, name="people")
FACTOR = 1.0
CONFIG = types.SimpleNamespace(factor=1.0)


class Net(nn.Module):
    def __init__(self, shape: tuple[int, ...], outputs: int, factor: float = 1.0) -> None:
        super().__init__()
        self.hidden, self.top, self.factor = nn.Linear(shape[0], 5), nn.Linear(5, outputs), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(self.hidden(x * self.factor).relu())


def scale(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


class ByHelper(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(scale(x))


class ByConfig(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * CONFIG.factor)


WEIGHTS: dict[str, Any] = {}  # a table and texts, as they come from a file


class ByTable(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * float(WEIGHTS["table"]["weight"].iloc[0]))


class ByTexts(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * float(WEIGHTS["texts"][0]))


def by_argument(shape: tuple[int, ...], outputs: int, factor: float) -> nn.Module:
    return Net(shape, outputs, factor)


def predict_shares(task: Any) -> dict[str, Any]:
    shares = [0.5 + FACTOR / 10, 0.5 - FACTOR / 10]
    return {one.name: [np.tile(shares, (len(x), 1)) for x in (one.val_x, one.test_x)] for one in task.clients}


class Shares(ClassifierMixin, BaseEstimator):
    def fit(self, x: np.ndarray, y: np.ndarray) -> "Shares":
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return np.tile([0.5 + FACTOR / 10, 0.5 - FACTOR / 10], (len(x), 1))

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.classes_[self.predict_proba(x).argmax(1)]


def weighted(targets: np.ndarray, outputs: np.ndarray) -> float:
    hits = (outputs.argmax(1) if outputs.ndim > 1 else outputs) == targets
    return float((hits * np.where(targets == 1, abs(FACTOR), 1)).mean())


def fit(out: Path, method: Any = "fedavg", **options: Any) -> float:
    result = fw.fit(method, PEOPLE, **{"rounds": 2, "lr": 0.3, "progress": False, **options}, out=out)
    return float(result.history["value"].sum())


def made(factor: float) -> Callable[[tuple[int, ...], int], nn.Module]:
    """A function whose closure has the factor, which scales the initial values."""

    def make(shape: tuple[int, ...], outputs: int) -> nn.Module:
        net = Net(shape, outputs)
        with torch.no_grad():
            net.hidden.weight.mul_(factor)
        return net

    return make


def seeded(factor: float) -> nn.Module:
    torch.manual_seed(0)
    return Net((4,), 2, factor)


LOSS = {"metric": "log_loss"}
CALLS: dict[str, Callable[[float], dict[str, Any]]] = {
    "a constant that a function beside the model reads": lambda factor: {"model": ByHelper},
    "a table of pandas": lambda factor: {"model": ByTable},
    "an array of texts": lambda factor: {"model": ByTexts},
    "a namespace of settings": lambda factor: {"model": ByConfig},
    "the closure of the function that makes the model": lambda factor: {"model": made(factor)},
    "an argument of it": lambda factor: {"model": functools.partial(by_argument, factor=factor)},
    "the closure of a lambda": lambda factor: {"model": lambda shape, outputs: Net(shape, outputs, factor)},
    "an attribute of a module": lambda factor: {"model": seeded(factor)},
    "a constant of a metric": lambda factor: {"metric": weighted},
    "a constant of a scorer": lambda factor: {"metric": make_scorer(weighted)},
    "a constant of a function": lambda factor: {"method": fw.contestants.function(predict_shares), **LOSS},
    "the code of an estimator": lambda factor: {"method": fw.contestants.estimator(Shares(), "client"), **LOSS},
}


@pytest.fixture
def factor(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the factor of this file, as an edit does."""

    def set_factor(value: float) -> None:
        monkeypatch.setitem(globals(), "FACTOR", value)
        monkeypatch.setattr(CONFIG, "factor", value)
        table = pd.DataFrame({"weight": [value], "words": [["a list", "in a cell"]]})
        monkeypatch.setitem(WEIGHTS, "table", table)
        monkeypatch.setitem(WEIGHTS, "texts", np.array([str(value)], dtype=object))

    return set_factor


@pytest.mark.parametrize("what", CALLS)
def test_a_run_is_trained_again_when_its_code_reads_another_value(
    what: str, factor: Callable[[float], None], tmp_path: Path
) -> None:
    """The numbers are those of a new folder; with the first value, nothing is trained again."""
    factor(1.0)
    before = fit(tmp_path / "out", **CALLS[what](1.0))
    written = (stored := next((tmp_path / "out" / "runs").glob("*/run.json"))).stat().st_mtime_ns
    assert fit(tmp_path / "out", **CALLS[what](1.0)) == before
    assert stored.stat().st_mtime_ns == written
    factor(-3.0)
    after = fit(tmp_path / "out", **CALLS[what](-3.0))
    assert after == fit(tmp_path / "new", **CALLS[what](-3.0)) != before
    for name in ("weighted", "sklearn_weighted"):
        METRICS.pop(name, None)


def test_a_method_of_ones_own_is_trained_again_too(factor: Callable[[float], None], tmp_path: Path) -> None:
    @fw.method("factored")
    @dataclass(frozen=True, kw_only=True)
    class Factored(fw.families.SplitClient, fw.families.GlobalModel):
        """A server that scales the mean by a constant of the file."""

        label = "Factored"

        def merge(self, old: dict[str, torch.Tensor], mean: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {name: value * (1 + FACTOR / 5) for name, value in mean.items()}

    before = fit(tmp_path / "out", Factored())
    assert fit(tmp_path / "out", Factored()) == before
    factor(-9.0)
    assert fit(tmp_path / "out", Factored()) == fit(tmp_path / "new", Factored()) != before
    del METHODS["factored"]


def test_other_methods_and_predictions_need_the_values_of_training(
    factor: Callable[[float], None], tmp_path: Path
) -> None:
    """A folder holds runs of equal terms; a model predicts as it was trained, whoever makes it."""
    fit(tmp_path, model=ByHelper)
    loaded = fw.load(tmp_path)["fedavg"]
    expected = loaded.predict_proba(X[:5], "Ann", model=ByHelper)
    again = loaded.predict_proba(X[:5], "Ann", model=lambda shape, outputs: ByHelper(shape, outputs))
    np.testing.assert_array_equal(again, expected)
    factor(2.0)
    words = r"run 'people-fedavg' was made with .*: model\.reads\.FACTOR: '\w+' there, '"
    with pytest.raises(fw.BadInput, match=words):
        fit(tmp_path, "ditto", model=ByHelper)
    words = "predict: model 'ByHelper' reads FACTOR, which was another in training; give"
    with pytest.raises(fw.BadInput, match=words):
        loaded.predict(X[:5], "Ann", model=ByHelper)


def test_other_methods_need_the_metric_of_the_folder(factor: Callable[[float], None], tmp_path: Path) -> None:
    """The scores of two definitions of a metric do not stand on one board."""
    fit(tmp_path, metric=weighted)
    fit(tmp_path, "local", metric=weighted)
    factor(2.0)
    with pytest.raises(fw.BadInput, match="metric: the code of weighted, or a value that it reads, was another there"):
        fit(tmp_path, "ditto", metric=weighted)
    del METRICS["weighted"]


def test_another_process_finds_the_same_values(tmp_path: Path) -> None:
    """Sets of texts have another order in each process."""
    code = "WORDS, TABLE = {'a', 'b', 'c', 'd'}, {'k': [1.5, None]}\ndef read(x):\n    return x in WORDS or TABLE\n"
    code += "from fedweave.models.source import find_reads\nprint(find_reads([read]))"
    (tmp_path / "script.py").write_text(code)  # a function needs a file with its source
    command, env = [sys.executable, tmp_path / "script.py"], {"PYTHONPATH": str(Path(fw.__file__).parents[1])}
    seen = {subprocess.check_output(command, env={**env, "PYTHONHASHSEED": seed, "PATH": ""}) for seed in "123"}
    assert len(seen) == 1
    assert b"WORDS" in next(iter(seen))


def test_objects_of_packages_do_not_count() -> None:
    """Modules, classes and generators of others, of which nothing is known, or whose state changes at every call."""

    def read(x: np.ndarray) -> Any:
        return np.clip(x, 0, 1), nn.Linear(2, 2), DRAWS, len(x)

    assert find_reads([read]) == {}
