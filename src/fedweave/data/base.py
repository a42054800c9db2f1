"""A data set and its partition as plain arrays.

Shapes: M rows (images), V nodes, E edges, F features, T time steps, C classes, N clients, R relations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fedweave.errors import BadInput, format_value

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["images", "graph", "series"]
Rows = tuple[np.ndarray, ...]

RAGGED = ("train", "val", "test", "nodes", "edges")  # fields of a partition with an array for each client


@dataclass(frozen=True)
class Dataset:
    """One data set. The features are stored once; clients refer to rows of them."""

    name: str
    kind: Kind
    # images [M, c, h, w] uint8, float32, or float64 until they are centred; graph [V, F] float32; series [N, T] float32
    x: np.ndarray
    y: np.ndarray | None  # [M] or [V] int64; None for series and numbers
    classes: int  # C; 0 for series and numbers
    official: np.ndarray | None = None  # [M] int64: 0 = official training row, 1 = official test row
    coarse: np.ndarray | None = None  # [M] int64 superclass
    edges: np.ndarray | None = None  # [2, E] int64, both directions, no self loops
    time: np.ndarray | None = None  # [T] float32 second feature of a series, in [0, 1]
    relation: np.ndarray | None = None  # [2, R] int64 given client graph, both directions, no self loops
    note: str = ""  # printed next to every result
    owner: np.ndarray | None = None  # [M] int64 natural client of a row
    recording: np.ndarray | None = None  # [M] int64 recording that a row is cut from; its rows are in time order
    overlap: int = 0  # so many following rows of its recording share samples with a row
    names: tuple[str, ...] = ()  # names of the natural clients (sensors, states)
    group: np.ndarray | None = None  # [N] int64 true group of a natural client
    group_names: tuple[str, ...] = ()  # names of the groups, by their numbers
    categories: tuple[int, ...] = ()  # codes of each value of a vector [M, F, 1, 1], 0: a number; empty: all numbers
    targets: np.ndarray | None = None  # [M, K] float32 or float64 numbers to predict, in their own unit, in place of y
    channels: tuple[int, ...] = ()  # channels of windows [M, C, 1, T] that the targets continue, in turn; none: numbers
    class_names: tuple[str, ...] = ()  # C or none
    class_type: str = ""  # of the labels that class_names were made of: "int", "bool", "float", or "" for texts
    columns: tuple[Mapping[str, Any], ...] = ()  # how the columns of a table became x, as plain data
    client_column: str = ""  # of the table that x was made from: the column of the client's names
    node_column: str = ""  # of the table of nodes that x was made from: the column of their names
    node_names: tuple[str, ...] = ()  # V or none
    units: tuple[str, ...] = ()  # person or hospital of each natural client; tests take the clients of a unit as one
    raw: "pd.DataFrame | None" = None  # rows before their preparation, M: numbers and texts, for code from elsewhere

    def __post_init__(self) -> None:
        name, series, graph = f"dataset {self.name}", self.kind == "series", self.kind == "graph"
        hint = "tables go as 'images', with rows [M, F, 1, 1]"
        kinds = ", ".join(get_args(Kind))
        require(self.kind in get_args(Kind), f"{name}: kind {self.kind!r} is not one of {kinds}; {hint}")
        is_count = isinstance(self.classes, int | np.integer)
        require(is_count, f"{name}: classes is {format_value(self.classes)}; give a whole number, 0 for no classes")
        for key in ("x", "y"):
            array = getattr(self, key)
            is_array = array is None or isinstance(array, np.ndarray)
            require(is_array, f"{name}: {key} is a {type(array).__name__}; give a NumPy array")
        has_rows = self.x.ndim >= 2 and self.x.size > 0
        require(has_rows, f"{name}: features x have the shape {list(self.x.shape)}; give at least one row [M, ...]")
        is_valid = self.kind != "images" or self.x.ndim == 4
        require(is_valid, f"{name}: images must be [M, C, H, W], not {list(self.x.shape)}; vectors go as [M, F, 1, 1]")
        if self.y is not None and not np.issubdtype(self.y.dtype, np.integer):
            raise BadInput(f"{name}: labels y must be whole numbers, not {self.y.dtype}; {_way_of_labels(self.y)}")
        rows = self.x.shape[1 if series else 0]
        is_table = self.raw is None or len(self.raw) == rows
        require(is_table, f"{name}: raw must have {rows} rows, one for each of x")
        for key in ("y", "official", "coarse", "owner", "recording"):
            array = getattr(self, key)
            require(array is None or array.shape == (rows,), f"{name}: {key} must have shape ({rows},)")
        is_number = self.owner is None or (self.owner.dtype.kind in "iu" and self.owner.min() >= 0)
        require(is_number, f"{name}: owner must be the number of a client for every row, from 0; leave other rows out")
        in_range = self.y is None or (self.y.min() >= 0 and self.y.max() < self.classes)
        require(in_range, f"{name}: labels y must be in 0 … {self.classes - 1}")
        require(
            (self.y is None) == (series or self.targets is not None),
            f"{name}: labels y go with images and graphs, not with series or targets",
        )
        _check_targets(name, self)
        check_units(self.units, self.natural_clients, f"{name}: units", "natural clients, each with an owner")
        _check_categories(name, self.x, self.categories)
        require(not graph or _is_pairs(self.edges, rows), f"{name}: edges must be [2, E] int64 below {rows}")
        require(
            not series or (self.time is not None and self.time.shape == (rows,)),
            f"{name}: time must have shape ({rows},)",
        )

    @property
    def labels(self) -> np.ndarray:
        """y, where there must be labels; raises BadInput for series and numbers."""
        remedy = "give owner=, the number of the client of each row, and use partition.name=natural"
        return _require_array(
            self.y, f"dataset {self.name}: has no classes, by which this partition distributes rows; {remedy}"
        )

    @property
    def targets_are(self) -> str:
        """What is predicted: "classes", "numbers" or "forecasts"."""
        if self.targets is None:
            return "forecasts" if self.kind == "series" else "classes"
        return "forecasts" if self.channels else "numbers"

    @property
    def label_type(self) -> str:
        """The type of the labels, in which predictions are; data sets without names of classes have whole numbers."""
        return self.class_type if self.class_names else "int"

    @property
    def outputs(self) -> int:
        """Outputs of a model for a row: classes, or numbers; 0 for series."""
        return self.classes if self.targets is None else self.targets.shape[1]

    @property
    def natural_clients(self) -> int:
        """How many clients the data set has of its own: series, or owners of rows; 0 for rows without owners."""
        if self.owner is None:
            return len(self.x) if self.kind == "series" else 0
        return int(self.owner.max()) + 1

    @property
    def links(self) -> np.ndarray:
        """edges, where there must be a graph; raises BadInput for images and series."""
        return _require_array(self.edges, f"dataset {self.name}: has no edges")


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
    units: tuple[str, ...] = ()  # unit of each client, N or none: tests take the clients of one unit as one

    def __post_init__(self) -> None:
        n, ragged = self.clients, {key: getattr(self, key) for key in RAGGED}
        for key, value in ragged.items():
            require(value is None or len(value) == n, f"partition: {key} must have as many clients as train, {n}")
            arrays = [a for a in value or () if isinstance(a, np.ndarray) and a.dtype == np.int64]
            is_valid = len(arrays) == len(value or ()) and all(a.min(initial=0) >= 0 for a in arrays)
            require(is_valid, f"partition: {key} must be arrays of numbers of the type int64 that are not negative")
        for key in ("train", "val", "test", "edges") if self.nodes else ():
            pairs = zip(ragged[key], ragged["nodes"], strict=True)
            are_positions = all(a.max(initial=-1) < len(nodes) for a, nodes in pairs)
            require(are_positions, f"partition: {key} must be positions in the client's nodes")
        require(self.relation is None or _is_pairs(self.relation, n), f"partition: relation is not [2, R] below {n}")
        require(self.group is None or len(self.group) == n, f"partition: group must have {n} entries")
        require(len(self.names) in (0, n), f"partition: names must have {n} entries, or none")
        check_units(self.units, n, "partition: units", "clients")
        positions = range(len(self.group_names))
        have_names = not positions or (self.group is not None and all(g in positions for g in self.group.tolist()))
        require(have_names, f"partition: group must hold positions in the {len(positions)} group_names")

    @property
    def clients(self) -> int:
        """N."""
        return len(self.train)

    @property
    def client_names(self) -> tuple[str, ...]:
        """Names of the clients [N], also where the data have none."""
        return self.names or default_names(self.clients)

    @property
    def subgraphs(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(nodes [V], edges [2, E]) of every client of a graph data set; raises BadInput for rows and series."""
        if self.nodes is None or self.edges is None:
            raise BadInput("partition: its clients hold no subgraphs")
        return list(zip(self.nodes, self.edges, strict=True))


def _require_array(array: np.ndarray | None, message: str) -> np.ndarray:
    if array is None:
        raise BadInput(message)
    return array


def require(condition: bool, message: str) -> None:
    """Raise BadInput with `message` unless `condition` is true."""
    if not condition:
        raise BadInput(message)


def check_units(units: Any, count: int, what: str, whose: str) -> None:
    """Refuse `units` unless they are empty or one non-empty name for each of `count` clients.

    Args:
        what: beginning of messages.
        whose: name of the clients in messages.
    """
    require(isinstance(units, tuple), f"{what}: {format_value(units)} must be a tuple of names; use tuple(...)")
    require(len(units) in (0, count), f"{what}: {len(units)} for {count} {whose}; give one for each, or none")
    for unit in units:
        require(
            isinstance(unit, str) and unit != "", f"{what}: {format_value(unit)} is not a name; give non-empty texts"
        )


def _way_of_labels(y: np.ndarray) -> str:
    """What to do with labels that are no integers: scores must not become classes."""
    if y.dtype.kind == "f" and not np.array_equal(y, np.round(y)):
        return "numbers to predict go into targets=y[:, None].astype('float32'), with y=None and classes=0"
    return "use y.astype('int64')" if y.dtype.kind in "fb" else "number the classes from 0"


def _check_targets(name: str, dataset: Dataset) -> None:
    """Refuse targets that are not finite numbers [M, K] with a row per row of the features."""
    targets, channels = dataset.targets, dataset.channels
    if targets is None:
        require(not channels, f"{name}: channels go with targets")
        return
    fits_rows = dataset.kind == "images" and targets.shape[:1] == dataset.x.shape[:1] and targets.ndim == 2
    require(fits_rows and targets.shape[1] > 0, f"{name}: targets must be [{len(dataset.x)}, K], of images or vectors")
    is_valid = targets.dtype in (np.float32, np.float64) and bool(np.isfinite(targets).all())
    require(is_valid, f"{name}: targets must be finite float32 or float64 numbers; drop the rows without one")
    inside = all(0 <= c < dataset.x.shape[1] for c in channels)
    is_multiple = not channels or targets.shape[1] % len(channels) == 0
    require(inside and is_multiple, f"{name}: channels {[*channels]} do not fit x and targets")


def _check_categories(name: str, x: np.ndarray, categories: tuple[int, ...]) -> None:
    """Refuse codes outside the range that the data set declares for their value."""
    if not categories:
        return
    vectors = x.ndim == 4 and x.shape[2:] == (1, 1) and x.shape[1] == len(categories)
    require(vectors, f"{name}: categories are {len(categories)} numbers, one a value of vectors [M, F, 1, 1]")
    for i in np.flatnonzero(categories):
        codes = x[:, i, 0, 0]
        is_valid = codes.min() >= 0 and codes.max() < categories[i] and not (codes % 1).any()
        require(is_valid, f"{name}: value {i} must be a code in 0 … {categories[i] - 1}")


def _is_pairs(array: np.ndarray | None, limit: int) -> bool:
    """Whether `array` is [2, E] int64 with entries in [0, limit)."""
    if array is None or array.ndim != 2 or len(array) != 2 or array.dtype != np.int64:
        return False
    return array.size == 0 or (int(array.min()) >= 0 and int(array.max()) < limit)


def find_repeated_row(rows: np.ndarray) -> int | None:
    """The entry of `rows` [m] that occurs most often; None if every entry occurs once."""
    values, counts = np.unique(rows, return_counts=True)
    return int(values[counts.argmax()]) if len(values) < len(rows) else None


def symmetrise_edges(pairs: np.ndarray, count: int) -> np.ndarray:
    """Both directions of `pairs` [2, E] between `count` nodes: int64, sorted, unique, no self loops."""
    a, b = np.asarray(pairs, dtype=np.int64)
    code = np.unique(np.concatenate([a * count + b, b * count + a]))
    both = np.stack([code // count, code % count])
    return both[:, both[0] != both[1]]


def default_names(clients: int) -> tuple[str, ...]:
    """Names of clients whose data have none, as results have them."""
    return tuple(f"client {i}" for i in range(clients))
