"""Keep a SuperNode running: `python -m fedweave.deployment.flower.supervise COMMAND ...`.

After a kill, Flower refuses the same key until the old node has missed its heartbeats, up to a minute, and the new
SuperNode ends. So it is started again until it is connected, and whenever it ends with an error.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType

DELAY = 5.0  # seconds before the next start


def supervised(command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run `command` until it ends without an error or this process gets SIGTERM or SIGINT; returns the exit code."""
    stopped: list[int] = []
    children: list[subprocess.Popen[bytes]] = []

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        stopped.append(number)
        if children:
            children[0].send_signal(signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    while True:
        children[:] = [subprocess.Popen([*command], env=environment)]
        code = children[0].wait()
        if stopped or not code:
            return 0 if stopped else code
        print(f"the SuperNode has ended with exit code {code}; starting it again in {DELAY:g} s", flush=True)
        time.sleep(DELAY)
        if stopped:
            return 0


if __name__ == "__main__":
    sys.exit(supervised(sys.argv[1:]))
