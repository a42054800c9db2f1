"""The stored schema of a source: what its first rows were like, and what is suspicious about later ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave import exported_model
from fedweave.errors import BadInput, choose, format_count, format_value
from fedweave.own_data.user_files import COMMAS, name_values

if TYPE_CHECKING:
    import pandas as pd

FAR, OUTSIDE = 10, 1  # widths of a column's range beyond it: no value may lie so far, and few may lie outside
FEW = 0.05  # share of the values
UNITS = 10  # a spread that changes by this factor looks like another unit, such as minutes for hours
MISSING = 0.5  # rise of the share of missing values
ENOUGH = 50  # values that a spread is known from
KINDS = {
    "string": "text",
    "integer": "whole",
    "floating": "number",
    "mixed-integer-float": "number",
    "decimal": "number",
    "boolean": "truth",
    "datetime64": "time",
    "datetime": "time",
    "date": "time",
    "empty": "",
}
TYPES = {"text": "str", "whole": "Int64", "number": "float64", "truth": "boolean"}  # as pandas stores them


@dataclass(frozen=True)
class ColumnRule:
    """What the values of a column are.

    Attributes:
        name: of the column.
        kind: text, whole, number, truth or time; empty as long as all values are missing.
        low, high: range of all accepted numbers.
        spread: between the quartiles in the last delivery with enough numbers.
        missing: share of missing values in the last delivery.
    """

    name: str
    kind: str = ""
    low: float | None = None
    high: float | None = None
    spread: float = 0.0
    missing: float = 0.0

    def widen(self, values: "pd.Series[Any]") -> "ColumnRule":
        """The rule with a further delivery."""
        share = float(values.isna().mean())
        numbers = self.numbers(values)
        if not len(numbers):
            return replace(self, missing=share)
        low, high = float(numbers.min()), float(numbers.max())
        return replace(
            self,
            missing=share,
            low=low if self.low is None else min(self.low, low),
            high=high if self.high is None else max(self.high, high),
            spread=_spread(numbers) if len(numbers) >= ENOUGH else self.spread,
        )

    def numbers(self, values: "pd.Series[Any]") -> np.ndarray:
        """The finite values of a column of numbers; none of other columns."""
        if self.kind not in ("whole", "number"):
            return np.zeros(0)
        numbers = values.dropna().to_numpy(dtype=np.float64)
        return numbers[np.isfinite(numbers)]

    def find_problem(self, values: "pd.Series[Any]") -> str:
        """What is suspicious about the values of a delivery; empty if nothing is."""
        where = f"column {self.name!r}"
        share = float(values.isna().mean())
        if share > self.missing + MISSING:
            return f"{where}: {share:.0%} of the values are missing, before {self.missing:.0%}"
        numbers = self.numbers(values)
        if self.kind == "number" and len(numbers) < values.notna().sum():
            return f"{where}: has values that are infinite"
        if not len(numbers) or self.low is None or self.high is None or self.high == self.low:
            return ""
        distance = np.maximum(self.low - numbers, numbers - self.high) / (self.high - self.low)
        if distance.max() > FAR or (distance > OUTSIDE).mean() > FEW:
            count = int((distance > OUTSIDE).sum())
            return (
                f"{where}: {format_count(count, 'value')} of {len(numbers)} far outside of {self.low:g} to "
                f"{self.high:g}, such as {numbers[distance.argmax()]:g}"
            )
        spread = _spread(numbers) if len(numbers) >= ENOUGH else 0.0
        if spread and self.spread and not 1 / UNITS < spread / self.spread < UNITS:
            return f"{where}: its values spread over {spread:g}, before over {self.spread:g}, as if in another unit"
        return ""


def _spread(numbers: np.ndarray) -> float:
    """The distance between the quartiles."""
    return float(np.subtract(*np.quantile(numbers, [0.75, 0.25])))


@dataclass(frozen=True)
class Schema:
    """The columns of a source and what they are for.

    Attributes:
        columns: in the order of the first delivery.
        client, label, key: names of columns; without a key a row is known by all its values.
        classes: names of the label's classes; empty where the label is a number.
        has_commas: whether the decimal mark of a file was a comma, so that points separate thousands in later ones.
    """

    columns: tuple[ColumnRule, ...]
    client: str
    label: str
    key: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    has_commas: bool = False

    @classmethod
    def of(cls, table: "pd.DataFrame", client: str, label: str, key: Sequence[str], target: str) -> "Schema":
        """The schema of a first delivery, whose ranges and classes are still empty.

        Args:
            target: "classes" or "numbers"; empty: classes, and numbers where the label has a fraction.

        Raises:
            BadInput: a column that is not there.
        """
        for option, name in (("client", client), ("label", label), *(("key", name) for name in key)):
            choose(name, map(str, table.columns), option)
        kinds = {name: kind_of(table[name]) for name in table}
        kinds |= dict.fromkeys((client, *key), "text")
        kinds = {str(name): "text" if kind == "mixed" else kind for name, kind in kinds.items()}
        if kinds[label] == "":
            raise BadInput("label", f"column {label!r} is empty; the first delivery needs labels")
        if kinds[label] == "number" and _are_whole(table[label]):
            kinds[label] = "whole"  # a missing one has made fractions of whole numbers
        classes = ("",) if target == "classes" or (not target and kinds[label] != "number") else ()
        return cls(
            tuple(ColumnRule(str(name), kind) for name, kind in kinds.items()), client, label, tuple(key), classes
        )

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> "Schema":
        """A schema from the data of `dataclasses.asdict`."""
        columns = tuple(ColumnRule(**column) for column in content["columns"])
        return cls(**{**content, "columns": columns, "key": (*content["key"],), "classes": (*content["classes"],)})

    @property
    def names(self) -> tuple[str, ...]:
        """Columns of texts, which no reader may take for numbers."""
        return tuple(column.name for column in self.columns if column.kind == "text")

    @property
    def values(self) -> tuple[str, ...]:
        """Columns that are not part of the key."""
        return tuple(column.name for column in self.columns if column.name not in self.key)

    def conform(self, table: "pd.DataFrame") -> "tuple[pd.DataFrame, Schema]":
        """(the rows with the types of the schema, the schema with what they say of kinds and of the decimal mark).

        Raises:
            BadInput: a column is missing or new, or has values of another type, or a row has no client or no key.
        """
        if not table.columns.is_unique:
            raise BadInput(f"column {str(table.columns[table.columns.duplicated()][0])!r} is there twice")
        known = {column.name for column in self.columns}
        if different := sorted(known ^ {*map(str, table)}):
            raise BadInput(f"column {different[0]!r} is {'missing' if different[0] in known else 'new'}")
        rules = tuple(replace(column, kind=_fit_kind(column, table[column.name])) for column in self.columns)
        typed = {column.name: _convert(table[column.name], column.kind) for column in rules}
        conformed = table.assign(**typed)[[column.name for column in rules]].reset_index(drop=True)
        for name in (self.client, *self.key):
            if count := int(conformed[name].isna().sum()):
                raise BadInput(f"column {name!r} is empty in {format_count(count, 'row')}")
        return conformed, replace(self, columns=rules, has_commas=self.has_commas or bool(table.attrs.get(COMMAS)))

    def find_problems(self, table: "pd.DataFrame") -> list[str]:
        """What is suspicious about conformed rows: classes that are new, numbers out of range or of another unit."""
        found = [column.find_problem(table[column.name]) for column in self.columns if column.name not in self.key]
        new = sorted({*self.class_names(table)} - {*self.classes})
        if self.classes and new:
            found.append(f"column {self.label!r}: the class {format_value(new[0])} is new")
        return [*filter(None, found)]

    def class_names(self, table: "pd.DataFrame") -> list[str]:
        """The names of the classes in a table; none where the label is a number."""
        return [exported_model.name_of(value) for value in table[self.label].dropna().unique()] if self.classes else []

    def widen(self, table: "pd.DataFrame") -> "Schema":
        """The schema with a further delivery, which was accepted."""
        classes = tuple(sorted({*self.classes, *self.class_names(table)} - {""}))
        return replace(self, columns=tuple(c.widen(table[c.name]) for c in self.columns), classes=classes)


def kind_of(values: "pd.Series[Any]") -> str:
    """What the values of a column are; "mixed" for values of several kinds."""
    import pandas as pd

    values = values.astype(object) if isinstance(values.dtype, pd.CategoricalDtype) else values
    return KINDS.get(pd.api.types.infer_dtype(values, skipna=True), "mixed")


def _fit_kind(rule: ColumnRule, values: "pd.Series[Any]") -> str:
    """The kind of a column with a further delivery: whole numbers may get fractions, and everything has a name.

    Raises:
        BadInput: the values are of another kind.
    """
    import pandas as pd

    kind = kind_of(values)
    if kind in ("", rule.kind) or rule.kind == "text":
        return rule.kind
    if not rule.kind:
        return "text" if kind == "mixed" else kind
    if {kind, rule.kind} == {"whole", "number"}:
        return "whole" if rule.kind == "whole" and _are_whole(values) else "number"
    words = {"text": "texts", "whole": "whole numbers", "number": "numbers", "truth": "truth values", "time": "times"}
    others = [value for value in values.dropna() if kind_of(pd.Series([value], dtype=object)) != rule.kind]
    example = next((value for value in others if not _is_number(value)), others[0])
    raise BadInput(
        f"column {rule.name!r} has {words.get(kind, 'values of several types')} such as "
        f"{format_value(example)}, and had {words[rule.kind]}"
    )


def _are_whole(values: "pd.Series[Any]") -> bool:
    numbers = values.dropna().to_numpy(dtype=np.float64)
    return bool((np.isfinite(numbers) & (numbers % 1 == 0) & (np.abs(numbers) < exported_model.EXACT)).all())


def _is_number(value: Any) -> bool:
    """Whether a value is a number, also as a text."""
    try:
        return bool(np.isfinite(float(value)))
    except (TypeError, ValueError):
        return False


def _convert(values: "pd.Series[Any]", kind: str) -> "pd.Series[Any]":
    """The values of a column as pandas stores those of its kind."""
    import pandas as pd

    if kind == "text":
        return as_texts(values)
    if kind == "time":
        return pd.to_datetime(values, utc=True)
    return values.astype(TYPES[kind]) if kind else values.astype("float64")


def as_texts(values: "pd.Series[Any]") -> "pd.Series[Any]":
    """Names as texts; a missing one stays missing."""
    return name_values(values).where(values.notna(), None).astype("str")
