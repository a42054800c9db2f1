"""Doubts about data: columns that give the label away or are misread, test rows that train too, names spelled twice."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.data import Dataset
from fedweave.tensors.random_streams import stream

if TYPE_CHECKING:
    import pandas as pd

    from fedweave.api.options import Arrangement
    from fedweave.api.tables import Column

FEWEST = 50  # rows below which chance makes columns and rows look alike
MOST = 20_000  # rows that are looked at
BINS = 200  # intervals of a column of numbers
ERROR = 0.01  # share of wrong guesses below which a column alone reveals the label
CHUNK = 65_536  # rows that are hashed at once
SAMPLE = 2000  # rows of which the chance of equal rows is estimated
MOSTLY = 0.8  # share of numbers in a column of texts above which it was meant to have numbers alone
CODES = 10  # most different numbers that may be codes of categories
TOO_MANY = 3  # times as many equal rows as chance makes are duplicates


def find_label_leakage(
    table: "pd.DataFrame", features: Sequence[str], arrangement: "Arrangement", train: np.ndarray
) -> tuple[str, ...]:
    """A line for each column that alone predicts nearly every label of training rows.

    The most frequent class of every value (or interval of numbers) is counted in one half of the rows and guessed in
    the other half. A column reveals the label if at most 1 % of the guesses are wrong, and at most a tenth of those
    that the most frequent class makes. Of numbers, if the means of its values explain 99 % of the variance.
    """
    if len(train) < FEWEST:
        return ()
    if arrangement.labels is None:
        return _find_target_leakage(table, features, np.asarray(arrangement.numbers)[:, 0], train)
    labels = arrangement.labels
    rows = stream(0, len(train)).permutation(train)[:MOST]
    half, classes = len(rows) // 2, int(labels.max()) + 1
    fit, held = labels[rows[:half]], labels[rows[half:]]
    usual = np.bincount(fit, minlength=classes).argmax()
    base = float((held != usual).mean())
    lines = []
    for name in features:
        values = _bin_values(table[name].iloc[rows], half)
        counts = np.bincount(values[:half] * classes + fit, minlength=(values.max() + 1) * classes)
        counts = counts.reshape(-1, classes)
        guess = np.where(counts.any(1), counts.argmax(1), usual)
        wrong = float((guess[values[half:]] != held).mean())
        if wrong <= ERROR and wrong <= base / 10 and base > 0:
            lines.append(
                f"column {name!r} alone predicts {100 * (1 - wrong):.1f} % of the labels of training rows; "
                "if it is known only after the label, leave it out of features"
            )
    return tuple(lines)


def _find_target_leakage(
    table: "pd.DataFrame", features: Sequence[str], targets: np.ndarray, train: np.ndarray
) -> tuple[str, ...]:
    rows = stream(0, len(train)).permutation(train)[:MOST]
    half = len(rows) // 2
    fit, held = (part.astype(np.float64) for part in (targets[rows[:half]], targets[rows[half:]]))
    lines = []
    for name in features:
        values = _bin_values(table[name].iloc[rows], half)
        counts = np.bincount(values[:half], minlength=values.max() + 1)
        sums = np.bincount(values[:half], weights=fit, minlength=values.max() + 1)
        guess = np.where(counts > 0, sums / np.maximum(counts, 1), fit.mean())
        share = 1 - np.square(guess[values[half:]] - held).sum() / max(np.square(held - fit.mean()).sum(), 1e-300)
        if share >= 1 - ERROR:
            lines.append(
                f"column {name!r} alone explains {100 * share:.1f} % of the variance of the targets of training rows; "
                "if it is known only after the target, leave it out of features"
            )
    return tuple(lines)


def _bin_values(column: "pd.Series[Any]", half: int) -> np.ndarray:
    """Number of the value, or of the interval, of each row [M]; 0 is a missing value."""
    from pandas.api import types

    codes, values = column.factorize()
    if not types.is_numeric_dtype(column) or len(values) <= BINS:
        return np.asarray(codes) + 1
    numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
    finite = numbers[:half][np.isfinite(numbers[:half])]
    bins = min(BINS, half // 2)
    edges = np.unique(np.quantile(finite, np.linspace(0, 1, bins + 1)[1:-1])) if len(finite) else finite
    return np.where(np.isnan(numbers), 0, np.searchsorted(edges, numbers) + 1)


def find_misread_columns(table: "pd.DataFrame", columns: Iterable["Column"], rows: int) -> tuple[str, ...]:
    """A line for each category that was meant to be numbers, or has so many values that nothing is learned from it.

    Args:
        rows: of training.
    """
    lines = []
    for column in columns:
        if column.levels and rows >= FEWEST:
            line = _texts_among_numbers(table[column.name], len(column.levels))
            if not line and len(column.levels) > rows / 2:
                line = (
                    f"column {column.name!r} has {len(column.levels)} different values in {rows} training rows, so "
                    "hardly anything can be learned from it; leave it out with features="
                )
            lines.append(line)
    return tuple(filter(None, lines))


def _texts_among_numbers(column: "pd.Series[Any]", levels: int) -> str:
    """A line if most values are numbers and some are texts, which make a category of all."""
    import pandas as pd

    counts = column.value_counts()
    counts = counts[counts > 0]  # a category of pandas may have values that no row has
    texts = pd.Series([str(value) for value in counts.index], dtype=object)
    numbers = pd.to_numeric(texts, errors="coerce").notna().to_numpy()
    with_comma = ~numbers & pd.to_numeric(texts.str.replace(",", "."), errors="coerce").notna().to_numpy()
    meant, sizes = numbers | with_comma, counts.to_numpy()
    share = sizes[meant].sum() / max(sizes.sum(), 1)
    if numbers.all() or share <= MOSTLY or meant.sum() <= CODES:
        return ""
    first, others = int((~numbers).argmax()), int((~numbers).sum()) - 1  # the most frequent text, and the rest
    more = f" and {others} other texts" if others else ""
    way = "write a point in place of the comma" if with_comma[first] else "make these empty"
    return (
        f"column {column.name!r}: {int(100 * share)} % of its values are numbers, and it is read as {levels} "
        f"categories because of {texts[first]!r} ({sizes[first]} rows){more}; {way}"
    )


def find_similar_names(kind: str, names: Sequence[str]) -> tuple[str, ...]:
    """A line if names of `kind` are the same but for capitals, spaces at the ends, or the way an accent is stored."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_normalize_unicode(name).strip().casefold(), []).append(name)
    alike = [group for group in groups.values() if len(group) > 1]
    if not alike:
        return ()
    more = f" (and {len(alike) - 1} more groups of names)" if len(alike) > 1 else ""
    # Two ways to store an accent look the same, unless both are written out.
    listed = " and ".join(map(repr if len({*map(_normalize_unicode, alike[0])}) > 1 else ascii, alike[0]))
    return (f"{kind} {listed} differ only in spelling{more}; write them the same way if they are one",)


def _normalize_unicode(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def find_duplicates(
    dataset: Dataset, rows: Mapping[str, Sequence[np.ndarray]], whole: np.ndarray | None = None
) -> tuple[str, ...]:
    """A line if test rows are training rows too: the same features and the same class.

    Nothing is said where most rows are the same as others, or where so many equal rows are likely by chance, as in a
    table of a few categories: there it means nothing.

    Args:
        whole: whether a row has all its values [M]; others, which are filled in, are passed over.
    """
    if len(dataset.x) < FEWEST:
        return ()
    targets = dataset.y if dataset.targets is None else dataset.targets[:, 0].view(np.uint32)
    hashes = _hash_rows(dataset.x, np.asarray(targets))
    chosen = [np.concatenate(rows[part]) for part in ("train", "test")]
    chosen = [part if whole is None else part[whole[part]] for part in chosen]
    train, test = (hashes[part] for part in chosen)
    count = int(np.isin(test, train).sum())
    if not count or len(np.unique(train)) < len(train) / 2:
        return ()
    alike = _collision_probability(dataset.x[chosen[0]], np.asarray(targets)[chosen[0]])
    if count < TOO_MANY * len(test) * (1 - (1 - alike) ** len(train)):
        return ()
    return (
        f"{count} of {len(chosen[1])} test rows are training rows too, with the same features and the same label; "
        "drop duplicates before splitting",
    )


def _collision_probability(x: np.ndarray, targets: np.ndarray) -> float:
    """The probability that two rows are equal if their values are independent, estimated from pairs of SAMPLE rows."""
    order = stream(2, len(x)).permutation(len(x))[:SAMPLE]
    pairs, chance = len(order) * (len(order) - 1), 1.0
    for column in (targets[order], *x[order].reshape(len(order), -1).T):
        counts = np.unique(column, return_counts=True)[1]
        chance *= float((counts * (counts - 1)).sum() / pairs)
        if not chance:  # a column of different numbers
            break
    return chance


def _hash_rows(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """A number of 64 bits for each row and its label [M]; equal rows have equal ones."""
    flat = np.ascontiguousarray(x).reshape(len(x), -1)
    words = flat.view(f"u{flat.itemsize}")
    factors = stream(1, words.shape[1]).integers(0, 2**63, size=words.shape[1], dtype=np.uint64) * 2 + 1
    parts = [words[start : start + CHUNK].astype(np.uint64) @ factors for start in range(0, len(words), CHUNK)]
    return np.asarray(np.concatenate(parts) * np.uint64(0x9E3779B97F4A7C15) + labels.astype(np.uint64))
