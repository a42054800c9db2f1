"""Jobs in forked processes, which read the memory of the process that forks them."""

import os
import signal
import struct
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_structure, tree_unflatten

from fedweave.processes.signals import block_interrupts, die_with_parent
from fedweave.tensors.trees import Tree

# Parts of the jobs of `map_jobs`: all of them fit into a pipe, and no process waits long for the others at the end.
PARTS = 1000
UNFINISHED = (
    "a forked process ended early (killed, or no room in {}?), so its clients were computed twice; "
    "train.executor: loop works without forks"
)
_PART = struct.Struct("i")


@cache
def can_train_in_forks() -> bool:
    """Whether a fork may train: on Linux without a GPU. With a GPU, PyTorch starts threads that a fork lacks."""
    return sys.platform == "linux" and not torch.accelerator.is_available()


def map_jobs(job: Callable[[int], Tree], count: int, processes: int) -> Iterator[Tree]:
    """job(0), ..., job(count - 1), computed in this process and in `processes - 1` forks of it.

    Each process has one thread and takes the next jobs when it is free. What a fork did not finish, because a job
    raised an exception or the fork was killed, is computed here, where the exception shows.

    Args:
        job: its results are trees of tensors and numbers, all of one structure.
    """
    size = -(-count // PARTS)
    parts = [range(start, min(start + size, count)) for start in range(0, count, size)]
    with tempfile.TemporaryDirectory() as folder, one_thread(), _open_queue(len(parts)) as queue:
        files = [Path(folder, str(fork)) for fork in range(1, processes)]

        def compute_parts() -> dict[int, list[Tree]]:
            return {part: [job(i) for i in parts[part]] for part in iter(partial(_take_part, queue), None)}

        with _run_forks([partial(_save_results, compute_parts, file) for file in files]):
            results = {0: [job(i) for i in parts[0]]} | compute_parts()
        for file in filter(Path.exists, files):
            results |= _load_results(file, results[0][0])
        unfinished = {*range(len(parts))} - {*results}
        for part, jobs in enumerate(parts):
            yield from map(job, jobs) if part in unfinished else results.pop(part)
    if unfinished:  # and no exception of a job was the reason
        warnings.warn(UNFINISHED.format(tempfile.gettempdir()), stacklevel=2)


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch computes with one thread in this block, so that no result depends on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _open_queue(parts: int) -> Iterator[int]:
    """A pipe that holds the numbers of all parts but the first one, for this process and its forks."""
    reader, writer = os.pipe()
    try:
        os.write(writer, b"".join(map(_PART.pack, range(1, parts))))
        os.close(writer)
        yield reader
    finally:
        os.close(reader)


def _take_part(queue: int) -> int | None:
    """The next part of `queue`, or None at its end."""
    content = os.read(queue, _PART.size)
    return _PART.unpack(content)[0] if content else None


def _save_results(compute: Callable[[], dict[int, list[Tree]]], file: Path) -> None:
    packed = {part: [_pack(tree) for tree in trees] for part, trees in compute().items()}
    unfinished = file.with_suffix(".part")
    torch.save(packed, unfinished)
    unfinished.rename(file)  # so that the name exists only for a complete file


def _pack(tree: Tree) -> tuple[str, list[Any]]:
    """The structure of `tree` in words, and its leaves."""
    leaves, structure = tree_flatten(tree)
    return str(structure), [_separate_row(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _load_results(file: Path, example: Tree) -> dict[int, list[Tree]]:
    """Part -> results, of the parts whose results have the structure of `example`; nothing in the file is run."""
    structure = tree_structure(example)
    packed = torch.load(file, mmap=True, weights_only=True)
    return {
        part: [tree_unflatten(leaves, structure) for _, leaves in trees]
        for part, trees in packed.items()
        if all(words == str(structure) for words, _ in trees)
    }


def _separate_row(tensor: Tensor) -> Tensor:
    """`tensor` in memory of its own, because a view would be saved with all the memory that it is a part of.

    It has no attributes, which would be saved and refused.
    """
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes or vars(tensor) else tensor


@contextmanager
def _run_forks(jobs: Sequence[Callable[[], None]]) -> Iterator[None]:
    """Run each job in a fork while the block runs, and wait for them at its end; an error in the block ends them."""
    forks = list[int]()
    try:
        with suppress(OSError):  # too many processes, or too little memory: those that exist compute the rest
            forks += map(_fork, jobs)
        yield
    except BaseException:
        for fork in forks:
            os.kill(fork, signal.SIGKILL)
        raise
    finally:
        for fork in forks:
            os.waitpid(fork, 0)


def _fork(job: Callable[[], None]) -> int:
    """The number of a fork that runs `job`; it prints nothing of an error, and ends with this process."""
    parent = os.getpid()
    with block_interrupts():
        if fork := os.fork():
            return fork
        try:
            die_with_parent(signal.SIGKILL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if os.getppid() == parent:
                job()
        finally:
            os._exit(0)
