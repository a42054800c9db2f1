"""The description of the data beside results: clients, classes, and how new rows become inputs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave import data, exported_model
from fedweave.data import Dataset, Partition
from fedweave.data.partitions.splits import PARTS
from fedweave.files.atomic import read_json
from fedweave.own_data import features, user_files
from fedweave.own_data.arrays import digest
from fedweave.own_data.column_encoding import Preprocessing

if TYPE_CHECKING:
    import pandas as pd

ABOUT = "federation.json"
NEEDED = ("name", "kind", "shape", "stored", "classes", "layout", "scaling", "columns")  # in a complete description


def partition_folder(folder: Path, task: str) -> Path:
    """Where the data of a task are described."""
    return folder / "partitions" / task


def find_partitions(folder: Path) -> Path | None:
    """Where the data of all tasks are described; None where the stages of DVC wrote the results.

    Their data are in the project.
    """
    partitions = folder / "partitions"
    return partitions if partitions.is_dir() else None


def read_description(folder: Path, task: str) -> dict[str, Any]:
    """The description of a task; empty where the stages of DVC wrote the results, as their data are in the project."""
    file = partition_folder(folder, task) / ABOUT
    return read_json(file, "remove it, and train again", _parse_description) if file.is_file() else {}


def _parse_description(content: Any) -> dict[str, Any]:
    about = dict(content)
    if missing := [name for name in NEEDED if name not in about]:
        raise ValueError(f"no {', '.join(missing)}")
    return about


def describe_inputs(dataset: Dataset, partition: Partition, normalize: Any) -> dict[str, Any]:
    """How rows of a data set become inputs of models, as plain data: shapes, classes, and what they are scaled by."""
    scaling = data.fit_scaling(dataset, partition, normalize)
    no_units = np.zeros(0, np.float32)
    units = (no_units, no_units) if dataset.targets is None else data.fit_units(dataset, partition, normalize)
    classes = dataset.class_names or map(str, range(dataset.classes))
    numeric: dict[str, Any] = {"offset": units[0].tolist(), "unit": units[1].tolist(), "channels": [*dataset.channels]}
    if units[0].dtype == np.float64:
        numeric["precision"] = "float64"
    return {
        "kind": dataset.kind,
        "shape": [*dataset.x.shape[1:]],
        "stored": [*dataset.x.shape[1:]],
        "classes": [*classes],
        "class_type": dataset.label_type,
        "targets": dataset.targets_are,
        "layout": dict(partition.layout),
        "scaling": {
            "subtracted": scaling.subtracted.tolist(),
            "divisor": scaling.divisor.tolist(),
            "rows": scaling.rows,
            **({"precision": "float64"} if scaling.subtracted.dtype == np.float64 else {}),
        },
        "columns": [*dataset.columns] or None,
        "pixels": features.describe_pixels(dataset, partition),
        **(numeric if dataset.targets is not None else {}),
        **({"categories": [*dataset.categories]} if dataset.categories else {}),
        **({"client_column": dataset.client_column} if dataset.client_column != "" else {}),
        **_describe_nodes(dataset, partition),
    }


def _describe_nodes(dataset: Dataset, partition: Partition) -> dict[str, Any]:
    """The names of the nodes of each client, in the order of its graph; empty where they have none."""
    if not dataset.node_names:
        return {}
    names = [[dataset.node_names[i] for i in nodes] for nodes in partition.nodes or ()]
    return {"node_column": dataset.node_column, "node_names": names}


def scaling(about: Mapping[str, Any]) -> data.Scaling:
    """The scaling that `describe_inputs` has described."""
    block = about["scaling"]
    dtype = block.get("precision", "float32")
    subtracted, divisor = (np.asarray(block[name], dtype=dtype) for name in ("subtracted", "divisor"))
    return data.Scaling(subtracted, divisor, bool(block["rows"]))


def columns(about: Mapping[str, Any]) -> Preprocessing | None:
    """How rows of a table became vectors, or None."""
    stored = about["columns"]
    return Preprocessing.from_data(stored) if exported_model.is_encoded(stored) else None


def name_columns(about: Mapping[str, Any]) -> list[Any]:
    """Columns of a table that were names or texts in training, so that a file's "007" must not become 7."""
    columns = [*(about.get("columns") or ())]
    texts = [c["name"] for c in columns if c.get("levels") or c.get("words") or c.get("buckets")]
    clients = [c["name"] for c in columns if c.get("role") == "client"]
    return [*texts, *clients, about.get("client_column", ""), about.get("node_column", "")]


def read_file(
    about: Mapping[str, Any], file: Path, encoding: str = "", names: Sequence[str] = (), labels: Sequence[str] = ()
) -> "pd.DataFrame":
    """The table of a file of new rows, read as that of training was.

    Args:
        names: further columns of names; `encoding` and `labels` are as of `user_files.read_table`.

    Raises:
        BadInput: as `user_files.read_table`.
    """
    # If the file of training had decimal commas, points separate thousands in new ones.
    has_commas = any(column.get("has_commas") for column in about.get("columns") or ())
    return user_files.read_table(file, [*name_columns(about), *names], encoding, labels, has_commas=has_commas)


def hash_content(dataset: Dataset, partition: Partition) -> str:
    """A hash of all features, labels and rows."""
    rows = (client_rows for part in PARTS for client_rows in getattr(partition, part))
    optional = (array for array in (dataset.y, dataset.targets, dataset.time, dataset.edges) if array is not None)
    return digest([dataset.x, *optional, *rows, *(partition.nodes or ()), *(partition.edges or ())])
