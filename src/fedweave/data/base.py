"""A data set and its partition as plain arrays, in memory and on disk.

Shapes: M rows (images), V nodes, E edges, F features, T time steps, C classes, N clients, R relations.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from fedweave.errors import BadInput
from fedweave.files import atomic_path, check_regular, sweep, write_atomic
from fedweave.readers.arrays import map_npy, read_npz

Kind = Literal["images", "graph", "series"]
Rows = tuple[np.ndarray, ...]

_RAGGED = ("train", "val", "test", "nodes", "edges")
_DENSE = ("relation", "test_weight", "group")
_TEXTS = ("names", "group_names")
_TUPLES = (*_TEXTS, "categories", "channels", "class_names", "columns")
_NEW = ("categories", "channels", "class_names", "columns")  # in meta.json only where there are any


@dataclass(frozen=True)
class Dataset:
    """One data set; features are held once, clients are rows of them."""

    name: str
    kind: Kind
    x: np.ndarray  # images [M, c, h, w] uint8 or float32 in 0..1; graph [V, F] float32; series [N, T] float32
    y: np.ndarray | None  # [M] or [V] int64; None for series and numbers
    classes: int  # C; 0 for series and numbers
    official: np.ndarray | None = None  # [M] int64: 0 = official training row, 1 = official test row
    coarse: np.ndarray | None = None  # [M] int64 superclass
    edges: np.ndarray | None = None  # [2, E] int64, both directions, no self loops
    time: np.ndarray | None = None  # [T] float32 second feature of a series, in [0, 1]
    relation: np.ndarray | None = None  # [2, R] int64 given client graph, both directions, no self loops
    note: str = ""  # printed next to every result
    owner: np.ndarray | None = None  # [M] int64 natural client of a row
    recording: np.ndarray | None = None  # [M] int64 recording that a row is cut from; its rows are in the order of time
    overlap: int = 0  # rows after a row in its recording that share samples with it
    names: tuple[str, ...] = ()  # names of the natural clients (sensors, states)
    group: np.ndarray | None = None  # [N] int64 true group of a natural client
    group_names: tuple[str, ...] = ()  # names of the groups, by their numbers
    categories: tuple[int, ...] = ()  # codes of each value of a vector [M, F, 1, 1], 0 for a number; none: all numbers
    targets: np.ndarray | None = None  # [M, K] float32 numbers to predict, in their own unit, in place of y
    channels: tuple[int, ...] = ()  # of windows [M, C, 1, T] whose next steps the targets are, in turn; none: numbers
    class_names: tuple[str, ...] = ()  # C or none
    columns: tuple[Mapping[str, Any], ...] = ()  # how the columns of a table became x, as plain data

    def __post_init__(self) -> None:
        name, series, graph = f"dataset {self.name}", self.kind == "series", self.kind == "graph"
        _require(self.kind in get_args(Kind), f"{name}: kind {self.kind!r} is not one of {get_args(Kind)}")
        _require(self.x.ndim >= 2 and self.x.size > 0, f"{name}: features of shape {self.x.shape} hold nothing")
        shaped = self.kind != "images" or self.x.ndim == 4
        _require(shaped, f"{name}: images must be [M, C, H, W], not {list(self.x.shape)}; vectors go as [M, F, 1, 1]")
        whole = self.y is None or np.issubdtype(self.y.dtype, np.integer)
        _require(
            whole,
            f"{name}: labels y must be whole numbers, not {getattr(self.y, 'dtype', None)}; use y.astype('int64')",
        )
        rows = self.x.shape[1 if series else 0]
        for key in ("y", "official", "coarse", "owner", "recording"):
            array = getattr(self, key)
            _require(array is None or array.shape == (rows,), f"{name}: {key} must have shape ({rows},)")
        in_range = self.y is None or (self.y.min() >= 0 and self.y.max() < self.classes)
        _require(in_range, f"{name}: labels y must be in 0 … {self.classes - 1}")
        _require(
            (self.y is None) == (series or self.targets is not None),
            f"{name}: labels y go with images and graphs, not with series or targets",
        )
        _check_targets(name, self)
        _check_categories(name, self.x, self.categories)
        _require(not graph or _is_pairs(self.edges, rows), f"{name}: edges must be [2, E] int64 below {rows}")
        _require(
            not series or (self.time is not None and self.time.shape == (rows,)),
            f"{name}: time must have shape ({rows},)",
        )

    @property
    def labels(self) -> np.ndarray:
        """y, where there must be labels; raises BadInput for series and numbers."""
        return _there(self.y, f"dataset {self.name}: has no classes, which this partition deals by")

    @property
    def targets_are(self) -> str:
        """What is predicted: "classes", "numbers" or "forecasts"."""
        if self.targets is None:
            return "forecasts" if self.kind == "series" else "classes"
        return "forecasts" if self.channels else "numbers"

    @property
    def outputs(self) -> int:
        """Outputs of a model for a row: classes, or numbers; 0 for series."""
        return self.classes if self.targets is None else self.targets.shape[1]

    @property
    def links(self) -> np.ndarray:
        """edges, where there must be a graph; raises BadInput for images and series."""
        return _there(self.edges, f"dataset {self.name}: has no edges")


@dataclass(frozen=True)
class Partition:
    """Which rows belong to which client: indices only, one entry per client."""

    train: Rows  # int64 rows of x; graph: local indices into nodes[i]; series: sensor * T + start
    val: Rows
    test: Rows
    nodes: Rows | None = None  # graph clients: global node ids [V_i]
    edges: Rows | None = None  # graph clients: [2, E_i] local, both directions, no self loops
    relation: np.ndarray | None = None  # [2, R] given client graph, both directions, no self loops
    test_weight: np.ndarray | None = None  # [N, C] class weights of a test set that all clients share
    group: np.ndarray | None = None  # [N] int64 true group of each client
    layout: dict[str, int] = field(default_factory=dict)  # series: {"window", "horizon", "stride"}
    names: tuple[str, ...] = ()  # of the clients, N or none
    group_names: tuple[str, ...] = ()  # of the groups, by their numbers, or none

    def __post_init__(self) -> None:
        n, ragged = self.clients, {key: getattr(self, key) for key in _RAGGED}
        for key, value in ragged.items():
            _require(value is None or len(value) == n, f"partition: {key} must have {n} clients as train has")
            good = value is None or all(a.dtype == np.int64 and a.min(initial=0) >= 0 for a in value)
            _require(good, f"partition: {key} must be int64 and not negative")
        for key in ("train", "val", "test", "edges") if self.nodes else ():
            both = zip(ragged[key], ragged["nodes"], strict=True)
            local = all(a.max(initial=-1) < len(nodes) for a, nodes in both)
            _require(local, f"partition: {key} must be positions in the client's nodes")
        _require(self.relation is None or _is_pairs(self.relation, n), f"partition: relation is not [2, R] below {n}")
        _require(self.group is None or len(self.group) == n, f"partition: group must have {n} entries")
        _require(len(self.names) in (0, n), f"partition: names must have {n} entries, or none")
        used = range(len(self.group_names))
        named = not used or (self.group is not None and all(g in used for g in self.group.tolist()))
        _require(named, f"partition: group must hold positions in the {len(used)} group_names")

    @property
    def clients(self) -> int:
        """N."""
        return len(self.train)

    @property
    def subgraphs(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(nodes [V], edges [2, E]) of every client of a graph data set; raises BadInput for rows and series."""
        if self.nodes is None or self.edges is None:
            raise BadInput("partition: its clients hold no subgraphs")
        return list(zip(self.nodes, self.edges, strict=True))


def _there(array: np.ndarray | None, message: str) -> np.ndarray:
    if array is None:
        raise BadInput(message)
    return array


def _require(good: bool, message: str) -> None:
    if not good:
        raise BadInput(message)


def _check_targets(name: str, dataset: Dataset) -> None:
    """Refuse targets that are no finite numbers [M, K] of rows."""
    targets, channels = dataset.targets, dataset.channels
    if targets is None:
        _require(not channels, f"{name}: channels go with targets")
        return
    shaped = dataset.kind == "images" and targets.shape[:1] == dataset.x.shape[:1] and targets.ndim == 2
    _require(shaped and targets.shape[1] > 0, f"{name}: targets must be [{len(dataset.x)}, K], of images or vectors")
    good = targets.dtype == np.float32 and bool(np.isfinite(targets).all())
    _require(good, f"{name}: targets must be finite float32 numbers; drop the rows without one")
    inside = all(0 <= c < dataset.x.shape[1] for c in channels)
    whole = not channels or targets.shape[1] % len(channels) == 0
    _require(inside and whole, f"{name}: channels {[*channels]} do not fit x and targets")


def _check_categories(name: str, x: np.ndarray, categories: tuple[int, ...]) -> None:
    """Refuse codes that are not those that a data set declares."""
    if not categories:
        return
    vectors = x.ndim == 4 and x.shape[2:] == (1, 1) and x.shape[1] == len(categories)
    _require(vectors, f"{name}: categories are {len(categories)} numbers, one a value of vectors [M, F, 1, 1]")
    for i in np.flatnonzero(categories):
        codes = x[:, i, 0, 0]
        good = codes.min() >= 0 and codes.max() < categories[i] and not (codes % 1).any()
        _require(good, f"{name}: value {i} must be a code in 0 … {categories[i] - 1}")


def _is_pairs(array: np.ndarray | None, limit: int) -> bool:
    """Whether `array` is [2, E] int64 with entries in [0, limit)."""
    if array is None or array.ndim != 2 or len(array) != 2 or array.dtype != np.int64:
        return False
    return array.size == 0 or (int(array.min()) >= 0 and int(array.max()) < limit)


def repeated(rows: np.ndarray) -> int | None:
    """The entry of `rows` [m] that is there most often, if that is more than once."""
    values, times = np.unique(rows, return_counts=True)
    return int(values[times.argmax()]) if len(values) < len(rows) else None


def symmetric(pairs: np.ndarray, count: int) -> np.ndarray:
    """Both directions of `pairs` [2, E] between `count` nodes: int64, sorted, unique, no self loops."""
    a, b = np.asarray(pairs, dtype=np.int64)
    code = np.unique(np.concatenate([a * count + b, b * count + a]))
    both = np.stack([code // count, code % count])
    return both[:, both[0] != both[1]]


def save_dataset(folder: Path | str, dataset: Dataset) -> None:
    """Write one .npy per array and meta.json, which goes first and comes last, and so marks a complete folder."""
    folder = Path(folder)
    (folder / "meta.json").unlink(missing_ok=True)
    sweep(folder)
    values = {f.name: getattr(dataset, f.name) for f in fields(Dataset)}
    arrays = {key: value for key, value in values.items() if isinstance(value, np.ndarray)}
    for key, array in arrays.items():
        with atomic_path(folder / f"{key}.npy") as path, path.open("wb") as file:
            np.save(file, array, allow_pickle=False)
    plain = {key: value for key, value in values.items() if key not in arrays and value is not None}
    for key in _NEW:
        if not plain[key]:
            del plain[key]
    shapes = {key: [str(array.dtype), list(array.shape)] for key, array in arrays.items()}
    write_atomic(folder / "meta.json", json.dumps(plain | {"arrays": shapes}, indent=2, sort_keys=True) + "\n")


def load_dataset(folder: Path | str) -> Dataset:
    """Read a folder of `save_dataset`; arrays are mapped from disk, read-only.

    Raises:
        BadInput: a file is missing, damaged, or not what meta.json says.
    """
    folder = Path(folder)
    check_regular(folder / "meta.json")
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        shapes = meta.pop("arrays")
    except Exception as error:
        raise BadInput(f"{folder / 'meta.json'}: not a prepared data set ({error}); run the download stage") from error
    try:
        arrays = {key: _mapped(folder / f"{Path(key).name}.npy", expected) for key, expected in shapes.items()}
        return Dataset(**{"y": None} | meta | {key: tuple(meta.get(key, ())) for key in _TUPLES} | arrays)
    except BadInput:
        raise
    except Exception as error:  # any error that a wrong type leads to
        raise BadInput(f"{folder / 'meta.json'}: {error}; run the download stage again") from error


def _mapped(path: Path, expected: list[Any]) -> np.ndarray:
    check_regular(path)
    try:
        array = map_npy(path)
    except Exception as error:  # a damaged header can raise nearly anything
        raise BadInput(f"{path}: cannot be read ({error}); run the download stage again") from error
    header = [str(array.dtype), list(array.shape)]
    _require(header == expected, f"{path}: holds {header}, meta.json says {expected}; run the download stage again")
    return array


def save_partition(path: Path | str, partition: Partition) -> None:
    """Write `partition` as one .npz: ragged entries as a flat array and sizes, the rest as they are."""
    out: dict[str, np.ndarray] = {}
    for key in _RAGGED:
        value = getattr(partition, key)
        if value is not None:
            out[key] = np.concatenate(value, axis=-1)
            out[f"{key}_sizes"] = np.array([a.shape[-1] for a in value], dtype=np.int64)
    out |= {key: getattr(partition, key) for key in _DENSE if getattr(partition, key) is not None}
    out |= {key: np.array(getattr(partition, key)) for key in _TEXTS if getattr(partition, key)}
    if partition.layout:
        out["layout"] = np.array(json.dumps(partition.layout, sort_keys=True))
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **out)


def load_partition(path: Path | str) -> Partition:
    """Read a file of `save_partition`.

    Raises:
        BadInput: the file is missing, damaged, or not a partition.
    """
    check_regular(path)
    try:
        data = read_npz(Path(path))
        entries: dict[str, Any] = {key: _split(data[key], data[f"{key}_sizes"]) for key in _RAGGED if key in data}
        entries |= {key: data[key] for key in _DENSE if key in data}
        entries |= {key: tuple(str(text) for text in data[key]) for key in _TEXTS if key in data}
        return Partition(**entries, layout=json.loads(str(data["layout"])) if "layout" in data else {})
    except BadInput:
        raise
    except Exception as error:  # numpy and zipfile raise a dozen different types for damaged files
        raise BadInput(f"{path}: not a partition file ({error}); run the partition stage") from error


def _split(flat: np.ndarray, sizes: np.ndarray) -> Rows:
    _require(int(sizes.sum()) == flat.shape[-1], "sizes do not add up")
    return tuple(np.split(flat, np.cumsum(sizes)[:-1], axis=-1))
