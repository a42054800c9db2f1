"""Keep a SuperNode running: `python -m fedweave.deployment.flower.supervise COMMAND ...`.

After a kill, Flower refuses the same key until the old node has missed its heartbeats, up to a minute, and the new
SuperNode ends. So it is started again until it is connected, and whenever it ends with an error.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from fedweave.runs.parallel import die_with_parent

DELAY = 5.0  # seconds before the next start
POLL = 0.5  # seconds between two looks at a program
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Leave this block by SystemExit on SIGTERM, SIGHUP or Ctrl-C, so that it ends what it started.

    A second signal does not interrupt that. What ignored a signal before, as `nohup` does, goes on ignoring it.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        for other in ENDING:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in ENDING}
    for number in _handled_signals():
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handled_signals() -> list[signal.Signals]:
    return [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]


def _wait_for_exit(program: "subprocess.Popen[bytes]") -> int:
    """Wait for the end of `program`. One long wait could miss a signal that comes just before it starts."""
    while (code := program.poll()) is None:
        time.sleep(POLL)
    return code


def supervise(command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run `command` until it ends without an error or this process gets a signal of `ENDING`; returns the exit code."""
    stopped: list[int] = []
    children: list[subprocess.Popen[bytes]] = []

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        stopped.append(number)
        if children:
            children[0].send_signal(signal.SIGTERM)

    for number in _handled_signals():
        signal.signal(number, stop)
    while not stopped:
        children[:] = [subprocess.Popen([*command], env=environment, preexec_fn=die_with_parent)]
        if stopped:  # before the child was noted
            children[0].send_signal(signal.SIGTERM)
        code = _wait_for_exit(children[0])
        if stopped or not code:
            return 0 if stopped else code
        print(f"the SuperNode has ended with exit code {code}; starting it again in {DELAY:g} s", flush=True)
        time.sleep(DELAY)
    return 0


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:]))
