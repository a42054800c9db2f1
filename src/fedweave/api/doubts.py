"""What makes a score too good to be true: a column that gives the label away, and test rows that train as well."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.api.options import Arrangement
from fedweave.data import Dataset
from fedweave.tensors.random_streams import stream

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 50  # rows below which chance makes columns and rows look alike
MOST = 20_000  # rows that are looked at
BINS = 200  # intervals of a column of numbers
ERROR = 0.01  # share of wrong guesses below which a column alone reveals the label
CHUNK = 65_536  # rows that are hashed at once
SAMPLE = 2000  # rows of which the chance of equal rows is estimated
TOO_MANY = 3  # times as many equal rows as chance makes are duplicates


def revealing(
    table: "pd.DataFrame", features: Sequence[str], arrangement: Arrangement, train: np.ndarray
) -> tuple[str, ...]:
    """A line for each column that alone predicts nearly every label of training rows.

    The most frequent class of every value (or interval of numbers) is counted in one half of the rows and guessed in
    the other half. A column reveals the label if at most 1 % of the guesses are wrong, and at most a tenth of those
    that the most frequent class makes. Of numbers, if the means of its values explain 99 % of the variance.
    """
    if len(train) < FEWEST:
        return ()
    if arrangement.labels is None:
        return _revealing_numbers(table, features, np.asarray(arrangement.numbers)[:, 0], train)
    labels = arrangement.labels
    rows = stream(0, len(train)).permutation(train)[:MOST]
    half, classes = len(rows) // 2, int(labels.max()) + 1
    fit, held = labels[rows[:half]], labels[rows[half:]]
    usual = np.bincount(fit, minlength=classes).argmax()
    base = float((held != usual).mean())
    lines = []
    for name in features:
        values = _cells(table[name].iloc[rows], half)
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


def _revealing_numbers(
    table: "pd.DataFrame", features: Sequence[str], targets: np.ndarray, train: np.ndarray
) -> tuple[str, ...]:
    rows = stream(0, len(train)).permutation(train)[:MOST]
    half = len(rows) // 2
    fit, held = (part.astype(np.float64) for part in (targets[rows[:half]], targets[rows[half:]]))
    lines = []
    for name in features:
        values = _cells(table[name].iloc[rows], half)
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


def _cells(column: "pd.Series[Any]", half: int) -> np.ndarray:
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


def duplicates(
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
    hashes = _hashes(dataset.x, np.asarray(targets))
    chosen = [np.concatenate(rows[part]) for part in ("train", "test")]
    chosen = [part if whole is None else part[whole[part]] for part in chosen]
    train, test = (hashes[part] for part in chosen)
    count = int(np.isin(test, train).sum())
    if not count or len(np.unique(train)) < len(train) / 2:
        return ()
    alike = _chance(dataset.x[chosen[0]], np.asarray(targets)[chosen[0]])
    if count < TOO_MANY * len(test) * (1 - (1 - alike) ** len(train)):
        return ()
    return (
        f"{count} of {len(chosen[1])} test rows are training rows too, with the same features and the same label; "
        "drop duplicates before splitting",
    )


def _chance(x: np.ndarray, targets: np.ndarray) -> float:
    """The probability that two rows are equal if their values are independent, estimated from pairs of SAMPLE rows."""
    order = stream(2, len(x)).permutation(len(x))[:SAMPLE]
    pairs, chance = len(order) * (len(order) - 1), 1.0
    for column in (targets[order], *x[order].reshape(len(order), -1).T):
        counts = np.unique(column, return_counts=True)[1]
        chance *= float((counts * (counts - 1)).sum() / pairs)
        if not chance:  # a column of different numbers
            break
    return chance


def _hashes(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """A number of 64 bits for each row and its label [M]; equal rows have equal ones."""
    flat = np.ascontiguousarray(x).reshape(len(x), -1)
    words = flat.view(f"u{flat.itemsize}")
    factors = stream(1, words.shape[1]).integers(0, 2**63, size=words.shape[1], dtype=np.uint64) * 2 + 1
    parts = [words[start : start + CHUNK].astype(np.uint64) @ factors for start in range(0, len(words), CHUNK)]
    return np.asarray(np.concatenate(parts) * np.uint64(0x9E3779B97F4A7C15) + labels.astype(np.uint64))
