"""params.yaml of a clone that runs stages for a writer on another host.

Work orders replace it, but not if somebody has changed it by hand.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedweave.errors import BadInput
from fedweave.files.atomic import write_atomic
from fedweave.study.spec import PARAMS

from .. import paths, signed_files

SIGNATURE = "Written by a work order, which replaces it as long as nobody changes it."


@contextmanager
def apply(text: str) -> Iterator[None]:
    """Keep `text` in params.yaml during the block; a stage with other parameters waits until all such blocks end.

    Raises:
        BadInput: params.yaml has changes made by hand.
    """
    signed = signed_files.sign(SIGNATURE, text)
    paths.STATE.mkdir(exist_ok=True)
    with (paths.STATE / "params.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        while _current_text() not in (text, signed):
            fcntl.flock(lock, fcntl.LOCK_EX)
            current = _current_text()
            if current not in ("", text) and not signed_files.is_unchanged(current):
                raise BadInput(
                    f"{Path.cwd() / PARAMS}: is not what the work order has, and was changed by hand; save it as "
                    "studies/<name>.yaml and remove it, or let the worker use another clone"
                )
            write_atomic(PARAMS, signed)
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def _current_text() -> str:
    return PARAMS.read_text(encoding="utf-8") if PARAMS.is_file() else ""
