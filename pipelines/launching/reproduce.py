"""The command of `make repro`: `python -IS pipelines/launching/reproduce.py [STUDY]`.

It starts `dvc repro`, shows one line for each stage that it runs, and is then replaced by `board`. Only one can run in
a folder, and it ends with `make`. DVC ends with this process, and holds the lock (`locking`) as long as it runs. The
output of DVC and the stages is stored in .fedweave/repro.log.
"""

# ruff: noqa: PTH100, PTH113, PTH120, PTH123
# pathlib would take longer to import than all of this.

import ctypes
import errno
import os
import selectors
import signal
import sys
import time
from typing import NoReturn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # without the package, whose import takes longer
import launcher  # isort: skip
import lines  # isort: skip
import locking  # isort: skip

LOG = ".fedweave/repro.log"
PARAMS = "params.yaml"
PR_SET_PDEATHSIG = 1
# Errors that the user can fix: a full disk, a quota, a folder that is read-only or of another user, a file in the place
# of a folder or the reverse.
WRITE_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
}


def main(study: str = "") -> NoReturn:
    """Bring params.yaml's study up to date, after switching to `study` if one is named."""
    _end_with_parent()
    try:
        handle = locking.acquire()
    except locking.LockError as error:
        sys.exit(f"error: {error}")
    _check_ports()
    environment = locking.pass_to_child(handle)  # DVC inherits the handle, too
    if study:
        command = [sys.executable, "-m", "fedweave.pipelines.commands.main", "study", "use", study]
        _, status = os.waitpid(os.posix_spawn(sys.executable, command, environment), 0)
        if status:
            sys.exit(os.waitstatus_to_exitcode(status))
    launcher.check_package()
    if not os.path.isfile(PARAMS):
        known = (name for name in ("quick", "first") if os.path.isfile(f"studies/{name}.yaml"))
        print(f"error: {PARAMS}: not found; write it with: fedweave study use {next(known, 'NAME')}", file=sys.stderr)
        sys.exit(2)
    start = time.time()
    status = _follow(*_start([sys.executable, "-m", "dvc", "repro"]))
    if status:
        os._exit(status if status > 0 else 128 - status)
    os.execv(sys.executable, [sys.executable, "-m", "fedweave.pipelines.launching.board", str(start)])


def _check_ports() -> None:
    """Refuse a wrong MLFLOW_PORT now; otherwise `board` would refuse it after all the work, when it prints links."""
    text = os.environ.get("MLFLOW_PORT") or "5000"
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        print(f"error: MLFLOW_PORT: {text[:100]!r} is not a port; give 1 to 65535", file=sys.stderr)
        sys.exit(2)


def _start(command: list[str]) -> tuple[int, int, int]:  # noqa: RET503  # what is executed does not return
    """Start `command`, which ends with this process; returns its number and the pipes of its output and errors."""
    own_process = os.getpid()
    output, errors = os.pipe(), os.pipe()
    child = os.fork()
    if child:
        os.close(output[1])
        os.close(errors[1])
        return child, output[0], errors[0]
    _end_with(own_process)
    os.dup2(output[1], 1)
    os.dup2(errors[1], 2)
    os.execve(command[0], command, {**os.environ, "PYTHONUNBUFFERED": "1"})


def _follow(child: int, output: int, errors: int) -> int:
    """Show and log the output of `child` until it ends; returns its exit code, below zero for a signal.

    After Ctrl-C, the code is 130, for which DVC has others.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all: this one ends after DVC
    with open(PARAMS, encoding="utf-8", errors="replace") as file:  # a stage refuses what is not text
        view = lines.ProgressView(sys.stdout, sys.stderr, lines.count_stages(file.read()))
    selector, incomplete = selectors.DefaultSelector(), {output: b"", errors: b""}
    with open(LOG, "wb") as log:
        for pipe, show in ((output, view.show_output), (errors, view.show_error)):
            selector.register(pipe, selectors.EVENT_READ, show)
        while selector.get_map():
            view.show_running()
            for key, _ in selector.select(lines.MESSAGE_INTERVAL):
                content = os.read(key.fd, 65536)
                log.write(content)
                log.flush()
                *complete, incomplete[key.fd] = (incomplete[key.fd] + content).split(b"\n")
                for line in [*complete, *([] if content else [incomplete[key.fd]])]:
                    key.data(line.decode(errors="replace"))
                if not content:
                    selector.unregister(key.fd)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    view.end(status)
    return 128 + signal.SIGINT if status and view.was_interrupted else status


def _end_with_parent() -> None:
    """Let the kernel end this process when its parent ends, also after `execv` (on Linux; elsewhere nothing)."""
    _end_with(os.getppid())


def _end_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)


def _error_line(error: OSError) -> str:
    """A message about a file that cannot be written, which is the log where the error does not name it."""
    advice = "free space, or make its folder one that can be written, and run this again"
    return f"error: {error.filename or LOG}: cannot be written ({error.strerror}); {advice}"


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as file_error:
        if file_error.errno not in WRITE_ERRORS:
            raise
        print(_error_line(file_error), file=sys.stderr)
        sys.exit(2)
