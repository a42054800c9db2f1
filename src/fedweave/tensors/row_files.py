"""Files of rows: memory-mapped `.npy` files, and which of their slots are in use."""

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
    """The files NAME-0.npy, NAME-1.npy, ... of one table and of the tables that follow from it.

    Attributes:
        width: numbers of a row.
        length: rows of a file.
        references: how many versions refer to each slot [S].
    """

    def __init__(self, folder: Path, name: str, width: int, dtype: torch.dtype, length: int) -> None:
        self.folder, self.name, self.width, self.dtype, self.length = folder, name, width, dtype, length
        self.references = np.zeros(0, dtype=np.int32)
        self._files: list[np.memmap] = []
        self._parts: list[Tensor] = []
        self._changed: set[int] = set()
        self._room: list[int] = []  # of every file, rows for which the disk has room

    @property
    def files(self) -> int:
        """How many files there are."""
        return len(self._files)

    def open(self, files: int) -> None:
        """Take up the files of an earlier process.

        Raises:
            OSError, ValueError: a file is missing, damaged, or of other rows.
        """
        for i in range(files):
            file = np.load(self.folder / f"{self.name}-{i}.npy", mmap_mode="r+")
            if file.shape != (self.length, self.width) or file.dtype != DTYPES[self.dtype]:
                raise ValueError(f"{self.name}-{i}.npy: {file.shape} of {file.dtype}")
            self._add_file(file)

    def retain(self, slots: Tensor) -> None:
        """One more version refers to `slots`, each of which occurs once."""
        self.references[slots.numpy()] += 1

    def release(self, slots: Tensor) -> None:
        """One version less refers to `slots`."""
        self.references[slots.numpy()] -= 1

    def write(self, values: Tensor) -> Tensor:
        """Slots [P] of `values` [P, D], which are now in the files; no version has referred to them.

        Raises:
            BadInput: the disk is full.
        """
        while (free := np.flatnonzero(self.references == 0)).size < len(values):
            self._add_file(self._create_file(self.folder / f"{self.name}-{len(self._files)}.npy"))
        slots = torch.from_numpy(free[: len(values)])
        values = values.detach().to("cpu", self.dtype)
        for part, here in self._group_by_file(slots):
            places = slots[here] % self.length
            self._make_room(part, int(places.max()) + 1)
            self._parts[part][places] = values[here]
            self._changed.add(part)
        return slots

    def read(self, slots: Tensor) -> Tensor:
        """The rows in `slots`, [P, D]."""
        values = torch.empty(len(slots), self.width, dtype=self.dtype)
        for part, here in self._group_by_file(slots):
            values[here] = self._parts[part][slots[here] % self.length]
        return values

    def flush(self) -> None:
        """Bring what was written to the disk."""
        for part in sorted(self._changed):
            self._files[part].flush()
        self._changed.clear()

    def _group_by_file(self, slots: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(number of a file, positions of its slots among `slots`)."""
        parts = slots // self.length
        for part in parts.unique().tolist():
            yield part, (parts == part).nonzero()[:, 0]

    def _create_file(self, path: Path) -> np.memmap:
        shape = (self.length, self.width)
        with _one_line_errors(path):
            return np.lib.format.open_memmap(path, mode="w+", dtype=DTYPES[self.dtype], shape=shape)

    def _make_room(self, part: int, rows: int) -> None:
        """Have the disk give room to the first `rows` rows of a file; to write to a hole on a full disk is fatal."""
        if rows <= self._room[part] or not hasattr(os, "posix_fallocate"):
            return
        path, file = self.folder / f"{self.name}-{part}.npy", self._files[part]
        first, last = (file.offset + count * file.strides[0] for count in (self._room[part], rows))
        with _one_line_errors(path), path.open("r+b") as handle:
            os.posix_fallocate(handle.fileno(), first, last - first)
        self._room[part] = rows

    def _add_file(self, file: np.memmap) -> None:
        self._files.append(file)
        self._room.append(0)
        self._parts.append(torch.from_numpy(file))
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
        rows.retain(slots[slots >= 0])

    def __del__(self) -> None:
        self.rows.release(self.slots[self.slots >= 0])
