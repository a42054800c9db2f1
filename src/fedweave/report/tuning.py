"""What tuning changed, in sentences for the summary."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedweave.errors import format_count
from fedweave.metrics import unit
from fedweave.report import optional_files
from fedweave.results import Study
from fedweave.results.formats import with_minus_sign
from fedweave.study.search_spaces import RATE, has_rate

MOST_RUNS = 20  # whose learning rates a sentence lists
# Units of changes: of percentages, of errors, of a score that is neither a percentage nor an error.
POINTS, ERROR, ABSOLUTE = " points", " %", ""


def changes(study: Study) -> tuple[str, ...]:
    """The changes of validation scores by tuning: for how many runs, the median, and the largest."""
    runs = {run.name: run for run in study.runs}
    searches = [search for search in optional_files.tuning(study.folder) if search.run in runs]
    if not searches:
        line = describe_rates(study) or "untuned: every run has its declared values"
        return (f"{line[0].upper()}{line[1:]}.",)
    trials = sorted({len(search.trials) for search in searches})
    each = format_count(trials[0], "trial") if len(trials) == 1 else f"{trials[0]} to {trials[-1]} trials"
    by_kind: dict[str, list[tuple[float, str]]] = {}
    for search in searches:
        if search.best_row:
            change, kind = _change(search, runs[search.run].info)
            by_kind.setdefault(kind, []).append((change, search.run))
    changed = sum(map(len, by_kind.values()))
    line = describe_rates(study) if len(searches) <= MOST_RUNS else ""
    rates = (f"{line[0].upper()}{line[1:]}.",) if line else ()
    start = (
        f"{each} each for {len(searches)} of {format_count(len(runs), 'run')}; {changed} took other "
        "values than the declared ones."
    )
    sentences = (_change_sentence(kind, values) for kind, values in by_kind.items())
    return (start, *sentences, *_traffic_sentence(searches), *rates)


def describe_rates(study: Study) -> str:
    """The methods' learning rates: those that a search of them chose, or the one of all; empty in other cases.

    Methods without a learning rate are left out.
    """
    runs = {run.name: run for run in (*study.runs, *study.pooled) if has_rate(str(run.info.get("method")))}
    rates = {name: ((run.info.get("spec") or {}).get("train") or {}).get("lr") for name, run in runs.items()}
    searches = [search for search in optional_files.tuning(study.folder) if search.run in runs]
    if not searches:
        if len({*rates.values()}) != 1 or None in rates.values():
            return ""
        scores = (run.evaluations["value"][run.evaluations["split"] == "val"] for run in study.runs)
        reason = "" if any(values.notna().any() for values in scores) else ", as there are no validation rows"
        return f"untuned: lr={next(iter(rates.values())):.4g} for all{reason}"
    if any(search.names != [RATE] for search in searches):
        return ""
    tried = pd.concat([search.trials[RATE] for search in searches])
    prefix = f"{study.runs[0].task}-" if len({run.task for run in runs.values()}) == 1 else ""
    taken = ", ".join(f"{name.removeprefix(prefix)} {rate:.3g}" for name, rate in rates.items())
    return f"learning rates, chosen on validation rows from {tried.min():.3g} to {tried.max():.3g}: {taken}"


def _change(search: optional_files.Tuning, info: Mapping[str, Any]) -> tuple[float, str]:
    """The change of the validation score by tuning, and its unit."""
    declared = float(search.trials["value"].iloc[0])
    change = search.value - declared
    if unit(info["metric"]):
        return change, POINTS
    if info["higher_is_better"] or declared <= 0:
        return change, ABSOLUTE  # a score may be 0, or negative, such as r2
    return 100 * change / declared, ERROR


def _change_sentence(kind: str, changes: Sequence[tuple[float, str]]) -> str:
    finite = [(change, run) for change, run in changes if np.isfinite(change)]
    if not finite:
        return "Their validation scores cannot be compared: the declared values had no finite one."
    most, run = max(finite, key=lambda one: abs(one[0]))
    median, largest = (_in_words(change, kind) for change in (_median([change for change, _ in finite]), most))
    what = "errors" if kind == ERROR else "scores"
    return f"Their validation {what} became {median} in the median, and {largest} for {run}, the most."


def _in_words(change: float, kind: str) -> str:
    """A change in words: "0.9 points higher", "8.6 % lower"."""
    return f"{abs(change):.{3 if kind == ABSOLUTE else 1}f}{kind} {'lower' if change < 0 else 'higher'}"


def _traffic_sentence(searches: Sequence[optional_files.Tuning]) -> Iterator[str]:
    """The change of bytes by tuning, if bytes were an objective of a search."""
    key = optional_files.BYTES
    sent = [(search.trials[key], search.best_row) for search in searches if key in search.trials]
    shares = [100 * (trials.iloc[row] / trials.iloc[0] - 1) for trials, row in sent]
    if shares:
        yield f"The bytes of a repetition changed by {with_minus_sign(f'{_median(shares):+.0f}')} % in the median."


def _median(values: Sequence[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return float(np.median(finite)) + 0.0 if finite else 0.0
