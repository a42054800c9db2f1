"""Which rows of a client train, validate and test: given by the user, or drawn."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedweave.data.partitions.splits import PARTS, Split, parse, random_parts, sizes, stratified_parts
from fedweave.errors import BadInput
from fedweave.tensors.random_streams import stream

SHARES = {"train": 0.6, "val": 0.2, "test": 0.2}
Rows = tuple[np.ndarray, ...]


def split_rows(
    owner: np.ndarray,
    y: np.ndarray,
    names: Sequence[str],
    split: Any,
    time: np.ndarray | None,
    val: float | None,
    seed: int,
) -> dict[str, Rows]:
    """Rows of every part and client: part -> one sorted array a client.

    Args:
        owner: client of each row [M].
        y: classes [M], whose mix a random split keeps.
        names: of the clients.
        split: a label ("train", "val", "test") per row; a mapping of parts to rows, or to shares; or None.
        time: of each row [M]: the first rows of a client train and the last ones test.
        val: share of the training rows that validates, where `split` names no such rows.
        seed: of a random split.

    Raises:
        BadInput: overlapping or empty parts, unknown labels, or lengths that differ.
    """
    if split is None or (isinstance(split, Mapping) and all(isinstance(v, int | float) for v in split.values())):
        shares = parse(SHARES if split is None else split, 0.1 if val is None else val, tested=True)
        parts = [_drawn(np.flatnonzero(owner == i), y, shares, time, seed, i, name) for i, name in enumerate(names)]
        return {part: tuple(rows[k] for rows in parts) for k, part in enumerate(PARTS)}
    if time is not None:
        raise BadInput(
            "time: the parts are given by split; leave one out, or give shares such as split={'train': 0.7, ...}"
        )
    label = _from_rows(split, len(owner)) if isinstance(split, Mapping) else _labels(split, len(owner))
    rows = {part: [np.flatnonzero((owner == i) & (label == part)) for i in range(len(names))] for part in PARTS}
    if not any(len(held) for held in rows["val"]):
        rows = _with_validation(rows, y, val, seed)
    for i, name in enumerate(names):
        for part in PARTS:
            if not len(rows[part][i]):
                raise BadInput(f"split: client {name!r} has no row in {part!r}; leave the client out, or give it some")
    return {part: tuple(rows[part]) for part in PARTS}


def _drawn(
    rows: np.ndarray, y: np.ndarray, shares: Split, time: np.ndarray | None, seed: int, i: int, name: str
) -> list[np.ndarray]:
    """Training, validation and test rows of client `i`."""
    who = f"client {name!r}"
    if time is not None:
        train, held, _ = sizes(len(rows), shares, who)
        ordered = rows[np.argsort(time[rows], kind="stable")]
        return [np.sort(part) for part in np.split(ordered, [train, train + held])]
    return stratified_parts(rows, y, shares, stream(seed, i), who)


def _labels(split: Any, count: int) -> np.ndarray:
    if isinstance(split, str) or not hasattr(split, "__len__"):
        raise BadInput(
            f"split: {split!r} is no label per row and no mapping; see the documentation of Federation.from_arrays"
        )
    label = np.asarray(split, dtype=object)
    if label.shape != (count,):
        raise BadInput(
            f"split: shape {label.shape}, but there are {count} rows; give one of {', '.join(PARTS)} for each"
        )
    unknown = [value for value in dict.fromkeys(label.tolist()) if value not in PARTS]
    if unknown:
        raise BadInput(f"split: {unknown[0]!r} is unknown; choices: {', '.join(PARTS)}")
    return label


def _from_rows(split: Mapping[str, Any], count: int) -> np.ndarray:
    """A label per row, empty for rows that no part names."""
    label = np.full(count, "", dtype=object)
    for part, given in split.items():
        if part not in PARTS:
            raise BadInput(f"split: {part!r} is unknown; choices: {', '.join(PARTS)}")
        rows = np.asarray(given)
        rows = np.flatnonzero(rows) if rows.dtype == bool and rows.shape == (count,) else rows
        if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer) or not len(rows):
            raise BadInput(f"split: {part!r} must be a share, or a list of row numbers that is not empty")
        if rows.min() < 0 or rows.max() >= count:
            raise BadInput(
                f"split: {part!r} names row {rows.min() if rows.min() < 0 else rows.max()}; rows are 0 to {count - 1}"
            )
        taken = rows[label[rows] != ""]
        if len(taken) or len(np.unique(rows)) < len(rows):
            which = int(taken[0]) if len(taken) else int(np.flatnonzero(np.bincount(rows) > 1)[0])
            other = f"{label[which]!r} and {part!r}" if len(taken) else f"{part!r} twice"
            raise BadInput(f"split: row {which} is in {other}; the parts must not overlap")
        label[rows] = part
    return label


def _with_validation(
    rows: dict[str, list[np.ndarray]], y: np.ndarray, val: float | None, seed: int
) -> dict[str, list[np.ndarray]]:
    if val is None or not 0 < val < 1:
        raise BadInput(
            f"split: no row is 'val' (val={val!r}); mark some, or give val=0.2 to take that share of the training rows"
        )
    cut = [
        random_parts(held, Split(1 - val, val, 0.0), stream(seed, i), f"client {i}")
        for i, held in enumerate(rows["train"])
    ]
    return {**rows, "train": [part[0] for part in cut], "val": [part[1] for part in cut]}
