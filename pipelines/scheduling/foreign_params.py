"""params.yaml of a clone that runs stages for a writer on another host.

Work orders replace it, but not if somebody has changed it by hand.
"""

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedweave.errors import BadInput
from fedweave.files.atomic import write_atomic
from fedweave.study.spec import PARAMS

from .. import paths, signed_files

WRITTEN = paths.STATE / "params.written"  # digests of the last text that a work order brought, and of the one before


@contextmanager
def apply(text: str) -> Iterator[None]:
    """Keep `text` in params.yaml during the block; a stage with other parameters waits until all such blocks end.

    Raises:
        BadInput: params.yaml has changes made by hand.
    """
    paths.STATE.mkdir(exist_ok=True)
    with (paths.STATE / "params.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        while _current_text() != text:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _replace(text)
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def _current_text() -> str | None:
    return PARAMS.read_text(encoding="utf-8") if PARAMS.is_file() else None


def _replace(text: str) -> None:
    current = _current_text()
    if current not in (None, text) and not signed_files.is_unchanged(current) and not _is_from_work_order(current):
        raise BadInput(
            f"{Path.cwd() / PARAMS}: is not what the work order has, and was changed by hand; save it as "
            "studies/<name>.yaml and remove it, or let the worker use another clone"
        )
    # Both digests, because this process may be killed before it has written the text.
    write_atomic(WRITTEN, "\n".join(_digest(known) for known in (text, current) if known is not None))
    write_atomic(PARAMS, text)


def _is_from_work_order(text: str) -> bool:
    return WRITTEN.is_file() and _digest(text) in WRITTEN.read_text(encoding="utf-8").split()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
