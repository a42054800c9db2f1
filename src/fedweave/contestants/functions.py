"""Contestants in this process: a function of a task, and an estimator of scikit-learn."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from threadpoolctl import threadpool_limits

from fedweave.contestants import origins
from fedweave.contestants.entry import OWN_BUDGET, UNTUNED, Runner
from fedweave.contestants.rows import ContestAnswers, ContestClient, ContestTask, Pair
from fedweave.errors import ContestantFailed
from fedweave.models.source import source_of
from fedweave.processes.forks import one_thread

ALL_ROWS = "it reads the rows of all clients, so that nothing shows that it is federated"
OWN_ROWS = "each client has a model of its own rows"
POOLED_ROWS = "it is not federated: one model of the rows of all clients"


@dataclass(frozen=True, eq=False)
class FunctionRunner(Runner):
    """A function (task) -> predictions, which runs in this process with one thread."""

    function: Callable[[ContestTask], Any]

    how = "function"
    unequal = (OWN_BUDGET, ALL_ROWS, UNTUNED)

    def digest(self) -> str:
        cells = [repr(cell.cell_contents) for cell in getattr(self.function, "__closure__", None) or ()]
        defaults = repr(getattr(self.function, "__defaults__", None))
        return "".join([source_of(self.function), *cells, defaults])

    def describe(self) -> dict[str, Any]:
        return {"code": f"{self.function.__module__}.{getattr(self.function, '__qualname__', 'function')}"}

    def run(self, task: ContestTask, log: Path) -> ContestAnswers:
        """What the function gives, in whatever form; `check_answers` reads it."""
        with _run_here("it ended with"):
            result: ContestAnswers = self.function(task.without_origins())
            return origins.ask_functions(task, result) if task.forecasts else result


@dataclass(frozen=True, eq=False)
class EstimatorRunner(Runner):
    """An estimator of scikit-learn on flattened inputs, of each client or of the rows of all clients.

    Attributes:
        estimator: a copy of it is fitted; its `random_state` is the seed of the repetition where it is None.
        scope: "client" or "pooled".
    """

    estimator: Any
    scope: Literal["client", "pooled"]

    how = "estimator"

    @property
    def unequal(self) -> tuple[str, ...]:  # type: ignore[override]
        """As of `Runner`."""
        return (OWN_BUDGET, OWN_ROWS if self.scope == "client" else POOLED_ROWS, UNTUNED)

    def digest(self) -> str:
        import sklearn

        return f"{self.estimator!r} {sorted(map(repr, self.estimator.get_params().items()))} {sklearn.__version__}"

    def describe(self) -> dict[str, Any]:
        return {"code": " ".join(repr(self.estimator).split()), "scope": self.scope}

    def run(self, task: ContestTask, log: Path) -> ContestAnswers:
        groups = [[client] for client in task.clients] if self.scope == "client" else [[*task.clients]]
        with _run_here(f"{type(self.estimator).__name__} ended with"):
            return ContestAnswers([pair for group in groups for pair in self._fit(task, group)])

    def _fit(self, task: ContestTask, clients: Sequence[ContestClient]) -> list[Pair]:
        """The predictions of one model for each of `clients`."""
        from sklearn.base import clone

        x, y = (np.concatenate([getattr(client, name) for client in clients]) for name in ("train_x", "train_y"))
        present = np.unique(y) if task.kind == "classes" else y
        if task.kind == "classes" and len(present) == 1:  # many estimators refuse rows of one class
            return [_constant(task, client, int(present[0])) for client in clients]
        model = clone(self.estimator)
        if "random_state" in (settings := model.get_params()) and settings["random_state"] is None:
            model.set_params(random_state=task.seed)
        model.fit(_flat(x), y[:, 0] if task.kind == "numbers" and task.outputs == 1 else y)
        return [(self._predict(task, model, c.val_x), self._predict_test(task, model, c.test_x)) for c in clients]

    def _predict_test(self, task: ContestTask, model: Any, x: np.ndarray) -> np.ndarray:
        """Of forecasts, one window at a time: the one after it contains its targets."""
        parts = [row[None].copy() for row in x] if task.forecasts and len(x) else [x]
        return np.concatenate([self._predict(task, model, part) for part in parts])

    def _predict(self, task: ContestTask, model: Any, x: np.ndarray) -> np.ndarray:
        if not len(x):
            return np.zeros((0, task.outputs))
        if task.kind != "classes":
            return np.asarray(model.predict(_flat(x)), dtype=float).reshape(len(x), task.outputs)
        outputs = np.zeros((len(x), task.outputs))
        if hasattr(model, "predict_proba"):
            outputs[:, model.classes_.astype(int)] = model.predict_proba(_flat(x))
        else:
            outputs[np.arange(len(x)), model.predict(_flat(x)).astype(int)] = 1.0
        return outputs


def _flat(x: np.ndarray) -> np.ndarray:
    """Inputs as columns [m, F]."""
    return x.reshape(len(x), -1)


def _constant(task: ContestTask, client: ContestClient, label: int) -> Pair:
    """The one class of a client's training rows, for all its rows."""
    return tuple(np.tile(np.eye(task.outputs)[label], (len(x), 1)) for x in (client.val_x, client.test_x))  # type: ignore[return-value]


@contextmanager
def _run_here(sentence: str) -> Iterator[None]:
    """Context of code from elsewhere: one thread, no warnings; its exceptions become `ContestantFailed`.

    A process that has used several threads of OpenMP cannot fork, as the methods of fedweave do.
    """
    import sklearn.ensemble  # noqa: F401  its OpenMP must be loaded before it is limited

    with one_thread(), threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except ContestantFailed:
            raise
        except Exception as error:  # it can raise anything
            reason = (str(error).splitlines() or [""])[0]
            raise ContestantFailed(f"{sentence} {type(error).__name__}", reason) from error
