"""Rows that the owner of a node has, as the file of a client: encoded and scaled as the rows of the run were."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedweave.api import folder as results_folder
from fedweave.api import portable
from fedweave.api.tables import Preprocessing
from fedweave.deployment.client_data import ClientFile
from fedweave.deployment.spec import WIDTHS, AppSpec
from fedweave.errors import BadInput
from fedweave.tensors.random_streams import stream

if TYPE_CHECKING:
    import pandas as pd

SPLIT = 41  # random stream of the seed: which rows train
SHARES = (0.6, 0.2, 0.2)


def of_table(
    spec: AppSpec, table: "pd.DataFrame", label: str, client: int, time: str = "", shares: Sequence[float] = SHARES
) -> ClientFile:
    """The rows of a table with the columns of the run's.

    Args:
        label: column of the class, or of the number to predict.
        client: identity of the client; a number that no client of the specification has is a newcomer's.
        time: column by which rows are ordered, so that the first ones train; default: rows are drawn.
        shares: of train, val and test.

    Raises:
        BadInput: the run was not made from such a table, or a column or a class is not what it was.
    """
    columns = spec.scaling.get("columns")
    if not columns or "role" in columns[0]:
        raise BadInput(
            f"{spec.run.key}: was not made from rows of a table; write the file of the client with of_arrays"
        )
    preprocessing = Preprocessing.from_data(columns)
    position = client if client < len(spec.clients) else 0
    if client >= len(spec.clients) and any(column.own for column in preprocessing.columns):
        raise BadInput(f"client {client}: each client's own rows scale its columns, so that a newcomer has no numbers")
    for name in (label, *([time] if time else [])):
        if name not in table:
            raise BadInput(f"table: no column {name!r}; it has {', '.join(map(str, table.columns))}")
    x = portable.as_images(preprocessing.encode(table, position))
    return of_arrays(spec, x, table[label].to_numpy(), client, table[time].to_numpy() if time else None, shares)


def of_arrays(
    spec: AppSpec, x: np.ndarray, y: np.ndarray, client: int, time: np.ndarray | None = None,
    shares: Sequence[float] = SHARES,
) -> ClientFile:  # fmt: skip
    """Rows [M, ...] in the form in which the data set of the run has them, and their classes or numbers [M].

    Raises:
        BadInput: another shape, an unknown class, or values that are not finite.
    """
    facts = spec.data
    if facts["kind"] != "images":
        raise BadInput(f"{spec.run.key}: its clients hold a {facts['kind']}; write their files with: split")
    x = portable.as_images(np.asarray(x, dtype=np.float32))
    if [*x.shape[1:]] != facts["shape"] or len(x) != len(y):
        raise BadInput(f"x: shape {[*x.shape]} with {len(y)} labels, but rows of the federation are {facts['shape']}")
    if "scaling" not in spec.scaling:
        raise BadInput(
            f"{spec.run.key}: each client's own rows scale its features, which rows of elsewhere do not have"
        )
    x = results_folder.scaling(spec.scaling).of_client(x, client)
    if not np.isfinite(x).all():
        raise BadInput("x: a value is not finite; leave its row out")
    arrays = {"x": torch.from_numpy(np.ascontiguousarray(x)), **_targets(spec, y, client)}
    return ClientFile(client, arrays, _parts(len(x), time, shares, spec.seed, client))


def _targets(spec: AppSpec, y: np.ndarray, client: int) -> dict[str, Any]:
    facts = spec.data
    if facts["targets"] is not None:
        values = np.asarray(y, dtype=np.float32).reshape(len(y), facts["targets"])
        units = {
            name: np.asarray(spec.scaling[name], dtype=np.float32)[min(client, len(spec.clients) - 1)]
            for name in ("offset", "unit")
        }
        return {name: torch.from_numpy(value) for name, value in {"targets": values, **units}.items()}
    names = [*(facts["class_names"] or map(str, range(facts["classes"])))]
    places = {name: i for i, name in enumerate(names)}
    unknown = sorted({str(value) for value in y} - {*places})
    if unknown:
        raise BadInput(f"label: {unknown[0]!r} is no class of this federation; it has {', '.join(names)}")
    return {"y": torch.tensor([places[str(value)] for value in y], dtype=torch.int64)}


def _parts(
    count: int, time: np.ndarray | None, shares: Sequence[float], seed: int, client: int
) -> dict[str, torch.Tensor]:
    """Rows of train, val and test, each ascending."""
    if len(shares) != len(WIDTHS) or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise BadInput(f"shares: {[*shares]} must be three numbers that add up to 1, of train, val and test")
    order = stream(seed, SPLIT, client).permutation(count) if time is None else np.argsort(time, kind="stable")
    ends = np.rint(np.cumsum(shares) * count).astype(int)
    pieces = np.split(order, ends[:-1])
    return {name: torch.from_numpy(np.sort(piece)) for name, piece in zip(WIDTHS, pieces, strict=True)}
