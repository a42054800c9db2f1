"""Metrics: functions of targets and outputs, for the rows of one client or for those of all clients together.

Definitions are those of scikit-learn. A metric is NaN where the targets do not define it, such as the area under the
ROC curve of rows of one class. This depends on targets alone, so that all methods are compared on the same clients.
"""

import math
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedweave.errors import BadInput, choose, first_line, format_value
from fedweave.exported_model import probabilities
from fedweave.registry import check_name, register

Function = Callable[[np.ndarray, np.ndarray], float]
KINDS = ("classes", "numbers", "forecasts")
NUMBERS = ("numbers", "forecasts")
SHARE_OF_MEAN = re.compile(r"(\d+(?:\.\d+)?) ?%")
WIDEST_SHARE = 0.5  # scores of which one is more than 1.5 times the other are equivalent to nobody
AFTER_RESULTS = "chosen after the results"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,49}")
PERCENT, SHARE, ERROR = (0.0, 100.0), (0.0, 1.0), (0.0, math.inf)  # bounds of metrics
BINS = 15  # of the calibration error, as in Guo et al., 2017
EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Metric:
    """A metric: a function that says how good outputs are, and how tables and figures show its values.

    Attributes:
        name: in studies, tables and files.
        function: (targets, outputs) -> number. Of classes: numbers of classes [M] and probabilities [M, C]; of numbers
            and forecasts: values [M] or [M, horizon], and as many outputs.
        kinds: of targets that it fits: "classes", "numbers", "forecasts".
        higher_is_better: its direction.
        unit: "%" for percentages, which have two decimals; else empty.
        title: of axes; default: the name.
        needs: what a client's rows must have to define it, for messages.
        bounds: its smallest and its largest possible value, where intervals of means end.
        is_guessed: whether its direction is a guess from the name of a function.
    """

    name: str
    function: Function
    kinds: tuple[str, ...] = KINDS
    higher_is_better: bool = True
    unit: str = ""
    title: str = ""
    needs: str = ""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    is_guessed: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise BadInput("metric", f"{self.name!r} is not a name; use letters, digits, - and _, at most 50")
        for kind in self.kinds:
            choose(kind, KINDS, f"metric {self.name}: kinds")

    @property
    def is_of_user(self) -> bool:
        """Whether its function is a user's own, of which nothing is known."""
        return self.function.__module__ != __name__

    def value(self, kind: str, targets: np.ndarray, outputs: np.ndarray) -> float:
        """The value for M rows; NaN if there are none, or if an output is not finite.

        Args:
            kind: of the targets.
            targets: [M] or [M, horizon]. If a function fails on rows of one class, the value is NaN.
            outputs: of a model: scores or probabilities of classes [M, C], or values like `targets`.

        Raises:
            BadInput: the function fails or gives no number.
        """
        outputs = np.asarray(outputs, dtype=np.float64)
        if not len(targets) or not np.isfinite(outputs).all():
            return float("nan")
        outputs = probabilities(outputs) if kind == "classes" else outputs
        one_class = kind == "classes" and bool((targets == targets[0]).all())
        try:
            # Without its warnings, at every evaluation of every such client. For the others, `catch_warnings` would
            # make Python forget which warnings it has shown.
            with warnings.catch_warnings(action="ignore") if one_class else nullcontext():
                return float(self.function(targets, outputs))
        except Exception as error:  # a user's function can raise anything
            if one_class:
                return float("nan")  # such as a scorer of scikit-learn that needs every class
            reason = first_line(error)
            raise BadInput(
                f"metric {self.name}: fails on targets {[*targets.shape]} and outputs {[*outputs.shape]} ({reason}); "
                "it must give a number, or nan"
            ) from error

    def check(self, kind: str, width: int) -> None:
        """Refuse a user's function that fails on a few rows of made-up targets, `width` classes or steps.

        Raises:
            BadInput: as `value`, or the function is better for wrong outputs than for right ones.
        """
        if not self.is_of_user:
            return
        rows = np.arange(4 * width) % width
        steps = 2 + np.cos(np.arange(4 * width * width).reshape(-1, width))  # above 0, as many metrics need them
        targets = {"classes": rows, "numbers": steps[:, 0], "forecasts": steps}[kind]
        outputs = steps[:, -1] if kind == "numbers" else steps
        self.value(kind, targets, outputs)
        if self.is_guessed:
            self._check_direction(kind, targets, 0.9 * np.eye(width)[rows] + 0.1 / width)

    def _check_direction(self, kind: str, targets: np.ndarray, probabilities: np.ndarray) -> None:
        """Refuse a direction by which the worst method would be chosen, and come first.

        Args:
            probabilities: of the right classes [M, C].
        """
        pair = (probabilities, np.roll(probabilities, 1, axis=1)) if kind == "classes" else (targets, 2 * targets + 1)
        right, wrong = (self.value(kind, targets, outputs) for outputs in pair)
        if right < wrong if self.higher_is_better else right > wrong:
            direction = f"higher_is_better={not self.higher_is_better}"
            raise BadInput(
                f"metric {self.name}: is {right:.4g} for right outputs and {wrong:.4g} for wrong ones, but by its name "
                f"{'higher' if self.higher_is_better else 'lower'} is better; give "
                f"fw.Metric({self.name!r}, {self.name}, {direction})"
            )


FUNCTIONS: dict[str, Function] = {}
METRICS: dict[str, Metric] = {}


def metric(name: str, **about: Any) -> Callable[[Function], Function]:
    """Register the decorated function (targets, outputs) -> number as the metric `name`.

    Args:
        name: of the metric.
        about: the other attributes of `Metric`: kinds, higher_is_better, unit, title, needs, bounds.

    Raises:
        BadInput: the decorated object is not a function, or another function has this name.
    """
    check_name("metric", name)

    def enter(function: Function) -> Function:
        if not callable(function):
            raise BadInput(
                f"metric {name!r}: {format_value(function)} is not a function; write one of (targets, outputs)"
            )
        entry = Metric(name, function, **about)
        register(FUNCTIONS, "metric", name, function)
        METRICS[name] = entry
        return function

    return enter


def check_fit(name: str, kind: str, where: str) -> Metric:
    """The metric called `name`, which must fit targets of `kind`.

    Raises:
        BadInput: an unknown metric, or one that does not fit.
    """
    entry = METRICS[choose(name, METRICS, where)]
    if kind not in entry.kinds:
        choices = ", ".join(sorted(other for other, one in METRICS.items() if kind in one.kinds))
        raise BadInput(where, f"{name} does not fit {kind}; choices: {choices}")
    return entry


def unit(name: str) -> str:
    """ " %" after a value of the metric `name`, or nothing."""
    return f" {METRICS[name].unit}" if name in METRICS and METRICS[name].unit else ""


def title(name: str) -> str:
    """Title of an axis that shows the metric `name`."""
    return (METRICS[name].title or name) if name in METRICS else name


def spell_out(name: str) -> str:
    """The metric for people who do not know its name.

    >>> spell_out("accuracy"), spell_out("mse")
    ('accuracy, %', 'mean squared error (mse)')
    """
    words = title(name)
    known = name in words.lower().replace("-", "_").replace(" ", "_")
    return words if known else f"{words} ({name})"


def clip(name: str, values: Any) -> Any:
    """`values` within the bounds of the metric `name`."""
    return np.clip(values, *METRICS[name].bounds) if name in METRICS else values


def higher_is_better(name: str) -> bool:
    """Whether larger values of the metric `name` are better; true for a metric that is not defined here."""
    return METRICS[name].higher_is_better if name in METRICS else True


@metric("accuracy", kinds=("classes",), unit="%", title="accuracy, %", bounds=PERCENT)
def accuracy(targets: np.ndarray, outputs: np.ndarray) -> float:
    """Percentage of rows whose most probable class is the true one."""
    return 100.0 * float(_hits(targets, outputs).mean())


@metric("balanced_accuracy", kinds=("classes",), unit="%", title="balanced accuracy, %", bounds=PERCENT)
def balanced_accuracy(targets: np.ndarray, outputs: np.ndarray) -> float:
    """Mean over the classes of the targets of the percentage of their rows that are recognised."""
    hits, true, _ = _count_classes(targets, outputs)
    return 100.0 * float((hits[true > 0] / true[true > 0]).mean())


@metric(
    "roc_auc", kinds=("classes",), title="area under the ROC curve", needs="rows of at least two classes", bounds=SHARE
)
def roc_auc(targets: np.ndarray, outputs: np.ndarray) -> float:
    """Area under the ROC curve of the second of two classes; of more, the mean over classes of each against the rest.

    A class that the targets lack is left out of the mean. NaN for targets of one class.
    """
    present = np.unique(targets)
    if len(present) < 2:
        return float("nan")
    classes = [1] if outputs.shape[1] == 2 else present.tolist()
    return float(np.mean([_area_under_roc(targets == label, outputs[:, label]) for label in classes]))


def _area_under_roc(is_positive: np.ndarray, scores: np.ndarray) -> float:
    """The bits of scikit-learn's `roc_auc_score`, whose checks take most of the time of a round with few rows."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # the last row of every score
    positives = np.cumsum(is_positive[order])[ends]
    counts = np.stack([1 + ends - positives, positives]).astype(np.float64)  # [2, thresholds], of both classes
    if counts.shape[1] > 2:  # points on a straight line are left out
        counts = counts[:, np.concatenate([[True], np.diff(counts, 2).any(0), [True]])]
    shares = np.concatenate([np.zeros((2, 1)), counts], axis=1) / counts[:, -1:]
    return float(np.trapezoid(shares[1], shares[0]))


@metric("f1", kinds=("classes",), title="F1", needs="rows of the second class", bounds=SHARE)
def f1(targets: np.ndarray, outputs: np.ndarray) -> float:
    """F1 of the second of two classes, NaN where no target is of it; of more classes the same as `f1_macro`."""
    if outputs.shape[1] > 2:
        return f1_macro(targets, outputs)
    hits, true, predicted = _count_classes(targets, outputs)
    return float(2 * hits[1] / (true[1] + predicted[1])) if true[1] else float("nan")


@metric("f1_macro", kinds=("classes",), title="F1, mean over classes", bounds=SHARE)
def f1_macro(targets: np.ndarray, outputs: np.ndarray) -> float:
    """Mean of F1 over the classes that are true or predicted."""
    hits, true, predicted = _count_classes(targets, outputs)
    rows = true + predicted
    return float((2 * hits[rows > 0] / rows[rows > 0]).mean())


def _count_classes(targets: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of each class [C] that are recognised, that are of it, and that are predicted as it."""
    found, count = outputs.argmax(1), outputs.shape[1]
    rows = (targets[found == targets], targets, found)
    hits, true, predicted = (np.bincount(classes, minlength=count) for classes in rows)
    return hits, true, predicted


@metric("log_loss", kinds=("classes",), higher_is_better=False, title="log-loss, nats", bounds=ERROR)
def log_loss(targets: np.ndarray, outputs: np.ndarray) -> float:
    """Mean of minus the logarithm of the true class's probability, which is at least the smallest step of a float64."""
    return float(_log_losses(targets, outputs).mean())


@metric(
    "calibration_error", kinds=("classes",), higher_is_better=False, title="expected calibration error", bounds=SHARE
)
def calibration_error(targets: np.ndarray, outputs: np.ndarray) -> float:
    """Expected calibration error: |accuracy - confidence| of 15 equal bins of confidence, weighted by their rows.

    Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, Eq. 3.
    """
    confidence, correct = outputs.max(1), outputs.argmax(1) == targets
    bin_numbers = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.bincount(bin_numbers, weights=correct - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(targets))


@metric("mae", kinds=NUMBERS, higher_is_better=False, title="mean absolute error", bounds=ERROR)
def mae(targets: np.ndarray, outputs: np.ndarray) -> float:
    """Mean absolute error over rows and steps."""
    return float(np.abs(_differences(targets, outputs)).mean())


@metric("mse", kinds=NUMBERS, higher_is_better=False, title="mean squared error", bounds=ERROR)
def mse(targets: np.ndarray, outputs: np.ndarray) -> float:
    """Mean squared error over rows and steps."""
    return float(np.square(_differences(targets, outputs)).mean())


@metric("rmse", kinds=NUMBERS, higher_is_better=False, title="root mean squared error", bounds=ERROR)
def rmse(targets: np.ndarray, outputs: np.ndarray) -> float:
    """Root of the mean squared error over rows and steps."""
    return float(np.sqrt(mse(targets, outputs)))


@metric("r2", kinds=NUMBERS, title="R²", needs="targets that differ", bounds=(-math.inf, 1.0))
def r2(targets: np.ndarray, outputs: np.ndarray) -> float:
    """Coefficient of determination over all values of all steps; NaN where all targets are equal."""
    from sklearn.metrics import r2_score

    flat = np.asarray(targets, dtype=np.float64).reshape(-1)
    if np.ptp(flat) == 0:
        return float("nan")
    return float(r2_score(flat, _reshape_outputs(targets, outputs).reshape(-1)))


def _reshape_outputs(targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """`outputs` in the shape of the targets, which may lack a last axis of length one."""
    return outputs.reshape(np.shape(targets))


def _differences(targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    return _reshape_outputs(targets, outputs) - np.asarray(targets, dtype=np.float64)


def _hits(targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    return np.asarray(outputs.argmax(1) == targets)


def _log_losses(targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """What scikit-learn's `log_loss` has for each row [M]; its checks take a hundred times as long."""
    from scipy.special import xlogy

    chances = outputs[np.arange(len(targets)), targets] / outputs.sum(1)
    return np.asarray(-xlogy(1.0, chances.clip(EPSILON, 1 - EPSILON)))


# Metrics that are the mean of a value of each row: name -> (targets [M, ...], outputs) -> values [M].
_ROW_VALUES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "accuracy": lambda targets, outputs: 100.0 * _hits(targets, outputs),
    "log_loss": _log_losses,
    "mae": lambda targets, outputs: np.abs(_differences(targets, outputs)).reshape(len(targets), -1).mean(1),
    "mse": lambda targets, outputs: np.square(_differences(targets, outputs)).reshape(len(targets), -1).mean(1),
}


def row_values(name: str, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray | None:
    """The values [M] of single rows, of which the metric `name` is the mean; None for another metric.

    Args:
        targets, outputs: of M rows, as of `Metric.value`.
    """
    if name not in _ROW_VALUES:
        return None
    outputs = np.asarray(outputs, dtype=np.float64)
    if METRICS[name].kinds == ("classes",):
        outputs = probabilities(outputs)
    return _ROW_VALUES[name](targets, outputs)


@dataclass(frozen=True)
class Margin:
    """The largest difference that is equivalent in practice: `points` of the score, or `share` of the smaller mean.

    `after_results`: it was chosen when the scores were there, which `describe` says.
    """

    points: float = 0.0
    share: float = 0.0
    after_results: bool = field(default=False, compare=False)

    def of(self, first: float, second: float) -> float:
        """The margin of two means, in the unit of the score."""
        return self.points + self.share * min(abs(first), abs(second))

    def describe(self, metric: str) -> str:
        """The margin in words: "1 point", "0.01" or "5 % of the error"; "none" if nothing is equivalent."""
        if not (self.share or self.points):
            return "none"
        size = f"{self.points:g}" + (f" point{'s' * (self.points != 1)}" if unit(metric) else "")
        if self.share:
            size = f"{100 * self.share:g} % of the {'smaller mean' if higher_is_better(metric) else 'error'}"
        return size + f", {AFTER_RESULTS}" * self.after_results


def parse_margin(value: object, where: str, metric: Any = None) -> Margin:
    """A margin from a number in the unit of the score, or from a share of the mean such as "5 %".

    Raises:
        BadInput: it is neither, or more than half of the mean, or as wide as the values of `metric`, where that is the
            name of one.
    """
    low, high = METRICS[metric].bounds if isinstance(metric, str) and metric in METRICS else ERROR
    if isinstance(value, int | float) and high - low <= value < math.inf:
        problem = f"{value:g} is the whole range of {metric}, {low:g} to {high:g}; write a part of it, such as 0.01"
        raise BadInput(where, problem)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return Margin(points=float(value))
    if isinstance(value, str) and (match := SHARE_OF_MEAN.fullmatch(value.strip())):
        if (share := float(match[1]) / 100) > WIDEST_SHARE:
            raise BadInput(where, f"{value.strip()} of the mean is more than 50 %; write 50 % or less, such as '5 %'")
        return Margin(share=share)
    raise BadInput(
        where,
        f"{format_value(value)} is not a margin; write a number in the unit of the score, such as 0.5, or a "
        "share of the mean, such as '5 %'",
    )


def write_margin(margin: Margin) -> float | str:
    """A margin as `parse_margin` reads it."""
    return f"{round(100 * margin.share, 10):g} %" if margin.share else margin.points


def parse_margins(values: Mapping[str, object], where: str) -> dict[str, Margin]:
    """Metric -> its margin.

    Raises:
        BadInput: one is not its metric's margin; `where` stands before its metric.
    """
    return {str(metric): parse_margin(value, f"{where}{metric}", metric) for metric, value in values.items()}


def margin_of(metric: str, margins: Mapping[str, Margin]) -> Margin:
    """The margin of a metric in `margins`, or else the default."""
    return margins.get(metric) or default_margin(metric)


def default_margin(metric: str) -> Margin:
    """One point of a percentage, 0.01 of a share, 5 % of an error; none for a metric whose bounds are not known."""
    about = METRICS.get(metric)
    if about is None:
        return Margin()
    if not about.higher_is_better:
        return Margin(share=0.05)
    width = about.bounds[1] - about.bounds[0]
    return Margin(points=0.01 * width) if np.isfinite(width) else Margin()
