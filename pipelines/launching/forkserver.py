"""Fork server of the stages: it has imported what every stage needs, and runs each stage as a fork of itself.

DVC stays the scheduler: the launcher, which DVC starts, requests a stage and waits. The server ends with the process
that it was started for. It runs only the code that is on disk: when a file that it has imported changes, it ends, and
the next stage starts another server. It computes nothing itself, so that no thread pool of PyTorch and no GPU is in use
when it forks.
"""

import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from fedweave.processes.fork_server import STALE, Request, initial_environment, serve
from fedweave.study.code import PACKAGE, digest, find_dependencies

from .freshness import imported_files, project_files, stamps
from .launcher import start_time

STAGES = (
    "download",
    "partition",
    "names",
    "code",
    "graphs",
    "sources",
    "tune",
    "train",
    "evaluate",
    "ablate",
    "report",
)
PRELOADED = ("torch", "pandas", "pyarrow.parquet", "psutil", "fedweave.pipelines.stages.train")
ARROW = "JE_ARROW_MALLOC_CONF"  # variable with settings of the allocator that Arrow brings
IDLE_TIMEOUT = 120.0  # seconds without a stage after which the server ends
# Environment variables that may differ from stage to stage, in addition to DVC's own
VARYING = ("_", "SHLVL", "PWD", "OLDPWD", "CUDA_VISIBLE_DEVICES")


def run_server(path: str, listener: socket.socket) -> None:
    """Import, then serve until the owner ends, no request comes for `IDLE_TIMEOUT`, or the code on disk changes.

    Raises:
        ProcessLookupError: the owner, whose number and start time are the name of `path`, has ended.
    """
    owner, _, started = Path(path).name.partition("-")
    owner_pidfd = os.pidfd_open(int(owner))
    if start_time(int(owner)) != started:
        raise ProcessLookupError(owner)
    project_stamps = stamps(project_files())
    gc.disable()  # imports make no garbage, and the search for it takes a fifth of their time
    preload()
    code = stamps(imported_files()) | project_stamps
    gc.freeze()
    gc.enable()
    own_variables, folder = _fixed_variables(initial_environment()), str(Path.cwd())

    def answer(request: Request) -> Callable[[], object] | str:
        """A fork may run the stage if it is equivalent to a process that the client would start."""
        if stamps(code) != code:
            return STALE
        name, *arguments = request["words"]
        is_equal = (_fixed_variables(request["env"]), request["cwd"]) == (own_variables, folder)
        return partial(run_stage, name, arguments) if is_equal and name in STAGES else "refused"

    if serve(listener, answer, owner_pidfd, IDLE_TIMEOUT):
        with suppress(OSError):
            Path(f"{path}.lock").unlink()


def preload() -> None:
    """Import what stages share, without starting a thread, because a fork has only the thread that forks.

    Arrow's allocator would start one in the background.
    """
    os.environ[ARROW] = "background_thread:false"
    for name in PRELOADED:
        importlib.import_module(name)
    digest(find_dependencies(PACKAGE.rglob("*.py")))  # fills a cache, so that forks read changed files only
    del os.environ[ARROW]


def run_stage(name: str, arguments: list[str]) -> NoReturn:
    """Run the stage `name` in this process, as `python -m pipelines.NAME` does."""
    from ..processes import exit_process, run_main

    try:
        module = importlib.import_module(f"fedweave.pipelines.stages.{name}")
        sys.argv = [str(module.__file__), *arguments]
        main: Callable[..., None] = module.main
        run_main(main)
    except SystemExit as end:
        exit_process(end.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        exit_process(1)


def _fixed_variables(environment: dict[str, str]) -> dict[str, str]:
    """The variables that must be the same for a process and its fork."""
    return {name: value for name, value in environment.items() if name not in VARYING and not name.startswith("DVC_")}


def main(path: str) -> None:
    """Serve at `path`, on the listening socket that is this process's standard input."""
    listener = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    run_server(path, listener)


if __name__ == "__main__":
    main(sys.argv[1])
