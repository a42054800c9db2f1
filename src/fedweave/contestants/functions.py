"""Contestants in this process: a function of a task, and an estimator of scikit-learn."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, Literal

import numpy as np
from threadpoolctl import threadpool_limits

from fedweave.contestants import origins
from fedweave.contestants.entry import OWN_BUDGET, UNTUNED, Runner
from fedweave.contestants.rows import ContestAnswers, ContestClient, ContestTask, Pair
from fedweave.errors import BadInput, ContestantFailed, first_line
from fedweave.models.source import describe_code, is_users
from fedweave.processes.forks import one_thread

ALL_ROWS = "it reads the rows of all clients, so that nothing shows that it is federated"
OWN_ROWS = "each client has a model of its own rows"
POOLED_ROWS = "it is not federated: one model of the rows of all clients"
RAW_ROWS = "it prepares the raw rows itself"
NO_PROBABILITIES = "it gives classes without probabilities"
SCALED = "; numbers to predict are scaled here, with raw=True they are in their own unit"


@dataclass(frozen=True, eq=False)
class FunctionRunner(Runner):
    """A function (task) -> predictions, which runs in this process with one thread."""

    function: Callable[[ContestTask], Any]

    how = "function"
    unequal = (OWN_BUDGET, ALL_ROWS, UNTUNED)

    def digest(self) -> str:
        return describe_code([self.function])

    def describe(self) -> dict[str, Any]:
        return {"code": f"{self.function.__module__}.{getattr(self.function, '__qualname__', 'function')}"}

    def run(self, task: ContestTask, log: Path) -> ContestAnswers:
        """What the function gives, in whatever form; `check_answers` reads it."""
        with _run_here("it ended with"):
            result: ContestAnswers = self.function(task.without_origins())
            return origins.ask_functions(task, result) if task.forecasts else result


@dataclass(frozen=True, eq=False)
class EstimatorRunner(Runner):
    """An estimator of scikit-learn, of each client or of the rows of all clients.

    Attributes:
        estimator: a copy of it is fitted; each `random_state` in it that is None becomes the seed of the repetition.
        scope: "client" or "pooled".
        raw: what it reads: False, flattened inputs; True, the table of raw rows; or one column of this table. With raw
            rows, numbers to predict are in their own unit.
    """

    estimator: Any
    scope: Literal["client", "pooled"]
    raw: bool | str = False

    how = "estimator"

    @property
    def unequal(self) -> tuple[str, ...]:  # type: ignore[override]
        """As of `Runner`."""
        rows = OWN_ROWS if self.scope == "client" else POOLED_ROWS
        has_none = hasattr(self.estimator, "decision_function") and not hasattr(self.estimator, "predict_proba")
        notes = [RAW_ROWS] * bool(self.raw) + [NO_PROBABILITIES] * has_none
        return (OWN_BUDGET, rows, *notes, UNTUNED)

    def digest(self) -> str:
        import sklearn

        values = self.estimator.get_params()
        parts = [part for value in (self.estimator, *values.values()) for part in (type(value), value)]
        code = describe_code(part for part in parts if isinstance(part, type | FunctionType) and is_users(part))
        settings = sorted(map(repr, values.items()))
        return f"{self.estimator!r} {settings} {sklearn.__version__}{code}" + f" raw {self.raw}" * bool(self.raw)

    def describe(self) -> dict[str, Any]:
        return {"code": " ".join(repr(self.estimator).split()), "scope": self.scope, "raw": self.raw}

    def check_columns(self, names: Sequence[str]) -> None:
        if self.raw and (not names or not (self.raw is True or self.raw in names)):
            known = f"their raw columns are {', '.join(names)}" if names else "they came neither from a table nor texts"
            raise BadInput("raw", f"{self.raw!r} is not in these rows: {known}")

    def run(self, task: ContestTask, log: Path) -> ContestAnswers:
        groups = [[client] for client in task.clients] if self.scope == "client" else [[*task.clients]]
        hint = SCALED if task.kind == "numbers" and task.columns and not self.raw else ""
        sentence, pairs = f"{type(self.estimator).__name__} ended with", list[Pair]()
        with _run_here(sentence):
            self.check_columns([column["name"] for column in task.columns])
        for group in groups:
            place = f"client {group[0].name!r}: " if self.scope == "client" else ""
            with _run_here(f"{place}{sentence}", hint):
                pairs += self._fit(task, group)
        return ContestAnswers(pairs)

    def _fit(self, task: ContestTask, clients: Sequence[ContestClient]) -> list[Pair]:
        """The predictions of one model for each of `clients`."""
        from sklearn.base import clone

        in_unit = task.kind == "numbers" and self.raw
        y = np.concatenate([one.train_label if in_unit else one.train_y for one in clients])
        present = np.unique(y) if task.kind == "classes" else y
        if task.kind == "classes" and len(present) == 1:  # many estimators refuse rows of one class
            return [_constant(task, client, int(present[0])) for client in clients]
        model = clone(self.estimator)
        draws = {name for name, value in model.get_params().items() if name.endswith("random_state") and value is None}
        model.set_params(**dict.fromkeys(draws, task.seed))
        rows = _join([self._read(client, "train") for client in clients])
        model.fit(rows, y[:, 0] if task.kind == "numbers" and task.outputs == 1 else y)
        return [tuple(self._predict_part(task, model, one, part) for part in ("val", "test")) for one in clients]  # type: ignore[misc]

    def _read(self, client: ContestClient, part: str) -> Any:
        """The rows of a part as the estimator reads them: inputs as columns [m, F], raw rows, or a raw column."""
        if not self.raw:
            x = getattr(client, f"{part}_x")
            return x.reshape(len(x), math.prod(x.shape[1:]))  # also of no rows
        table = getattr(client, f"{part}_raw")
        return table if self.raw is True else table[self.raw]

    def _predict_part(self, task: ContestTask, model: Any, client: ContestClient, part: str) -> np.ndarray:
        """Of forecasts, one test window at a time: the one after it contains its targets."""
        rows = self._read(client, part)
        one_by_one = task.forecasts and part == "test" and len(rows)
        windows = [row[None].copy() for row in rows] if one_by_one else [rows]
        outputs = np.concatenate([self._predict(task, model, window) for window in windows])
        return (outputs - client.offset) / client.unit if task.kind == "numbers" and self.raw else outputs

    def _predict(self, task: ContestTask, model: Any, x: Any) -> np.ndarray:
        if not len(x):
            return np.zeros((0, task.outputs))
        if task.kind != "classes":
            return np.asarray(model.predict(x), dtype=float).reshape(len(x), task.outputs)
        outputs = np.zeros((len(x), task.outputs))
        if hasattr(model, "predict_proba"):
            outputs[:, model.classes_.astype(int)] = model.predict_proba(x)
        else:
            predicted = np.asarray(model.predict(x), dtype=float).ravel()
            if len(others := predicted[~np.isin(predicted, range(task.outputs))]):
                place = f"{type(model).__name__} predicted {others[0]:.4g}"
                raise ContestantFailed(place, f"classes are 0 to {task.outputs - 1}; give a classifier")
            outputs[np.arange(len(x)), predicted.astype(int)] = 1.0
        return outputs


def _join(parts: list[Any]) -> Any:
    """Rows of several clients, behind each other."""
    import pandas as pd

    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else pd.concat(parts, ignore_index=True)


def _constant(task: ContestTask, client: ContestClient, label: int) -> Pair:
    """The one class of a client's training rows, for all its rows."""
    return tuple(np.tile(np.eye(task.outputs)[label], (len(x), 1)) for x in (client.val_x, client.test_x))  # type: ignore[return-value]


@contextmanager
def _run_here(sentence: str, hint: str = "") -> Iterator[None]:
    """Context of code from elsewhere: one thread, no warnings; its exceptions become `ContestantFailed` with a hint.

    A process that has used several threads of OpenMP cannot fork, as the methods of fedweave do.
    """
    import sklearn.ensemble  # noqa: F401  its OpenMP must be loaded before it is limited

    with one_thread(), threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except ContestantFailed:
            raise
        except (Exception, SystemExit) as error:  # it can raise anything, also by sys.exit
            reason = first_line(error)
            raise ContestantFailed(f"{sentence} {type(error).__name__}", f"{reason}{hint}") from error
