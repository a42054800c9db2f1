"""Training, validation and test rows of one client."""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import numpy as np

from fedweave.errors import BadInput, choose, format_value
from fedweave.settings import Above, AtMost

PARTS = ("train", "val", "test")

# Types of options that several rules share.
Shares = Annotated[Mapping[str, float], "shares of a client's rows that train, validate and test"]
ValShare = Annotated[float, Above(0), AtMost(0.5), "share of train that validates if split has no val"]


class Split(NamedTuple):
    """Shares of a client's rows; they add up to 1."""

    train: float
    val: float
    test: float


def check_shares(split: object, where: str) -> None:
    """Refuse a `split` that does not map parts to shares that add up to 1."""
    if not isinstance(split, Mapping):
        raise BadInput(f"{where}: {format_value(split)} must map {', '.join(PARTS)} to shares")
    for key, share in split.items():
        choose(key, PARTS, where)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise BadInput(f"{where}.{key}: {format_value(share)} must be a number between 0 and 1")
    if abs(sum(split.values()) - 1.0) > 1e-6:
        raise BadInput(f"{where}: the shares {dict(split)} add up to {sum(split.values()):g}, not to 1")


def parse_shares(text: str) -> dict[str, float]:
    """Part -> its share, from the text of the option --shares, such as "0.6,0.2,0.2"; empty for an empty text.

    Raises:
        BadInput: naming the option; the text is not three numbers, or not shares that add up to 1.
    """
    if not text.strip():
        return {}
    try:
        shares = dict(zip(PARTS, map(float, text.split(",")), strict=True))
    except ValueError as error:
        problem = f"{format_value(text)} must be three numbers, of {', '.join(PARTS)}, such as 0.6,0.2,0.2"
        raise BadInput("--shares", problem) from error
    check_shares(shares, "--shares")
    return shares


def parse_split(split: Mapping[str, float], val: float, tested: bool, where: str = "partition.split") -> Split:
    """Shares from `split`; without its own `val` that share `val` of train becomes validation.

    `tested` says whether the client's own rows must hold a test part, and `where` which setting has the shares.

    Raises:
        BadInput: an unknown part, shares that do not add up to 1, or no train or test part. `val: 0` is no validation
            part, for runs whose reported round is the last.
    """
    check_shares(split, where)
    train, test = split.get("train", 0.0), split.get("test", 0.0)
    validation = split.get("val", val * train)
    training = train if "val" in split else train - validation
    if training <= 0 or (validation <= 0 and "val" not in split) or (test > 0) != tested:
        parts = "train, val and test" if tested else "train and val, the official test set is used"
        raise BadInput(f"{where}: {dict(split)} must give a share to {parts}")
    return Split(training, validation, test)


def part_sizes(rows: int, split: Split, who: str) -> tuple[int, int, int]:
    """Rounded sizes of the parts of `rows` rows; each part that has a share gets at least one row.

    Raises:
        BadInput: `who` has too few rows.
    """
    val, test = (max(1, int(np.floor(rows * share + 0.5))) if share else 0 for share in split[1:])
    if rows - val - test < 1:
        raise BadInput(f"partition: {who} has too few rows for train, val and test ({rows}); use fewer clients")
    return rows - val - test, val, test


def random_parts(rows: np.ndarray, split: Split, rng: np.random.Generator, who: str) -> list[np.ndarray]:
    """Cut `rows` at random: sorted train, val, test."""
    train, val, _ = part_sizes(len(rows), split, who)
    return [np.sort(part) for part in np.split(rng.permutation(rows), [train, train + val])]


def stratified_parts(
    rows: np.ndarray, y: np.ndarray, split: Split, rng: np.random.Generator, who: str
) -> list[np.ndarray]:
    """Cut `rows` into train, val, test with the class mix of the whole, to within one row a class."""
    _, val, test = part_sizes(len(rows), split, who)
    shuffled = rng.permutation(rows)
    remaining = shuffled[np.argsort(y[shuffled], kind="stable")]
    remaining, test_rows = _systematic_sample(remaining, test, rng)
    remaining, val_rows = _systematic_sample(remaining, val, rng)
    return [np.sort(part) for part in (remaining, val_rows, test_rows)]


def chronological_parts(count: int, split: Split, who: str, gap: int = 0) -> tuple[slice, slice, slice]:
    """Positions of train, validation and test among `count` rows in the order of time.

    `gap` rows between two parts are in none; without validation rows, both gaps are between train and test. Of the rows
    that the gaps leave, round(train) train and round(test) test, the rest is validation.

    Raises:
        BadInput: `who` has too few rows.
    """
    rows = count - 2 * gap
    train, test = (int(np.floor(rows * share + 0.5)) for share in (split.train, split.test))
    train = train if split.val else rows - test
    validation = rows - train - test
    if train < 1 or (validation < 1 and split.val) or (test < 1 and split.test):
        between = f" and gaps of {gap}" if gap else ""
        raise BadInput(f"partition: {who} has too few windows ({count}) for train, val and test{between}")
    return slice(0, train), slice(train + gap, train + gap + validation), slice(count - test, count)


def _systematic_sample(queue: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Sample `count` evenly spaced entries of `queue` from a random start: (the others, the sample)."""
    is_sampled = np.zeros(len(queue), dtype=bool)
    if count:
        is_sampled[np.floor((np.arange(count) + rng.random()) * len(queue) / count).astype(np.int64)] = True
    return queue[~is_sampled], queue[is_sampled]
