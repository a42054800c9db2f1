"""Which rows of a client train, validate and test: given by the user, or made by a rule."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from fedweave.data.partitions.splits import PARTS, Split, parse_split, part_sizes, random_parts, stratified_parts
from fedweave.errors import BadInput, format_count
from fedweave.own_data.array_checks import as_plain
from fedweave.own_data.options import DataFields
from fedweave.tensors.random_streams import stream

SHARES = {"train": 0.6, "val": 0.2, "test": 0.2}
SHARES_WITH_VAL = {"train": 0.8, "test": 0.2}  # where the user gives `val`, the share of train that validates
RULES = ("random", "stratified", "chronological", "grouped")
MOST_SHOWN = 5  # most names of clients in a message
DEFAULT_VAL_SHARE = 0.1  # share of the training rows that validates, where shares name no "val"
PART_WORDS = {
    "validation": "val",
    "valid": "val",
    "dev": "val",
    "training": "train",
    "testing": "test",
}  # other words for a part
Rows = tuple[np.ndarray, ...]


def split_rows(owner: np.ndarray, y: np.ndarray | None, names: Sequence[str], options: DataFields) -> dict[str, Rows]:
    """Rows of every part and client: part -> one sorted array a client. No row is in two parts.

    Args:
        owner: client of each row [M].
        y: classes [M], whose mix a stratified split keeps; None where there are none.
        options: split, shares, gap, val and seed; time and recording are arrays [M], or None.

    Raises:
        BadInput: overlapping or empty parts, unknown labels, lengths that differ, or options that contradict each
            other.
    """
    rule, shares = _choose_rule(options, classes=y is not None)
    rows = _split_by_rule(owner, y, names, rule, shares, options) if rule else _given_parts(owner, names, options)
    parts = [client_rows for part in PARTS for client_rows in rows[part]]
    counts = np.bincount(np.concatenate(parts), minlength=len(owner))
    if counts.max() > 1:  # checked for every rule: a row in two parts makes every score wrong
        raise BadInput(f"split: row {int(counts.argmax())} is in two parts; the parts must not overlap")
    return rows


def _choose_rule(options: DataFields, classes: bool) -> tuple[str, Mapping[str, float] | None]:
    """(the rule, or "" where the parts are given, the shares)."""
    split, shares = options.split, options.shares
    if are_shares(split):
        if shares is not None:
            raise BadInput(f"shares: {dict(shares)}, but split is {dict(split)}; give one of them")
        split, shares = None, split
    if isinstance(options.gap, bool) or not isinstance(options.gap, int) or options.gap < 0:
        raise BadInput(f"gap: {options.gap!r} must be a number of rows, 0 or more")
    if options.val is not None and not (isinstance(options.val, int | float) and 0 < options.val < 1):
        raise BadInput(f"val: {options.val!r} must be a share of the training rows, above 0 and below 1, such as 0.2")
    if options.val is not None and isinstance(shares, Mapping) and "val" in shares:
        name = "split" if options.shares is None else "shares"
        raise BadInput(f"val: {options.val!r}, but {name} is {dict(shares)}; leave 'val' out of one of them")
    has_time, has_recording = options.time is not None, options.recording is not None
    if split is None:
        split = "chronological" if has_time else "grouped" if has_recording else "stratified" if classes else "random"
    if not isinstance(split, str):
        _refuse(
            "the parts are given by split",
            shares=shares is not None,
            time=has_time,
            recording=has_recording,
            gap=bool(options.gap),
        )
        return "", None
    if split not in RULES:
        raise BadInput(f"split: {split!r} is neither a rule nor a column; rules: {', '.join(RULES)}")
    if split == "chronological" and not has_time:
        raise BadInput("split: 'chronological' needs the time of each row; give time")
    if split == "grouped" and not has_recording:
        raise BadInput("split: 'grouped' needs the recording of each row (a patient, a session); give recording")
    if split == "stratified" and not classes:
        raise BadInput("split: 'stratified' keeps the mix of classes, and the targets are numbers; use 'random'")
    by_time = split == "chronological"
    _refuse(
        f"split is {split!r}",
        time=has_time and not by_time,
        recording=has_recording and split in ("random", "stratified"),
        gap=bool(options.gap) and not by_time,
    )
    return split, shares


def are_shares(split: Any) -> bool:
    """Whether a split is a mapping of parts to shares."""
    return isinstance(split, Mapping) and all(isinstance(share, int | float) for share in split.values())


def _refuse(because: str, **unused: bool) -> None:
    option = next((name for name, given in unused.items() if given), None)
    if option:
        raise BadInput(
            f"{option}: {because}, which does not use it; leave one out, or give shares as split={{'train': 0.7, ...}}"
        )


def _split_by_rule(
    owner: np.ndarray,
    y: np.ndarray | None,
    names: Sequence[str],
    rule: str,
    shares: Mapping[str, float] | None,
    options: DataFields,
) -> dict[str, Rows]:
    """Every client's rows, split in the same way."""
    if shares is None:
        shares = SHARES if options.val is None else SHARES_WITH_VAL
    split = parse_split(
        shares,
        DEFAULT_VAL_SHARE if options.val is None else options.val,
        tested=True,
        where="split" if options.shares is None else "shares",
    )
    recording = None if options.recording is None else _recordings(options.recording, owner, names)
    rows_by_client = _rows_by_client(np.arange(len(owner)), owner, len(names))
    _refuse_small_clients(rows_by_client, names)
    parts: list[list[np.ndarray]] = []
    for i, (rows, name) in enumerate(zip(rows_by_client, names, strict=True)):
        client, generator = f"client {name!r}", stream(options.seed, i)
        if rule == "chronological":
            parts.append(_chronological_parts(rows, options.time, split, options.gap, recording, client))
        elif rule == "grouped":
            parts.append(_grouped_parts(rows, recording, split, generator, client))
        elif rule == "random" or y is None:
            parts.append(random_parts(rows, split, generator, client))
        else:
            parts.append(stratified_parts(rows, y, split, generator, client))
    return {part: tuple(rows[k] for rows in parts) for k, part in enumerate(PARTS)}


def _refuse_small_clients(rows_by_client: Sequence[np.ndarray], names: Sequence[str]) -> None:
    """Refuse clients with fewer rows than there are parts, and name all of them at once."""
    small = [name for name, rows in zip(names, rows_by_client, strict=True) if len(rows) < len(PARTS)]
    if small:
        raise BadInput(
            f"client: fewer than 3 rows, too few for train, val and test, in {len(small)} of "
            f"{format_count(len(names), 'client')} "
            f"({show_first(small)}); leave these rows out, such as by min_rows=3 (--min-rows)"
        )


def show_first(names: Sequence[str]) -> str:
    """The first names, for a message."""
    return ", ".join(map(repr, names[:MOST_SHOWN])) + (", ..." if len(names) > MOST_SHOWN else "")


def _chronological_parts(
    rows: np.ndarray, time: np.ndarray, split: Split, gap: int, recording: np.ndarray | None, client: str
) -> list[np.ndarray]:
    """The first rows of a client, or of each of its recordings, train and the last ones test."""
    pieces: list[list[np.ndarray]] = []
    parts = [rows] if recording is None else [rows[recording[rows] == r] for r in np.unique(recording[rows])]
    for recording_rows in parts:
        ordered = recording_rows[np.argsort(time[recording_rows], kind="stable")]
        usable = len(ordered) - 2 * gap
        if usable < 3:
            between = f" and two gaps of {gap}" if gap else ""
            of_recording = "" if recording is None else " of one recording"
            raise BadInput(
                f"split: {client} has {format_count(len(ordered), 'row')}{of_recording}, too few for "
                f"train, val and test{between}"
            )
        train, val, _ = part_sizes(usable, split, client)
        bounds = find_bounds(time[ordered], train, val, gap, client)
        pieces.append(np.split(ordered, bounds)[::2])
    return [np.sort(np.concatenate(part)) for part in zip(*pieces, strict=True)]


def find_bounds(times: np.ndarray, train: int, val: int, gap: int, client: str) -> list[int]:
    """Where train ends, where val begins and ends, and where test begins: at changes of time, `gap` rows apart or more.

    Of rows of different times, `train` train and `val` validate; else it is the change of time nearest to that.

    Raises:
        BadInput: a part would be empty.
    """
    changes = np.flatnonzero(np.diff(times)) + 1
    # Of a part that ends at a change: where the next one begins, or behind all rows.
    begins = np.append(changes, len(times))[np.searchsorted(changes, changes + gap)]
    last = changes[begins < len(times)].max(initial=0)  # of val, or of the rows in its place if it has none
    first = _find_nearest(begins <= last if val == 0 else begins < last, changes, train)
    second = -1
    if first >= 0:
        may_end = changes == begins[first] if val == 0 else (changes > begins[first]) & (changes <= last)
        second = _find_nearest(may_end, changes, train + gap + val)
    if second < 0:
        apart = f" with gaps of {gap}" if gap else ""
        raise BadInput(
            f"split: {client} has {format_count(len(changes) + 1, 'different time')}, too few for train, val and "
            f"test{apart}, as rows of one time stay in one part"
        )
    return [int(at) for i in (first, second) for at in (changes[i], begins[i])]


def _find_nearest(allowed: np.ndarray, places: np.ndarray, wanted: int) -> int:
    """Index of the first of the `allowed` `places` that are nearest to `wanted`; -1 if there is none."""
    return int(np.where(allowed, np.abs(places - wanted), np.inf).argmin()) if allowed.any() else -1


def _grouped_parts(
    rows: np.ndarray, recording: Any, split: Split, generator: np.random.Generator, client: str
) -> list[np.ndarray]:
    """Whole recordings in each part: each, in random order, goes to the part that lacks the most rows."""
    ids, counts = np.unique(recording[rows], return_counts=True)
    parts = np.flatnonzero(split)  # a share of 0 is no part
    if len(ids) < len(parts):
        raise BadInput(
            f"split: {client} has {format_count(len(ids), 'recording')}, too few for train, val and "
            f"test; it takes {len(parts)} or more"
        )
    missing = np.array(split) * len(rows)
    part_of = np.zeros(len(ids), dtype=np.int64)
    for step, k in enumerate(generator.permutation(len(ids))):
        # The first ones make sure that no part stays empty.
        part_of[k] = parts[step] if step < len(parts) else missing.argmax()
        missing[part_of[k]] -= counts[k]
    part = part_of[np.searchsorted(ids, recording[rows])]
    return [rows[part == k] for k in range(len(PARTS))]


def _recordings(recording: np.ndarray, owner: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Number of each row's recording [M]."""
    ids: dict[Hashable, int] = {}
    numbers = np.array([ids.setdefault(one, len(ids)) for one in recording.tolist()], dtype=np.int64)
    first = np.full(len(ids), -1, dtype=np.int64)
    first[numbers[::-1]] = owner[::-1]
    shared = np.flatnonzero(first[numbers] != owner)
    if len(shared):
        row = int(shared[0])
        raise BadInput(
            f"recording: {str(recording[row])!r} has rows of the clients {names[first[numbers[row]]]!r} and "
            f"{names[owner[row]]!r}; give each client recordings of its own, or give the parts by split"
        )
    return numbers


def _rows_by_client(rows: np.ndarray, owner: np.ndarray, count: int) -> list[np.ndarray]:
    """The sorted `rows` of each of the `count` clients."""
    ordered = rows[np.argsort(owner[rows], kind="stable")]
    return np.split(ordered, np.cumsum(np.bincount(owner[rows], minlength=count))[:-1])


def _given_parts(owner: np.ndarray, names: Sequence[str], options: DataFields) -> dict[str, Rows]:
    """Parts that the user gives; without validation rows, these are taken from the training rows."""
    split = options.split
    label = labels_from_rows(split, len(owner)) if isinstance(split, Mapping) else _read_labels(split, len(owner))
    rows = {part: _rows_by_client(np.flatnonzero(label == part), owner, len(names)) for part in PARTS}
    has_val = any(len(client_rows) for client_rows in rows["val"])
    for i, name in enumerate(names):
        for part in PARTS:
            if not len(rows[part][i]) and (has_val or part != "val"):
                raise BadInput(f"split: client {name!r} has no row in {part!r}; leave the client out, or give it some")
    rows = rows if has_val else _add_validation_rows(rows, names, options.val, options.seed)
    return {part: tuple(rows[part]) for part in PARTS}


def _read_labels(split: Any, count: int) -> np.ndarray:
    if isinstance(split, str) or not hasattr(split, "__len__"):
        raise BadInput(
            f"split: {split!r} is neither a label per row nor a mapping; see the docstring of Federation.from_arrays"
        )
    label = as_plain(split, "split").astype(object)
    if label.shape != (count,):
        raise BadInput(
            f"split: shape {label.shape}, but there are {format_count(count, 'row')}; give one of "
            f"{', '.join(PARTS)} for each"
        )
    part_of = {value: part_name(value) for value in dict.fromkeys(label.tolist())}
    unknown = [value for value, part in part_of.items() if part not in PARTS]
    if unknown:
        raise BadInput(f"split: {unknown[0]!r} is unknown; choices: {', '.join(PARTS)}")
    return np.array([part_of[value] for value in label.tolist()], dtype=object)


def part_name(value: Any) -> Any:
    """The part that a word means, such as "val" for "Validation"; other values as they are."""
    word = value.strip().lower() if isinstance(value, str) else value
    return PART_WORDS.get(word, word) if isinstance(word, str) else value


def labels_from_rows(split: Mapping[str, Any], count: int) -> np.ndarray:
    """A label per row, empty for rows that no part names."""
    label = np.full(count, "", dtype=object)
    for word, rows_of_part in split.items():
        if (part := part_name(word)) not in PARTS:
            raise BadInput(f"split: {word!r} is unknown; choices: {', '.join(PARTS)}")
        rows = as_plain(rows_of_part, "split")
        rows = np.flatnonzero(rows) if rows.dtype == bool and rows.shape == (count,) else rows
        if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer) or not len(rows):
            raise BadInput(f"split: {part!r} must be a share, or a list of row numbers that is not empty")
        if rows.min() < 0 or rows.max() >= count:
            raise BadInput(
                f"split: {part!r} names row {rows.min() if rows.min() < 0 else rows.max()}; rows are 0 to {count - 1}"
            )
        labelled = rows[label[rows] != ""]
        if len(labelled) or len(np.unique(rows)) < len(rows):
            row = int(labelled[0]) if len(labelled) else int(np.flatnonzero(np.bincount(rows) > 1)[0])
            other = f"{label[row]!r} and {part!r}" if len(labelled) else f"{part!r} twice"
            raise BadInput(f"split: row {row} is in {other}; the parts must not overlap")
        label[rows] = part
    return label


def _add_validation_rows(
    rows: dict[str, list[np.ndarray]], names: Sequence[str], val: float | None, seed: int
) -> dict[str, list[np.ndarray]]:
    if val is None:
        raise BadInput("split: no row is 'val'; mark some, or give val=0.2 to take that share of the training rows")
    parts = [
        random_parts(client_rows, Split(1 - val, val, 0.0), stream(seed, i), f"client {names[i]!r}")
        for i, client_rows in enumerate(rows["train"])
    ]
    return {**rows, "train": [part[0] for part in parts], "val": [part[1] for part in parts]}
