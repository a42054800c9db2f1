"""Moving one file: from a folder or over HTTP, checked, resumed, and either whole or not there."""

import gzip
import hashlib
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, BinaryIO
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from fedweave.errors import BadInput
from fedweave.files import atomic_path, write_atomic

Progress = Callable[[str, int, int | None], None]  # file, bytes done, bytes in all
CHUNK = 1 << 20
TIMEOUT = 30.0
ATTEMPTS = 3


class SourceError(Exception):
    """This source cannot give the file; the message says which source and why."""


def is_url(source: str) -> bool:
    """Whether `source` is fetched over HTTP rather than read from a folder."""
    return source.startswith(("http://", "https://"))


def join(base: str, path: str) -> str:
    """`path` below a folder or URL."""
    return f"{base.rstrip('/')}/{quote(path)}" if is_url(base) else str(Path(base) / path)


def digest(path: Path, algorithm: str) -> str:
    """ "<algorithm>:<hex>" of a file; the algorithm "git" gives the name of the file's blob in a git repository."""

    def blob() -> Any:
        return hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)

    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, blob if algorithm == 'git' else algorithm).hexdigest()}"


def matches(path: Path, expected: str | None) -> bool:
    """Whether the file has the digest `expected`; None asks for nothing."""
    return expected is None or digest(path, expected.split(":")[0]) == expected


def sidecar(path: Path) -> Path:
    """Where the recorded sum of `path` stands."""
    return path.with_name(path.name + ".sha256")


def record(path: Path) -> None:
    """Write the sha256 of `path` beside it, in the format of `sha256sum -c`."""
    write_atomic(sidecar(path), f"{digest(path, 'sha256').removeprefix('sha256:')}  {path.name}\n")


def recorded(path: Path) -> str:
    """The digest that stands beside `path`; one that nothing matches if there is none."""
    words = sidecar(path).read_text(encoding="utf-8").split() if sidecar(path).is_file() else []
    return f"sha256:{words[0] if words else ''}"


def fetch(source: str, target: Path, expected: str | None, progress: Progress | None) -> None:
    """Put a checked copy of `source` at `target`, going on from a partial one if `expected` can vouch for it.

    Raises:
        SourceError: the source is not there, breaks off, or does not have the digest `expected`.
    """
    if is_url(source):
        _download(source, target, expected, progress)
    else:
        _copy(Path(source), target, expected, progress)


def _download(source: str, target: Path, expected: str | None, progress: Progress | None) -> None:
    part = target.with_name(f".{target.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    resumed = part.exists() and expected is not None
    if not resumed:
        part.unlink(missing_ok=True)
    _complete(source, part, target.name, progress)
    if matches(part, expected):
        part.replace(target)
        return
    part.unlink()
    if not resumed:
        raise SourceError(f"{source} (damaged: not {expected})")
    _download(source, target, expected, progress)  # the old part was to blame: once more from the start


def _copy(source: Path, target: Path, expected: str | None, progress: Progress | None) -> None:
    if not source.is_file():
        raise SourceError(f"{source} (not there)")
    with atomic_path(target) as temporary:
        try:
            with source.open("rb") as read, temporary.open("wb") as write:
                _pump(read, write, target.name, 0, source.stat().st_size, progress)
        except OSError as error:
            raise SourceError(f"{source} ({error})") from error
        if not matches(temporary, expected):
            raise SourceError(f"{source} (damaged: not {expected})")


def _complete(url: str, part: Path, name: str, progress: Progress | None) -> None:
    """Append to `part` until the server has no more; a connection that breaks off is taken up again."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _append(url, part, name, progress)
        except HTTPError as error:
            error.close()
            if error.code != 416 or not part.exists():
                raise SourceError(f"{url} (HTTP {error.code})") from error
            part.unlink()  # the part is longer than the file: begin again
        except (OSError, HTTPException) as error:
            if attempt == ATTEMPTS:
                raise SourceError(f"{url} ({getattr(error, 'reason', error)})") from error
    raise SourceError(f"{url} (HTTP 416)")


def _append(url: str, part: Path, name: str, progress: Progress | None) -> None:
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "fedweave"} | ({"Range": f"bytes={have}-"} if have else {})
    with urlopen(Request(url, headers=headers), timeout=TIMEOUT) as response:
        have = have if response.status == 206 else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if have else "wb") as write:
            done = _pump(response, write, name, have, total, progress)
    if total is not None and done < total:
        raise ConnectionError(f"broke off after {done} of {total} bytes")


def _pump(read: IO[bytes], write: BinaryIO, name: str, done: int, total: int | None, progress: Progress | None) -> int:
    while block := read.read(CHUNK):
        write.write(block)
        done += len(block)
        if progress:
            progress(name, done, total)
    return done


def extract(archive: Path, members: dict[str, Path]) -> None:
    """Write the named members of a .tar.gz, .zip or .gz to the given paths; those in .gz are decompressed.

    Only these names are looked up and only these paths are written, whatever else the archive holds.

    Raises:
        SourceError: the archive is damaged or lacks a member.
    """
    for member, target in members.items():
        try:
            with _opened(archive, member) as read, atomic_path(target) as path, path.open("wb") as write:
                shutil.copyfileobj(gzip.GzipFile(fileobj=read) if member.endswith(".gz") else read, write, CHUNK)
        except BadInput:
            raise  # the target, not the archive
        except Exception as error:  # each format has its own dozen of exceptions for damaged files
            raise SourceError(f"{archive} (cannot read {member}: {error})") from error


@contextmanager
def _opened(archive: Path, member: str) -> Iterator[IO[bytes]]:
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as file, file.open(member) as read:
            yield read
    elif archive.name.endswith(".tar.gz"):
        with tarfile.open(archive, "r:gz") as tar:
            content = tar.extractfile(member)
            if content is None:
                raise KeyError(f"{member} is not a file")
            with content:
                yield content
    else:
        with archive.open("rb") as read:
            yield read
