"""Drift: which columns of which clients differ in new rows from those that a model was trained on.

Each column of each client is tested: numbers and probabilities by the test of Kolmogorov and Smirnov, categories by
Fisher's exact test. Holm's procedure corrects over clients and columns. Many rows make any difference significant, so a
shift also has a least size: the share of rows that would have to move, which is the distance of Kolmogorov for numbers
and that of total variation for categories. Labels are not needed. For texts, of which no two need be equal, the column
`PREDICTION` stands, with what the model says of rows that it was not trained on.
"""

import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedweave.errors import BadInput, format_value
from fedweave.results import holm
from fedweave.results.formats import format_gain
from fedweave.results.verdicts import join_names

if TYPE_CHECKING:
    import pandas as pd

MOST_EXACT = 300_000  # pairs of rows; with more, the asymptotic p is as good and faster
PREDICTION = "prediction"
ONE_SIDED = 0.5  # a shift whose other direction is smaller than this part of it has a direction


@dataclass(frozen=True)
class DriftSettings:
    """When a column has drifted.

    Attributes:
        level: chance that a delivery without drift has any column that is said to drift.
        least_shift: share of rows that have moved, at least.
    """

    level: float = 0.01
    least_shift: float = 0.1

    def __post_init__(self) -> None:
        for name in ("level", "least_shift"):
            if not 0 < (value := getattr(self, name)) < 1:
                raise BadInput(name, f"{format_value(value)} is not between 0 and 1")


@dataclass(frozen=True)
class ColumnShift:
    """One column of one client that has drifted.

    Attributes:
        direction: "higher", "lower", "changed" (wider or narrower), "more often missing" or "less often missing"; of
            categories, the one that gained most: "more sunday".
        size: share of rows that have moved.
        p: corrected for all columns and clients of the delivery.
    """

    client: str
    column: str
    direction: str
    size: float
    p: float


@dataclass(frozen=True)
class DriftGroup:
    """Clients in which the same columns moved in the same directions.

    Attributes:
        shifts: of all its clients.
        effect: mean change of the score of its clients; NaN where none has scores before and after.
        other_effect: the same of all clients that do not drift.
    """

    clients: tuple[str, ...]
    shifts: tuple[ColumnShift, ...]
    effect: float = float("nan")
    other_effect: float = float("nan")

    def describe(self, metric: str = "") -> str:
        """The drift of the group in one sentence."""
        columns = {shift.column: shift.direction for shift in self.shifts}
        words = join_names([f"{column} ({direction})" for column, direction in columns.items()])
        sizes = [shift.size for shift in self.shifts]
        share = " to ".join(dict.fromkeys(f"{100 * size:.0f}" for size in (min(sizes), max(sizes))))
        sentence = f"{join_names(self.clients)}: {words}; {share} % of the rows moved"
        if np.isfinite(self.effect):
            sentence += f"; {metric or 'score'} {format_gain(self.effect, metric)}"
            if np.isfinite(self.other_effect):
                sentence += f", of the other clients {format_gain(self.other_effect, metric)}"
        return f"{sentence}."


@dataclass(frozen=True)
class Drift:
    """What differs in a delivery.

    Attributes:
        groups: clients that drift together, those with the most clients first.
        tests: how many columns of clients were tested.
    """

    groups: tuple[DriftGroup, ...]
    tests: int

    def describe(self, metric: str = "") -> list[str]:
        """A sentence for each group; one if nothing drifts."""
        return [group.describe(metric) for group in self.groups] or ["No client drifts."]


def find_drift(
    before: "pd.DataFrame",
    after: "pd.DataFrame",
    client: str,
    columns: Sequence[str],
    label: str = "",
    settings: DriftSettings | None = None,
    scores: Mapping[str, tuple[float, float]] | None = None,
) -> Drift:
    """The drift of the clients that have rows in both tables.

    Args:
        before: the rows that the model knows.
        after: new rows.
        client: the column that names the client.
        columns: to test: features, or `PREDICTION`, over the rows that have one. Dates are not tested, nor columns with
            a single value.
        label: is tested too, over the rows that have one; empty: it is not known.
        scores: client -> its score before and after, where labels exist.

    Raises:
        BadInput: a column is in one of the tables only.
    """
    settings = settings or DriftSettings()
    tested = [*columns, *([label] if label else [])]
    for name in (client, *tested):
        if name not in before.columns or name not in after.columns:
            raise BadInput(f"columns: {name}", "is not in both tables; name columns that rows have before and after")
    places = [{str(name): rows for name, rows in part.groupby(client).indices.items()} for part in (before, after)]
    common = [name for name in sorted(places[1]) if name in places[0]]
    found = [
        (name, column, *test)
        for column in tested
        if (values := _read(before[column], after[column])) is not None
        for name in common
        if (test := _compare(values[0][places[0][name]], values[1][places[1][name]], column in (label, PREDICTION)))
    ]
    adjusted = holm.adjust([p for *_, p in found])
    shifts = [
        ColumnShift(name, column, direction, size, float(p))
        for (name, column, direction, size, _), p in zip(found, adjusted, strict=True)
        if p <= settings.level and size >= settings.least_shift
    ]
    return Drift(tuple(_group(shifts, scores or {})), len(found))


def _group(shifts: Sequence[ColumnShift], scores: Mapping[str, tuple[float, float]]) -> Iterator[DriftGroup]:
    """Groups by what moved in which direction."""
    of_client: dict[str, list[ColumnShift]] = {}
    for shift in shifts:
        of_client.setdefault(shift.client, []).append(shift)
    together: dict[frozenset[tuple[str, str]], list[str]] = {}
    for name, own in of_client.items():
        together.setdefault(frozenset((shift.column, shift.direction) for shift in own), []).append(name)
    changes = {name: after - before for name, (before, after) in scores.items() if np.isfinite(after - before)}
    rest = [change for name, change in changes.items() if name not in of_client]
    for names in sorted(together.values(), key=len, reverse=True):
        theirs = [changes[name] for name in names if name in changes]
        effect, other = (float(np.mean(part)) if part else float("nan") for part in (theirs, rest))
        yield DriftGroup(tuple(names), tuple(shift for name in names for shift in of_client[name]), effect, other)


def _read(before: "pd.Series", after: "pd.Series") -> tuple[np.ndarray, np.ndarray] | None:
    """Values as numbers, or as text, where "" is missing; None for dates. Truth values are texts, but numbers beside a
    column in which some are missing, as it has numbers.
    """
    import pandas as pd

    pair = before, after
    if any(pd.api.types.is_datetime64_any_dtype(part) for part in pair):
        return None
    if all(map(pd.api.types.is_numeric_dtype, pair)) and any(part.dtype != bool for part in pair):
        first, second = (part.to_numpy(dtype=np.float64, na_value=np.nan) for part in pair)
    else:
        first, second = (part.astype("string").fillna("").to_numpy(dtype=str) for part in pair)
    return first, second


def _compare(before: np.ndarray, after: np.ndarray, only_known: bool) -> tuple[str, float, float] | None:
    """(direction, size, p) of the values of one client; None without a test.

    Args:
        only_known: leave out missing values, as those of labels that come later.
    """
    is_number = before.dtype.kind == "f"
    if only_known:
        before, after = (part[~np.isnan(part) if is_number else part != ""] for part in (before, after))
    if not len(before) or not len(after):
        return None
    return compare_numbers(before, after) if is_number else compare_categories(before, after)


def compare_numbers(before: NDArray[np.float64], after: NDArray[np.float64]) -> tuple[str, float, float] | None:
    """(direction, size, p) by the test of Kolmogorov and Smirnov; None if there is one value. A missing number counts
    as the smallest one.
    """
    from scipy.special import binom
    from scipy.stats import ks_2samp

    first, second = (np.sort(np.where(np.isnan(part), -np.inf, part)) for part in (before, after))
    if first[0] == first[-1] == second[0] == second[-1]:
        return None
    values = np.concatenate([first, second])
    gap = np.searchsorted(first, values, "right") / len(first) - np.searchsorted(second, values, "right") / len(second)
    up, down = float(gap.max(initial=0.0)), float(-gap.min(initial=0.0))
    size = max(up, down)
    lost = float(np.isnan(after).mean() - np.isnan(before).mean())
    if abs(lost) >= ONE_SIDED * size > 0:
        direction = "more often missing" if lost > 0 else "less often missing"
    elif min(up, down) > ONE_SIDED * size:
        direction = "changed"
    else:
        direction = "higher" if up > down else "lower"
    exact = len(before) * len(after) <= MOST_EXACT
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # where the exact p is too small to compute
        p = ks_2samp(first, second, method="exact" if exact else "asymp").pvalue
    return direction, size, max(float(p), 2 / binom(len(before) + len(after), len(after)))


def compare_categories(before: NDArray[np.str_], after: NDArray[np.str_]) -> tuple[str, float, float] | None:
    """(direction, size, p) by Fisher's exact test of each value against all others, corrected for the number of values;
    None if there is one value. It holds for rare values too.
    """
    from scipy.stats import hypergeom

    values, places = np.unique(np.concatenate([before, after]), return_inverse=True)
    if len(values) < 2:
        return None
    of_before, of_after = (np.bincount(part, minlength=len(values)) for part in np.split(places, [len(before)]))
    change = of_after / len(after) - of_before / len(before)
    drawn = len(places), of_before + of_after, len(after)
    p = 2 * len(values) * np.minimum(hypergeom.cdf(of_after, *drawn), hypergeom.sf(of_after - 1, *drawn)).min()
    name = textwrap.shorten(str(values[change.argmax()]), 30, placeholder="…") or "nothing"
    return f"more {name}", float(np.abs(change).sum() / 2), min(1.0, float(p))
