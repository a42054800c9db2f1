"""Folders that other frameworks write: LEAF's JSON, PFLlib's npz, FL-bench's partition and TensorFlow Federated's HDF5.

Each has the rows of every client, which are already training or test rows. Sources: the readers and writers of
TalwalkarLab/leaf (`models/utils/model_utils.py`), TsingZ0/PFLlib (`dataset/utils/dataset_utils.py`), KarhouTam/FL-bench
(`generate_data.py`, `data/utils/datasets.py`) and tensorflow/federated (`HDF5ClientData`).
"""

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedweave.data.sources.pickles import unpickle_arrays
from fedweave.errors import BadInput, choose, first_line, format_count, format_value
from fedweave.own_data.array_checks import as_plain

PARTS = ("train", "test")
PARTITION = "partition.pkl"  # of FL-bench
STORED = (("data.npy", "targets.npy"), ("raw/xdata.npy", "raw/ydata.npy"))  # its rows, where it stores them itself
TORCHVISION = {
    "MNIST": "MNIST",
    "FashionMNIST": "FashionMNIST",
    "cifar-10-batches-py": "CIFAR10",
    "cifar-100-python": "CIFAR100",
}  # folder of a download -> data set
ENDINGS = (".h5", ".hdf5")
GROUP = "examples"  # of TFF's files
LARGEST = 4 << 30  # bytes of the arrays of one file


class ForeignRows(NamedTuple):
    """Rows of all clients, as `Federation.from_arrays` takes them, and what to say about them.

    Attributes:
        x, y, client, split: of each row.
        notes: about clients that are left out.
    """

    x: Any
    y: Any
    client: list[Any]
    split: list[str]
    notes: tuple[str, ...]


def find_kind(path: Path) -> str:
    """The framework that has written a file or folder: "leaf", "pfllib", "flbench" or "tff"; else empty."""
    if path.suffix.lower() in ENDINGS or (path.is_dir() and _tff_files(path)):
        return "tff"
    if path.suffix.lower() == ".json":
        return "leaf"
    if (path / PARTITION).is_file():
        return "flbench"
    if not all((path / part).is_dir() for part in PARTS):
        return ""
    first = next((path / "train").glob("*.json"), None)
    return "leaf" if first else "pfllib" if next((path / "train").glob("*.npz"), None) else ""


def read_leaf(path: Path, field: int | None = None, shape: Sequence[int] | None = None) -> ForeignRows:
    """LEAF: train/*.json and test/*.json with {"users": ..., "user_data": {user: {"x": rows, "y": targets}}}.

    Args:
        path: the folder of `train` and `test`, or one file of JSON, whose rows are then not split yet.
        field: position of the input in a row that is a list of texts, as 4 in Sent140.
        shape: of an input; None for a vector.
    """
    files = {part: sorted((path / part).glob("*.json")) for part in PARTS} if path.is_dir() else {"": [path]}
    if isinstance(field, bool) or not isinstance(field, int | np.integer | None):
        raise BadInput(f"field: {format_value(field)} must be a whole number, as field=4 of Sent140")
    parts = {part: [*_leaf_clients(listed, field)] for part, listed in files.items()}
    found = join_parts(parts, path)
    return found if shape is None else found._replace(x=_reshape(found.x, shape, path, np.float64))


def _leaf_clients(files: Iterable[Path], field: int | None) -> Iterator[tuple[str, Any, Any]]:
    for file in files:
        content = _read(file, lambda file: json.loads(file.read_text(encoding="utf-8")))
        users = content.get("user_data") if isinstance(content, dict) else None
        if not isinstance(users, Mapping):
            raise BadInput(f"{file}: is not a file of LEAF; it has no mapping user_data")
        for name, rows in users.items():
            if not isinstance(rows, Mapping) or not _are_paired(rows.get("x"), rows.get("y")):
                raise BadInput(f"{file}: user_data: {name!r} has no x and y of one length; correct this client")
            yield str(name), _leaf_inputs(rows["x"], field, file), rows["y"]


def _leaf_inputs(rows: list[Any], field: int | None, file: Path) -> list[Any]:
    """The inputs of a client: the entry `field` of each row, or whole rows."""
    for row in rows:
        if field is None and isinstance(row, list) and any(isinstance(value, str) for value in row):
            shown = format_value(row)
            raise BadInput(f"field: a row of {file} is {shown}; say which entry is the input, as field=4 of Sent140")
        if field is not None and not (isinstance(row, list) and -len(row) <= field < len(row)):
            shown = format_value(row)
            raise BadInput(f"field: {field} is no position in a row of {file}, {shown}; give another one, or none")
    return rows if field is None else [row[field] for row in rows]


def _are_paired(x: Any, y: Any) -> bool:
    """Whether inputs and targets have an entry for each row, and equally many."""
    return all(isinstance(rows, list) or getattr(rows, "ndim", 0) > 0 for rows in (x, y)) and len(x) == len(y)


def _reshape(rows: Any, shape: Sequence[int], path: Path, dtype: Any = None) -> np.ndarray:
    """Rows [M, ...] of inputs of the shape that the user names."""
    try:
        return np.array(rows, dtype=dtype).reshape(len(rows), *shape)
    except (TypeError, ValueError) as error:
        raise BadInput(f"shape: {format_value(shape)} is not that of the rows of {path} ({error})") from error


def read_pfllib(path: Path) -> ForeignRows:
    """PFLlib: train/I.npz and test/I.npz, each with an object `data` that is {"x": [n, ...], "y": [n]}."""
    return join_parts({part: [*_pfllib_clients(path / part)] for part in PARTS}, path)


def _pfllib_clients(folder: Path) -> Iterator[tuple[int, Any, Any]]:
    files = [file for file in folder.glob("*.npz") if file.stem.isdecimal()]
    for file in sorted(files, key=lambda file: int(file.stem)):
        content = _read(file, _read_object)
        rows = content.item() if isinstance(content, np.ndarray) and content.ndim == 0 else content
        if not isinstance(rows, Mapping) or not _are_paired(rows.get("x"), rows.get("y")):
            raise BadInput(f"{file}: is not a file of PFLlib; its object data has no x and y of one length")
        x = rows["x"]
        if not isinstance(x, np.ndarray) or x.dtype.kind not in "biuf":
            raise BadInput(f"{file}: x: is not one array of numbers; give rows of numbers, as images have")
        yield int(file.stem), x, rows["y"]  # a number, by which clients are in their order


def _read_object(file: Path) -> Any:
    with zipfile.ZipFile(file) as archive:
        member = archive.getinfo("data.npy")
        if member.file_size > LARGEST:
            raise ValueError(f"its object takes more than {LARGEST} bytes")
        return unpickle_arrays(archive.read(member))


def read_flbench(path: Path, shape: Sequence[int] | None = None) -> ForeignRows:
    """FL-bench: partition.pkl with the rows of the parts of each client, and the rows of all clients beside it.

    These are data.npy and targets.npy, raw/xdata.npy and raw/ydata.npy, or a download of torchvision, whose test rows
    come after its training rows.

    Args:
        path: the folder of a data set, as data/mnist.
        shape: of an input, where rows are vectors; None for what is stored.
    """
    content = _read(path / PARTITION, lambda file: unpickle_arrays(file.read_bytes()))
    clients = content.get("data_indices") if isinstance(content, Mapping) else None
    if isinstance(clients, Mapping):
        clients = [*clients.values()]
    if not isinstance(clients, list) or not all(isinstance(one, Mapping) and {*one} >= {*PARTS} for one in clients):
        raise BadInput(
            f"{path / PARTITION}: is not a partition of FL-bench; it has no data_indices with train and test"
        )
    x, y = _flbench_rows(path)
    names = ("train", "val", "test") if any(len(one.get("val", ())) for one in clients) else PARTS
    places = {name: [_row_numbers(one[name], len(x), path / PARTITION) for one in clients] for name in names}
    x = _channels_first(x) if shape is None else _reshape(x, shape, path)
    parts = {name: [(i, x[rows], y[rows]) for i, rows in enumerate(own)] for name, own in places.items()}
    return join_parts(parts, path)


def _row_numbers(rows: Any, count: int, file: Path) -> np.ndarray:
    """Numbers of rows of a part of a client [n]."""
    numbers = as_plain(rows, f"{file}: data_indices")
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise BadInput(f"{file}: data_indices: {format_value(rows)} is no list of numbers of rows; divide them again")
    if (wrong := numbers[(numbers < 0) | (numbers >= count)]).size:
        raise BadInput(f"{file}: names row {wrong[0]}, but rows are 0 to {count - 1}; divide the data set again")
    return numbers.astype(np.int64)


def _flbench_rows(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [M, ...] and classes [M] of all clients."""
    for names in STORED:
        if all((path / name).is_file() for name in names):
            x, y = (_read(path / name, lambda file: np.load(file, allow_pickle=False)) for name in names)
            if not _are_paired(x, y.ravel()):
                shapes = f"{[*x.shape]} and {[*y.shape]}"
                raise BadInput(f"{path}: {' and '.join(names)} have the shapes {shapes}; give both one row an example")
            return x, y.ravel()
    if name := next((name for folder, name in TORCHVISION.items() if (path / folder).is_dir()), ""):
        from fedweave.data.sources.images import torchvision_datasets

        load = getattr(torchvision_datasets(), name)
        sets = [_read(path / PARTITION, lambda _, part=part: load(path, train=part)) for part in (True, False)]
        arrays = [[np.asarray(getattr(one, word)) for one in sets] for word in ("data", "targets")]
        return np.concatenate(arrays[0]), np.concatenate(arrays[1])
    wanted = ", ".join([*(" and ".join(names) for names in STORED), *TORCHVISION])
    raise BadInput(f"{path}: has a partition of FL-bench, but not its rows; they are one of: {wanted}")


def read_tff(path: Path, features: str, label: str) -> ForeignRows:
    """TensorFlow Federated: HDF5 with a group `examples`, in it a group for each client, in it an array for each name.

    Args:
        path: the folder of NAME_train.h5 and NAME_test.h5, or one file, whose rows are then not split yet.
        features, label: names of arrays; "" for those of the data sets of TFF.
    """
    files = _tff_files(path) if path.is_dir() else {"": path}
    parts = {part: _read(file, lambda file: [*_tff_clients(file, features, label)]) for part, file in files.items()}
    found = join_parts(parts, path)
    return found._replace(x=_channels_first(found.x))


def _tff_files(folder: Path) -> dict[str, Path]:
    """Part -> its file, if the folder has one of each."""
    found = {part: [file for end in ENDINGS for file in folder.glob(f"*_{part}{end}")] for part in PARTS}
    return {part: files[0] for part, files in found.items()} if all(len(f) == 1 for f in found.values()) else {}


def _tff_clients(file: Path, features: str, label: str) -> Iterator[tuple[str, Any, Any]]:
    import h5py

    with h5py.File(file) as content:
        if GROUP not in content:
            raise BadInput(f"{file}: is not a file of TensorFlow Federated; it has no group {GROUP}")
        for name, group in content[GROUP].items():
            usual = next((word for word in ("pixels", "image", "x") if word in group), "pixels")
            words = [choose(word, group, f"{file}: {name}") for word in (features or usual, label or "label")]
            x, y = (group[word][()] for word in words)
            if not _are_paired(x, y):
                raise BadInput(f"{file}: {name}: {' and '.join(words)} are no arrays of one length; correct them")
            yield str(name), _as_texts(x), _as_texts(y.reshape(len(y)) if y.ndim == 2 and y.shape[1] == 1 else y)


def _as_texts(values: np.ndarray) -> Any:
    """Bytes, as which HDF5 has texts, as texts."""
    return [value.decode() for value in values] if values.dtype.kind in "SO" else values


def _channels_first(x: np.ndarray) -> np.ndarray:
    """Images [n, h, w] or [n, h, w, c] of TensorFlow as [n, c, h, w]; other rows as they are."""
    if x.dtype.kind not in "biuf":
        return x
    return x[:, None] if x.ndim == 3 else np.moveaxis(x, -1, 1) if x.ndim == 4 else x


def join_parts(parts: Mapping[str, list[tuple[Any, Any, Any]]], path: Path | str) -> ForeignRows:
    """The rows of the clients that have rows in all parts."""
    names = [{name for name, x, _ in rows if len(x)} for rows in parts.values()]
    kept = set.intersection(*names)
    if not kept:
        raise BadInput(f"{path}: no client has {' and '.join(filter(None, parts)) or 'any'} rows")
    x, y, client, split = list[Any](), list[Any](), list[Any](), list[str]()
    for part, rows in parts.items():
        for name, own_x, own_y in rows:
            if name in kept:
                x += [*own_x]
                y += [*own_y]
                client += [name] * len(own_x)
                split += [part] * len(own_x)
    lost = len({name for rows in parts.values() for name, _, _ in rows} - kept)
    note = f"{format_count(lost, 'client')} without {' or '.join([*filter(None, parts)] or ['any'])} rows left out"
    advice = "rows have different shapes; give all rows of all clients one shape"
    values, targets = (as_plain(rows, f"{path}: {name}", advice) for name, rows in (("x", x), ("y", y)))
    return ForeignRows(values, targets, client, split if len(parts) > 1 else [], (note,) if lost else ())


def _read(file: Path, read: Any) -> Any:
    if not file.is_file():
        raise BadInput(f"{file}: not found; give the path of a file, or of a folder with train and test")
    try:
        return read(file)
    except BadInput:
        raise
    except Exception as error:  # readers raise errors of many types for damaged files
        reason = first_line(error)
        raise BadInput(f"{file}: damaged, or of another kind ({format_value(reason)}); write it again") from error
