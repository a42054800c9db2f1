"""Processes and memory: parallel repetitions, the threads of each, and reuse of freed memory."""

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeVar

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


# In a process of `gather`: its jobs.
_JOBS = list[Callable[[], Any]]()


def gather(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """The results of all jobs, in order; the jobs run on all cores, in forked processes, which pickle their results.

    If one of these processes is killed, all jobs run here.

    Raises:
        Exception: that of a job.
    """
    workers = min(cores(), len(jobs))
    if workers < 2 or "fork" not in multiprocessing.get_all_start_methods():
        return [job() for job in jobs]
    size = -(-len(jobs) // (PARTS * workers))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _take_jobs, (jobs, os.getpid())) as pool:
        with block_interrupts():  # the processes are forked here
            results = pool.map(_run_job, range(len(jobs)), chunksize=size)
        with suppress(BrokenProcessPool):
            return [*results]
    return [job() for job in jobs]


def _take_jobs(jobs: Sequence[Callable[[], Any]], parent: int) -> None:
    _JOBS[:] = jobs
    _end_with(parent)


def _run_job(number: int) -> Any:
    return _JOBS[number]()


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


def _end_with(parent: int) -> None:
    """Let this process end with its parent."""
    die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # the parent has ended while this process was starting
        os._exit(1)


def _run_bound_to_parent(job: Callable[[], object], parent: int) -> None:
    _end_with(parent)
    job()


def _run_in_child(
    job: Callable[[T], object], item: T, parent: int, inbox: Inbox | None, writer: Connection | None
) -> None:
    if inbox and writer:
        inbox.set_writer(writer)
    try:
        _end_with(parent)
        job(item)
    except Exception:
        os._exit(1)  # the caller gets the same error when it repeats the job
