"""Reading one address over HTTP within limits of size and time, whatever the server does."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPMessage, HTTPResponse, HTTPSConnection
from typing import IO, Any
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from fedweave.errors import format_value

IDLE_TIMEOUT = 30.0  # seconds without a byte after which a connection is closed
TOTAL_TIMEOUT = 3600.0  # seconds for one file, all attempts together
STALL_WINDOW, MIN_WINDOW_BYTES = 60.0, 64 * 1024  # seconds, and the bytes that must arrive in them
MAX_LENGTH_DIGITS = 15  # digits of a Content-Length
MIB = 2**20


class SourceError(Exception):
    """This source cannot give the file; the message says which source and why."""


class SizeLimitError(SourceError):
    """The source has more bytes than the file can have."""


class Deadline:
    """The time limit of one file: when it is over, every connection is closed, in any state."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._copies: list[socket.socket] = []  # duplicates share their connection; TLS detaches the original
        self._timer = threading.Timer(seconds, self._close_connections)
        self._timer.daemon = True

    def __enter__(self) -> "Deadline":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        for copy in self._copies:
            copy.close()

    @property
    def is_over(self) -> bool:
        """Whether the time has passed."""
        return time.monotonic() >= self._end

    def connect(self, *args: Any, **kwargs: Any) -> socket.socket:
        """Open a connection by `socket.create_connection`; it is closed when the time is over.

        Raises:
            TimeoutError: the time is over.
        """
        if self.is_over:
            raise TimeoutError("the time is over")
        connection = socket.create_connection(*args, **kwargs)
        self._copies.append(connection.dup())
        return connection

    def _close_connections(self) -> None:
        for copy in list(self._copies):
            with suppress(OSError):
                copy.shutdown(socket.SHUT_RDWR)


class _RedirectHandler(HTTPRedirectHandler):
    """Follow a redirect to another web address, never from an encrypted one to a plain one."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        scheme, old_scheme = newurl.partition(":")[0].lower(), req.full_url.partition(":")[0].lower()
        if scheme not in ("http", "https") or (old_scheme == "https" and scheme == "http"):
            raise SourceError(
                f"{req.full_url} (redirects to {format_value(newurl)}; only https, and http from http, are followed)"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _build_opener(deadline: Deadline) -> OpenerDirector:
    """An opener of web addresses that refuses others, such as files or FTP."""

    def connection_builder(kind: Callable[..., HTTPConnection]) -> Any:
        def build(host: str, **options: Any) -> HTTPConnection:
            connection = kind(host, **options)
            connection._create_connection = deadline.connect  # type: ignore[attr-defined]  # no public attribute exists
            return connection

        return build

    class PlainHandler(HTTPHandler):
        def http_open(self, req: Request) -> HTTPResponse:
            return self.do_open(connection_builder(HTTPConnection), req)

    class SecureHandler(HTTPSHandler):
        def https_open(self, req: Request) -> HTTPResponse:
            return self.do_open(connection_builder(HTTPSConnection), req)

    opener = OpenerDirector()
    parts = (
        ProxyHandler(),
        UnknownHandler(),
        PlainHandler(),
        SecureHandler(),
        HTTPDefaultErrorHandler(),
        _RedirectHandler(),
        HTTPErrorProcessor(),
    )
    for part in parts:
        opener.add_handler(part)
    return opener


@contextmanager
def open_url(url: str, start: int, deadline: Deadline) -> Iterator[HTTPResponse]:
    """The answer to a request for `url` from byte `start` on.

    Raises:
        OSError, HTTPException, ValueError: as urllib, for any failure.
    """
    headers = {"User-Agent": "fedweave"} | ({"Range": f"bytes={start}-"} if start else {})
    with _build_opener(deadline).open(Request(url, headers=headers), timeout=IDLE_TIMEOUT) as response:
        yield response


def content_length(response: HTTPResponse, url: str) -> int | None:
    """The size in bytes that an answer announces, or None.

    Raises:
        SourceError: the announced size is not a number.
    """
    text = response.headers.get("Content-Length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_LENGTH_DIGITS):
        raise SourceError(f"{url} (its Content-Length is {format_value(text)}, which is not a size)")
    return int(text)


def read_blocks(response: HTTPResponse, url: str, size: int, deadline: Deadline) -> Iterator[bytes]:
    """The body of an answer in blocks of at most `size` bytes.

    Raises:
        SourceError: fewer than `MIN_WINDOW_BYTES` bytes in `STALL_WINDOW` seconds.
        TimeoutError: the time is over.
    """
    since, received = time.monotonic(), 0
    while block := response.read1(size):
        yield block
        received += len(block)
        if deadline.is_over:
            raise TimeoutError("the time is over")
        if time.monotonic() - since > STALL_WINDOW:
            if received < MIN_WINDOW_BYTES:
                raise SourceError(f"{url} (stalled: {received} bytes in {STALL_WINDOW:g} s)")
            since, received = time.monotonic(), 0
    if deadline.is_over:  # the end of a connection that was shut looks like the end of the body
        raise TimeoutError("the time is over")


def check_size(size: int, limit: int, source: str) -> None:
    """Refuse more than `limit` bytes.

    Raises:
        SizeLimitError: naming the source.
    """
    if size > limit:
        raise SizeLimitError(f"{source} (larger than {limit / MIB:.4g} MiB, which this file cannot be)")
