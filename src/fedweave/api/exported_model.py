"""Raw rows as inputs of a model, and a model that was exported: this file works without the rest of fedweave.

`export` copies it into its folder. So rows become inputs in the same way there as in training.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

ABOUT, PROGRAM, WEIGHTS = "export.json", "program.pt2", "weights.safetensors"
DATE = r"\s*(\d{1,2})[./-](\d{1,2})[./-]\d{2,4}(?!\d)"  # a few rows do not show which number is the day
MAX_ROWS = 2048  # rows that the program takes at once


class InputError(ValueError):
    """Rows that the model cannot take: one line with the reason."""


def unique_texts(column: "pd.Series[Any]") -> tuple[list[str], np.ndarray]:
    """(different values as texts, position of each row's value among them [M]); -1 for a missing value.

    Raises:
        InputError: a value that is no number or text.
    """
    try:
        positions, values = column.factorize()
    except TypeError as error:
        raise InputError(f"table: column {column.name!r} holds lists or other objects; leave it out") from error
    return [str(value) for value in values], np.asarray(positions)


def as_numbers(column: "pd.Series[Any]", name: str) -> np.ndarray:
    """Float64 [M] with NaN where a value is missing.

    Raises:
        InputError: a value is no number.
    """
    values = column.astype(object) if column.dtype.kind in "mM" else column  # times would become nanoseconds
    try:
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    except (ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"table: column {name!r} held numbers in training; give numbers ({reason})") from error


def encode_column(column: "pd.Series[Any]", about: Mapping[str, Any], numbers: Sequence[Any]) -> np.ndarray:
    """Raw values of a column as inputs, float32 [M, width].

    Args:
        about: the fields of `fedweave.api.tables.Column`.
        numbers: median, mean and standard deviation of a column of numbers, one each or one a row [M].

    Raises:
        InputError: a value of a column of numbers is no number.
    """
    if about.get("buckets") or about.get("words"):
        return count_words(column, about.get("words") or (), int(about.get("buckets") or 0))
    if about["levels"]:
        codes = level_codes(column, about["levels"])[:, None]
        return (codes if about.get("coded") else codes == np.arange(1, len(about["levels"]) + 1)).astype(np.float32)
    median, mean, std = numbers
    values = as_numbers(column, about["name"])
    values = np.where(np.isfinite(values), values, median)
    return ((values - mean) / std).astype(np.float32)[:, None]


def level_codes(column: "pd.Series[Any]", levels: Sequence[str]) -> np.ndarray:
    """1 + the position of each row's value among `levels` [M], 0 where it is none of them."""
    texts, positions = unique_texts(column)
    codes = {level: i + 1 for i, level in enumerate(levels)}
    if getattr(column.dtype, "kind", "") in "iuf":  # a missing value makes pandas read "1" as the number 1.0
        texts = [text if text in codes else text[:-2] if text.endswith(".0") else f"{text}.0" for text in texts]
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
    texts = column.astype(object).where(column.notna(), "").map(str)
    return np.asarray(counter.fit_transform(texts).toarray(), dtype=np.float32)


def last_window(table: "pd.DataFrame", columns: Sequence[Mapping[str, Any]], length: int) -> np.ndarray:
    """The last `length` rows of a table, in the order of its column of times, as one window [1, length, C].

    Raises:
        InputError: a column is missing, there are fewer rows, a value or a time is missing, or a time cannot be read.
    """
    check_columns(table, [column["name"] for column in columns if column["role"] != "client"])
    time = next(column["name"] for column in columns if column["role"] == "time")
    if len(table) < length:
        raise InputError(f"table: {len(table)} rows, but the model reads the last {length}; give more")
    import pandas as pd

    if len(unclear := table[time][table[time].isna() | table[time].astype(str).str.match(DATE)]):
        raise InputError(f"table: column {time!r} has the time {unclear.iloc[0]!r}; write such as 2021-04-03")
    try:
        order = table[time] if pd.api.types.is_numeric_dtype(table[time]) else pd.to_datetime(table[time], utc=True)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"table: column {time!r} cannot be read as times ({error})") from error
    latest = table.iloc[np.argsort(order.to_numpy(), kind="stable")[-length:]]
    window = np.stack([as_numbers(latest[c["name"]], c["name"]) for c in columns if c["role"] == "value"], axis=1)
    if not np.isfinite(window).all():
        raise InputError(f"table: one of the last {length} rows has no value; fill it in")
    return window[None].astype(np.float32)


def check_columns(table: "pd.DataFrame", names: Sequence[str]) -> None:
    """Refuse a table that lacks a column, or has two of one name."""
    if missing := [name for name in names if name not in table]:
        raise InputError(f"table: no column {missing[0]!r}; it has {', '.join(map(str, table.columns))}")
    if repeated := [name for name in names if table[name].ndim > 1]:
        raise InputError(f"table: two columns have the name {repeated[0]!r}; rename one")


class Model:
    """The model of one client: raw rows in, classes or numbers out.

    Attributes:
        about: the content of export.json: the data, the client, versions.
    """

    def __init__(self, folder: Path | str) -> None:
        import torch
        from safetensors.torch import load_file

        self.about = json.loads((Path(folder) / ABOUT).read_text(encoding="utf-8"))
        self.weights = load_file(Path(folder) / WEIGHTS)
        if self.about["program"]:
            program: Any = torch.export.load(Path(folder) / PROGRAM).module()
            self._run = lambda x: self._run_program(program, torch.from_numpy(x))
        else:
            self._run = _load_without_program(Path(folder), self.about)

    def _run_program(self, program: Any, x: Any) -> np.ndarray:
        """Outputs of the program, which takes two rows or more at once."""
        import torch

        with torch.no_grad():
            is_single = len(x) == 1 and self.about["kind"] != "graph"
            return np.asarray(program(self.weights, torch.cat([x, x]) if is_single else x)[: len(x)])

    def outputs(self, rows: Any) -> np.ndarray:
        """Scores of classes [M, C], or numbers [M, K] in the unit of the targets.

        Args:
            rows: a table with the columns of the training's, or rows [M, ...] of the shape that `about` names.

        Raises:
            InputError: rows of another shape, a missing column, or a value that is no number.
        """
        x = self.inputs(rows)
        parts = [x] if self.about["kind"] == "graph" else np.split(x, range(MAX_ROWS, len(x), MAX_ROWS))
        outputs = np.concatenate([self._run(np.ascontiguousarray(part)) for part in parts])
        offset, unit = (np.asarray(self.about[name], dtype=np.float32) for name in ("offset", "unit"))
        return outputs * unit + offset if len(unit) else outputs

    def predict(self, rows: Any) -> np.ndarray:
        """Names of classes [M], numbers [M], or forecasts [M, horizon]; arguments and errors as of `outputs`."""
        outputs, classes = self.outputs(rows), self.about["classes"]
        if classes:
            return np.array(classes)[outputs.argmax(1)]
        return outputs[:, 0] if self.about["targets"] == "numbers" and outputs.shape[1] == 1 else outputs

    def predict_proba(self, rows: Any) -> "pd.DataFrame":
        """Probability of each class (columns); arguments and errors as of `outputs`.

        Raises:
            InputError: the model predicts no classes.
        """
        import pandas as pd

        if not self.about["classes"]:
            raise InputError("predict_proba: this model predicts numbers, not classes; use predict")
        return pd.DataFrame(probabilities(self.outputs(rows)), columns=self.about["classes"])

    def inputs(self, rows: Any) -> np.ndarray:
        """Rows as the network takes them, float32 [M, ...]."""
        columns, kind, nodes = self.about["columns"], self.about["kind"], self.about["nodes"]
        if columns:
            return self._encode_table(as_table(rows, columns), columns)
        try:
            x = np.asarray(rows.to_numpy() if hasattr(rows, "to_numpy") else rows)
            x = x if x.dtype == np.uint8 and x.ndim == 4 else x.astype(np.float32)  # only images keep their bytes
        except (ValueError, TypeError) as error:
            raise InputError(f"x: cannot be read as rows of numbers ({error})") from error
        if [*x.shape[1:]] != self.about["shape"]:
            raise InputError(f"x: shape {[*x.shape]}, but the model reads [M, {str(self.about['shape'])[1:]}")
        if kind == "graph" and len(x) != nodes:
            raise InputError(f"x: {len(x)} rows, but the client's graph has {nodes} nodes; give one for each")
        inputs = self._scale_series(x) if kind == "series" else self._scale(as_images(x) if kind == "images" else x)
        if not np.isfinite(inputs).all():
            raise InputError("x: a value is missing or infinite; drop its row, or fill it in")
        return inputs

    def _encode_table(self, table: "pd.DataFrame", columns: Sequence[Mapping[str, Any]]) -> np.ndarray:
        if "role" in columns[0]:
            return self._scale(as_images(last_window(table, columns, self.about["shape"][0])))
        check_columns(table, [column["name"] for column in columns])
        parts = [encode_column(table[c["name"]], c, [c[n] for n in ("median", "mean", "std")]) for c in columns]
        return self._scale(as_images(np.concatenate(parts, axis=1)))

    def _scale_series(self, x: np.ndarray) -> np.ndarray:
        window = self.about["window"]
        x[:, window:, 0] = 0
        x[:, :window, 0] = self._scale(x[:, :window, 0])
        return x

    def _scale(self, x: np.ndarray) -> np.ndarray:
        x = (np.arange(256) / 255.0).astype(np.float32)[x] if x.dtype == np.uint8 else np.array(x, dtype=np.float32)
        scaling = self.about["scaling"]
        subtracted, divisor = (np.asarray(scaling[name], dtype=np.float32) for name in ("subtracted", "divisor"))
        x -= subtracted
        x /= np.maximum(x.sum(1, keepdims=True), 1.0) if scaling["rows"] else divisor
        return x


def as_images(values: np.ndarray) -> np.ndarray:
    """Rows as images [M, C, H, W]: vectors [F, 1, 1], windows [C, 1, T]."""
    if values.ndim == 2:
        return values[:, :, None, None]
    return np.ascontiguousarray(values.transpose(0, 2, 1))[:, :, None] if values.ndim == 3 else values


def as_table(rows: Any, columns: Sequence[Any]) -> "pd.DataFrame":
    """A table as it is; a list of texts as its only column.

    Raises:
        InputError: it is neither.
    """
    import pandas as pd

    if hasattr(rows, "columns"):
        return pd.DataFrame(rows)
    texts = [] if isinstance(rows, str) or not hasattr(rows, "__iter__") else [*rows]
    if len(columns) == 1 and texts and all(isinstance(text, str) for text in texts):
        return pd.DataFrame({columns[0]["name"]: texts})
    raise InputError("x: give a pandas table with the columns of the training's, such as table.head()")


def probabilities(outputs: np.ndarray) -> np.ndarray:
    """Probabilities [M, C] of model outputs; some methods, such as kNN-Per, return probabilities already."""
    if (outputs >= 0).all() and np.allclose(outputs.sum(1), 1, atol=1e-4):
        return outputs
    exponentials = np.exp(outputs - outputs.max(1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(1, keepdims=True))


def _load_without_program(folder: Path, about: Mapping[str, Any]) -> Any:
    """The model by the code of fedweave, which must be installed: PyTorch could not export this one."""
    try:
        from fedweave.api.export import run_weights
    except ImportError as error:
        raise InputError(f"{folder}: has no {PROGRAM}; install fedweave {about['versions']['fedweave']}") from error
    return run_weights(folder)


def load(folder: Path | str) -> Model:
    """The model that `export` has written."""
    return Model(folder)


class PyfuncModel:
    """A model as MLflow serves it."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def predict(self, model_input: Any, params: Any = None) -> "pd.DataFrame":
        """One row each: the prediction, and the probability of each class or the steps of the forecast."""
        import pandas as pd

        del params
        outputs, classes = self.model.outputs(model_input), self.model.about["classes"]
        if classes:
            table = pd.DataFrame(probabilities(outputs), columns=classes)
            table.insert(0, "prediction", np.array(classes)[outputs.argmax(1)], allow_duplicates=True)
            return table
        if self.model.about["targets"] == "numbers":
            return pd.DataFrame({"prediction": outputs[:, 0]})
        return pd.DataFrame(outputs, columns=[f"step {i + 1}" for i in range(outputs.shape[1])])


def _load_pyfunc(path: str) -> PyfuncModel:
    """The entry point of `mlflow models serve`."""
    return PyfuncModel(Model(path))
