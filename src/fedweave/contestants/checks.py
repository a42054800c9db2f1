"""Checks: what a contestant may take part in, and whether its predictions can be scored."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedweave.contestants.rows import ContestAnswers, ContestTask
from fedweave.errors import BadInput, ContestantFailed, format_count, format_value
from fedweave.exported_model import as_plain
from fedweave.study.spec import RunSpec

MOST_POINTS = 100_000  # of all curves of a repetition
MOST_BYTES = 1 << 62  # that all clients send; also of a round
OFF = 1e-3  # of a sum of probabilities from 1, by which rounding in a file of text is excused


def check_terms(run: RunSpec, where: str) -> None:
    """Refuse a contestant in a run whose terms it cannot be held to; no data are needed."""
    terms = {
        "privacy": run.train.privacy,
        "robust": run.train.robust,
        "newcomers": run.train.newcomers,
        "attack": run.task.attack,
    }
    if given := [name for name, value in terms.items() if value]:
        raise BadInput(
            f"{where}: {run.method}",
            f"{given[0]} cannot be asked of code from elsewhere; leave out the setting or the contestant",
        )


def check_answers(task: ContestTask, answers: Any, label: str) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Position of each evaluated client -> (outputs [v, K] of its validation rows, [m, K] of its test rows).

    Args:
        label: of the contestant, for messages.

    Raises:
        ContestantFailed: one line that names the contestant, the client and the part.
    """
    pairs = pair_up(task, answers.predictions if isinstance(answers, ContestAnswers) else answers, label)
    checked = {}
    for i, client in enumerate(task.clients):
        if client.evaluated:
            (val, test), place = pairs[i], f"{label}: client {client.name!r}"
            outputs = check_outputs(task, val, len(client.val_x), f"{place}: val")
            checked[i] = (outputs, check_outputs(task, test, len(client.test_x), f"{place}: test"))
    return checked


def pair_up(task: ContestTask, predictions: Any, label: str = "") -> list[Any]:
    """A pair (val, test) for each client in the order of the task; refused as by `check_answers`."""
    names, place = [client.name for client in task.clients], f"{label}: " if label else ""
    if isinstance(predictions, Mapping):
        if missing := [c.name for c in task.clients if c.evaluated and c.name not in predictions]:
            raise ContestantFailed(f"{place}client {missing[0]!r}", "it gave no predictions for this client")
        pairs = [predictions.get(name) for name in names]
    elif isinstance(predictions, Sequence) and not isinstance(predictions, str):
        if len(predictions) != len(names):
            counts = f"{len(predictions)} for {format_count(len(names), 'client')}"
            raise ContestantFailed(label, f"it gave {counts}; give a pair (val, test) for each client in its order")
        pairs = [*predictions]
    else:
        problem = f"it gave {format_value(predictions)}; give {{name of the client: (val, test)}}"
        raise ContestantFailed(label, problem)
    for client, pair in zip(task.clients, pairs, strict=True):
        if client.evaluated and not (isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2):
            raise ContestantFailed(f"{place}client {client.name!r}", "it gave no pair (val, test) of predictions")
    return pairs


def check_outputs(task: ContestTask, value: Any, rows: int, place: str) -> np.ndarray:
    """Predictions for `rows` rows as float64 [rows, K].

    Raises:
        ContestantFailed: at `place`; they have another length or shape, are not finite, or are no probabilities.
    """
    if hasattr(value, "columns"):  # with the names of the classes, in whatever order
        spell = str if len({*map(_plain, task.classes)}) < len(task.classes) else _plain
        named, wanted = {spell(name): name for name in value.columns}, [*map(spell, task.classes)]
        value = value[[named[name] for name in wanted]] if {*named} == {*wanted} else value
    try:
        value = as_plain(value)
        if np.iscomplexobj(value):
            raise TypeError
        outputs = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ContestantFailed(place, "it gave no array of numbers") from error
    classes = task.kind == "classes"
    if not rows and not outputs.size:
        return np.zeros((0, task.outputs))
    if outputs.ndim == 0 or len(outputs) != rows:
        count = "one number" if outputs.ndim == 0 else format_count(len(outputs), "prediction")
        raise ContestantFailed(place, f"it gave {count} for {format_count(rows, 'row')}")
    if outputs.ndim == 1 and not classes and task.outputs == 1:
        outputs = outputs[:, None]
    if outputs.shape != (rows, task.outputs):
        what = "a probability of each class" if classes else "the numbers of each target"
        raise ContestantFailed(place, f"it gave {[*outputs.shape]}; give {what}, {[rows, task.outputs]}")
    if not np.isfinite(outputs).all():
        bad = np.argwhere(~np.isfinite(outputs))[0]
        raise ContestantFailed(place, f"its prediction of row {bad[0]} is {outputs[tuple(bad)]}")
    if not classes:
        return outputs
    with np.errstate(over="ignore"):
        sums = outputs.sum(1)
    if (outputs < 0).any() or (abs(sums - 1) > OFF).any():
        row = int(((outputs < 0).any(1) | (abs(sums - 1) > OFF)).argmax())
        numbers = ", ".join(f"{number:.4g}" for number in outputs[row][:5])
        problem = f"its probabilities of row {row} ({numbers}) are below 0, or their sum is {sums[row]:.4g} and not 1"
        raise ContestantFailed(place, problem)
    return np.where(abs(sums - 1)[:, None] > 1e-6, outputs / sums[:, None], outputs)


def _plain(name: Any) -> str:
    """The name of a class without what spellings differ in: capitals, signs, and the X that R puts before a number."""
    return re.sub(r"^x(?=\d)", "", re.sub(r"\W+", "", str(name).casefold()))


def check_graph(task: ContestTask, graph: Any, label: str) -> np.ndarray | None:
    """The collaboration graph [N, N] that a contestant gave, whose weights must be finite, or None."""
    if graph is None:
        return None
    count = len(task.clients)
    try:
        weights = np.array(as_plain(graph), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ContestantFailed(f"{label}: graph", "it gave no array of numbers") from error
    if weights.shape != (count, count) or not np.isfinite(weights).all():
        raise ContestantFailed(f"{label}: graph", f"it gave {[*weights.shape]}; give finite weights {[count, count]}")
    return weights


def check_bytes(count: Any, label: str) -> int:
    """A count of bytes that a contestant gave, which must be a whole number from 0 to `MOST_BYTES`."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or not 0 <= count <= MOST_BYTES:
        problem = f"it gave {format_value(count)}; give a whole number from 0 to {MOST_BYTES}"
        raise ContestantFailed(f"{label}: bytes", problem)
    return int(count)


def check_curves(curves: Any, label: str) -> list[tuple[int, str, float]]:
    """The curves that a contestant gave, whose entries must be (round, name, value)."""
    try:
        rows = [(int(number), str(name), float(value)) for number, name, value in curves]
    except (TypeError, ValueError) as error:
        raise ContestantFailed(f"{label}: curves", "it gave no list of (round, name, value)") from error
    if bad := [row for row in rows if not (0 <= row[0] <= MOST_BYTES and math.isfinite(row[2]))]:
        raise ContestantFailed(f"{label}: curves", f"it gave {format_value(bad[0])}; give a round from 0 and a number")
    if len(rows) > MOST_POINTS:
        raise ContestantFailed(f"{label}: curves", f"it gave {len(rows)} points; give {MOST_POINTS} or fewer")
    return rows
