"""Rows with their clients, targets and parts, and the fields of a federation that follow from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedweave.data import Dataset, Partition
from fedweave.data.normalisation import scale_by_own_rows
from fedweave.errors import BadInput, format_value
from fedweave.own_data import arrays, data_warnings
from fedweave.own_data.pairs import read_pairs
from fedweave.own_data.row_options import DataOptions
from fedweave.own_data.splits import split_rows
from fedweave.own_data.targets import as_targets, check_classes


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


def arrange(y: Any, client: Any, count: int, options: DataOptions, names: tuple[str, ...] = ()) -> Arrangement:
    """Assign rows to clients and split them.

    Args:
        client: who owns each row; a position in `names` where these are given.

    Raises:
        BadInput: as `Federation.from_arrays`.
    """
    if options.stride != 1:
        raise BadInput(
            f"stride: {format_value(options.stride)} is for forecasts; give window and horizon, or leave it out"
        )
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
    """Refuse a client without a name: results and messages could not name it."""
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
    )
    if options.target is None:
        name_notes += data_warnings.find_number_classes(arrangement.classes)
        name_notes += data_warnings.find_unlabelled(arrangement.classes)
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
