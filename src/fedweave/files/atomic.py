"""Files that are complete or not there: written under a temporary name, synced, renamed, and the folder synced."""

import csv
import errno
import fcntl
import hashlib
import io
import json
import os
import tempfile
import time
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from fedweave.errors import BadInput, first_line

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

LOCK_POLL = 0.1  # seconds between two tries to lock a file

# Errors of a disk without space: it is full, or a quota or a size limit is reached.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Errors that the user can fix: no space, a folder that is read-only or of another user, a file in the place of a folder
# or the reverse, a name that is too long, or links in a circle.
USER_ERRORS = FULL | {
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
}
FOLDER = "is a folder in the place of a file; move it away, and run this again"
# In a folder such as /proc, the error for a new name is "does not exist". Elsewhere that is a defect of the program.
NEW_FILE_ERRORS = USER_ERRORS | {errno.ENOENT}


@contextmanager
def atomic_path(path: Path | str, mode: int = 0o644) -> Iterator[Path]:
    """Yield a temporary path next to `path`; on success it replaces `path`, on any error it is removed.

    After a power cut `path` is the old file or the new one: the content is on the disk before the name changes.

    Args:
        mode: of the file; it is set before the file has content.

    Raises:
        BadInput: the disk is full, or the folder cannot be written.
    """
    path = Path(path)
    with user_errors(path, NEW_FILE_ERRORS):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
        os.close(descriptor)
        temporary = Path(name)
    with user_errors(path):
        try:
            temporary.chmod(mode)
            yield temporary
            _sync(temporary)
            temporary.replace(path)
            _sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def try_lock(file: IO[Any] | int) -> bool:
    """Whether this process now has the lock of an open file, which the kernel releases when the file is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def hold_lock(path: Path, busy: BadInput | None = None, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock of a file, which is made if it is missing; the kernel releases it when this process ends.

    Args:
        busy: raised if another process has the lock; None: wait for it, however long that takes.
        wait: seconds to wait before.

    Raises:
        BadInput: `busy`, or the folder of the file cannot be written.
    """
    check_writable(path.parent)
    end = time.monotonic() + wait
    with path.open("a") as file:
        while not try_lock(file):
            if busy and time.monotonic() >= end:
                raise busy
            time.sleep(LOCK_POLL)
        yield


@contextmanager
def user_errors(path: Path | None = None, errors: Collection[int] = USER_ERRORS) -> Iterator[None]:
    """Turn file errors that the user can fix into a one-line BadInput.

    Args:
        path: the file that is written; None: the one that the error names, as around a whole command.
        errors: their numbers.

    Raises:
        BadInput: a folder is a file, or cannot be written, or the disk is full.
    """
    try:
        yield
    except OSError as error:
        # The system's error of a full disk often has no file name.
        is_full, file = error.errno in FULL, path or error.filename
        if error.errno not in errors or (file is None and not is_full):
            raise
        if file and error.errno == errno.EISDIR:
            raise BadInput(file, FOLDER) from error
        what, advice = "written", "free space, and run this again"
        if path:
            advice = f"free space, or make {path.parent} a folder that can be written, and run this again"
        elif not is_full:
            what, folders = "used", "folders that can be written"
            advice = f"make sure that it and those above it are {folders}, and run this again"
        raise BadInput(f"{file or 'a file'}: cannot be {what} ({error.strerror}); {advice}") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path | str, content: bytes | str, mode: int = 0o644) -> None:
    """Write `content` to `path` so that a reader sees the old file or the new one, never a part; `mode` is its mode."""
    with atomic_path(path, mode) as temporary:
        if isinstance(content, bytes):
            temporary.write_bytes(content)
        else:
            temporary.write_text(content, encoding="utf-8")


def write_json(path: Path | str, content: Any, indent: int | None = 1, **options: Any) -> None:
    """Write a JSON file, as `write_atomic` does; `options`: of `json.dumps`."""
    write_atomic(path, json.dumps(content, indent=indent, **options) + "\n")


def write_new(path: Path | str, content: bytes) -> None:
    """Write `content` to `path` unless it exists; of several processes that do so at once, the first one wins.

    Raises:
        BadInput: as `atomic_path`.
    """
    path = Path(path)
    with user_errors(path, NEW_FILE_ERRORS):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent) as temporary:
            temporary.write(content)
            temporary.flush()
            Path(temporary.name).chmod(0o644)
            _sync(Path(temporary.name))
            with suppress(FileExistsError):
                os.link(temporary.name, path)
        _sync(path.parent)


def write_table(path: Path | str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file, as `write_atomic` does."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_atomic(path, text.getvalue())


def write_parquet(path: Path | str, table: "pd.DataFrame") -> None:
    """Write the columns of a table as a Parquet file, as `write_atomic` does."""
    with atomic_path(path) as temporary:
        table.to_parquet(temporary, index=False)


def read(file: Path, reader: Callable[[Path], T], advice: str) -> T:
    """The result of `reader(file)`.

    Raises:
        BadInput: naming the file and `advice`, which says how to fix it, or what `reader` refuses in it.
    """
    try:
        return reader(file)
    except BadInput as error:
        raise error.move({"": f"{file}: "}) from error
    except Exception as error:  # each format raises exceptions of its own for damaged files
        reason = first_line(error)
        raise BadInput(f"{file}: damaged ({type(error).__name__}: {reason}); {advice}") from error


def read_json(file: Path, advice: str, parse: Callable[[Any], Any] = dict) -> Any:
    """What `parse` makes of the content of a JSON file.

    Raises:
        BadInput: as `read`.
    """
    return read(file, lambda path: parse(json.loads(path.read_text(encoding="utf-8"))), advice)


def read_table(
    file: Path, columns: Sequence[str], advice: str, numbers: Sequence[str] = (), **options: Any
) -> "pd.DataFrame":
    """The table of a complete CSV file that has `columns`, of which `numbers` hold no texts; `options`: of pandas.

    Raises:
        BadInput: as `read`.
    """
    import pandas as pd

    def reader(path: Path) -> pd.DataFrame:
        text = path.read_text(encoding="utf-8")
        if not text.endswith("\n"):
            raise ValueError("it ends within a line")
        table = pd.read_csv(io.StringIO(text), **options)
        if missing := [name for name in columns if name not in table]:
            raise ValueError(f"no column {', '.join(missing)}")
        if texts := [name for name in numbers if len(table) and table[name].dtype.kind not in "iuf"]:
            raise ValueError(f"texts among the numbers of {', '.join(texts)}")
        return table

    return read(file, reader, advice)


def save_tensors(path: Path | str, content: Any, mode: int = 0o644) -> None:
    """Write a tree of tensors and plain values, as `write_atomic` does; `load_tensors` reads it."""
    import torch

    with atomic_path(path, mode) as temporary, temporary.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # torch hides why a write failed
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def load_tensors(path: Path | str) -> Any:
    """What `save_tensors` wrote, on the CPU; never runs code from the file. Any damage raises an error."""
    import torch

    with zipfile.ZipFile(path) as archive:  # PyTorch checks no sums
        if (part := archive.testzip()) is not None:
            raise ValueError(f"the sum of its part {part} is another one")
    return torch.load(path, "cpu", weights_only=True)


def check_writable(folder: Path | str) -> None:
    """Make sure that `folder` exists and can be written, before hours are spent on results for it.

    Raises:
        BadInput: naming the folder, the reason and how to fix it.
    """
    with user_errors(Path(folder) / ".writable", NEW_FILE_ERRORS):
        Path(folder).mkdir(parents=True, exist_ok=True)
        # A file without a name: a killed process leaves nothing behind.
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
            probe.write(b"\0")


def remove_temporary_files(folder: Path, pattern: str = "*") -> None:
    """Remove temporary files of killed writers of `pattern`; no other process may be writing such files."""
    for path in folder.glob(f".{pattern}"):
        with suppress(IsADirectoryError, PermissionError):
            path.unlink()


def digest_file(file: Path) -> str:
    """SHA-256 of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
