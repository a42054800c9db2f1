"""A frozen body runs once: features of all rows are computed before training, and clients train the head on them.

Features are stored in the user's cache folder, one file for each body and rows, which later runs map into memory.
"""

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.frozen_body import HeadModel
from fedweave.client.task import RowClassification
from fedweave.engine.clients import Clients
from fedweave.engine.protocol import Method
from fedweave.errors import BadInput
from fedweave.files import stored
from fedweave.files.atomic import atomic_path
from fedweave.models import ClientModel
from fedweave.processes.forks import can_train_in_forks, map_jobs
from fedweave.processes.parallel import cores

FEATURES = "features"  # name of their array, and of the folder
CHUNK = 128  # rows that the body reads at once
PROBED = 4  # rows whose features are a part of the name of a file
KEPT = 2**32  # bytes of the files in the folder; the oldest ones go
AUGMENTED = (
    "the body of the model is frozen, but train.augment changes its images in every step, so that it runs every time; "
    "without train.augment its features are computed once"
)


def run_once(method: Method, federation: Clients, device: str) -> tuple[Method, Clients]:
    """The method over the head alone and the federation with features, if the body of the model is frozen.

    The names of the parameters stay, so that the trained models are those of the whole model.
    """
    task = method.task
    if not method.has_models or not isinstance(task, RowClassification) or not task.has_frozen_body:
        return method, federation
    if task.augment:
        warnings.warn(AUGMENTED, stacklevel=2)
        return method, federation
    features = _stored_features(task, federation.shared[task.inputs], device)
    head = replace(task, build=partial(_build_head, task.build), inputs=FEATURES)
    return replace(method, task=head), replace(federation, shared={**federation.shared, FEATURES: features})


def _build_head(build: Callable[[], ClientModel]) -> ClientModel:
    return HeadModel(build())


def _stored_features(task: RowClassification, x: Tensor, device: str) -> Tensor:
    """Features [M, ...] of the rows `x` [M, ...]: a file of the cache folder, mapped into memory.

    They are computed where there is no such file; it is not written where the folder cannot be.
    """
    folder = stored.folder() / FEATURES
    file = folder / f"{_digest(task, x, device)}.npy"
    if not file.is_file():
        try:
            with atomic_path(file) as temporary:
                _write(temporary, _compute(task, x, device), len(x))
        except (BadInput, OSError):  # no such folder, or no space
            return torch.cat([*_compute(task, x, device)])
    _remove_old(folder, file)
    return torch.from_numpy(np.load(file, mmap_mode="c", allow_pickle=False))


def _write(file: Path, parts: Iterator[Tensor], count: int) -> None:
    """Write the rows of `parts`, `count` in all, as they come."""
    first = next(parts)
    array = open_memmap(file, mode="w+", dtype=first.numpy().dtype, shape=(count, *first.shape[1:]))
    at = 0
    for part in (first, *parts):
        array[at : at + len(part)] = part.numpy()
        at += len(part)
    array.flush()


def _remove_old(folder: Path, used: Path) -> None:
    """Remove the oldest files of the folder that are too much; a process that has mapped one keeps it."""
    with suppress(OSError):
        os.utime(used)
        size = 0
        for file in sorted(folder.glob("*.npy"), key=lambda path: path.stat().st_mtime_ns, reverse=True):
            size += file.stat().st_size
            if size > KEPT and file != used:
                file.unlink(missing_ok=True)


def _compute(task: RowClassification, x: Tensor, device: str) -> Iterator[Tensor]:
    """Features of the rows `x`, part by part, on the CPU; several cores share the parts, each with one thread."""
    task.template.to(device)
    model = {name: value.to(device) for name, value in task.init(0).items()}
    parts = x.split(CHUNK)

    def read(i: int) -> Tensor:
        rows = torch.arange(len(parts[i]), device=device)
        arrays = {task.inputs: parts[i].to(device)}
        data = ClientData(arrays, [], rows, rows, rows, torch.tensor(0), 0, torch.tensor(0.0), False)
        return task.features(model, data, rows).cpu()

    processes = min(cores(), len(parts)) if device == "cpu" and can_train_in_forks() else 1
    return map_jobs(read, len(parts), processes)


def _digest(task: RowClassification, x: Tensor, device: str) -> str:
    """A hash of what the features depend on: constants and structure of the model, the rows, and versions.

    Those of the first rows are a part of it, so that other code gives another hash.
    """
    network, content = task.template, hashlib.sha256()
    words = [torch.__version__, repr(network), network.head, task.dtype, task.products, x.shape, x.dtype]
    content.update(repr([*map(str, words)]).encode() + _bytes(next(_compute(task, x[:PROBED], device))))
    tensors = dict(network.named_buffers())
    for name in task.constants:
        content.update(name.encode() + _bytes(tensors[name]))
    content.update(_bytes(x))
    return content.hexdigest()[:32]


def _bytes(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
