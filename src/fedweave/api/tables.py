"""Columns of a pandas table as numbers: what is scaled, filled in and encoded is decided on training rows alone."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd

LEVELS = 100  # most values of a category


class Text(str):
    """A text that shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Column:
    """How one column becomes numbers.

    Attributes:
        name: of the column.
        median, mean, std: of a number, over the training rows; missing values become the median.
        levels: of a category, as texts; others and missing ones become zeros everywhere. Empty for a number.
        missing: training rows without a value.
    """

    name: str
    median: float = 0.0
    mean: float = 0.0
    std: float = 1.0
    levels: tuple[str, ...] = ()
    missing: int = 0

    def encode(self, table: "pd.DataFrame") -> np.ndarray:
        """Float32 [M, 1] of a number, [M, levels] of a category."""
        if self.levels:
            texts = np.array([str(value) for value in table[self.name].tolist()], dtype=object)
            empty = table[self.name].isna().to_numpy()
            return ((texts[:, None] == np.array(self.levels, dtype=object)) & ~empty[:, None]).astype(np.float32)
        values = table[self.name].to_numpy(dtype=np.float64, na_value=np.nan)
        values = np.where(np.isfinite(values), values, self.median)
        return ((values - self.mean) / self.std).astype(np.float32)[:, None]

    def __str__(self) -> str:
        filled = f"; {self.missing} missing in training" if self.missing else ""
        if self.levels:
            return f"{self.name}: category, {len(self.levels)} values, one column each (others: zeros){filled}"
        fill = f", missing values become the median {self.median:.4g}" if self.missing else ""
        return f"{self.name}: number, minus {self.mean:.4g}, divided by {self.std:.4g}{fill}{filled}"


@dataclass(frozen=True)
class Preprocessing:
    """How rows of a table become the vectors that models see."""

    columns: tuple[Column, ...]

    def encode(self, table: "pd.DataFrame") -> np.ndarray:
        """Float32 [M, F] of the rows of `table`.

        Raises:
            BadInput: a column is missing.
        """
        lacking = [column.name for column in self.columns if column.name not in table]
        if lacking:
            raise BadInput(f"table: no column {lacking[0]!r}; it has {', '.join(map(str, table.columns))}")
        return np.concatenate([column.encode(table) for column in self.columns], axis=1)

    def as_data(self) -> list[dict[str, Any]]:
        """The columns as plain data."""
        return [asdict(column) for column in self.columns]

    @classmethod
    def from_data(cls, columns: Sequence[Mapping[str, Any]]) -> "Preprocessing":
        """What `as_data` has given."""
        return cls(tuple(Column(**{**column, "levels": tuple(column["levels"])}) for column in columns))

    def __str__(self) -> str:
        return "\n".join(map(str, self.columns))


def fit_columns(table: "pd.DataFrame", features: list[str], train: np.ndarray) -> Preprocessing:
    """Look at the rows `train` of the columns `features`.

    Raises:
        BadInput: a column without a value in training, a time, or a category of too many values.
    """
    seen = table.iloc[train]
    return Preprocessing(tuple(_fit(seen, name) for name in features))


def _fit(seen: "pd.DataFrame", name: str) -> Column:
    from pandas.api import types

    column = seen[name]
    missing = int(column.isna().sum())
    if missing == len(column):
        raise BadInput(f"table: column {name!r} has no value in any training row; leave it out of features")
    if types.is_datetime64_any_dtype(column) or types.is_timedelta64_dtype(column):
        raise BadInput(
            f"table: column {name!r} is a time; make numbers of it (such as the hour), or leave it out of features"
        )
    if types.is_numeric_dtype(column):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        values = values[np.isfinite(values)]
        if not len(values):
            raise BadInput(f"table: column {name!r} has no finite value in any training row; leave it out of features")
        median = float(np.median(values))
        filled = np.concatenate([values, np.full(len(column) - len(values), median)])
        return Column(name, median, float(filled.mean()), float(filled.std()) or 1.0, missing=len(column) - len(values))
    levels = tuple(sorted({str(value) for value in column.dropna().tolist()}))
    if len(levels) > LEVELS:
        raise BadInput(
            f"table: column {name!r} has {len(levels)} different values, more than {LEVELS}; group or drop them"
        )
    return Column(name, levels=levels, missing=missing)
