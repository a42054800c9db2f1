"""A model that was exported."""

import hashlib
import json
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .columns import (
    as_images,
    as_table,
    check_client,
    check_columns,
    check_nodes,
    encode_column,
    is_encoded,
    last_window,
    warn_of_empty,
    warn_of_numbers,
)
from .errors import InputError
from .inputs import has_inputs, join_inputs
from .pixels import divide_bytes, refuse_files, scale_pixels
from .values import as_labels, as_numbers, as_plain, find_no_code

if TYPE_CHECKING:
    import pandas as pd

ABOUT, PROGRAM, WEIGHTS = "export.json", "program.pt2", "weights.safetensors"
LOADER = "without_program.py"  # a file with `run_weights`, where there is no program
MAX_ROWS = 2048  # rows that the program takes at once
NEEDED = {"program", "kind", "shape", "window", "nodes", "client", "columns", "scaling"}  # to read rows
NEEDED |= {"classes", "targets", "offset", "unit"}  # to give answers


class Model:
    """The model of one client: raw rows in, classes or numbers out.

    Attributes:
        about: the content of export.json: the data, the client, versions, sums of the other files.
    """

    def __init__(self, folder: Path | str) -> None:
        import torch
        from safetensors.torch import load_file

        self.about = _read_about(Path(folder))
        self.weights = load_file(Path(folder) / WEIGHTS)
        if self.about["program"]:
            program: Any = torch.export.load(Path(folder) / PROGRAM).module()
            self._run = lambda x: self._run_program(program, torch.from_numpy(x))
        else:
            self._run = _load_without_program(Path(folder), self.about)

    @property
    def classes(self) -> list[Any]:
        """Labels of the classes, of the type that they had in training; empty where numbers are predicted."""
        return as_labels(self.about["classes"], self.about.get("class_type", ""))

    def _run_program(self, program: Any, x: Any) -> np.ndarray:
        """Outputs of the program, which takes two rows or more at once."""
        import torch

        with torch.no_grad():
            is_single = len(x) == 1 and self.about["kind"] != "graph"
            return np.asarray(program(self.weights, torch.cat([x, x]) if is_single else x)[: len(x)])

    def outputs(self, rows: Any) -> np.ndarray:
        """Scores of classes [M, C], or numbers [M, K] in the unit of the targets.

        Args:
            rows: a table with the columns of the training's, rows [M, ...] of the shape that `about` names, or of a
                model with several inputs those of each.

        Raises:
            InputError: rows of another shape, a missing column, or a value that is not a number.
        """
        x = read_rows(rows, self.about)
        parts = [x] if self.about["kind"] == "graph" else np.split(x, range(MAX_ROWS, len(x), MAX_ROWS))
        outputs = np.concatenate([self._run(np.ascontiguousarray(part)) for part in parts])
        offset, unit = (np.asarray(self.about[name], dtype=np.float64) for name in ("offset", "unit"))
        return outputs * unit + offset if len(unit) else outputs

    def predict(self, rows: Any) -> np.ndarray:
        """Labels of classes [M], numbers [M], or forecasts [M, horizon]; arguments and errors as of `outputs`."""
        outputs, classes = self.outputs(rows), self.classes
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
        return pd.DataFrame(probabilities(self.outputs(rows)), columns=self.classes)


def read_rows(rows: Any, about: Mapping[str, Any]) -> np.ndarray:
    """Rows as the network takes them, float32 [M, ...]; they are centred in the precision of training.

    Args:
        rows: as of `Model.outputs`.
        about: the content of export.json.

    Raises:
        InputError: as `Model.outputs`.
    """
    columns, kind, nodes = about["columns"], about["kind"], about["nodes"]
    check_client(rows, about.get("client_column", ""), about["client"])
    if has_inputs(columns):
        x = join_inputs(rows, columns)
    elif columns and (hasattr(rows, "columns") or is_encoded(columns)):
        x = _encode_table(as_table(rows, columns), about)
    else:
        x = _as_array(rows, about)
    if kind == "graph" and len(x) != nodes:
        raise InputError(f"x: {len(x)} rows, but the client's graph has {nodes} nodes; give one for each")
    check_nodes(rows, about.get("node_column", ""), about.get("node_names", ()))
    if kind == "series":
        x[:, about["window"] :, 0] = 0
        x[:, : about["window"], 0] = _scale(x[:, : about["window"], 0], about["scaling"])
        inputs = x.astype(np.float32)
    else:
        inputs = _scale(as_images(x) if kind == "images" else x, about["scaling"])
    if not np.isfinite(inputs).all():
        raise InputError("x: a value is missing or infinite; drop its row, or fill it in")
    if (codes := about.get("codes")) and (problem := find_no_code(inputs, codes)):
        raise InputError(f"x: the model {problem}")
    return inputs


def _as_array(rows: Any, about: Mapping[str, Any]) -> np.ndarray:
    """An array of rows, of the shape and the scale of the training's."""
    shape = about["shape"]
    try:
        x = as_plain(rows.to_numpy() if hasattr(rows, "to_numpy") else rows)
        refuse_files(x, shape)
        if x.dtype.kind in "cmM":
            raise InputError("x: holds complex numbers, dates or durations; give real numbers, as in training")
        pixels = about.get("pixels")  # folders of earlier versions do not state the scale
        is_image = x.dtype.kind in "biuf" and (x.ndim == 4 or pixels)
        x = x if is_image else x.astype(np.float64)
    except InputError:
        raise
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"x: cannot be read as rows of numbers ({error})") from error
    if [*x.shape[1:]] != shape:
        single = "; one row is x[None]" if [*x.shape] == shape else ""
        raise InputError(f"x: shape {[*x.shape]}, but the model reads [M, {str(shape)[1:]}{single}")
    return scale_pixels(x, pixels) if is_image else x


def _encode_table(table: "pd.DataFrame", about: Mapping[str, Any]) -> np.ndarray:
    """The rows of a table as vectors [M, F], or its last rows as a window [1, T, C]."""
    columns = about["columns"]
    if not is_encoded(columns):
        window = last_window(table, columns, about["shape"][0])
        _warn_of_window(window[0], [c["name"] for c in columns if c["role"] == "value"], about["scaling"])
        return window
    check_columns(table, [column["name"] for column in columns])
    warn_of_empty(table, [column["name"] for column in columns])
    parts = [encode_column(table[c["name"]], c, [c[n] for n in ("median", "mean", "std")]) for c in columns]
    for column in columns:
        if not (column["levels"] or column.get("words") or column.get("buckets")):
            values = as_numbers(table[column["name"]], column["name"])
            warn_of_numbers(column["name"], values, column["mean"], column["std"])
    return np.concatenate(parts, axis=1)


def _warn_of_window(window: np.ndarray, names: Sequence[str], scaling: Mapping[str, Any]) -> None:
    """Warn of columns of a window [T, C] that are far from training, if these are scaled by their moments."""
    numbers = (np.ravel(scaling[name]) for name in ("subtracted", "divisor"))
    means, stds = (np.broadcast_to(number, len(names)) for number in numbers)
    if (stds != 1).any():
        for name, values, mean, std in zip(names, window.T, means, stds, strict=True):
            warn_of_numbers(name, values, mean, std)


def _scale(x: np.ndarray, scaling: Mapping[str, Any]) -> np.ndarray:
    dtype = scaling.get("precision", "float32")
    x = divide_bytes(x) if x.dtype == np.uint8 else np.array(x, dtype=dtype)
    subtracted, divisor = (np.asarray(scaling[name], dtype=dtype) for name in ("subtracted", "divisor"))
    x -= subtracted
    x /= np.maximum(x.sum(1, keepdims=True), 1.0) if scaling["rows"] else divisor
    return x.astype(np.float32, copy=False)


def probabilities(outputs: np.ndarray) -> np.ndarray:
    """Probabilities [M, C] of model outputs; some methods, such as kNN-Per, return probabilities already."""
    if (outputs >= 0).all() and np.allclose(outputs.sum(1), 1, atol=1e-4):
        return outputs
    exponentials = np.exp(outputs - outputs.max(1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(1, keepdims=True))


def _read_about(folder: Path) -> dict[str, Any]:
    """The content of export.json, after the files whose sums it has were compared with these."""
    file = folder / ABOUT
    try:
        about: Any = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(about, dict) or NEEDED - about.keys():
            raise ValueError("it describes no model")
        for name, digest in about.get("sha256", {}).items():  # folders of earlier versions have none
            file = folder / name
            with file.open("rb") as content:
                if hashlib.file_digest(content, "sha256").hexdigest() != digest:
                    raise ValueError("its content is not the one that was exported")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        advice = "get the folder again, or export the model again"
        raise InputError(f"{file}: cannot be used ({reason}); {advice}") from error
    return about


def _load_without_program(folder: Path, about: Mapping[str, Any]) -> Any:
    """The model by the code of fedweave, which must be installed: PyTorch could not export this one.

    `export` writes the file that imports it, so that this package imports nothing of fedweave.
    """
    try:
        return runpy.run_path(str(folder / LOADER))["run_weights"](folder)
    except (ImportError, FileNotFoundError) as error:
        raise InputError(f"{folder}: has no {PROGRAM}; install fedweave {about['versions']['fedweave']}") from error


def load(folder: Path | str) -> Model:
    """The model that `export` has written.

    Raises:
        InputError: a file of the folder is missing, truncated or changed.
    """
    return Model(folder)
