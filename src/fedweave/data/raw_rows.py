"""Rows before their preparation: the columns of a table with missing values, and texts, for code from elsewhere."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from fedweave.data.base import Dataset, Partition


@dataclass(frozen=True, eq=False)
class RawRows:
    """The raw rows of a data set, and which of them a client has.

    Attributes:
        table: a row for each of the data set. A missing text is empty.
        columns: of each column of `table` its "name" and "kind" ("number", "category" or "text"), and of a category the
            "values" of its training rows.
        nodes: of a graph, the rows of `table` of each client's nodes; else None.
    """

    table: "pd.DataFrame"
    columns: tuple[dict[str, Any], ...]
    nodes: tuple[np.ndarray, ...] | None = None

    def take(self, client: int, rows: np.ndarray) -> "pd.DataFrame":
        """A copy of the rows [n] of a client, numbered from 0."""
        places = rows if self.nodes is None else self.nodes[client][rows]
        return self.table.iloc[places].reset_index(drop=True)


def find_raw(dataset: "Dataset", partition: "Partition") -> RawRows | None:
    """The raw rows of a data set; None if it has none."""
    if dataset.raw is None:
        return None
    levels = {str(column["name"]): [*column.get("levels", ())] for column in dataset.columns}
    columns = tuple(_describe(name, dataset.raw[name], levels.get(name, [])) for name in dataset.raw)
    texts = [column["name"] for column in columns if column["kind"] == "text"]
    filled = {name: dataset.raw[name].astype(object).fillna("") for name in texts if dataset.raw[name].hasnans}
    return RawRows(dataset.raw.assign(**filled), columns, partition.nodes)


def _describe(name: str, column: "pd.Series[Any]", levels: list[str]) -> dict[str, Any]:
    if column.dtype.kind in "biuf":
        return {"name": name, "kind": "number"}
    return {"name": name, "kind": "category", "values": levels} if levels else {"name": name, "kind": "text"}


def digest_rows(table: "pd.DataFrame") -> np.ndarray:
    """A number for each row [M], by its values."""
    from pandas.util import hash_pandas_object

    return hash_pandas_object(table, index=False).to_numpy()
