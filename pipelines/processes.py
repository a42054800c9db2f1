"""Child processes that never outlive their parent, and the entry point of the stages, which run as such processes."""

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn
from weakref import WeakSet

from fedweave.errors import BadInput, Diverged, exit_code
from fedweave.files.atomic import user_errors
from fedweave.processes.signals import die_with_parent, end_group, signal_group

from .paths import STATE

PERMANENT_CODES = (2, 3)  # exit codes of bad input and of diverged training: the same again would end the same way
GRACE = 10.0  # seconds between asking a process group to end and killing it

_OWNERS: "WeakSet[ChildProcesses]" = WeakSet()


class ChildProcesses:
    """Child processes of one owner: they end with it, and after `end` it starts no further ones."""

    def __init__(self) -> None:
        _OWNERS.add(self)
        self._running: set[subprocess.Popen[str]] = set()
        # Reentrant, because the handler of a signal may call `end` while its thread is starting a child.
        self._starting = threading.RLock()
        self._ended = threading.Event()

    @contextmanager
    def start(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
        """Start `command` in its own session, output and errors in one pipe; the end of the block ends its process
        group.

        Raises:
            InterruptedError: `end` was called, before or while the child was started.
        """
        with self._starting:
            if self._ended.is_set():
                raise InterruptedError("ended")
            process = _start(command, env or {})
            self._running.add(process)
        try:
            if self._ended.is_set():
                raise InterruptedError("ended")
            yield process
        finally:
            end_group(process, GRACE)
            self._running.discard(process)

    @property
    def has_ended(self) -> bool:
        """Whether `end` was called."""
        return self._ended.is_set()

    def pause(self, seconds: float) -> None:
        """Wait in a thread that does not wait for a child; `end` interrupts it.

        Raises:
            InterruptedError: `end` was called.
        """
        if self._ended.wait(seconds):
            raise InterruptedError("ended")

    def end(self) -> None:
        """End all of them; may be called from another thread than the ones that wait for their child."""
        with self._starting:
            self._ended.set()
        for process in tuple(self._running):
            signal_group(process, signal.SIGTERM)
        for process in tuple(self._running):
            end_group(process, GRACE)


def end_all() -> None:
    """End the children of all owners in this process; may be called from any thread."""
    for owner in tuple(_OWNERS):
        owner.end()


def wait_measured(process: subprocess.Popen[str]) -> tuple[int, float]:
    """Wait for a child; returns its exit code and its peak memory in MiB.

    The memory is that of the child's largest process. It is at least that of this process, of which the child is a
    fork.
    """
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except ChildProcessError:  # a signal handler has ended the child and waited for it
        return process.wait(), 0.0
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_maxrss / 1024


def search_path() -> str:
    """PATH with the folder of this interpreter first, so that stages run the `python` of this environment."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _start(command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **env, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def run_main(main: Callable[..., None], is_service: bool = False) -> NoReturn:
    """Run a stage's `main` with the arguments of the command line, then exit.

    Bad input ends with one line and its exit code, a diverged training with one line and exit code 3. A stage ends with
    the process that started it: an orphan would continue and overwrite the outputs of the next attempt. A service does
    not: `nohup` lets it outlive its shell.
    """
    if not is_service:
        die_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # For a machine or a container whose cache folder of the user cannot be written.
    os.environ.setdefault("FEDWEAVE_KERNEL", str((STATE / "kernel").absolute()))
    try:
        with user_errors(), restore_interrupts():
            main(*sys.argv[1:])
    except (BadInput, Diverged) as error:
        print(f"error: {error}", file=sys.stderr)
        exit_process(exit_code(error) if isinstance(error, BadInput) else 3)
    except KeyboardInterrupt:
        exit_process(128 + signal.SIGINT)
    except SystemExit as end:
        exit_process(end.code)
    exit_process(0)


@contextmanager
def restore_interrupts() -> Iterator[None]:
    """Context that raises `KeyboardInterrupt` for an error that a Ctrl-C caused.

    In the import of a compiled module Python makes an `ImportError` of it.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        seen: set[int] = set()  # a chain of causes can be a ring
        while cause is not None and id(cause) not in seen:
            if isinstance(cause, KeyboardInterrupt):
                raise cause from None
            seen.add(id(cause))
            cause = cause.__cause__ or cause.__context__
        raise


def exit_after(main: Callable[[], object]) -> NoReturn:
    """Run a program's `main`, then exit by `exit_process`; an unexpected exception ends as it does without this."""
    try:
        main()
    except SystemExit as end:
        exit_process(end.code)
    exit_process(0)


def exit_process(code: int | str | None) -> NoReturn:
    """Exit as `sys.exit(code)` does, with the ends of threads and exit functions, but without freeing objects.

    Freeing every object of PyTorch one by one takes 0.7 s; the kernel frees them at once.
    """
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # as processes of `multiprocessing` end
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # nobody reads it any more, or the disk is full
            code = code or 120
    os._exit(code or 0)
