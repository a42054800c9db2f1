"""Columns of a pandas table as numbers: scaling, filling in and encoding are fitted on training rows alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave import exported_model
from fedweave.errors import BadInput, format_count
from fedweave.own_data.array_checks import COMPLEX_ADVICE, KINDS, check_size, convert_input_errors
from fedweave.own_data.user_files import COMMAS

if TYPE_CHECKING:
    import pandas as pd

MAX_ONE_HOT_LEVELS = 100  # most values of a category that has one column per value
SENTENCE = 4  # words of a value from which on a category may be texts
HASHED = 256  # default number of values of a text column
WITHOUT = "leave it out of features, or name it in exclude=['{}'] (--exclude)"
MAX_EMBEDDED_LEVELS = 100_000  # most values of a category that is embedded: each client's model has a vector for each
Numbers = tuple[float, float, float]
# What pandas calls columns of objects: databases write decimals, and a table that was turned has objects alone.
NUMBERS = ("decimal", "integer", "floating", "mixed-integer-float")
TIMES = ("date", "datetime", "datetime64", "time", "timedelta", "timedelta64", "period")


@dataclass(frozen=True)
class Column:
    """How one column becomes numbers.

    Attributes:
        name: of the column.
        median, mean, std: of a number, over the training rows; missing values become the median.
        levels: of a category, as texts; empty for a number. Other values and missing ones are zeros everywhere, or the
            code 0.
        missing: training rows without a value.
        coded: whether a category is one number, 1 + the position of its value, for a model that embeds it.
        own: of a number, (median, mean, std) of each client's training rows, where these are used.
        words: of a text, the vocabulary; the count of each of its words is one value.
        buckets: of a text without a vocabulary, the number of hashes; the count of the words of each hash is one value.
        has_commas: whether the decimal mark of its file was a comma, so that points separate thousands.
    """

    name: str
    median: float = 0.0
    mean: float = 0.0
    std: float = 1.0
    levels: tuple[str, ...] = ()
    missing: int = 0
    coded: bool = False
    own: tuple[Numbers, ...] = ()
    words: tuple[str, ...] = ()
    buckets: int = 0
    has_commas: bool = False

    @property
    def width(self) -> int:
        """Values that the column becomes."""
        if self.is_text:
            return len(self.words) or self.buckets
        return len(self.levels) if self.levels and not self.coded else 1

    @property
    def is_text(self) -> bool:
        """Whether words are counted."""
        return bool(self.words or self.buckets)

    @property
    def code_count(self) -> int:
        """Different codes of a coded category; 0 of other columns."""
        return len(self.levels) + 1 if self.coded else 0

    def encode(self, table: "pd.DataFrame", client: np.ndarray | int = 0) -> np.ndarray:
        """Float32 [M, width] for rows of `client`, one position for all rows or one per row [M].

        Raises:
            BadInput: a value of a column of numbers is not a number.
        """
        numbers = tuple(np.array(self.own).T[:, client]) if self.own else (self.median, self.mean, self.std)
        with convert_input_errors():
            if not (self.levels or self.is_text):
                check_size(exported_model.as_numbers(table[self.name], self.name), f"table: column {self.name!r}")
            return exported_model.encode_column(table[self.name], vars(self), numbers)

    def read(self, table: "pd.DataFrame") -> "pd.Series[Any]":
        """The values [M] before they are encoded: numbers as float64, others as texts; NaN where one is missing.

        A missing text is an empty one, and an infinite number is missing, as for models.
        """
        import pandas as pd

        with convert_input_errors():
            if not (self.levels or self.is_text):
                values = exported_model.as_numbers(table[self.name], self.name)
                return pd.Series(np.where(np.isfinite(values), values, np.nan))
            texts, positions = exported_model.unique_texts(table[self.name])
        missing = "" if self.is_text else np.nan
        return pd.Series(np.array([*texts, missing], dtype=object)[positions], dtype="str")

    def of_client(self, client: int) -> "Column":
        """The same column with the numbers of one client alone."""
        if not self.own:
            return self
        median, mean, std = self.own[client]
        return replace(self, median=median, mean=mean, std=std, own=())

    @property
    def _has_sentences(self) -> bool:
        """Whether at least half of the values of a category have several words."""
        return 2 * sum(len(level.split()) >= SENTENCE for level in self.levels) >= max(1, len(self.levels))

    def __str__(self) -> str:
        text = str(self.name)  # which may be a number
        name = text if text.strip() and text.isprintable() else repr(self.name)
        filled = f"; {self.missing} missing in training" if self.missing else ""
        values, words = (format_count(len(part), noun) for part, noun in ((self.levels, "value"), (self.words, "word")))
        if self.is_text:
            method = f"a vocabulary of {words}" if self.words else f"{self.buckets} hashes"
            return f"{name}: text, counts of words by {method}{filled}"
        hint = f"; for the words in them, text=[{self.name!r}]" if self._has_sentences else ""
        if self.coded:
            return f"{name}: category, {values}, embedded (others: one vector){filled}{hint}"
        if self.levels:
            return f"{name}: category, {values}, one column each (others: zeros){filled}{hint}"
        if self.own:
            fill = ", missing values become the client's median" if self.missing else ""
            return f"{name}: number, by each client's own mean and standard deviation{fill}{filled}"
        fill = f", missing values become the median {self.median:.4g}" if self.missing else ""
        return f"{name}: number, minus {self.mean:.4g}, divided by {self.std:.4g}{fill}{filled}"


@dataclass(frozen=True)
class Preprocessing:
    """How rows of a table become the vectors that models see."""

    columns: tuple[Column, ...]

    @property
    def categories(self) -> tuple[int, ...]:
        """Codes of each value of a vector, 0 for a number; empty where no category is embedded."""
        codes = tuple(count for column in self.columns for count in [column.code_count] * column.width)
        return codes if any(codes) else ()

    def encode(self, table: "pd.DataFrame", client: np.ndarray | int = 0) -> np.ndarray:
        """Float32 [M, F] of the rows of `table`, which belong to `client`: one position, or one per row [M].

        Raises:
            BadInput: a column is missing, or holds texts where training had numbers.
        """
        with convert_input_errors():
            exported_model.check_columns(table, [column.name for column in self.columns])
        encoded = np.empty((len(table), sum(column.width for column in self.columns)), dtype=np.float32)
        start = 0
        for column in self.columns:
            encoded[:, start : start + column.width] = column.encode(table, client)
            start += column.width
        return encoded

    def read(self, table: "pd.DataFrame") -> "pd.DataFrame":
        """The columns as they were before they became vectors, see `Column.read`."""
        import pandas as pd

        return pd.DataFrame({str(column.name): column.read(table) for column in self.columns})

    @property
    def clients(self) -> int:
        """Clients with numbers of their own; 0 where all clients share the numbers."""
        return max((len(column.own) for column in self.columns), default=0)

    def with_clients(self, table: "pd.DataFrame", train: Sequence[np.ndarray]) -> "Preprocessing":
        """The same with the numbers of more clients behind the others, from their rows `train` of `table`."""
        return Preprocessing(tuple(_add_clients(column, table, train) for column in self.columns))

    def of_client(self, client: int) -> "Preprocessing":
        """The same with the numbers of one client alone."""
        return Preprocessing(tuple(column.of_client(client) for column in self.columns))

    def as_data(self) -> list[dict[str, Any]]:
        """The columns as plain data."""
        stored = [asdict(column) for column in self.columns]
        return [{key: value for key, value in one.items() if key != "has_commas" or value} for one in stored]

    @classmethod
    def from_data(cls, columns: Sequence[Mapping[str, Any]]) -> "Preprocessing":
        """The inverse of `as_data`."""
        return cls(tuple(_column(dict(column)) for column in columns))

    def __str__(self) -> str:
        return "\n".join(map(str, self.columns))


def _column(stored: dict[str, Any]) -> Column:
    own = tuple((float(a), float(b), float(c)) for a, b, c in stored.pop("own", ()))
    texts = {key: tuple(stored.get(key, ())) for key in ("levels", "words")}
    return Column(**{**stored, **texts, "own": own})


def fit_columns(
    table: "pd.DataFrame",
    features: list[str],
    train: Sequence[np.ndarray],
    embed: bool | None,
    pooled: bool = True,
    text: Mapping[str, int | Sequence[str]] | None = None,
) -> Preprocessing:
    """Fit the columns `features` on their training rows.

    Args:
        train: rows of each client.
        embed: whether categories are coded for embeddings; None: those of more than `MAX_ONE_HOT_LEVELS` values.
        pooled: whether numbers are scaled by the training rows of all clients together, or of each client alone.
        text: column of texts -> how many hashes of words are counted, or the words.

    Raises:
        BadInput: a column without a value in training, a time, or a category of too many values.
    """
    rows = np.concatenate(train)
    client = np.repeat(np.arange(len(train)), [len(client_rows) for client_rows in train])
    texts = text or {}
    columns = (
        _fit_text(table[name].iloc[rows], name, texts[name])
        if name in texts
        else _fit_column(table[name].iloc[rows], name, client, embed, pooled)
        for name in features
    )
    has_commas = bool(table.attrs.get(COMMAS))
    return Preprocessing(tuple(replace(column, has_commas=has_commas) for column in columns))


def _fit_text(column: "pd.Series[Any]", name: str, option: int | Sequence[str]) -> Column:
    with convert_input_errors():
        exported_model.unique_texts(column)
    missing = int(column.isna().sum())
    if isinstance(option, int) and not isinstance(option, bool) and 2 <= option <= MAX_EMBEDDED_LEVELS:
        return Column(name, missing=missing, buckets=option)
    entries = () if isinstance(option, str | int) or not isinstance(option, Iterable) else option
    words = tuple(str(word).lower() for word in entries)
    if not words or len({*words}) < len(words) or not all(words):
        raise BadInput(
            f"text: {name!r} has {option!r}; give a number of hashes such as {HASHED}, or a list of different words"
        )
    return Column(name, missing=missing, words=words)


def _fit_column(column: "pd.Series[Any]", name: str, client: np.ndarray, embed: bool | None, pooled: bool) -> Column:
    from pandas.api import types

    missing = int(column.isna().sum())
    if missing == len(column):
        raise BadInput(f"table: column {name!r} has no value in any training row; {WITHOUT.format(name)}")
    inferred = types.infer_dtype(column, skipna=True)
    if inferred in TIMES:
        raise BadInput(
            f"table: column {name!r} is a time; make numbers of it (such as the hour), or {WITHOUT.format(name)}"
        )
    if inferred == "complex":
        raise BadInput(f"table: column {name!r} holds {KINDS['c']}; {COMPLEX_ADVICE}")
    if types.is_numeric_dtype(column) or inferred in NUMBERS:
        return _fit_number(exported_model.as_numbers(column, name), name, client, pooled)
    return _fit_category(column, name, missing, embed)


def _fit_number(values: np.ndarray, name: str, client: np.ndarray, pooled: bool) -> Column:
    check_size(values, f"table: column {name!r}")
    finite = np.isfinite(values)
    if not finite.any():
        raise BadInput(f"table: column {name!r} has no finite value in any training row; {WITHOUT.format(name)}")
    median, mean, std = _moments(values, finite, None)
    parts = [] if pooled else np.split(np.arange(len(values)), np.flatnonzero(np.diff(client)) + 1)
    own = tuple(_moments(values[indices], finite[indices], (median, mean, std)) for indices in parts)
    return Column(name, median, mean, std, missing=int((~finite).sum()), own=own)


def _add_clients(column: Column, table: "pd.DataFrame", train: Sequence[np.ndarray]) -> Column:
    """`column` with the numbers of more clients, if clients have numbers of their own."""
    if not column.own:
        return column
    with convert_input_errors():
        values = exported_model.as_numbers(table[column.name], column.name)
    numbers = (column.median, column.mean, column.std)
    own = (_moments(values[rows], np.isfinite(values[rows]), numbers) for rows in train)
    return replace(column, own=(*column.own, *own))


def _moments(values: np.ndarray, finite: np.ndarray, all_clients: Numbers | None) -> Numbers:
    """Median, mean and standard deviation, after missing values became the median.

    Where a client has no value, or one value only, its numbers are those of all clients; a constant is divided by 1.
    """
    present = values[finite]
    if not len(present) and all_clients:
        return all_clients
    median = float(np.median(present))
    filled = np.concatenate([present, np.full(len(values) - len(present), median)])
    mean, std = float(filled.mean()), float(filled.std())
    constant = std <= 1e-12 * abs(mean)
    return median, mean, (all_clients[2] if all_clients else 1.0) if constant else std


def _fit_category(column: "pd.Series[Any]", name: str, missing: int, embed: bool | None) -> Column:
    with convert_input_errors():
        levels = tuple(sorted({*exported_model.unique_texts(column)[0]}))
    most = MAX_ONE_HOT_LEVELS if embed is False else MAX_EMBEDDED_LEVELS
    if len(levels) > most:
        advice = "; group or drop them" + (
            ", or use embed=True" if embed is False and len(levels) <= MAX_EMBEDDED_LEVELS else ""
        )
        count = f"{len(levels)} different values, more than {most}"
        raise BadInput(f"table: column {name!r} has {count}{advice}; for texts, text=[{name!r}]")
    return Column(
        name, levels=levels, missing=missing, coded=len(levels) > MAX_ONE_HOT_LEVELS if embed is None else embed
    )
