"""Rows of the owner of a node as the file of a client, encoded and scaled like the rows of the run."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedweave import exported_model
from fedweave.data import Partition
from fedweave.data.partitions.splits import PARTS, check_shares
from fedweave.deployment.node.client_data import ClientFile
from fedweave.deployment.wire.spec import AppSpec
from fedweave.errors import BadInput, format_count, format_value
from fedweave.own_data.array_checks import as_plain, convert_input_errors
from fedweave.own_data.arrays import as_times
from fedweave.own_data.column_encoding import Preprocessing
from fedweave.own_data.splits import SHARES, find_bounds
from fedweave.prediction import input_description
from fedweave.runs.federations import centre_targets
from fedweave.tensors.random_streams import stream

if TYPE_CHECKING:
    import pandas as pd

SPLIT = 41  # random stream of the seed: which rows train
EXPORT_COMMAND = "fedweave federate export --data"


def check_client(client: int) -> None:
    """Refuse a negative identity."""
    if client < 0:
        raise BadInput("--client", f"{client} is not an identity; `show` lists them, from 0")


def of_table(
    spec: AppSpec, table: "pd.DataFrame", label: str, client: int, time: str = "", shares: Mapping[str, float] = SHARES
) -> ClientFile:
    """The client file of a table that has the columns of the run's table.

    Args:
        label: column of the class, or of the number to predict.
        client: identity of the client, from 0; a larger number than those of the specification is a newcomer's.
        time: column by which rows are ordered, so that the first ones train; default: rows are drawn.
        shares: of "train", "val" and "test".

    Raises:
        BadInput: the run was not made from such a table, the table has rows of another client, or a column or a class
            is not what it was.
    """
    check_shares(shares, "--shares")
    _check_owner(spec, table, client)
    x = features_of_table(spec, table, client)
    for name in (label, *([time] if time else [])):
        if name not in table:
            raise BadInput("table", f"no column {name!r}; it has {', '.join(map(str, table.columns))}")
    arrays = {"x": torch.from_numpy(x), **_targets(spec, as_plain(table[label].to_numpy(), "label"), client)}
    times = as_times(table[time].to_numpy(), len(table)) if time else None
    return ClientFile(client, arrays, _split_rows(len(x), times, shares, spec.seed, client))


def _check_owner(spec: AppSpec, table: "pd.DataFrame", client: int) -> None:
    """Refuse rows of other clients, which would train this client's model; a newcomer may have any name, but one."""
    column = spec.scaling.get("client_column", "")
    if client < len(spec.clients):
        with convert_input_errors():
            exported_model.check_client(table, column, spec.clients[client])
    elif column in table and table[column].nunique() > 1:
        raise BadInput(
            "table",
            f"column {column!r} has rows of {format_count(table[column].nunique(), 'client')}, and --client "
            f"{client} is one newcomer; give the rows of one client alone, or leave the column out",
        )


def features_of_table(spec: AppSpec, table: "pd.DataFrame", client: int) -> np.ndarray:
    """Rows [M, ...] of a table as the models take them: encoded and scaled as those of the run."""
    columns: list[dict[str, Any]] = spec.scaling.get("columns") or []
    if spec.data["kind"] != "images" or not exported_model.is_encoded(columns):
        raise BadInput(spec.run.key, f"was not made from rows of a table; take client-N.pt of: {EXPORT_COMMAND}")
    preprocessing = Preprocessing.from_data(columns)
    position = client if client < len(spec.clients) else 0
    if client >= len(spec.clients) and any(column.own for column in preprocessing.columns):
        raise BadInput(_without_scaling(spec, client, "columns"))
    x = exported_model.as_images(preprocessing.encode(table, position))
    x = input_description.scaling(spec.scaling).apply_to_client(x, client)
    if not np.isfinite(x).all():
        raise BadInput("x", "a value is not finite; leave its row out")
    return np.ascontiguousarray(x)


def _without_scaling(spec: AppSpec, client: int, what: str) -> str:
    """Why a client that was not in the export cannot take part."""
    return (
        f"client {client}: each client's own rows scale its {what}, and the app has no numbers for a new client; "
        f"give one from 0 to {len(spec.clients) - 1}, or export a run whose clients share the scaling"
    )


def _targets(spec: AppSpec, y: np.ndarray, client: int) -> dict[str, Any]:
    facts = spec.data
    if facts["targets"] is not None:
        values = _parse_numbers(y, facts["targets"])
        dtype = spec.scaling.get("precision", "float32")
        units = {name: np.asarray(spec.scaling[name], dtype=dtype) for name in ("offset", "unit")}
        if client >= len(spec.clients) and any((numbers != numbers[0]).any() for numbers in units.values()):
            raise BadInput(_without_scaling(spec, client, "targets"))
        position = min(client, len(spec.clients) - 1)
        own = (np.arange(len(values)),), (np.zeros(0, np.int64),), (np.zeros(0, np.int64),)
        offset, unit = (units[name][position : position + 1] for name in ("offset", "unit"))
        targets, about = centre_targets(values.astype(dtype), Partition(*own), offset, unit, torch.float32)
        return {"targets": targets, **{name: tensor[0] for name, tensor in about.items()}}
    names = [*(facts["class_names"] or map(str, range(facts["classes"])))]
    class_numbers = {name: i for i, name in enumerate(names)}
    given = [exported_model.name_of(value) for value in y]
    if y.dtype.kind == "f":  # as a table has whole numbers beside missing ones
        given = [name.removesuffix(".0") for name in given]
    unknown = sorted({*given} - {*class_numbers})
    if unknown:
        raise BadInput("label", f"{unknown[0]!r} is not a class of this federation; it has {', '.join(names)}")
    return {"y": torch.tensor([class_numbers[name] for name in given], dtype=torch.int64)}


def _parse_numbers(y: np.ndarray, count: int) -> np.ndarray:
    """Targets [M, count], which are finite numbers."""
    import pandas as pd

    if np.size(y) != len(y) * count:
        raise BadInput("label", f"one number for each row, but this federation predicts {count}")
    flat = pd.Series(np.asarray(y).ravel())
    values = pd.to_numeric(flat, errors="coerce").to_numpy(dtype=np.float64)
    if not np.isfinite(values).all():
        row = int((~np.isfinite(values)).argmax())
        problem = "is missing" if flat.isna()[row] else f"{format_value(flat[row])} is not a finite number"
        raise BadInput(
            "label", f"{problem} in row {row // count}, but this federation predicts numbers; leave the row out"
        )
    return values.reshape(len(y), count)


def _split_rows(
    count: int, time: np.ndarray | None, shares: Mapping[str, float], seed: int, client: int
) -> dict[str, torch.Tensor]:
    """Rows of train, val and test, each ascending; where there are test rows, those of one time are in one part."""
    order = stream(seed, SPLIT, client).permutation(count) if time is None else np.argsort(time, kind="stable")
    ends = np.rint(np.cumsum([shares.get(name, 0.0) for name in PARTS]) * count).astype(int)
    if not ends[0]:
        raise BadInput(
            "--shares", f"{[*shares.values()]} of {format_count(count, 'row')} leave none for training; give more rows"
        )
    if time is not None and ends[1] < count:
        ends[:2] = find_bounds(time[order], ends[0], ends[1] - ends[0], 0, f"client {client}")[::2]
    pieces = np.split(order, ends[:-1])
    return {name: torch.from_numpy(np.sort(piece)) for name, piece in zip(PARTS, pieces, strict=True)}
