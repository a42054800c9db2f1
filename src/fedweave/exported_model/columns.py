"""Columns of a table as numbers, and rows as inputs of a model."""

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import InputError
from .values import as_numbers, as_text, as_times, name_of

if TYPE_CHECKING:
    import pandas as pd

OTHER_STEP = 1.5  # times the usual step of training: where every second row is missing, they are two steps apart
MANY = 10  # rows that hardly ever all lack a value by chance
FAR = 100  # standard deviations from the mean of training: values in another unit are farther, others hardly ever


def unique_texts(column: "pd.Series[Any]") -> tuple[list[str], np.ndarray]:
    """(different values as texts, position of each row's value among them [M]); -1 for a missing value.

    Raises:
        InputError: a value that is not a number or text.
    """
    try:
        positions, values = column.factorize()
    except TypeError as error:
        raise InputError(f"table: column {column.name!r} holds lists or other objects; leave it out") from error
    return [str(as_text(value)) for value in values], np.asarray(positions)


def encode_column(column: "pd.Series[Any]", about: Mapping[str, Any], numbers: Sequence[Any]) -> np.ndarray:
    """Raw values of a column as inputs, float32 [M, width].

    Args:
        about: the fields of `fedweave.own_data.column_encoding.Column`.
        numbers: median, mean and standard deviation of a column of numbers, one each or one a row [M].

    Raises:
        InputError: a value of a column of numbers is not a number.
    """
    if about.get("buckets") or about.get("words"):
        return count_words(column, about.get("words") or (), int(about.get("buckets") or 0))
    if about["levels"]:
        codes = level_codes(column, about["levels"])[:, None]
        _warn_of_values(column[(codes == 0).all(1) & column.notna()], about, bool(codes.any()))
        return (codes if about.get("coded") else codes == np.arange(1, len(about["levels"]) + 1)).astype(np.float32)
    median, mean, std = numbers
    values = as_numbers(column, about["name"])
    values = np.where(np.isfinite(values), values, median)
    return ((values - mean) / std).astype(np.float32)[:, None]


def _warn_of_values(unknown: "pd.Series[Any]", about: Mapping[str, Any], has_known: bool) -> None:
    """Warn of values that training did not have, if there are no others or one is known in another spelling."""
    values, levels = unique_texts(unknown)[0], about["levels"]
    plain = {level.strip().casefold(): level for level in levels}
    respelled = [(value, plain[key]) for value in values for key in [value.strip().casefold()] if key in plain]
    line = ""
    if values and not has_known:
        known = ", ".join(map(repr, levels[:3]))
        line = f"has no value that training had ({known}), such as {values[0]!r}; all count as unknown"
    elif respelled:
        line = f"has {respelled[0][0]!r}, which training had as {respelled[0][1]!r}; it counts as unknown"
    if line:
        warnings.warn(f"table: column {about['name']!r} {line}", stacklevel=2)


def warn_of_empty(table: "pd.DataFrame", names: Sequence[Any]) -> None:
    """Warn of columns without any value, which each had one in training; a few rows may all lack it by chance."""
    for name in (name for name in names if len(table) >= MANY and table[name].isna().all()):
        warnings.warn(f"table: column {name!r} has no value in any of {len(table)} rows", stacklevel=2)


def warn_of_numbers(name: str, values: np.ndarray, mean: float, std: float) -> None:
    """Warn of values [M] of a column of numbers that are infinite, or far from those of training."""
    infinite = np.isinf(values)
    far = ~infinite & (np.abs(values - mean) > FAR * std)
    column, rows = f"table: column {name!r}", len(values)
    if infinite.any():
        warnings.warn(
            f"{column} is infinite in {infinite.sum()} of {rows} rows, and counts as missing there", stacklevel=2
        )
    if far.any():
        training = f"mean {mean:.4g}, standard deviation {std:.4g}"
        warnings.warn(
            f"{column} is far from training ({training}) in {far.sum()} of {rows} rows, such as {values[far][0]:.6g}; "
            "check its unit",
            stacklevel=2,
        )


def level_codes(column: "pd.Series[Any]", levels: Sequence[str]) -> np.ndarray:
    """1 + the position of each row's value among `levels` [M], 0 where it is none of them."""
    texts, positions = unique_texts(column)
    codes = {level: i + 1 for i, level in enumerate(levels)}
    if getattr(column.dtype, "kind", "") in "iuf":  # a missing value makes pandas read "1" as the number 1.0
        texts = [text if text in codes else text[:-2] if text.endswith(".0") else f"{text}.0" for text in texts]
    if getattr(column.dtype, "kind", "") == "b" and not {*texts} & {*codes}:  # training had 0 and 1
        texts = [str(int(text == "True")) for text in texts]
    return np.array([*(codes.get(text, 0) for text in texts), 0], dtype=np.int64)[positions]


def count_words(column: "pd.Series[Any]", vocabulary: Sequence[str], buckets: int) -> np.ndarray:
    """How often each word of `vocabulary`, or each of `buckets` hashes of words, occurs; rows have length 1 or 0.

    Words are those of scikit-learn's vectorisers: two or more letters or digits, in lower case.
    """
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer

    if vocabulary:
        counter = TfidfVectorizer(vocabulary=[*vocabulary], use_idf=False, dtype=np.float32)
    else:
        counter = HashingVectorizer(n_features=buckets, alternate_sign=False, dtype=np.float32)
    texts = column.astype(object).where(column.notna(), "").map(name_of)
    return np.asarray(counter.fit_transform(texts).toarray(), dtype=np.float32)


def last_window(table: "pd.DataFrame", columns: Sequence[Mapping[str, Any]], length: int) -> np.ndarray:
    """The last `length` rows of a table, in the order of its column of times, as one window [1, length, C].

    Raises:
        InputError: a column is missing, there are fewer rows, a value or a time is missing, a time cannot be read, or
            two rows have one time.
    """
    check_columns(table, [column["name"] for column in columns if column["role"] != "client"])
    time, steps = next((column["name"], column.get("steps")) for column in columns if column["role"] == "time")
    if len(table) < length:
        raise InputError(f"table: {len(table)} rows, but the model reads the last {length}; give more")
    order = as_times(table[time].to_numpy(), f"table: column {time!r}")
    last = np.argsort(order, kind="stable")[-length:]
    if len(np.unique(order[last])) < length:
        same = last[:-1][np.diff(order[last]) == 0][0]
        raise InputError(
            f"table: two of the last {length} rows have one time, {table[time].iloc[same]}; give the rows of one series"
        )
    latest = table.iloc[last]
    window = np.stack([as_numbers(latest[c["name"]], c["name"]) for c in columns if c["role"] == "value"], axis=1)
    if not np.isfinite(window).all():
        raise InputError(f"table: one of the last {length} rows has no value; fill it in")
    if steps and length > 1:
        _warn_of_step(time, float(np.median(np.diff(order[last].astype(float)))), steps, length)
    return window[None]


def step_names(columns: Sequence[Mapping[str, Any]] | None, count: int) -> list[str]:
    """Names of the `count` numbers of a forecast: the steps; of several labels, those of one label after the other."""
    labels = [column["name"] for column in columns or () if column.get("label")]
    if len(labels) < 2:
        return [f"step {i + 1}" for i in range(count)]
    return [f"{label}, step {i + 1}" for label in labels for i in range(count // len(labels))]


def _warn_of_step(time: str, step: float, steps: Sequence[float], length: int) -> None:
    """Warn of rows that are usually further apart, or closer together, than those of every client in training."""
    usual = min(max(step, steps[0]), steps[1])
    if usual > 0 and not 1 / OTHER_STEP <= step / usual <= OTHER_STEP:
        warnings.warn(
            f"table: by column {time!r} the last {length} rows are usually {step / usual:.3g} times as far apart as "
            "those of training; the forecast takes them as adjacent steps",
            stacklevel=2,
        )


def check_columns(table: "pd.DataFrame", names: Sequence[str]) -> None:
    """Refuse a table that lacks a column, or has two of one name."""
    if missing := [name for name in names if name not in table]:
        others = ", ".join(name if name == name.strip() else repr(name) for name in map(str, table.columns))
        raise InputError(f"table: no column {missing[0]!r}; it has {others}")
    if repeated := [name for name in names if table[name].ndim > 1]:
        raise InputError(f"table: two columns have the name {repeated[0]!r}; rename one")


def is_encoded(columns: Sequence[Mapping[str, Any]] | None) -> bool:
    """Whether `columns` of a data set say how a table became vectors; others name windows, images or inputs."""
    return bool(columns) and not {"role", "input"} & (columns or ())[0].keys()


def check_client(rows: Any, column: str, client: str) -> None:
    """Refuse a table with rows of other clients than the one whose model predicts.

    Args:
        column: with the names of clients in training; "" if there was none. A table without it is taken as it is.
    """
    if column == "" or not hasattr(rows, "columns") or column not in rows:
        return
    others = other_clients(rows[column], client)
    if others.any():
        raise InputError(
            f"table: column {column!r} has rows of other clients, such as {str(rows[column][others].iloc[0])!r}; give "
            f"the rows of {client!r} alone, or leave the column out"
        )


def check_nodes(rows: Any, column: str, names: Sequence[str]) -> None:
    """Refuse a table of nodes in another order than that of training, whose edges they would get.

    Args:
        column: with the names of nodes in training; "" if there was none. A table without it is taken as it is.
        names: of the nodes in training.
    """
    if column == "" or not hasattr(rows, "columns") or column not in rows:
        return
    for i, (value, name) in enumerate(zip(rows[column].tolist(), names, strict=True)):
        given = name_of(value)
        if name not in (given, given.strip(), given.removesuffix(".0")):
            raise InputError(
                f"table: row {i} is node {given!r}, and in training it was {name!r}; give all nodes in their order "
                f"in training, or leave column {column!r} out if they are"
            )


def other_clients(column: "pd.Series[Any]", client: str) -> "pd.Series[Any]":
    """Whether each row is of another client [M]; a row without a name is not."""
    names = column.map(name_of)
    return column.notna() & (names != client) & (names.str.removesuffix(".0") != client)


def as_images(values: np.ndarray) -> np.ndarray:
    """Rows as images [M, C, H, W]: vectors [F, 1, 1], windows [C, 1, T]."""
    if values.ndim == 2:
        return values[:, :, None, None]
    return np.ascontiguousarray(values.transpose(0, 2, 1))[:, :, None] if values.ndim == 3 else values


def as_table(rows: Any, columns: Sequence[Any]) -> "pd.DataFrame":
    """A table as it is, but for 0 and "0" as names of columns; a list of texts as its only column.

    Raises:
        InputError: it is neither.
    """
    import pandas as pd

    if hasattr(rows, "columns"):
        names = {str(column["name"]): column["name"] for column in columns}
        return pd.DataFrame(rows).rename(columns=lambda name: names.get(str(name), name))
    texts = [] if isinstance(rows, str) or not hasattr(rows, "__iter__") else [*rows]
    if len(columns) == 1 and texts and all(isinstance(text, str) for text in texts):
        return pd.DataFrame({columns[0]["name"]: texts})
    raise InputError("x: give a pandas table with the columns of the training's, such as table.head()")
