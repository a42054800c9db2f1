"""A federation in memory: the rows of all clients, the client of each row, and the rows of each part."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from fedweave import data, exported_model
from fedweave.data import Dataset, Partition
from fedweave.data.partitions.splits import PARTS
from fedweave.errors import BadInput, format_count, format_value, relocate
from fedweave.own_data import column_roles as columns
from fedweave.own_data import contents, features, foreign_folders, image_files, rows, torch_datasets, user_files
from fedweave.own_data import graphs as subgraphs
from fedweave.own_data.argument_checks import check_path, check_text
from fedweave.own_data.column_encoding import Preprocessing
from fedweave.own_data.options import TABLE_OPTIONS, RowKeywords, TableKeywords, with_options
from fedweave.own_data.row_options import check_names, row_options
from fedweave.study import plugins

if TYPE_CHECKING:
    import pandas as pd

MOST_CLIENTS = 30  # in a description; the table of all is `table`
VAL_SHARE = 0.2  # of the training rows of other frameworks, which have no validation rows
MIN_TEST_ROWS = 10  # test rows of a client below which its score is hardly more than chance


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Clients with data of their own.

    Attributes:
        dataset: the features and classes of all rows.
        partition: which client holds which rows.
        setting: name of the partition in tables.
        partition_block: the block of the partition as in params.yaml.
        normalize: how features are scaled, by statistics of training rows.
        shape: of one row as it was given.
        classes: names of the classes.
        preprocessing: how the rows of a table became vectors, or None.
        notes: warnings about the data.
        content: what was understood of each column or array, in words.
        rules: `split` and `stride` by which rows became parts and windows: newcomers' rows follow them.
    """

    dataset: Dataset
    partition: Partition
    setting: str
    partition_block: Mapping[str, Any]
    normalize: Any = "none"
    shape: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None
    notes: tuple[str, ...] = field(default=())
    rules: Mapping[str, Any] = field(default_factory=dict)
    content: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    @with_options(RowKeywords)
    def from_arrays(
        cls, x: Any, y: Any, *, client: Sequence[Hashable] | None = None, **options: Unpack[RowKeywords]
    ) -> "Federation":
        """A federation from arrays with one entry per row, or with those of each client: {client: rows}.

        Args:
            x: vectors [M, F], windows of series [M, T, C], images [M, C, H, W], or a list of texts; of models with
                several inputs {name: array} or a tuple of arrays. Where rows are time steps (`window`, `horizon`),
                further channels [M, C], or None.
            y: the class of each row, a number or a name, or a number to predict; see `target`. Of time steps the value
                of each [M], or of several series [M, V].
            client: who owns each row; any hashable value, which is also the client's name. None: x and y (and split,
                time, recording) are {client: rows}.

        Raises:
            BadInput: lengths that differ, values that are not finite, parts that overlap or are empty, or labels of
                test rows that no training row has.

        >>> import numpy as np
        >>> x, y = np.arange(60.0).reshape(30, 2), np.arange(30) % 2
        >>> Federation.from_arrays(x, y, client=["Ann", "Bob", "Cy"] * 10)
        Federation 'own-data': 3 clients, 30 rows of 2 values, 2 classes
        """
        return cls(**rows.fields_from_arrays(x, y, client, row_options(options, ("client",))))

    @classmethod
    @with_options(TableKeywords)
    def from_pandas(
        cls, table: "pd.DataFrame", *, client: str, label: str | Sequence[str], **options: Unpack[TableKeywords]
    ) -> "Federation":
        """A federation from a table.

        Numbers are standardised by training rows, and a missing one becomes their median. A category has one column
        per value, in which a missing or new value is zero everywhere; or it is embedded by the clients' models, and a
        missing or new value has a vector of its own. `describe` shows the preprocessing of each column.

        Args:
            table: one row per example; for forecasts (`window`, `horizon`) one per time step.
            client, label: names of columns. Forecasts may have several labels, one a series.

        Raises:
            BadInput: a column that is not there or cannot be a feature, and as `from_arrays`.

        >>> import pandas as pd
        >>> table = pd.DataFrame({"shop": ["A", "B"] * 10, "hour": range(20), "late": ["no", "no", "yes", "yes"] * 5})
        >>> Federation.from_pandas(table, client="shop", label="late")
        Federation 'own-data': 2 clients, 20 rows of 1 value, 2 classes
        """
        settings = row_options(options, (*TABLE_OPTIONS, "client", "label"))
        return cls(**rows.fields_from_table(table, client, label, settings))

    @classmethod
    @with_options(TableKeywords, name="the name of the file")
    def from_file(
        cls,
        path: Path | str,
        *,
        client: str = "",
        label: str | Sequence[str] = "",
        encoding: str = "",
        **options: Unpack[TableKeywords],
    ) -> "Federation":
        """A federation from a CSV, TSV or Parquet file, a folder of them, or from the arrays of an NPZ file.

        Folders of LEAF, PFLlib and TensorFlow Federated are recognised, which need neither `client` nor `label`.

        Args:
            path: its name is the default for `name`. In a folder, a file without the column `client` is one client.
            client, label: names of columns, or of arrays with one entry per row.
            encoding: of a CSV or TSV file; default: UTF-8.
            options: of a table those of `from_pandas`. Of arrays those of `from_arrays`; `features` ("x"), split, time,
                recording, group and unit may be names of arrays.

        Raises:
            BadInput: a file that cannot be read, and as `from_pandas` and `from_arrays`.
        """
        check_path(path, "path")
        arguments: dict[str, Any] = {"name": Path(path).name.split(".")[0] or "own-data", **options}
        if not (client and label) and (kind := foreign_folders.find_kind(Path(path))):
            return getattr(cls, f"from_{kind}")(path, **arguments)
        if missing := [word for word, value in (("client", client), ("label", label)) if not value]:
            raise BadInput(f"{missing[0]}: missing; name the column of {path} that has it")
        encoding = user_files.check_encoding(Path(path), encoding)
        check_names(arguments, (*TABLE_OPTIONS, "client", "label", "encoding"))
        if Path(path).suffix.lower() == user_files.ARRAYS:
            return cls(**rows.fields_from_named_arrays(user_files.read_arrays(path), client, label, arguments))
        table = columns.read_rows(path, client, label, arguments, encoding)
        with relocate({"time": f"{path}: time"}):
            return cls.from_pandas(table, client=client, label=label, **arguments)

    @classmethod
    @with_options(RowKeywords)
    def from_leaf(
        cls,
        path: Path | str,
        *,
        field: int | None = None,
        shape: Sequence[int] | None = None,
        **options: Unpack[RowKeywords],
    ) -> "Federation":
        """A federation from the JSON files of LEAF.

        Args:
            path: the folder with `train` and `test`, as its `data` folders, or one file, whose rows are split here.
            field: position of the input in a row that is a list of texts, such as 4 in Sent140.
            shape: of an input, such as (1, 28, 28) for the 784 numbers of FEMNIST; default: a vector.
            options: those of `from_arrays`; `val`, the share of training rows that validates, is 0.2.

        Raises:
            BadInput: a file that is missing, damaged or of another kind, and as `from_arrays`.
        """
        check_path(path, "path")
        return cls._from_foreign(foreign_folders.read_leaf(Path(path), field, shape), options)

    @classmethod
    @with_options(RowKeywords)
    def from_pfllib(cls, path: Path | str, **options: Unpack[RowKeywords]) -> "Federation":
        """A federation from a data set of PFLlib: train/0.npz, test/0.npz, and so on.

        Args:
            path: the folder with `train` and `test`.
            options: as of `from_leaf`.

        Raises:
            BadInput: a file that is missing, damaged or of another kind, and as `from_arrays`.
        """
        check_path(path, "path")
        return cls._from_foreign(foreign_folders.read_pfllib(Path(path)), options)

    @classmethod
    @with_options(RowKeywords)
    def from_flbench(
        cls, path: Path | str, *, shape: Sequence[int] | None = None, **options: Unpack[RowKeywords]
    ) -> "Federation":
        """A federation from a data set of FL-bench that its generate_data.py has divided: data/NAME with partition.pkl.

        Args:
            path: the folder.
            shape: of an input, such as (1, 28, 28) for the vectors of FEMNIST; default: as it is stored.
            options: as of `from_leaf`; `val` only where the partition has no validation rows.

        Raises:
            BadInput: a file that is missing, damaged or of another kind, and as `from_arrays`.
        """
        check_path(path, "path")
        return cls._from_foreign(foreign_folders.read_flbench(Path(path), shape), options)

    @classmethod
    @with_options(RowKeywords)
    def from_tff(
        cls, path: Path | str, *, features: str = "", label: str = "", **options: Unpack[RowKeywords]
    ) -> "Federation":
        """A federation from the HDF5 files of TensorFlow Federated; images become [channels, height, width].

        Args:
            path: a folder with NAME_train.h5 and NAME_test.h5, or one file, whose rows are split here.
            features, label: names of arrays of a client; default: pixels, image or x, and label.
            options: as of `from_leaf`.

        Raises:
            BadInput: a file that is missing, damaged or of another kind, and as `from_arrays`.
        """
        check_path(path, "path")
        return cls._from_foreign(foreign_folders.read_tff(Path(path), features, label), options)

    @classmethod
    @with_options(RowKeywords)
    def from_torch(cls, datasets: Any, *, x: Any = 0, y: Any = 1, **options: Unpack[RowKeywords]) -> "Federation":
        """A federation from data sets of PyTorch, which are read once.

        Args:
            datasets: {client: data set}, or {client: {"train": ..., "val": ..., "test": ...}}, where the data sets are
                the split, or a list. Rows are tensors, arrays or images of PIL, all of one shape.
            x, y: where a row has its input and its label: positions, or keys such as "image" and "label".
            options: as of `from_leaf`; `val` only where there are no data sets for validation.

        Raises:
            BadInput: a `DataLoader`, random transforms, a row that cannot be read, and as `from_arrays`.
        """
        return cls._from_foreign(torch_datasets.read(datasets, x, y), options)

    @classmethod
    def _from_foreign(cls, found: foreign_folders.ForeignRows, options: Mapping[str, Any]) -> "Federation":
        given: Any = {"split": found.split, **options} if found.split else options
        if found.split and "val" not in found.split:
            given = {"val": VAL_SHARE, **given}
        federation = cls.from_arrays(found.x, found.y, client=found.client, **given)
        return replace(federation, notes=(*found.notes, *federation.notes))

    @classmethod
    @with_options(RowKeywords, name="the name of the folder")
    def from_images(
        cls,
        folder: Path | str,
        table: Any = None,
        *,
        file: str = "file",
        client: str = "client",
        label: str = "label",
        size: tuple[int, int] | None = None,
        **options: Unpack[RowKeywords],
    ) -> "Federation":
        """A federation from image files.

        Args:
            folder: of files CLIENT/CLASS/FILE, or of those that `table` names.
            table: one row per image, or the path of its CSV or Parquet file.
            file, client, label: names of columns of the table.
            size: height and width to which images are resized; default: all have the same.
            options: those of `from_arrays`; split, time, recording, group and unit may be names of columns. The default
                for `name` is that of the folder.

        Raises:
            BadInput: a file that is missing, damaged or of another size.
        """
        check_path(folder, "folder")
        files = (
            image_files.list_files(folder)
            if table is None
            else columns.read_named(table, options, (file, client), label)
        )
        named = {"name": Path(folder).resolve().name or "own-data", **options}
        settings = row_options(named, ("file", "client", "label", "size"))
        return cls(**rows.fields_from_images(files, file, client, label, Path(folder), size, settings))

    @classmethod
    @with_options(TableKeywords)
    def from_huggingface(
        cls,
        dataset: Any,
        *,
        client: str,
        label: str,
        image: str | None = None,
        size: tuple[int, int] | None = None,
        **options: Unpack[TableKeywords],
    ) -> "Federation":
        """A federation from a data set of Hugging Face, or anything that has `to_pandas`.

        Args:
            dataset: one, or a mapping of "train", "validation" and "test" to one each, which is then the split.
            client, label: names of columns.
            image: name of the column of images; default: the columns are features of a table.
            size: as in `from_images`.
            options: those of `from_pandas`, or of `from_arrays` for images.

        Raises:
            BadInput: no such data set, and as `from_pandas` and `from_images`.
        """
        table = image_files.as_table(dataset)
        if isinstance(dataset, Mapping) and "split" in table:
            options.setdefault("split", "split")
        if image is None:
            return cls.from_pandas(table, client=client, label=label, **options)
        return cls(**rows.fields_from_images(table, image, client, label, Path(), size, row_options(options)))

    @classmethod
    @with_options(RowKeywords, name="own-graphs")
    def from_graphs(
        cls,
        graphs: Any,
        edges: Any = None,
        *,
        node: str = "node",
        client: str = "client",
        label: str = "label",
        features: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        **options: Unpack[RowKeywords],
    ) -> "Federation":
        """A federation from one graph per client.

        Args:
            graphs: (x [V, F], edge_index [2, E], y [V]) or a `torch_geometric.data.Data` of each client, whose masks
                are the split unless an option splits; or a mapping of names to these. With `edges`: a table with a row
                per node, or its file.
            edges: a table of two columns, or its file: names of nodes. Edges between two clients are left out. All
                edges are made to run in both directions.
            node, client, label, features, exclude: names of columns of the table of nodes, as in `from_pandas`.
            options: those of `from_arrays`; split, time, recording, group and unit may be names of columns. Of graphs
                without `edges`, split may be one list of "train", "val" or "test" per client, a label per node.

        Raises:
            BadInput: shapes that do not fit each other, an edge of an unknown node, and as `from_arrays`.
        """
        settings = row_options({"name": "own-graphs", **options})
        if edges is None:
            return cls(**subgraphs.fields_from_graphs(graphs, settings))
        return cls(**subgraphs.fields_from_tables(graphs, edges, node, client, label, features, settings, exclude))

    @classmethod
    def from_dataset(
        cls,
        name: str,
        partition: str | Mapping[str, Any],
        *,
        normalize: Any = "none",
        setting: str | None = None,
        root: Path | str = "data/raw",
        **options: Any,
    ) -> "Federation":
        """A federation from a data set of fedweave; its files are downloaded to `root` if they are missing.

        Args:
            name: as in `fedweave list datasets`.
            partition: name of a rule, as in `fedweave list partitions`, or a mapping with its options.
            normalize: as in a task of params.yaml.
            setting: how the partition is called in tables; default: its name.
            root: folder of the files.
            options: of the partition: its own, clients, seed (default 0) or seeds (a list: one split per repetition).

        Raises:
            BadInput: an unknown name or option, or data that no source has.

        >>> Federation.from_dataset("digits", "dirichlet", clients=5, beta=0.3)
        Federation 'digits': 5 clients, 1797 rows of 1 x 8 x 8 values, 10 classes
        """
        check_text(name, "name", "digits")
        check_path(root, "root")
        if not isinstance(partition, str | Mapping):
            raise BadInput(f"partition: {format_value(partition)} is neither a name nor a mapping; for example 'iid'")
        block = {**({"name": partition} if isinstance(partition, str) else partition), **options}
        block = block if "seeds" in block else {"seed": 0, **block}
        check_text(block.get("name"), "partition", "iid")
        plugins.load_if_missing(name, data.DATASETS)
        plugins.load_if_missing(block.get("name"), data.PARTITIONS)
        data.download(name, root)
        dataset = data.load(name, root)
        client_partition = data.partition(dataset, **data.splits(block)[0])
        block["clients"] = client_partition.clients  # some rules take their number from the data
        shape = (1,) if dataset.kind == "series" else dataset.x.shape[1:]
        classes = dataset.class_names or tuple(map(str, range(dataset.classes)))
        return cls(dataset, client_partition, setting or str(block["name"]), block, normalize, shape, classes)

    @property
    def name(self) -> str:
        """Of the data in tables."""
        return self.dataset.name

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients."""
        return self.partition.client_names

    def __len__(self) -> int:
        return self.partition.clients

    def __repr__(self) -> str:
        """Clients, rows and targets."""
        dataset = self.dataset
        parts = [one["shape"] for one in dataset.columns] if exported_model.has_inputs(dataset.columns) else []
        size = " and ".join(" x ".join(map(str, shape)) for shape in parts or [self.shape])
        rows = "nodes" if dataset.kind == "graph" else "windows" if dataset.channels else "rows"
        count = dataset.x.size if dataset.kind == "series" else len(dataset.x)
        unit = "value" if size == "1" else "values"
        content = f", {format_count(dataset.classes, 'class')}" if dataset.classes else ""
        if dataset.targets is not None:
            horizon = dataset.outputs // len(dataset.channels or (0,))
            content = f", forecasts of {format_count(horizon, 'step')}" if dataset.channels else ", numbers"
        clients = format_count(len(self), "client")
        return f"Federation {self.name!r}: {clients}, {count} {rows} of {size} {unit}{content}"

    @cached_property
    def table(self) -> "pd.DataFrame":
        """One row per client: rows of each part, classes, the share of its most frequent class, its group."""
        import pandas as pd

        partition, dataset = self.partition, self.dataset
        frame = pd.DataFrame({"client": self.names})
        for part in PARTS:
            frame[part] = [len(rows) for rows in getattr(partition, part)]
        if dataset.y is not None:
            labels = [_labels(self, i, "train") for i in range(len(self))]
            counts = [np.bincount(values, minlength=dataset.classes) for values in labels]
            frame["classes"] = [int((count > 0).sum()) for count in counts]
            frame["most_frequent"] = [float(count.max() / count.sum()) for count in counts]
        if dataset.targets is not None:
            targets = [dataset.targets[rows] for rows in partition.train]
            frame["mean"] = [float(values.mean()) for values in targets]
            frame["std"] = [float(values.std()) for values in targets]
        if partition.group is not None:
            titles = partition.group_names
            frame["group"] = [titles[g] if titles else int(g) for g in partition.group]
        if partition.units:
            frame["unit"] = partition.units
        return frame

    def describe(self) -> contents.Text:
        """The federation on a screen: role, type, range, missing values, example and scale of each column, warnings."""
        note = self.dataset.note or (f"scaling: {self.normalize}" if self.preprocessing is None else "")
        scaling = filter(None, (features.state_scale(self.dataset, self.partition), note))
        lines = [repr(self), *scaling, *self.notes, *self.small_clients()]
        fitted = () if self.preprocessing is None else self.preprocessing.columns
        inputs = {column.name: f"{column}; {self.content.get(column.name, '')}".rstrip("; ") for column in fitted}
        others = [f"{name}: {text}" for name, text in self.content.items() if name not in inputs]
        columns = contents.shorten([*others, *inputs.values()])
        heading = ["columns, fitted on training rows:"] * bool(fitted)
        table = self.table.to_string(index=False, max_rows=MOST_CLIENTS)
        return contents.Text("\n".join([*lines, *heading, *columns, table]))

    def small_clients(self) -> list[str]:
        """A line if clients have so few test rows that their scores are hardly reliable."""
        test_rows = zip(self.names, self.partition.test, strict=True)
        small = [name for name, rows in test_rows if len(rows) < MIN_TEST_ROWS]
        examples = ", ".join(small[:3]) + (", ..." if len(small) > 3 else "")
        count = f"{len(small)} of {format_count(len(self), 'client')}"
        verb = "has" if len(small) == 1 else "have"
        text = f"{count} {verb} fewer than {MIN_TEST_ROWS} test rows ({examples}); their scores say little"
        return [text] if small else []

    def majority(self) -> np.ndarray | None:
        """Accuracy in % of each client [N] for its most frequent training class (NaN without test rows), or None."""
        partition = self.partition
        if self.dataset.y is None or partition.test_weight is not None or not any(map(len, partition.test)):
            return None
        guesses = [np.bincount(_labels(self, i, "train")).argmax() for i in range(len(self))]
        hits = [_labels(self, i, "test") == guess for i, guess in enumerate(guesses)]
        return np.array([100.0 * float(hit.mean()) if len(hit) else np.nan for hit in hits])


def check_federation(value: Any, title: str) -> None:
    """Refuse what is no federation yet, with the call that makes one of it."""
    if isinstance(value, Federation):
        return
    call = "from_arrays(x, y, client=...)"
    call = "from_file(path, client=..., label=...)" if isinstance(value, str | Path) else call
    call = "from_pandas(table, client=..., label=...)" if hasattr(value, "columns") else call
    raise BadInput(title, f"{type(value).__name__} is not a federation; make one with fw.Federation.{call}")


def _labels(federation: Federation, client: int, part: str) -> np.ndarray:
    rows, nodes = getattr(federation.partition, part)[client], federation.partition.nodes
    return federation.dataset.labels[rows if nodes is None else nodes[client][rows]]
