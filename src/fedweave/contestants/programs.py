"""A program as a contestant: it runs in a process group of its own, which is ended with all its children."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from fedweave.contestants import environments, exchange, sandbox
from fedweave.contestants.entry import OWN_BUDGET, UNTUNED, Runner
from fedweave.contestants.environments import PYTHON, last_line
from fedweave.contestants.functions import ALL_ROWS
from fedweave.contestants.origins import LOOK as EARLY
from fedweave.contestants.origins import Origins
from fedweave.contestants.rows import ContestAnswers, ContestTask
from fedweave.errors import ContestantFailed, format_count
from fedweave.files.atomic import write_atomic

OPEN_NETWORK = "the network was open to it"
MARK = "FEDWEAVE_CONTESTANT"  # the variable by which a child is found that has left the process group
# Variables that a program gets; others, among which may be passwords, it gets only by `env`.
SHELL = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
PASSED = (*SHELL, "VIRTUAL_ENV", "PYTHONPATH", "R_HOME", "R_LIBS", "R_LIBS_USER", "JULIA_DEPOT_PATH")
LARGEST_FILE = 1 << 30  # bytes of a file that a program may write, its log among them
LARGEST_OUTPUT = 1 << 32  # bytes of all files in its folders, which are looked at now and then
LARGEST_LOG = 1 << 26  # bytes of what it prints, which are looked at with them
LOOK = 1.0  # seconds between two looks
SCANS = 20  # for children, each of which may start another one until it is ended


@dataclass(frozen=True, eq=False)
class ProgramRunner(Runner):
    """A command, which gets the folders of its task and of its output as two more words.

    Attributes:
        command: its words; `python` is the interpreter of its environment, by default the one that runs fedweave.
        folder: where it starts.
        uses: files and folders that it depends on.
        env: variables besides those of `PASSED`.
        timeout: seconds of one repetition.
        memory: MiB of address space of each of its processes, or None.
        requirements: file of packages of an environment of its own, or None.
        sandbox: whether other files and processes are closed to it.
        network: whether the network is open to it.
    """

    command: tuple[str, ...]
    folder: Path
    uses: tuple[Path, ...]
    env: Mapping[str, str]
    timeout: float
    memory: float | None
    requirements: Path | None = None
    sandbox: bool = False
    network: bool = False

    how = "program"

    @property
    def unequal(self) -> tuple[str, ...]:  # type: ignore[override]
        """As of `Runner`."""
        return (OWN_BUDGET, ALL_ROWS, *([] if self.is_closed else [OPEN_NETWORK]), UNTUNED)

    @property
    def is_closed(self) -> bool:
        """Whether the network is closed to it, which not every machine can do."""
        return not self.network and not sandbox.find_problem(files=self.sandbox)

    @property
    def files(self) -> tuple[Path, ...]:
        return (*self.uses, *([self.requirements] if self.requirements else []))

    def digest(self) -> str:
        words = repr((self.command, sorted(self.env.items()))).encode()
        hashed = hashlib.sha256(words + b"sandbox" * self.sandbox + b"network" * self.network)
        for file in _files(self.files):
            hashed.update(f"{file.name} {file.stat().st_size} ".encode() + file.read_bytes())
        return hashed.hexdigest()

    def describe(self) -> dict[str, Any]:
        network = "closed" if self.is_closed else "open"
        limits = {"timeout": self.timeout, "memory": self.memory, "sandbox": self.sandbox, "network": network}
        return {"command": " ".join(self.command), **limits}

    def run(self, task: ContestTask, log: Path) -> ContestAnswers:
        with tempfile.TemporaryDirectory(prefix="fedweave-contestant-", ignore_cleanup_errors=True) as temporary:
            handed, own = Path(temporary, "task"), Path(temporary, "own")
            exchange.write_task(task, handed, self.timeout)
            (output := own / "output").mkdir(parents=True)
            python = environments.prepare(self.requirements) if self.requirements else Path(sys.executable)
            command = [str(python), *self.command[1:]] if self.command[0] in PYTHON else [*self.command]
            words, env = [*command, str(handed), str(output)], self._environment(str(own), python)
            if self.sandbox:
                words[0] = shutil.which(words[0], path=env.get("PATH")) or str(self.folder / words[0])
                # It cannot write to its task, where a link would lead what is written for it to other files.
                words = sandbox.wrap(words, [self.folder, *self.uses, handed], [own], self.network)
            elif sys.platform == "linux":
                words = sandbox.wrap(words, None, network=not self.is_closed)
            steps = Origins(task, handed, output) if task.forecasts else None
            reason = run_program(words, self.folder, env, self.timeout, self.memory, log, Path(temporary), steps)
            if reason:
                raise ContestantFailed(f"it {reason}", f"its last line: {last_line(log)} (all of it: {log})")
            return exchange.read_answers(task, output, steps.answers() if steps else ())

    def _environment(self, temporary: str, python: Path) -> dict[str, str]:
        passed = {name: os.environ[name] for name in PASSED if name in os.environ}
        if self.requirements:  # packages of this interpreter would hide those of its own
            passed.pop("PYTHONPATH", None)
            passed |= {"PATH": f"{python.parent}{os.pathsep}{passed.get('PATH', os.defpath)}"}
            passed |= {"VIRTUAL_ENV": str(python.parent.parent)}
        if self.sandbox:
            passed.pop("PYTHONPATH", None)
            passed |= {"HOME": temporary, "PYTHONDONTWRITEBYTECODE": "1"}
        return {**passed, "TMPDIR": temporary, "PYTHONUNBUFFERED": "1", **self.env}


def run_program(
    words: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    timeout: float,
    memory: float | None,
    log: Path,
    written: Path | None = None,
    origins: Origins | None = None,
) -> str:
    """Run a command; returns why it failed, or nothing. No process that it started is left.

    A child that has left the process group is found by a variable of its environment, on Linux. One that has cleared
    its environment too is not found.

    Args:
        timeout: seconds.
        memory: MiB of address space of each process, or None.
        log: file for what it prints.
        written: folder whose files together may have `LARGEST_OUTPUT` bytes, or None.
        origins: of forecasts, which the command gets while it runs, or None.

    Raises:
        ContestantFailed: forecasts that cannot be read.
    """
    mark = uuid4().hex
    limits = f"ulimit -f {LARGEST_FILE // 512}; " + (f"ulimit -v {int(memory * 1024)}; " if memory else "")
    write_atomic(log, "")
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f'{limits}exec "$@"', "sh", *words],
            stdin=subprocess.PIPE if origins else subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**env, MARK: mark},
            start_new_session=True,
        )
        try:
            code = _wait(process, timeout, written, log, origins.hand_out(process) if origins else None)
        except subprocess.TimeoutExpired:
            return f"was ended after its time limit of {timeout:g} s"
        except OverflowError as error:
            return f"was ended: {error}"
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            children = _end_marked(mark)
            if process.stdin:
                with suppress(OSError):
                    process.stdin.close()
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    if code:
        return f"ended with exit code {code}"
    verb = "was" if children == 1 else "were"
    return f"left {format_count(children, 'process')} behind, which {verb} ended" if children else ""


def _wait(
    process: subprocess.Popen[bytes], timeout: float, written: Path | None, log: Path, steps: Iterator[None] | None
) -> int:
    """The exit code; `steps` are those of `Origins.hand_out`.

    Raises:
        subprocess.TimeoutExpired: it runs longer.
        OverflowError: it has written more than it may.
        ContestantFailed: forecasts that cannot be read.
    """
    end, looked = time.monotonic() + timeout, time.monotonic()
    while True:
        if steps:
            next(steps, None)
        try:
            code = process.wait(min(EARLY if steps else LOOK, max(0.0, end - time.monotonic())))
            if steps and code == 0:
                next(steps, None)  # of the last forecasts
            return code
        except subprocess.TimeoutExpired:
            if time.monotonic() >= end:
                raise
        if time.monotonic() - looked < LOOK:
            continue
        looked = time.monotonic()
        if written and _count_bytes(written) > LARGEST_OUTPUT:
            raise OverflowError(f"its files had more than {LARGEST_OUTPUT} bytes")
        if log.stat().st_size > LARGEST_LOG:
            raise OverflowError(f"it printed more than {LARGEST_LOG} bytes")


def _count_bytes(folder: Path) -> int:
    """Bytes on the disk of the files in a folder, which may change meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += Path(place, name).lstat().st_blocks * 512
    return total


def _end_marked(mark: str) -> int:
    """End every process whose environment has `mark`; returns how many there were."""
    ended = set[int]()
    for _ in range(SCANS):
        found = [process for process in psutil.process_iter() if _has_mark(process, mark)]
        if not found:
            break
        for process in found:
            with suppress(psutil.Error):
                process.kill()
            ended.add(process.pid)
    return len(ended)


def _has_mark(process: psutil.Process, mark: str) -> bool:
    """Whether `mark` is in the environment of a process that can be read, and has not ended."""
    try:
        return process.environ().get(MARK) == mark
    except (psutil.Error, OSError):
        return False


def _files(paths: Iterable[Path]) -> list[Path]:
    """The files of `paths`, those of a folder included."""
    found = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    return [file for file in found if file.is_file() and "__pycache__" not in file.parts]
