"""Files of rows: memory-mapped `.npy` files, and the record of which of their slots are in use."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedweave.errors import BadInput

DTYPES = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64, torch.bool: np.bool_}


class RowFiles:
    """The files NAME-0.npy, NAME-1.npy, ... of one table and of its later versions.

    Attributes:
        width: numbers per row.
        length: rows per file.
        references: number of versions that refer to each slot [S].
    """

    def __init__(self, folder: Path, name: str, width: int, dtype: torch.dtype, length: int) -> None:
        self.folder, self.name, self.width, self.dtype, self.length = folder, name, width, dtype, length
        self.references = np.zeros(0, dtype=np.int32)
        self._files: list[np.memmap] = []
        self._tensors: list[Tensor] = []
        self._changed: set[int] = set()
        self._allocated: list[int] = []  # for every file, the number of rows with space on the disk

    @property
    def files(self) -> int:
        """How many files there are."""
        return len(self._files)

    def open(self, files: int) -> None:
        """Open the files of an earlier process.

        Raises:
            OSError, ValueError: a file is missing, damaged, or of other rows.
        """
        for i in range(files):
            file = np.load(self.folder / f"{self.name}-{i}.npy", mmap_mode="r+")
            if file.shape != (self.length, self.width) or file.dtype != DTYPES[self.dtype]:
                raise ValueError(f"{self.name}-{i}.npy: {file.shape} of {file.dtype}")
            self._add_file(file)

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
            self._add_file(self._create_file(self.folder / f"{self.name}-{len(self._files)}.npy"))
        slots = torch.from_numpy(free[: len(values)])
        values = values.detach().to("cpu", self.dtype)
        for number, positions in self._group_by_file(slots):
            rows = slots[positions] % self.length
            self._allocate_rows(number, int(rows.max()) + 1)
            if len(values) == 1:  # without a copy
                self._tensors[number][int(rows)].copy_(values[0])
            else:
                self._tensors[number][rows] = values[positions]
            self._changed.add(number)
        return slots

    def read(self, slots: Tensor) -> Tensor:
        """The rows in `slots`, [P, D]."""
        values = torch.empty(len(slots), self.width, dtype=self.dtype)
        for number, positions in self._group_by_file(slots):
            values[positions] = self._tensors[number][slots[positions] % self.length]
        return values

    def view(self, slot: int) -> Tensor:
        """The row in a slot, [D], as it is in the file."""
        return self._tensors[slot // self.length][slot % self.length]

    def flush(self) -> None:
        """Write all changes to the disk."""
        for number in sorted(self._changed):
            self._files[number].flush()
        self._changed.clear()

    def _group_by_file(self, slots: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(number of a file, positions of its slots among `slots`)."""
        numbers = slots // self.length
        for number in numbers.unique().tolist():
            yield number, (numbers == number).nonzero()[:, 0]

    def _create_file(self, path: Path) -> np.memmap:
        shape = (self.length, self.width)
        with _one_line_errors(path):
            return np.lib.format.open_memmap(path, mode="w+", dtype=DTYPES[self.dtype], shape=shape)

    def _allocate_rows(self, number: int, rows: int) -> None:
        """Allocate disk space for the first `rows` rows of a file; to write to a hole on a full disk is fatal."""
        if rows <= self._allocated[number] or not hasattr(os, "posix_fallocate"):
            return
        path, file = self.folder / f"{self.name}-{number}.npy", self._files[number]
        first, last = (file.offset + count * file.strides[0] for count in (self._allocated[number], rows))
        with _one_line_errors(path), path.open("r+b") as handle:
            os.posix_fallocate(handle.fileno(), first, last - first)
        self._allocated[number] = rows

    def _add_file(self, file: np.memmap) -> None:
        self._files.append(file)
        self._allocated.append(0)
        self._tensors.append(torch.from_numpy(file))
        self.references = np.concatenate([self.references, np.zeros(self.length, dtype=np.int32)])


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

    def __init__(self, rows: RowFiles, slots: Tensor) -> None:
        self.rows, self.slots = rows, slots
        self._used = slots[slots >= 0].numpy()  # an array: inside of vmap, where it may be freed, tensors have none
        rows.retain(self._used)

    def __del__(self) -> None:
        self.rows.release(self._used)
