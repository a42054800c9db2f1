"""`make repro`, and the end of `fedweave study run`: DVC's stages, one line for each that runs, then the leaderboard.

Only one can run in a folder. DVC ends with this process, and has the folder's lock (`locking`) too, as long as it runs.
The output of DVC and the stages is stored in .fedweave/repro.log.
"""

import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import nullcontext

from fedweave.errors import BadInput
from fedweave.processes.signals import die_with_parent
from fedweave.study.config import read_yaml
from fedweave.study.spec import PARAMS

from .. import addresses, linked, paths
from ..mlflow_records import stamp, synchronise
from ..processes import run_main
from . import lines, locking

LOG = paths.STATE / "repro.log"


def reproduce(lock: int | None = None) -> int:
    """Bring the study of params.yaml up to date; returns an exit code, which is 130 after Ctrl-C.

    Args:
        lock: handle of the folder's lock, if the caller has it.

    Raises:
        BadInput: there is no params.yaml, a port is not valid, or another package than this one makes the stages.
        Busy: another command runs stages here.
    """
    start = time.monotonic()
    addresses.mlflow_address()  # refuse a wrong port now: the link to MLflow is printed after all the work
    if line := linked.difference():
        raise BadInput(line)
    total = lines.count_stages(read_yaml(PARAMS))
    with locking.hold() if lock is None else nullcontext(lock) as handle:
        code = _run_dvc(handle, total)
        if not code:
            show_results(paths.current_study())
            print(f"all in {lines.format_duration(time.monotonic() - start)}")
    return code


def _run_dvc(lock: int, total: int) -> int:
    """Run `dvc repro` with the folder's lock, and show and log its output; returns its exit code.

    After Ctrl-C, which a terminal sends to all, this process ends after DVC, with 130, for which DVC has other codes. A
    second Ctrl-C ends this process, and DVC with it.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro"],
        bufsize=0,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(lock,),
        preexec_fn=die_with_parent,
    )
    interrupt = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, lambda *_: signal.signal(signal.SIGINT, interrupt))
    try:
        view = lines.ProgressView(sys.stdout, sys.stderr, total)
        _follow(process, view)
        status = process.wait()
        view.end(status)
    finally:
        signal.signal(signal.SIGINT, interrupt)
    if status and view.was_interrupted:
        return 128 + signal.SIGINT
    return status if status >= 0 else 128 - status


def _follow(process: "subprocess.Popen[bytes]", view: lines.ProgressView) -> None:
    """Show and log the lines of `process` until it closes its output and its errors."""
    selector = selectors.DefaultSelector()
    for stream, show in ((process.stdout, view.show_output), (process.stderr, view.show_error)):
        assert stream is not None
        selector.register(stream, selectors.EVENT_READ, show)
    incomplete = {key.fd: b"" for key in selector.get_map().values()}
    with LOG.open("wb") as log:
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
                    selector.unregister(key.fileobj)


def show_results(study: str) -> None:
    """Print the leaderboard of the stage `report`, bring MLflow up to date, and print the links to it.

    Where nothing has changed, this imports none of the code that makes the record in MLflow.
    """
    folder, store = paths.RESULTS / study, os.environ.get(synchronise.STORE, "")
    if (board := folder / "leaderboard.txt").is_file():
        print(board.read_text(encoding="utf-8"), end="", flush=True)
    synchronise.run_in_subprocess(folder, study)
    if stamp.is_current(folder, study, store) and addresses.is_reachable(store):
        for task, link in stamp.links(study).items():
            print(f"{task} in MLflow ({addresses.start_command('ui')}): {addresses.mlflow_address()}/{link}")


if __name__ == "__main__":
    run_main(lambda: sys.exit(reproduce()))
