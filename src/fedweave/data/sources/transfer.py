"""Copy of one file from a folder or over HTTP: checked, and never left incomplete under its name."""

import gzip
import hashlib
import re
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from fedweave.errors import BadInput, format_value
from fedweave.files.atomic import atomic_path, digest_file, write_atomic

Progress = Callable[[str, int, int | None], None]  # file, bytes done, bytes in all
CHUNK = 1 << 16
ATTEMPTS = 3
BROKEN = ("ConnectionError", "ConnectTimeout", "ReadTimeout", "ChunkedEncodingError")  # of requests: tried again
TIMEOUT = 30.0  # seconds without a byte after which a connection is given up
MAX_SIDECAR_BYTES = 4096  # bytes of a file that holds a sum
SUM = re.compile(rb"[0-9a-fA-F]{64}(?=\s|$)")


class SourceError(Exception):
    """This source cannot give the file; the message says which source and why."""


def is_url(source: str) -> bool:
    """Whether `source` is an address rather than a folder."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", source) is not None


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
    """Whether the file has the digest `expected`; None accepts every file."""
    return expected is None or digest(path, expected.split(":")[0]) == expected


def sidecar(path: Path) -> Path:
    """The file with the recorded sum of `path`."""
    return path.with_name(path.name + ".sha256")


def record_digest(path: Path) -> None:
    """Write the sha256 of `path` to its sidecar file, in the format of `sha256sum -c`."""
    write_atomic(sidecar(path), f"{digest_file(path)}  {path.name}\n")


def read_digest(path: Path) -> str | None:
    """The digest with which the file `path` begins, in the format of `sha256sum`."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        match = SUM.match(file.read(MAX_SIDECAR_BYTES))
    return f"sha256:{match[0].decode().lower()}" if match else None


def fetch_published_digest(source: str, target: Path) -> str:
    """The mirror's digest of the file `source`, which will be stored as `target`.

    Raises:
        SourceError: the mirror has none.
    """
    target_sidecar = target.with_name(f".{sidecar(target).name}")
    try:
        fetch(f"{source}.sha256", target_sidecar, None, None)
        if published := read_digest(target_sidecar):
            return published
        raise SourceError(f"{source}.sha256 (holds no SHA-256 sum)")
    finally:
        target_sidecar.unlink(missing_ok=True)


def fetch(source: str, target: Path, expected: str | None, progress: Progress | None) -> None:
    """Put a checked copy of `source` at `target`; after a connection breaks off, it begins again.

    Raises:
        SourceError: the source does not exist, breaks off, is empty, or has another digest.
        BadInput: the target cannot be written, such as on a full disk: no other source would help.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with _open_source(source) as (blocks, total), atomic_path(target) as temporary:
                done = 0
                with temporary.open("wb") as file:
                    for block in blocks:
                        done += file.write(block)
                        if progress:
                            progress(target.name, done, total)
                if not done or not matches(temporary, expected):
                    raise SourceError(f"{source} ({f'damaged: not {expected}' if expected else 'empty'})")
            return
        except BadInput:
            raise
        except (OSError, ValueError) as error:  # a name that is too long, or what requests raises of a server
            if attempt == ATTEMPTS or type(error).__name__ not in BROKEN:
                raise SourceError(f"{format_value(source)[1:-1]} ({_reason(error)})") from error


@contextmanager
def _open_source(source: str) -> Iterator[tuple[Iterator[bytes], int | None]]:
    """The blocks of a file or of an answer, and the bytes of all if they are known."""
    if not is_url(source):
        if not Path(source).is_file():
            raise SourceError(f"{source} (not there)")
        with Path(source).open("rb") as reader:
            yield iter(partial(reader.read, CHUNK), b""), Path(source).stat().st_size
        return
    import requests  # here, because few programs that import fedweave download anything

    headers = {"User-Agent": "fedweave", "Accept-Encoding": "identity"}
    with requests.get(source, headers=headers, stream=True, timeout=TIMEOUT) as response:
        _check_answer(source, response.url, response.status_code)
        length = response.headers.get("Content-Length", "")
        yield response.iter_content(CHUNK), int(length) if length.isdecimal() else None


def _check_answer(url: str, answered: str, status: int) -> None:
    """Refuse an answer without the file, and one that came unencrypted to an encrypted request: it can be forged."""
    if status != 200:
        raise SourceError(f"{url} (HTTP {status})")
    if url.lower().startswith("https:") and not answered.lower().startswith("https:"):
        raise SourceError(f"{url} (redirects to {format_value(answered)}, which is not encrypted)")


def _reason(error: Exception) -> str:
    """The inner error of one of requests, in one line without the names of its objects."""
    inner = error.args[0] if error.args and isinstance(error.args[0], Exception) else error
    text = str(getattr(inner, "reason", inner)).split("): ", 1)[-1]
    return f"broke off: {text}" if "IncompleteRead" in text else format_value(text)[1:-1]


def extract(archive: Path, members: dict[str, Path]) -> None:
    """Write the named members of a .tar.gz, .zip or .gz to the given paths; those in .gz are decompressed.

    Reads only these names and writes only these paths; other members of the archive are ignored.

    Raises:
        SourceError: the archive is damaged, or lacks a member.
    """
    for member, target in members.items():
        try:
            with _open_member(archive, member) as reader, atomic_path(target) as path, path.open("wb") as writer:
                shutil.copyfileobj(gzip.GzipFile(fileobj=reader) if member.endswith(".gz") else reader, writer)
        except BadInput:
            raise  # the target, not the archive
        except Exception as error:  # each format raises many different exceptions for damaged files
            raise SourceError(f"{archive} (cannot read {member}: {error})") from error


@contextmanager
def _open_member(archive: Path, member: str) -> Iterator[IO[bytes]]:
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as file, file.open(member) as reader:
            yield reader
    elif archive.name.endswith(".tar.gz"):
        with tarfile.open(archive, "r:gz") as tar:
            content = tar.extractfile(member)
            if content is None:
                raise KeyError(f"{member} is not a file")
            with content:
                yield content
    else:
        with archive.open("rb") as reader:
            yield reader
