"""Files of rows: memory-mapped numbers, and the record of which of their slots are in use."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedweave.errors import BadInput

DTYPES = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64, torch.bool: np.bool_}


class RowFile:
    """The file of the rows of some tables and of their later versions. It does not exist before the first row.

    Attributes:
        path: of the numbers, row after row.
        width: numbers per row.
        step: rows by which it grows; rows that were never written take no space on the disk.
        references: number of versions that refer to each slot [S].
    """

    def __init__(self, path: Path, width: int, dtype: torch.dtype, step: int) -> None:
        self.path, self.width, self.dtype, self.step = path, width, dtype, step
        self.references = np.zeros(0, dtype=np.int32)
        self._rows = torch.zeros(0, width, dtype=dtype)
        self._allocated = 0  # rows with space on the disk

    def open(self, rows: int) -> None:
        """Open the file of an earlier process, which has so many `rows` or more.

        Raises:
            OSError, ValueError: it is missing, or has fewer.
        """
        if rows <= len(self.references):
            return
        found = self.path.stat().st_size // self._bytes(1)
        if found < rows:
            raise ValueError(f"{self.path.name}: {found} of {rows} rows")
        self._map(found, "r+")

    def retain(self, slots: np.ndarray) -> None:
        """One more version refers to `slots`."""
        np.add.at(self.references, slots, 1)

    def release(self, slots: np.ndarray) -> None:
        """One version less refers to `slots`."""
        np.subtract.at(self.references, slots, 1)

    def write(self, values: Tensor) -> Tensor:
        """Write `values` [P, D] to slots that no version refers to; returns the slots [P].

        Raises:
            BadInput: the disk is full.
        """
        while (free := np.flatnonzero(self.references == 0)).size < len(values):
            self._map(len(self.references) + self.step, "r+" if len(self.references) else "w+")
        slots, values = torch.from_numpy(free[: len(values)]), values.detach().to("cpu", self.dtype)
        self._allocate(int(slots.max()) + 1)
        if len(values) == 1:  # without a copy
            self._rows[int(slots)].copy_(values[0])
        else:
            self._rows[slots] = values
        return slots

    def read(self, slots: Tensor) -> Tensor:
        """The rows in `slots`, [P, D]."""
        return self._rows[slots]

    def view(self, slot: int) -> Tensor:
        """The row in a slot, [D], as it is in the file."""
        return self._rows[slot]

    def flush(self) -> None:
        """Write all changes to the disk."""
        if len(self.references):
            self._file.flush()

    def _map(self, rows: int, mode: Literal["r+", "w+"]) -> None:
        """Map the file into memory, as long as so many rows; mappings before it show the same numbers."""
        with _one_line_errors(self.path):
            self._file = np.memmap(self.path, DTYPES[self.dtype], mode, shape=(rows, self.width))
        self._rows = torch.from_numpy(self._file)
        self.references = np.concatenate([self.references, np.zeros(rows - len(self.references), dtype=np.int32)])

    def _allocate(self, rows: int) -> None:
        """Allocate disk space for the first `rows` rows; to write to a hole on a full disk is fatal."""
        if rows > self._allocated and hasattr(os, "posix_fallocate"):
            first, last = self._bytes(self._allocated), self._bytes(rows)
            with _one_line_errors(self.path), self.path.open("r+b") as handle:
                os.posix_fallocate(handle.fileno(), first, last - first)
            self._allocated = rows

    def _bytes(self, rows: int) -> int:
        return rows * self.width * self.dtype.itemsize


@contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadInput(
            f"{path}: no room for the tables of all clients ({error.strerror}); free space, give the results a folder "
            "on a larger disk, or set train.store: memory"
        ) from error


class TableVersion:
    """Which slots of `rows` a table refers to: `slots` int64 [N], −1 where a row is the default; until it is freed."""

    def __init__(self, rows: RowFile, slots: Tensor) -> None:
        self.rows, self.slots = rows, slots
        self._used = slots[slots >= 0].numpy()  # an array: inside of vmap, where it may be freed, tensors have none
        rows.retain(self._used)

    def __del__(self) -> None:
        self.rows.release(self._used)
