"""Where tables of all clients are stored: in memory, or in the files of a `Storage`.

Tables whose rows have one length and type share a file (`row_files`), so that a row can move between them.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from fedweave.tensors.row_files import DTYPES, RowFile, TableVersion
from fedweave.tensors.tables import Table, find_stored

LARGE = 2**20  # bytes of a client's result from which on it is written to files
SEGMENT = 2**29  # bytes by which a file of rows grows at most; holes take no space on the disk


class Storage:
    """A folder with the rows of the tables of one repetition.

    Attributes:
        folder: the folder of the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, RowFile] = {}
        self._retained: dict[str, list[Table]] = {}

    def create_table(self, row: Tensor, clients: int) -> Tensor:
        """A table of `clients` rows that all equal `row` [...]; in memory if a row is one number or of a rare dtype."""
        if row.ndim == 0 or not row.numel() or row.dtype not in DTYPES:
            return row.expand(clients, *row.shape).clone()
        return Table(TableVersion(self._file_for(row, clients), torch.full((clients,), -1)), row.detach().clone())

    def store_rows(self, trees: Any) -> Any:
        """The results `trees` of one client with large tensors [...] written to files, as tables [1, ...].

        A tensor that is twice in it is written once, and a row that is in a file already stays there.
        """
        stored: dict[int, Table] = {}

        def store(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or not leaf.ndim or leaf.nbytes < LARGE or leaf.dtype not in DTYPES:
                return leaf
            if id(leaf) not in stored:
                row = find_stored(leaf)
                stored[id(leaf)] = self._write_row(leaf) if row is None else row
            return stored[id(leaf)]

        return tree_map(store, trees)

    def _write_row(self, row: Tensor) -> Table:
        rows = self._file_for(row)
        default = row.new_zeros(()).expand(row.shape)  # of no row, and without memory
        return Table(TableVersion(rows, rows.write(row.reshape(1, -1))), default)

    def _file_for(self, row: Tensor, clients: int = SEGMENT // LARGE) -> RowFile:
        """The file of rows as long as `row`."""
        for rows in self._files.values():
            if (rows.width, rows.dtype) == (row.numel(), row.dtype):
                return rows
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{1 + max(map(int, self._files), default=0):04d}"
        return self._add_file(name, row, max(1, min(clients, SEGMENT // row.nbytes)))

    def _add_file(self, name: str, row: Tensor, step: int) -> RowFile:
        self._files[name] = RowFile(self.folder / f"{name}.rows", row.numel(), row.dtype, step)
        return self._files[name]

    def flush(self) -> None:
        """Write all rows to the disk."""
        for rows in self._files.values():
            rows.flush()

    def retain(self, checkpoint: str, tree: Any) -> None:
        """Keep the rows of the tables in `tree` until `checkpoint` is released."""
        self._retained[checkpoint] = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Table)]

    def release(self, checkpoint: str) -> None:
        """Rows that only `checkpoint` refers to may be overwritten."""
        self._retained.pop(checkpoint, None)

    def restore_table(self, record: dict[str, Any]) -> Table:
        """The table of a `record` of a checkpoint.

        Raises:
            OSError, ValueError: a file is missing or damaged.
        """
        name, slots, default = record["rows"], record["slots"].long(), record["default"]
        rows = self._files.get(name) or self._add_file(name, default, record["step"])
        rows.open(int(slots.max()) + 1)
        return Table(TableVersion(rows, slots), default)

    def remove_unused_files(self) -> None:
        """Remove files of tables in no checkpoint; a process leaves them if it is killed soon after it made them."""
        for path in {*self.folder.glob("*.rows")} - {rows.path for rows in self._files.values()}:
            path.unlink()

    def clear(self) -> None:
        """Remove all files; tables that are in use can still be read."""
        shutil.rmtree(self.folder, ignore_errors=True)


def tables_to_records(tree: Any) -> Any:
    """`tree` with a record in place of every table, for a checkpoint."""
    return tree_map_only(Table, _build_record, tree)


def _build_record(table: Table) -> dict[str, Any]:
    rows, slots = table.version.rows, table.version.slots.int()
    return {"rows": rows.path.stem, "step": rows.step, "slots": slots, "default": table.default.cpu()}


def records_to_tables(tree: Any, storage: Storage) -> Any:
    """The inverse of `tables_to_records`, for dictionaries, tuples and lists.

    Raises:
        OSError, ValueError: as `Storage.restore_table`.
    """
    if isinstance(tree, dict):
        if tree.keys() == {"rows", "step", "slots", "default"}:
            return storage.restore_table(tree)
        return {name: records_to_tables(value, storage) for name, value in tree.items()}
    return type(tree)(records_to_tables(value, storage) for value in tree) if isinstance(tree, tuple | list) else tree


def tables_to_tensors(tree: Any) -> Any:
    """`tree` with every table in memory."""
    return tree_map_only(Table, lambda table: table.to_tensor(), tree)


_STORAGE: ContextVar[Storage | None] = ContextVar("storage", default=None)


def current_storage() -> Storage | None:
    """The storage of new tables of all clients; None: in memory."""
    return _STORAGE.get()


def store_rows(trees: Any) -> Any:
    """`Storage.store_rows` of the current storage; without one, `trees` as they are."""
    storage = current_storage()
    return trees if storage is None else storage.store_rows(trees)


@contextmanager
def use_storage(storage: Storage | None) -> Iterator[None]:
    """Inside this block, new tables of all clients are stored in `storage`."""
    token = _STORAGE.set(storage)
    try:
        yield
    finally:
        _STORAGE.reset(token)


@contextmanager
def temporary_storage() -> Iterator[Storage]:
    """A storage that is deleted at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="fedweave-rows-") as folder:
        yield Storage(Path(folder))
