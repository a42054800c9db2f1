"""A federation in memory: the rows of all clients, who owns them, and which of them train, validate and test."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave import data
from fedweave.api import arrays
from fedweave.api.splits import split_rows
from fedweave.api.tables import Preprocessing, Text, fit_columns
from fedweave.data import Dataset, Partition
from fedweave.data.partitions.splits import PARTS
from fedweave.errors import BadInput
from fedweave.study import plugins

if TYPE_CHECKING:
    import pandas as pd

SMALL = 10  # test rows of a client below which its score is hardly more than chance


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Clients with data of their own.

    Attributes:
        dataset: the features and classes of all rows.
        partition: which client holds which rows.
        setting: how the clients are called in tables.
        dealt: the partition as params.yaml would name it.
        normalize: how features are scaled; numbers come from training rows.
        shape: of one row as it was given.
        classes: names of the classes.
        preprocessing: how the rows of a table became vectors, or None.
    """

    dataset: Dataset
    partition: Partition
    setting: str
    dealt: Mapping[str, Any]
    normalize: Any = "none"
    shape: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None
    notes: tuple[str, ...] = field(default=())

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        *,
        client: Sequence[Hashable],
        split: Any = None,
        time: Sequence[Any] | None = None,
        group: Any = None,
        val: float | None = None,
        normalize: Any = "none",
        name: str = "own-data",
        seed: int = 0,
    ) -> "Federation":
        """A federation from arrays with one entry per row.

        Args:
            x: vectors [M, F], windows of series [M, T, C] or images [M, C, H, W].
            y: the class of each row: numbers or names.
            client: who owns each row; any hashable value, which is also the client's name.
            split: "train", "val" or "test" for each row; or {"train": rows, ...}; or shares {"train": 0.6, ...}
                (default .6/.2/.2) of each client's rows, drawn with the mix of its classes.
            time: of each row; with shares, a client's first rows train and its last ones test.
            group: of each row, or {client: group}; for tables and figures alone.
            val: share of the training rows that validates, where `split` marks no row "val".
            normalize: "none", "standard" (by channel or column, from training rows) or "unit".
            name: of the data in tables.
            seed: of a drawn split.

        Raises:
            BadInput: lengths that differ, values that are not finite, or parts that overlap or are empty.

        >>> import numpy as np
        >>> x, y = np.arange(60.0).reshape(30, 2), np.arange(30) % 2
        >>> Federation.from_arrays(x, y, client=["Ann", "Bob", "Cy"] * 10)
        Federation 'own-data': 3 clients, 30 rows of 2 values, 2 classes
        """
        values = arrays.as_features(x, name)
        count = len(values)
        labels, classes = arrays.as_classes(y, count)
        owner, names = arrays.as_clients(client, count)
        times = None if time is None else arrays.as_column(time, "time", count)
        rows = split_rows(owner, labels, names, split, times, val, seed)
        stored = arrays.as_images(values)
        dataset = Dataset(name, "images", stored, labels, classes=len(classes))
        members, groups = arrays.as_groups(group, owner, names)
        partition = Partition(rows["train"], rows["val"], rows["test"], names=names, group=members, group_names=groups)
        unseen = arrays.unseen_classes(labels, rows, classes)
        return cls(
            dataset,
            partition,
            "own",
            arrays.given_block(dataset, partition),
            normalize,
            values.shape[1:],
            classes,
            notes=unseen,
        )

    @classmethod
    def from_pandas(
        cls, table: "pd.DataFrame", *, client: str, label: str, features: Sequence[str] | None = None, **options: Any
    ) -> "Federation":
        """A federation from a table.

        Numbers are standardised by training rows, and a missing one becomes their median; categories have one column
        per value. `describe` says what was done with each column.

        Args:
            table: one row per example.
            client, label: names of columns.
            features: names of columns; default: all others.
            options: those of `from_arrays`; split, time and group may be names of columns.

        Raises:
            BadInput: a column that is not there or cannot be a feature, and as `from_arrays`.

        >>> import pandas as pd
        >>> table = pd.DataFrame({"shop": ["A", "B"] * 10, "hour": range(20), "late": ["no", "no", "yes", "yes"] * 5})
        >>> Federation.from_pandas(table, client="shop", label="late")
        Federation 'own-data': 2 clients, 20 rows of 1 value, 2 classes
        """
        named = {
            key: value for key, value in options.items() if key in ("split", "time", "group") and isinstance(value, str)
        }
        used = [client, label, *named.values()]
        chosen = [str(c) for c in table.columns if c not in used] if features is None else list(features)
        for column in (*used, *chosen):
            if column not in table:
                raise BadInput(f"table: no column {column!r}; it has {', '.join(map(str, table.columns))}")
        for column in (client, label):
            if table[column].isna().any():
                raise BadInput(
                    f"table: column {column!r} is missing in {int(table[column].isna().sum())} rows; drop them first"
                )
        if not chosen or {*chosen} & {client, label}:
            raise BadInput(f"features: {chosen} must name columns other than {client!r} and {label!r}, at least one")
        settings = {**options, **{key: table[column].tolist() for key, column in named.items()}}
        numbers = np.zeros((len(table), 1), dtype=np.float32)
        plan = cls.from_arrays(numbers, table[label].tolist(), client=table[client].tolist(), **settings)
        preprocessing = fit_columns(table, chosen, np.concatenate(plan.partition.train))
        encoded = preprocessing.encode(table)
        dataset = Dataset(
            plan.dataset.name, "images", arrays.as_images(encoded), plan.dataset.y, classes=len(plan.classes)
        )
        dealt = arrays.given_block(dataset, plan.partition)
        return cls(
            dataset,
            plan.partition,
            "own",
            dealt,
            plan.normalize,
            encoded.shape[1:],
            plan.classes,
            preprocessing,
            plan.notes,
        )

    @classmethod
    def from_graphs(
        cls, graphs: Sequence[tuple[Any, Any, Any]] | Mapping[str, tuple[Any, Any, Any]], *, split: Any = None,
        val: float | None = None, name: str = "own-graphs", seed: int = 0,
    ) -> "Federation":  # fmt: skip
        """A federation from one graph per client.

        Args:
            graphs: (x [V, F], edge_index [2, E], y [V]) of each client, or a mapping of names to these. Edges are made
                to run in both directions.
            split: one list of "train", "val" or "test" per client, a label per node; or shares as in `from_arrays`.
            val, name, seed: as in `from_arrays`.

        Raises:
            BadInput: shapes that do not fit each other, and as `from_arrays`.
        """
        named = arrays.as_graphs(graphs)
        parts = [*named.values()]
        sizes = [len(x) for x, _, _ in parts]
        first, owner = np.cumsum([0, *sizes[:-1]]), np.repeat(np.arange(len(parts)), sizes)
        labels, classes = arrays.as_classes(np.concatenate([y for _, _, y in parts]), sum(sizes))
        whole = split if split is None or isinstance(split, Mapping) else [part for given in split for part in given]
        rows = split_rows(owner, labels, tuple(named), whole, None, val, seed)
        local = {part: tuple(mine - start for mine, start in zip(rows[part], first, strict=True)) for part in PARTS}
        edges = np.concatenate([e + start for (_, e, _), start in zip(parts, first, strict=True)], axis=1)
        x = np.concatenate([features for features, _, _ in parts])
        dataset = Dataset(name, "graph", x, labels, classes=len(classes), edges=edges)
        nodes = tuple(np.arange(size) + start for size, start in zip(sizes, first, strict=True))
        rest: dict[str, Any] = {"nodes": nodes, "edges": tuple(pairs for _, pairs, _ in parts), "names": tuple(named)}
        partition = Partition(local["train"], local["val"], local["test"], **rest)
        dealt, notes = arrays.given_block(dataset, partition), arrays.unseen_classes(labels, rows, classes)
        return cls(dataset, partition, "own", dealt, "none", dataset.x.shape[1:], classes, notes=notes)

    @classmethod
    def from_dataset(
        cls, name: str, partition: str | Mapping[str, Any], *, normalize: Any = "none", setting: str | None = None,
        root: Path | str = "data/raw", **options: Any,
    ) -> "Federation":  # fmt: skip
        """A federation from a data set that fedweave knows; its files are downloaded to `root` if they are not there.

        Args:
            name: as in `fedweave list datasets`.
            partition: name of a rule, as in `fedweave list partitions`, or a mapping with its options.
            normalize: as in a task of params.yaml.
            setting: how the partition is called in tables; default: its name.
            root: folder of the files.
            options: of the partition: clients, seed (default 0), and its own.

        Raises:
            BadInput: an unknown name or option, or data that no source has.

        >>> Federation.from_dataset("digits", "dirichlet", clients=5, beta=0.3)
        Federation 'digits': 5 clients, 1797 rows of 1 x 8 x 8 values, 10 classes
        """
        block = {"seed": 0, **({"name": partition} if isinstance(partition, str) else partition), **options}
        plugins.look_for(name, data.DATASETS)
        plugins.look_for(block.get("name"), data.PARTITIONS)
        data.download(name, root)
        dataset = data.load(name, root)
        if "clients" not in block and block.get("name") == "natural":
            block["clients"] = len(dataset.x) if dataset.owner is None else int(dataset.owner.max()) + 1
        dealt = data.partition(dataset, **block)
        shape = (1,) if dataset.kind == "series" else dataset.x.shape[1:]
        classes = tuple(map(str, range(dataset.classes)))
        return cls(dataset, dealt, setting or str(block["name"]), block, normalize, shape, classes)

    @property
    def name(self) -> str:
        """Of the data in tables."""
        return self.dataset.name

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients."""
        return self.partition.names or tuple(f"client {i}" for i in range(self.partition.clients))

    def __len__(self) -> int:
        return self.partition.clients

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.shape))
        rows = "nodes" if self.dataset.kind == "graph" else "rows"
        count = self.dataset.x.size if self.dataset.kind == "series" else len(self.dataset.x)
        unit = "value" if size == "1" else "values"
        classes = f", {self.dataset.classes} classes" if self.dataset.classes else ""
        return f"Federation {self.name!r}: {len(self)} clients, {count} {rows} of {size} {unit}{classes}"

    @cached_property
    def table(self) -> "pd.DataFrame":
        """One row per client: rows of each part, classes, the share of its most frequent class, its group."""
        import pandas as pd

        frame = pd.DataFrame({"client": self.names})
        for part in PARTS:
            frame[part] = [len(rows) for rows in getattr(self.partition, part)]
        if self.dataset.y is not None:
            counts = [np.bincount(self._labels(i, "train"), minlength=self.dataset.classes) for i in range(len(self))]
            frame["classes"] = [int((count > 0).sum()) for count in counts]
            frame["most_frequent"] = [float(count.max() / count.sum()) for count in counts]
        if self.partition.group is not None:
            titles = self.partition.group_names
            frame["group"] = [titles[g] if titles else int(g) for g in self.partition.group]
        return frame

    def describe(self) -> Text:
        """What the federation holds and what was done to its features, as a text."""
        lines = [repr(self), f"scaling: {self.normalize}", *self.notes, *self.small_clients()]
        columns = [] if self.preprocessing is None else ["columns, as training rows say:", str(self.preprocessing)]
        return Text("\n".join([*lines, *columns, self.table.to_string(index=False)]))

    def small_clients(self) -> list[str]:
        """A line where clients have so few test rows that their scores say little."""
        few = [name for name, rows in zip(self.names, self.partition.test, strict=True) if len(rows) < SMALL]
        shown = ", ".join(few[:3]) + (", ..." if len(few) > 3 else "")
        return (
            [f"{len(few)} of {len(self)} clients have fewer than {SMALL} test rows ({shown}); their scores say little"]
            if few
            else []
        )

    def majority(self) -> np.ndarray | None:
        """Accuracy in percent of each client [N] for its most frequent training class; None without classes."""
        if self.dataset.y is None or self.partition.test_weight is not None:
            return None
        guesses = [np.bincount(self._labels(i, "train")).argmax() for i in range(len(self))]
        return np.array([100.0 * float((self._labels(i, "test") == g).mean()) for i, g in enumerate(guesses)])

    def _labels(self, client: int, part: str) -> np.ndarray:
        rows = getattr(self.partition, part)[client]
        nodes = self.partition.nodes
        return self.dataset.labels[rows if nodes is None else nodes[client][rows]]
