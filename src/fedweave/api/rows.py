"""Federations of independent rows: who owns which row, which rows train, and how columns become numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.api import arrays, doubts, images
from fedweave.api.reading import read_pairs, read_table
from fedweave.api.splits import RULES, SplitOptions, split_rows
from fedweave.api.tables import fit_columns
from fedweave.data import Dataset, Partition
from fedweave.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd

PER_ROW = ("split", "time", "recording", "group")  # options that may be names of columns
SCALED = {
    "standard": "Features are scaled by the training rows of all clients together.",
    "standard_client": "Features are scaled by each client's own training rows.",
}


@dataclass(frozen=True)
class RowOptions:
    """Options of `Federation.from_arrays`, where they are described."""

    split: Any = None
    shares: Mapping[str, float] | None = None
    time: Any = None
    gap: int = 0
    recording: Any = None
    group: Any = None
    relation: Any = None
    val: float | None = None
    normalize: Any = "none"
    name: str = "own-data"
    seed: int = 0

    def of_split(self, count: int) -> SplitOptions:
        """What a split of `count` rows reads, checked."""
        time = None if self.time is None else arrays.as_times(self.time, count)
        recording = None if self.recording is None else arrays.as_column(self.recording, "recording", count)
        return SplitOptions(self.split, self.shares, time, self.gap, recording, self.val, self.seed)


@dataclass(frozen=True)
class Arrangement:
    """Clients, classes and parts of rows, whatever the rows hold.

    Attributes:
        owner: position of each row's client [M].
        names: of the clients.
        labels: class of each row [M].
        classes: names of the classes.
        rows: part -> rows of each client.
    """

    owner: np.ndarray
    names: tuple[str, ...]
    labels: np.ndarray
    classes: tuple[str, ...]
    rows: Mapping[str, tuple[np.ndarray, ...]]


def arrange(y: Any, client: Any, count: int, options: RowOptions, names: tuple[str, ...] = ()) -> Arrangement:
    """Rows given to clients and split.

    Args:
        client: who owns each row; a position in `names` where these are given.

    Raises:
        BadInput: as `Federation.from_arrays`.
    """
    labels, classes = arrays.as_classes(y, count)
    owner, names = (client, names) if names else arrays.as_clients(client, count)
    rows = split_rows(owner, labels, names, options.of_split(count))
    arrays.check_classes(labels, rows, classes)
    return Arrangement(owner, names, labels, classes, rows)


def structure(arrangement: Arrangement, options: RowOptions) -> dict[str, Any]:
    """What a partition says of its clients: names, groups and the given client graph."""
    members, groups = arrays.as_groups(options.group, arrangement.owner, arrangement.names)
    pairs = None if options.relation is None else read_pairs(options.relation, "relation")
    relation = None if pairs is None else arrays.as_relation(pairs, arrangement.names)
    return {"names": arrangement.names, "group": members, "group_names": groups, "relation": relation}


def of_arrays(x: Any, y: Any, client: Any, options: RowOptions) -> dict[str, Any]:
    """The fields of a federation of arrays."""
    values = arrays.as_features(x, options.name)
    arrangement = arrange(y, client, len(values), options)
    note = SCALED.get(options.normalize, "") if isinstance(options.normalize, str) else ""
    stored = arrays.as_images(values)
    dataset = Dataset(
        options.name, "images", stored, arrangement.labels, classes=len(arrangement.classes), note=note
    )  # fmt: skip
    return _fields(dataset, arrangement, options, values.shape[1:], doubts.duplicates(dataset, arrangement.rows))


def of_table(
    table: "pd.DataFrame",
    client: str,
    label: str,
    features: Sequence[str] | None,
    embed: bool | None,
    pooled: bool,
    options: RowOptions,
) -> dict[str, Any]:
    """The fields of a federation of a table."""
    named = named_columns(table, options)
    chosen = feature_columns(table, client, label, features, named)
    options = replace(options, **{key: column_values(table, column) for key, column in named.items()})
    arrangement = arrange(column_values(table, label), column_values(table, client), len(table), options)
    preprocessing = fit_columns(table, chosen, arrangement.rows["train"], embed, pooled)
    encoded = preprocessing.encode(table, arrangement.owner)
    has_numbers = any(not column.levels for column in preprocessing.columns)
    dataset = Dataset(
        options.name, "images", arrays.as_images(encoded), arrangement.labels, classes=len(arrangement.classes),
        note=SCALED["standard" if pooled else "standard_client"] if has_numbers else "",
        categories=preprocessing.categories,
    )  # fmt: skip
    train = np.concatenate(arrangement.rows["train"])
    whole_rows = table[chosen].notna().all(axis=1).to_numpy()
    notes = (
        *doubts.revealing(table, chosen, arrangement.labels, train),
        *doubts.duplicates(dataset, arrangement.rows, whole_rows),
    )
    return {**_fields(dataset, arrangement, options, encoded.shape[1:], notes), "preprocessing": preprocessing}


def named_columns(table: "pd.DataFrame", options: RowOptions) -> dict[str, str]:
    """Options that are names of columns of `table`; the name of a rule is none, unless a column has it."""
    given = {key: getattr(options, key) for key in PER_ROW if isinstance(getattr(options, key), str)}
    named = {key: name for key, name in given.items() if key != "split" or name in table}
    for name in named.values():
        check_column(table, name)
    return named


def feature_columns(
    table: "pd.DataFrame", client: str, label: str, features: Sequence[str] | None, named: Mapping[str, str]
) -> list[str]:
    """The columns that models see.

    Raises:
        BadInput: a column is not there, is the client or the label, or has missing entries where there must be none.
    """
    used = [client, label, *named.values()]
    for column in used:
        check_column(table, column)
    for column in (client, label):
        if table[column].isna().any():
            raise BadInput(
                f"table: column {column!r} is missing in {int(table[column].isna().sum())} rows; drop them first"
            )
    chosen = [str(column) for column in table.columns if column not in used] if features is None else list(features)
    if not chosen or {*chosen} & {client, label}:
        raise BadInput(f"features: {chosen} must name columns other than {client!r} and {label!r}, at least one")
    for column in chosen:
        check_column(table, column)
    if len({*chosen}) < len(chosen):
        raise BadInput(f"features: {chosen} names a column twice; name each once")
    return chosen


def check_column(table: "pd.DataFrame", column: str) -> None:
    """Refuse a column that is not there, or there twice."""
    if column not in table:
        raise BadInput(f"table: no column {column!r}; it has {', '.join(map(str, table.columns))}")
    if getattr(table[column], "ndim", 1) != 1:
        raise BadInput(f"table: two columns have the name {column!r}; rename one")


def column_values(table: "pd.DataFrame", column: str) -> Any:
    """The values of a column: an array where they are numbers or times, else a list of Python objects."""
    values = table[column].to_numpy()
    return values if values.dtype.kind in "iufbM" else table[column].tolist()


def _fields(
    dataset: Dataset, arrangement: Arrangement, options: RowOptions, shape: tuple[int, ...], notes: tuple[str, ...]
) -> dict[str, Any]:
    rows = arrangement.rows
    partition = Partition(rows["train"], rows["val"], rows["test"], **structure(arrangement, options))
    return {
        "dataset": dataset,
        "partition": partition,
        "setting": "own",
        "dealt": arrays.given_block(dataset, partition),
        "normalize": options.normalize,
        "shape": tuple(shape),
        "classes": arrangement.classes,
        "notes": notes,
    }


def of_stored(stored: Mapping[str, np.ndarray], client: str, label: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a federation of the arrays of a file.

    Raises:
        BadInput: an array is not there, or an option is one of tables.
    """
    given = dict(options)
    features = given.pop("features", None) or "x"
    features = features if isinstance(features, str) else features[0]
    table_only = next((key for key in ("embed", "pooled") if key in given), None)
    if table_only:
        raise BadInput(f"{table_only}: is an option of tables, and this file holds arrays; leave it out")
    named = {key: given[key] for key in PER_ROW if isinstance(given.get(key), str)}
    named = {key: name for key, name in named.items() if key != "split" or name in stored}
    for name in (features, client, label, *named.values()):
        if name not in stored:
            raise BadInput(f"arrays: there is no {name!r}; the file has {', '.join(stored)}")
    given |= {key: stored[name] for key, name in named.items()}
    return of_arrays(stored[features], stored[label], stored[client], RowOptions(**given))


def of_images(
    table: "pd.DataFrame",
    image: str,
    client: str,
    label: str,
    root: Path,
    size: tuple[int, int] | None,
    options: RowOptions,
) -> dict[str, Any]:
    """The fields of a federation of images that a column of a table names or holds."""
    named = named_columns(table, options)
    feature_columns(table, client, label, [image], named)
    options = replace(options, **{key: column_values(table, column) for key, column in named.items()})
    x = images.load(table[image].tolist(), root, size)
    return of_arrays(x, column_values(table, label), column_values(table, client), options)


def read_used(path: Path | str, client: str, label: str, options: Mapping[str, Any]) -> "pd.DataFrame":
    """The table of a file; only the columns that are used, where features are named."""
    features = options.get("features")
    if not features or options.get("split") in RULES:
        return read_table(path)
    named = [options[key] for key in PER_ROW if isinstance(options.get(key), str)]
    return read_table(path, [*dict.fromkeys([client, label, *features, *named])])
