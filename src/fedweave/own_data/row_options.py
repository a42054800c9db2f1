"""Options of all federations of one's own data, and rows with their clients, targets and parts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedweave.data import Dataset, Partition
from fedweave.data.normalisation import scale_by_own_rows
from fedweave.errors import BadInput, choose, format_count, format_value
from fedweave.own_data import arrays, data_warnings
from fedweave.own_data.argument_checks import as_names, as_python, check_flag, check_seed, check_text
from fedweave.own_data.column_encoding import HASHED
from fedweave.own_data.options import ROW_OPTIONS, DataFields
from fedweave.own_data.pairs import read_pairs
from fedweave.own_data.splits import MOST_SHOWN, RULES, are_shares, split_rows
from fedweave.own_data.targets import as_targets, check_classes


@dataclass(frozen=True)
class DataOptions(DataFields):
    """The options of a call, and how many classes there must be: newcomers may have one, as training had others."""

    least_classes: int = 2

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_text(self.name, "name", "own-data")
        if self.embed is not None:
            check_flag(self.embed, "embed")
        for name in ("gap", "window", "horizon", "stride", "min_rows"):
            object.__setattr__(self, name, as_python(getattr(self, name)))
        if type(self.min_rows) is not int or self.min_rows < 0:
            raise BadInput(f"min_rows: {format_value(self.min_rows)} must be a number of rows, 0 or more")

    @property
    def is_pooled(self) -> bool:
        """Whether the rows of all clients scale a column.

        Raises:
            BadInput: another word.
        """
        return choose(self.preprocess, ("pooled", "client"), "preprocess") == "pooled"

    def words(self, features: Sequence[str]) -> Mapping[str, int | Sequence[str]]:
        """Column of texts -> its words, or how many hashes.

        Raises:
            BadInput: a column that is not a feature.
        """
        texts = self.text if isinstance(self.text, Mapping) else dict.fromkeys(as_names(self.text, "text", 0), HASHED)
        for name in texts:
            choose(name, features, "text")
        return dict(texts)

    @property
    def is_forecast(self) -> bool:
        """Whether rows are time steps, of which windows are cut."""
        return self.window is not None or self.horizon is not None

    @property
    def rule(self) -> str:
        """The rule of the split that these options name or imply; empty for the default and for given parts."""
        if self.time is not None or self.recording is not None:
            return "grouped" if self.time is None else "chronological"
        return self.split if isinstance(self.split, str) and self.split in RULES else ""

    def with_arrays(self, count: int) -> "DataOptions":
        """These options with the time and the recording of `count` rows as arrays."""
        time = None if self.time is None else arrays.as_times(self.time, count)
        recording = None if self.recording is None else arrays.as_recordings(self.recording, count)
        return replace(self, time=time, recording=recording)


@dataclass(frozen=True)
class Arrangement:
    """Clients, targets and parts of rows, whatever the rows hold.

    Attributes:
        owner: position of each row's client [M].
        names: of the clients.
        labels: class of each row [M], or None.
        classes: names of the classes.
        rows: part -> rows of each client.
        class_type: type of the labels, see `Dataset`.
        numbers: targets of each row [M, K], where they are not classes.
    """

    owner: np.ndarray
    names: tuple[str, ...]
    labels: np.ndarray | None
    classes: tuple[str, ...]
    rows: Mapping[str, tuple[np.ndarray, ...]]
    numbers: np.ndarray | None = None
    class_type: str = ""


NEEDED = {"chronological": "time", "grouped": "recording"}  # rule of a split -> what it needs of each row


def check_names(names: Iterable[str], others: Iterable[str] = ()) -> None:
    """Refuse a name that is not an option of rows and not in `others`.

    Raises:
        BadInput: with the nearest name.
    """
    for name in names:
        choose(name, [*ROW_OPTIONS, *others], "options")


def row_options(options: Mapping[str, Any], others: Iterable[str] = ()) -> DataOptions:
    """The options of rows that a call got; `others` are names of further options of the call.

    Raises:
        BadInput: an unknown name.
    """
    check_names(options, others)
    return DataOptions(**options)


def follow_rule(options: DataOptions, rule: str) -> DataOptions:
    """The options of newcomers' rows with the rule by which the rows of training were split, unless they name another.

    Raises:
        BadInput: the rule needs a time or a recording of each row, which is not given.
    """
    if options.rule or not (options.split is None or are_shares(options.split)):
        return options
    if needed := NEEDED.get(rule):
        raise BadInput(
            f"join: the rows of {options.name} are split by the rule {rule!r}, so newcomers' rows need {needed}= too; "
            "or name another rule, such as split='random'"
        )
    if rule and options.split is not None:
        return replace(options, split=rule, shares=options.split)
    return replace(options, split=rule or options.split)


def find_large_clients(client: Any, count: int, options: DataOptions) -> tuple[np.ndarray, DataOptions, str]:
    """Which rows are of clients with at least `min_rows` rows [M], the options of these rows, and a note.

    Raises:
        BadInput: no client has so many, or an option names rows by their numbers.
    """
    everything = np.ones(count, dtype=bool), replace(options, min_rows=0), ""
    if not options.min_rows:
        return everything
    owner, names = arrays.as_clients(client, count)
    sizes = np.bincount(owner, minlength=len(names))
    small = [name for name, size in zip(names, sizes, strict=True) if size < options.min_rows]
    if not small:
        return everything
    if len(small) == len(names):
        largest = f"{names[int(sizes.argmax())]!r}, has {format_count(int(sizes.max()), 'row')}"
        raise BadInput(
            f"min_rows: no client has {options.min_rows} rows; the largest, {largest}; give a smaller number"
        )
    kept = (sizes >= options.min_rows)[owner]
    if isinstance(options.split, Mapping) and not are_shares(options.split):
        raise BadInput("min_rows: split names rows by their numbers, which would change; leave min_rows out")
    by_row = {key: getattr(options, key) for key in ("split", "time", "recording", "group", "unit")}
    selected = {
        key: arrays.as_column(value, key, count)[kept]
        for key, value in by_row.items()
        if value is not None and not isinstance(value, str | Mapping)
    }
    examples = ", ".join(map(repr, small[:MOST_SHOWN])) + (", ..." if len(small) > MOST_SHOWN else "")
    rows, verb = format_count(int((~kept).sum()), "row"), "is" if len(small) == 1 else "are"
    note = (
        f"{len(small)} of {format_count(len(names), 'client')} with fewer than {options.min_rows} rows {verb} left out "
        f"({rows}): {examples}"
    )
    return kept, replace(options, min_rows=0, **selected), note


def arrange(y: Any, client: Any, count: int, options: DataOptions, names: tuple[str, ...] = ()) -> Arrangement:
    """Assign rows to clients and split them.

    Args:
        client: who owns each row; a position in `names` where these are given.

    Raises:
        BadInput: as `Federation.from_arrays`.
    """
    targets = as_targets(y, count, options.target, options.least_classes)
    labels = targets.labels
    owner, names = (client, names) if names else arrays.as_clients(client, count)
    rows = split_rows(owner, labels, names, options.with_arrays(count))
    if labels is not None:
        check_classes(labels, rows, targets.classes)
    return Arrangement(owner, names, labels, targets.classes, rows, targets.numbers, targets.class_type)


def client_fields(arrangement: Arrangement, options: DataOptions) -> dict[str, Any]:
    """The fields of a partition about its clients: names, groups, units and the given client graph."""
    _check_names(arrangement.names)
    members, groups = arrays.as_groups(options.group, arrangement.owner, arrangement.names)
    pairs = None if options.relation is None else read_pairs(options.relation, "relation", arrangement.names)
    relation = None if pairs is None else arrays.as_relation(pairs, arrangement.names)
    units = arrays.as_units(options.unit, arrangement.owner, arrangement.names)
    return {"names": arrangement.names, "group": members, "group_names": groups, "relation": relation, "units": units}


def _check_names(names: tuple[str, ...]) -> None:
    """Refuse a client without a name: results and messages could not name it.

    Raises:
        BadInput: naming the client before it, if there is one.
    """
    empty = next((i for i, name in enumerate(names) if not name.strip()), None)
    if empty is not None:
        raise BadInput(
            f"client: {names[empty]!r} is not a name of a client; name these rows, or leave them out (the others: "
            f"{', '.join([*names[:empty], *names[empty + 1 :]][:3])})"
        )


def federation_fields(
    dataset: Dataset, arrangement: Arrangement, options: DataOptions, shape: tuple[int, ...], notes: tuple[str, ...]
) -> dict[str, Any]:
    """The fields of a federation of independent rows."""
    rows = arrangement.rows
    partition = Partition(rows["train"], rows["val"], rows["test"], **client_fields(arrangement, options))
    return partition_fields(dataset, partition, arrangement, options, shape, notes)


def partition_fields(
    dataset: Dataset,
    partition: Partition,
    arrangement: Arrangement,
    options: DataOptions,
    shape: tuple[int, ...],
    notes: tuple[str, ...],
) -> dict[str, Any]:
    """The fields of a federation whose partition is given."""
    name_notes = (
        *data_warnings.find_part_names(arrangement.names),
        *data_warnings.find_similar_names("clients", arrangement.names),
        *data_warnings.find_similar_names("classes", arrangement.classes),
        *(data_warnings.find_number_classes(arrangement.classes) if options.target is None else ()),
    )
    return {
        "dataset": dataset,
        "partition": partition,
        "setting": "own",
        "partition_block": arrays.partition_block(dataset, partition),
        "normalize": scale_by_own_rows(dataset, partition, options.normalize or "none"),
        "shape": tuple(shape),
        "classes": arrangement.classes,
        "notes": (*notes, *name_notes),
        "rules": {"split": options.rule, "stride": options.stride},
    }
