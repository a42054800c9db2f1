"""Processes and memory: parallel repetitions, the threads of each, and reuse of freed memory."""

import ctypes
import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import psutil

from fedweave.processes.signals import block_interrupts, die_with_parent

if TYPE_CHECKING:
    from torch import nn

T = TypeVar("T")
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
# Below this many parameters, a second thread makes training slower (measured on two cores, 8x8 to 32x32 images).
SMALL = 200_000
# Parts of the jobs of `gather` for each core: enough that no core waits long for the others at the end.
PARTS = 4
# Copies of all clients' parameters in a repetition: before and after the round, the evaluated and the best models.
COPIES = 4


def cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def total_memory() -> int:
    """Bytes of memory of this machine."""
    return psutil.virtual_memory().total


def allocate_workers(network: "nn.Module", repetitions: int, device: str, clients: int = 1) -> tuple[int, int]:
    """(processes, threads of each) for `repetitions` of one run: as many processes as possible, then threads.

    The number depends on the machine's total memory, not on its free memory, so that it is the same every time.
    """
    from fedweave.models.base import parameter_count, weight_count

    if device != "cpu" or "fork" not in multiprocessing.get_all_start_methods():
        return 1, max(1, cores())
    # Below twice the cores, all repetitions run at once: on two cores, three at once end earlier than two and then one.
    useful = repetitions if repetitions < 2 * cores() else cores()
    possible = total_memory() // (COPIES * 4 * clients * max(1, parameter_count(network)))
    workers = max(1, min(useful, possible))
    return workers, 1 if weight_count(network) < SMALL else max(1, cores() // workers)


class Inbox:
    """Receives messages of forked processes in the process that created it; None is not a message.

    Every process has its own pipe. So a process that is killed while it writes does not block the others: they wait
    neither for a lock nor for the rest of a message.
    """

    def __init__(self, receive: Callable[[Any], None]) -> None:
        self._receive, self._owner = receive, os.getpid()
        self.readers = list[Connection]()
        self._writer: Connection | None = None

    def open_pipe(self) -> Connection:
        """The writing end for a process that is to be forked; this process closes it after the fork."""
        reader, writer = multiprocessing.Pipe(duplex=False)
        self.readers.append(reader)
        return writer

    def set_writer(self, writer: Connection) -> None:
        """In a forked process: send messages to `writer` from now on."""
        self._writer = writer

    def post(self, message: Any) -> None:
        """Send `message`; the owner receives its own messages at once."""
        if message is None:
            return
        if os.getpid() == self._owner:
            self._receive(message)
        elif self._writer is not None:
            self._writer.send(message)

    def receive_pending(self) -> None:
        """Receive all messages that have arrived."""
        for reader in self.readers:
            for message in _read_messages(reader):
                self._receive(message)
        self.readers = [reader for reader in self.readers if not reader.closed]


def _read_messages(reader: Connection) -> Iterator[Any]:
    """The messages in a pipe; closes the pipe at its end, which may be within a message."""
    try:
        while reader.poll():
            yield reader.recv()
    except (EOFError, OSError):
        reader.close()


def run_processes(
    job: Callable[[T], object], items: Sequence[T], workers: int, start: str = "fork", inbox: Inbox | None = None
) -> None:
    """Run `job` on every item in a process of its own, `workers` at a time; what it returns or raises is ignored.

    For jobs that write their results to files, and that the caller can repeat in its own process, where an error then
    shows. The processes end when the caller ends, for any reason.

    Args:
        start: how `multiprocessing` starts a process: "fork" shares the caller's memory; "spawn" is for a caller that
            may have used a GPU, and needs a job that can be pickled.
        inbox: receives here, meanwhile, what forked jobs post to it.
    """
    context = multiprocessing.get_context(start)
    inbox = inbox or Inbox(lambda message: None)
    waiting, running = list(items), list[multiprocessing.process.BaseProcess]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_start_process(context, job, waiting.pop(0), inbox if start == "fork" else None))
            multiprocessing.connection.wait([*inbox.readers, *(child.sentinel for child in running)])
            inbox.receive_pending()
            running = [child for child in running if child.is_alive()]
        inbox.receive_pending()
    finally:
        for child in running:
            child.kill()
        for child in running:  # the caller may remove the files that they write
            child.join()


def _start_process(
    context: Any, job: Callable[[T], object], item: T, inbox: Inbox | None
) -> multiprocessing.process.BaseProcess:
    """A new process that runs `job` on `item`."""
    writer = inbox.open_pipe() if inbox else None
    child: multiprocessing.process.BaseProcess = context.Process(
        target=_run_in_child, args=(job, item, os.getpid(), inbox, writer), daemon=True
    )
    with block_interrupts():
        child.start()
    if writer:
        writer.close()  # the new process has its own copy
    return child


@contextmanager
def run_in_background(job: Callable[[], object], on_failure: Callable[[], object]) -> Iterator[None]:
    """Run `job` in a forked process while the block runs, and wait for it at the end of the block.

    An error in the block ends the process. With one core, or where processes cannot fork, `job` runs after the block.

    Args:
        on_failure: called at the end if the process was killed, or if `job` raised an exception, which is printed.
    """
    if cores() < 2 or "fork" not in multiprocessing.get_all_start_methods():
        yield
        try:
            job()
        except Exception:  # an error of the job must not be one of the block, however many cores there are
            traceback.print_exc()
            on_failure()
        return
    process = multiprocessing.get_context("fork").Process(target=_run_bound_to_parent, args=(job, os.getpid()))
    with block_interrupts():
        process.start()
    try:
        yield
        process.join()
    finally:
        process.kill()
        process.join()
    if process.exitcode:
        on_failure()


def gather(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """The results of all jobs (plain data, as in JSON), in order; the jobs run on all cores, in forked processes.

    Raises:
        Exception: that of the first job that fails in this process too.
    """
    workers = min(cores(), len(jobs))
    if workers < 2 or "fork" not in multiprocessing.get_all_start_methods():
        return [job() for job in jobs]
    with tempfile.TemporaryDirectory() as folder:
        parts = min(len(jobs), PARTS * workers)

        def run_parts(_worker: int) -> None:
            for part in range(parts):
                try:
                    Path(folder, f"{part}.taken").touch(exist_ok=False)
                except FileExistsError:  # by another process
                    continue
                unfinished = Path(folder, f"{part}.part")
                unfinished.write_text(json.dumps([job() for job in jobs[part::parts]]), encoding="utf-8")
                unfinished.rename(Path(folder, str(part)))  # so that the name exists only for a complete file

        # A fork for each part would take longer than most parts: a large process takes 30 ms.
        run_processes(run_parts, range(workers), workers)
        return _merge_results([Path(folder, str(part)) for part in range(parts)], jobs)


def _merge_results(files: Sequence[Path], jobs: Sequence[Callable[[], T]]) -> list[T]:
    """The results of all jobs from the files of the parts; the jobs of a missing file run here."""
    results: list[T | None] = [None] * len(jobs)
    for part, file in enumerate(files):
        part_jobs = jobs[part :: len(files)]
        is_done = file.is_file()
        results[part :: len(files)] = json.loads(file.read_text("utf-8")) if is_done else [job() for job in part_jobs]
    return cast(list[T], results)


def keep_memory() -> None:
    """Keep the memory of freed tensors for the next ones until the process ends (glibc; elsewhere no effect).

    By default, the C library returns every block above 32 MiB to the kernel, which has to clear all its pages for the
    next one: half the time of a server with a hundred CNNs.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)


def release_memory() -> None:
    """Give freed memory back to the kernel once, in spite of `keep_memory`."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None:
        trim(0)


def _run_bound_to_parent(job: Callable[[], object], parent: int) -> None:
    """Run `job` in a process that ends with its parent."""
    die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # the parent has ended while this process was starting
        os._exit(1)
    job()


def _run_in_child(
    job: Callable[[T], object], item: T, parent: int, inbox: Inbox | None, writer: Connection | None
) -> None:
    if inbox and writer:
        inbox.set_writer(writer)
    try:
        _run_bound_to_parent(partial(job, item), parent)
    except Exception:
        os._exit(1)  # the caller gets the same error when it repeats the job
