"""Data sets and partitions on disk."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.data.base import RAGGED, Dataset, Partition, Rows, require
from fedweave.errors import BadInput
from fedweave.files.arrays import read_npz
from fedweave.files.atomic import atomic_path, remove_temporary_files, write_json, write_parquet

RAW = "raw.parquet"
_DENSE = ("relation", "test_weight", "group")
_TEXTS = ("names", "group_names", "units")
_TUPLES = (*_TEXTS, "categories", "channels", "class_names", "columns", "node_names")
# Written to meta.json only if not empty.
_NODES = ("node_column", "node_names")
_OPTIONAL = ("categories", "channels", "class_names", "columns", "client_column", "class_type", "units", *_NODES)


def save_dataset(folder: Path | str, dataset: Dataset) -> None:
    """Write one .npy per array, raw rows as Parquet, and meta.json.

    meta.json is removed first and written last, so that a folder with this file is complete.
    """
    folder = Path(folder)
    (folder / "meta.json").unlink(missing_ok=True)
    remove_temporary_files(folder)
    values = {f.name: getattr(dataset, f.name) for f in fields(Dataset) if f.name != "raw"}
    arrays = {key: value for key, value in values.items() if isinstance(value, np.ndarray)}
    for key, array in arrays.items():
        with atomic_path(folder / f"{key}.npy") as path, path.open("wb") as file:
            np.save(file, array, allow_pickle=False)
    metadata = {key: value for key, value in values.items() if key not in arrays and value is not None}
    for key in _OPTIONAL:
        if not metadata[key]:
            del metadata[key]
    if dataset.raw is None:
        (folder / RAW).unlink(missing_ok=True)  # of an earlier data set
    else:
        write_parquet(folder / RAW, dataset.raw)
    shapes = {key: [str(array.dtype), list(array.shape)] for key, array in arrays.items()}
    write_json(folder / "meta.json", metadata | {"arrays": shapes}, indent=2, sort_keys=True)


def load_dataset(folder: Path | str, raw: bool = True) -> Dataset:
    """Read a folder of `save_dataset`; arrays are memory-mapped, read-only.

    Args:
        raw: whether to read the raw rows, too, which code from elsewhere alone needs.

    Raises:
        BadInput: a file is missing, damaged, or not what meta.json says.
    """
    import pandas as pd

    folder = Path(folder)
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        shapes = meta.pop("arrays")
    except Exception as error:
        raise BadInput(f"{folder / 'meta.json'}: not a prepared data set ({error}); run the download stage") from error
    try:
        arrays = {key: _map_array(folder / f"{Path(key).name}.npy", expected) for key, expected in shapes.items()}
        rows = pd.read_parquet(folder / RAW) if raw and (folder / RAW).is_file() else None
        return Dataset(**{"y": None} | meta | {key: tuple(meta.get(key, ())) for key in _TUPLES} | arrays, raw=rows)
    except BadInput:
        raise
    except Exception as error:  # values of a wrong type raise various exceptions
        raise BadInput(f"{folder / 'meta.json'}: {error}; run the download stage again") from error


def _map_array(path: Path, expected: list[Any]) -> np.ndarray:
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # a damaged header can raise nearly anything
        raise BadInput(f"{path}: cannot be read ({error}); run the download stage again") from error
    header = [str(array.dtype), list(array.shape)]
    require(header == expected, f"{path}: holds {header}, meta.json says {expected}; run the download stage again")
    return array


def save_partition(path: Path | str, partition: Partition) -> None:
    """Write `partition` as one .npz: a ragged entry as one flat array and its sizes, other entries unchanged."""
    entries: dict[str, np.ndarray] = {}
    for key in RAGGED:
        value = getattr(partition, key)
        if value is not None:
            entries[key] = np.concatenate(value, axis=-1)
            entries[f"{key}_sizes"] = np.array([a.shape[-1] for a in value], dtype=np.int64)
    entries |= {key: getattr(partition, key) for key in _DENSE if getattr(partition, key) is not None}
    entries |= {key: np.array(getattr(partition, key)) for key in _TEXTS if getattr(partition, key)}
    if partition.layout:
        entries["layout"] = np.array(json.dumps(partition.layout, sort_keys=True))
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **entries)


def load_partition(path: Path | str) -> Partition:
    """Read a file of `save_partition`.

    Raises:
        BadInput: the file is missing, damaged, or not a partition.
    """
    try:
        data = read_npz(Path(path))
        entries: dict[str, Any] = {key: _split_rows(data[key], data[f"{key}_sizes"]) for key in RAGGED if key in data}
        entries |= {key: data[key] for key in _DENSE if key in data}
        entries |= {key: tuple(str(text) for text in data[key]) for key in _TEXTS if key in data}
        return Partition(**entries, layout=json.loads(str(data["layout"])) if "layout" in data else {})
    except BadInput:
        raise
    except Exception as error:  # numpy and zipfile raise a dozen different types for damaged files
        raise BadInput(f"{path}: not a partition file ({error}); run the partition stage") from error


def _split_rows(flat: np.ndarray, sizes: np.ndarray) -> Rows:
    if int(sizes.sum()) != flat.shape[-1]:
        raise ValueError("the sizes of its clients do not add up")
    return tuple(np.split(flat, np.cumsum(sizes)[:-1], axis=-1))
