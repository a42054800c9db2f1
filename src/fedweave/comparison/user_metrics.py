"""Conversion of what users give as a metric: a name, a metric, a function, or one of scikit-learn or torchmetrics."""

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from fedweave.errors import BadInput
from fedweave.metrics import METRICS, Metric
from fedweave.registry import definition
from fedweave.study import plugins

# Arguments of metrics of torchmetrics that are fixed by the data or have no effect.
IGNORED_ARGUMENTS = ("num_classes", "num_labels", "num_outputs", "validate_args")
# Values of one class that need rows of it: where a client lacks a class, torchmetrics counts 0 for it in the mean.
NEED_ROWS = ("AUROC", "AveragePrecision", "Recall", "Accuracy")
LOWER_IS_BETTER = ("_loss", "_error", "_deviance")  # ends of names of functions, as in scikit-learn
ADVICE = "give a name, a function (targets, outputs) -> number, fw.Metric(...), or one of scikit-learn or torchmetrics"


def register_metric(metric: Any) -> str | None:
    """The name of a metric in `METRICS`, where a user's own is registered; None for None.

    Raises:
        BadInput: it is not a metric, or a metric of another definition has its name.
    """
    if metric is None:
        return None
    if isinstance(metric, str):
        plugins.load_if_missing(metric, METRICS)
        return metric
    entry = metric if isinstance(metric, Metric) else _build_metric(metric)
    registered = METRICS.get(entry.name)
    if registered is not None and registered != entry and definition(registered.function) != definition(entry.function):
        where = definition(registered.function)[0]
        raise BadInput(f"metric: {entry.name!r} is the name of another metric, in {where}; rename yours")
    METRICS[entry.name] = entry
    return entry.name


def _build_metric(entry: Any) -> Metric:
    """A metric made of a function, of a scorer of scikit-learn, or of a metric of torchmetrics."""
    if isinstance(entry, type) or not callable(entry):
        raise BadInput(f"metric: {entry!r} is not a metric; {ADVICE}")
    if not hasattr(entry, "__name__") and type(entry).__module__.startswith("sklearn.metrics"):
        score = getattr(getattr(entry, "_score_func", None), "__name__", "scorer")
        return Metric(f"sklearn_{score}{_suffix(getattr(entry, '_kwargs', {}))}", SklearnFunction(entry))
    name = getattr(entry, "__name__", type(entry).__name__)
    if type(entry).__module__.startswith("torchmetrics."):
        higher = getattr(entry, "higher_is_better", None)
        name = f"torchmetrics_{name}{_suffix(_arguments(entry))}"
        return Metric(name, TorchmetricsFunction(entry), higher_is_better=higher is not False)
    if not name.isidentifier():
        raise BadInput(f"metric: {name!r} has no name; write fw.Metric('name', function)")
    higher = getattr(entry, "higher_is_better", not name.endswith(LOWER_IS_BETTER))
    return Metric(name, entry, higher_is_better=bool(higher), is_guessed=not hasattr(entry, "higher_is_better"))


def _suffix(options: Mapping[str, Any]) -> str:
    """Options as a part of a name, so that two metrics of one class have two names in every process."""
    return "".join(re.sub(r"\W", "_", f"_{key}_{value}") for key, value in sorted(options.items()))


def _arguments(metric: Any) -> dict[str, Any]:
    """The arguments of a metric of torchmetrics that are not the defaults of its class."""
    signature = inspect.signature(type(metric).__init__).parameters
    values = {
        name: getattr(metric, name, one.default) for name, one in signature.items() if name not in IGNORED_ARGUMENTS
    }
    plain = {name: value for name, value in values.items() if isinstance(value, int | float | str)}
    return {name: value for name, value in plain.items() if value != signature[name].default}


class SklearnFunction:
    """A scorer of scikit-learn as a function (targets, outputs): it gets an estimator that returns these outputs."""

    def __init__(self, scorer: Callable[..., float]) -> None:
        self.scorer = scorer

    def __call__(self, targets: np.ndarray, outputs: np.ndarray) -> float:
        """The score; its sign is that of the scorer, for which larger is always better."""
        classes = np.issubdtype(np.asarray(targets).dtype, np.integer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # rows of one class, at every evaluation of every client
            return float(self.scorer(_estimator(classes, outputs.shape[-1]), outputs, targets))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SklearnFunction) and repr(self.scorer) == repr(other.scorer)

    def __hash__(self) -> int:
        return hash(repr(self.scorer))


class TorchmetricsFunction:
    """A metric of torchmetrics as a function (targets, outputs): reset, and one update on all rows.

    Binary metrics get the probability of the second class, others all outputs. Macro averages of `NEED_ROWS` are over
    the classes of the targets.
    """

    def __init__(self, metric: Any) -> None:
        self.metric, self._name = metric, type(metric).__name__
        self._updated = copy.deepcopy(metric)
        if self._name.startswith("Multiclass") and self._name.endswith(NEED_ROWS) and metric.average == "macro":
            self._updated.average = "none"  # one value for each class
        self.__qualname__ = str(self._settings())  # metrics with different settings are different definitions

    def __call__(self, targets: np.ndarray, outputs: np.ndarray) -> float:
        """The value; NaN for targets that do not define it."""
        binary = self._name.startswith("Binary") and outputs.ndim == 2 and outputs.shape[1] == 2
        predictions = outputs[:, 1] if binary else outputs
        ignored = getattr(self.metric, "ignore_index", None)
        present = np.setdiff1d(targets, [] if ignored is None else [ignored])
        if self._is_undefined(present):
            return float("nan")
        self._updated.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # absent classes, at every evaluation of every client
            self._updated.update(torch.from_numpy(np.array(predictions)), torch.from_numpy(np.array(targets)))
            values = self._updated.compute()
        return float(values if values.ndim == 0 else values[present].mean())

    def _is_undefined(self, present: np.ndarray) -> bool:
        """Whether targets of these classes do not define the metric."""
        if self._name.endswith("AUROC"):
            return len(present) < 2
        return self._name in ("BinaryAveragePrecision", "BinaryRecall") and 1 not in present

    def _settings(self) -> tuple[Any, ...]:
        public = {key: value for key, value in vars(self.metric).items() if not key.startswith("_")}
        plain = ((key, value) for key, value in public.items() if isinstance(value, int | float | str))
        return type(self.metric), *sorted(plain)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchmetricsFunction) and self._settings() == other._settings()

    def __hash__(self) -> int:
        return hash(type(self.metric))


def _estimator(classes: bool, width: int) -> Any:
    """An estimator that returns its inputs. One of numbers has no `predict_proba`, which scorers look for."""
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

    class IdentityClassifier(ClassifierMixin, BaseEstimator):
        """Returns its inputs [M, C], probabilities of classes."""

        classes_ = np.arange(width)

        def predict(self, x: np.ndarray) -> np.ndarray:
            """The most probable class [M]."""
            return np.asarray(x.argmax(1))

        def predict_proba(self, x: np.ndarray) -> np.ndarray:
            """Probabilities [M, C]."""
            return x

        def __sklearn_is_fitted__(self) -> bool:
            return True

    class IdentityRegressor(RegressorMixin, BaseEstimator):
        """Returns its inputs."""

        def predict(self, x: np.ndarray) -> np.ndarray:
            """Values [M] or [M, horizon]."""
            return x

        def __sklearn_is_fitted__(self) -> bool:
            return True

    return IdentityClassifier() if classes else IdentityRegressor()
