"""Keep a SuperNode running: `python -m fedweave.deployment.flower.supervise COMMAND ...`.

After a kill, Flower refuses the same key until the old node has missed its heartbeats, which takes up to a minute. The
new SuperNode ends. So it is started again until it is connected, and whenever it ends with an error.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from fedweave.processes.signals import die_with_parent

DELAY = 5.0  # seconds before the next start
POLL = 0.5  # seconds between two checks of a program
EXIT_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Raise SystemExit in this block on SIGTERM, SIGHUP or Ctrl-C, so that it can end what it started.

    A second signal does not interrupt that. A signal that was ignored before, as under `nohup`, stays ignored.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        for other in EXIT_SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    handlers = {number: signal.getsignal(number) for number in EXIT_SIGNALS}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def supervise(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Run `command`, again after each error, until it ends without one; a `SystemExit`, as of a signal, ends it."""
    while True:
        child = subprocess.Popen([*command], env=environment, preexec_fn=die_with_parent)
        try:
            while (code := child.poll()) is None:  # one long wait could miss a signal that comes just before it
                time.sleep(POLL)
            if not code:
                return
            print(f"the SuperNode has ended with exit code {code}; starting it again in {DELAY:g} s", flush=True)
            time.sleep(DELAY)
        except SystemExit:
            child.terminate()
            child.wait()
            return


if __name__ == "__main__":
    with exit_on_signals():
        supervise(sys.argv[1:])
