"""Servers with arbitrary answers: each is reported in one line, and leaves no partial file."""

import io
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import requests

from fedweave import data
from fedweave.data.sources.origins import RECORDED, File
from tests.data.test_download import CONTENT, PATH, leftovers, put, refusal, sha256

OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"


@contextmanager
def serve_answers(talk: Callable[[socket.socket, str], None]) -> Iterator[tuple[str, list[str]]]:
    """A server that answers every request with `talk` for its path. Yields its address and the requested paths."""
    requests: list[str] = []

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            requests.append(connection.recv(65536).partition(b" ")[2].partition(b" ")[0].decode(errors="replace"))
            talk(connection, requests[-1])

    def listen() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=listen, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests


def answering(content: bytes) -> Callable[[socket.socket, str], None]:
    return lambda connection, _: connection.sendall(content)


def redirect_to(address: str) -> Callable[[socket.socket, str], None]:
    return answering(
        f"HTTP/1.1 302 Found\r\nLocation: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
    )


@pytest.fixture(params=["listed", "recorded"])
def kind(request: pytest.FixtureRequest, enter: Callable[..., None]) -> str:
    """A data set of one file. Its sum is known, or the mirror has the sum in a second file."""
    enter(File(PATH, sha256(CONTENT) if request.param == "listed" else RECORDED))
    return str(request.param)


ANSWERS = {
    "too short": (answering(OK + b"Content-Length: 99999999999999\r\n\r\nhello"), "broke off"),
    "file": (redirect_to("file:///etc/passwd"), "file:///"),
    "no http": (answering(b"SSH-2.0-OpenSSH_9.6\r\n"), ""),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_invalid_answers_are_refused(name: str, kind: str, tmp_path: Path) -> None:
    talk, words = ANSWERS[name]
    with serve_answers(talk) as (url, _):
        line = refusal("toy", tmp_path, url)
    assert "dataset toy" in line
    assert words in line
    assert url in line
    assert leftovers(tmp_path) == set()


def test_an_encrypted_source_cannot_redirect_to_an_unencrypted_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attacker between the two could send any content."""
    get = requests.Session.get_adapter

    class Redirect(requests.adapters.HTTPAdapter):
        def send(self, request: requests.PreparedRequest, *_: object, **__: object) -> requests.Response:
            response = requests.Response()
            response.status_code, response.url, response.request = 302, request.url, request
            response.headers["Location"] = request.url.replace("https", "http")
            response.raw = io.BytesIO()
            return response

    def adapter(session: requests.Session, url: str) -> requests.adapters.BaseAdapter:
        return Redirect() if url.startswith("https:") else get(session, url)

    monkeypatch.setattr(requests.Session, "get_adapter", adapter)
    with serve_answers(answering(OK + b"\r\n" + CONTENT)) as (url, asked):
        assert "which is not encrypted" in refusal("toy", tmp_path, url.replace("http", "https"))
    assert asked
    assert leftovers(tmp_path) == set()


def test_an_answer_without_content_is_refused(tmp_path: Path, enter: Callable[..., None]) -> None:
    """It is refused even if no sum is known."""
    with serve_answers(answering(OK + b"Content-Length: 0\r\n\r\n")) as (url, _):
        enter(File(PATH, RECORDED, f"{url}/x"))
        assert f"{url}/x (empty)" in refusal("toy", tmp_path)
    assert leftovers(tmp_path) == set()


@pytest.mark.parametrize("beside", [b"\xff\xfe\x00\x01", b"", b"0" * 63, b"0" * 65, bytes(4096)])
def test_invalid_sums_are_refused(beside: bytes, tmp_path: Path, enter: Callable[..., None]) -> None:
    """The sum is on a mirror, or next to an existing file."""
    enter(File(PATH, RECORDED))
    put(tmp_path / "mirror", CONTENT)
    put(tmp_path / "mirror", beside, f"{PATH}.sha256")
    words = "holds no SHA-256 sum" if beside else ".sha256 (empty)"
    assert words in refusal("toy", tmp_path / "root", str(tmp_path / "mirror"))
    assert leftovers(tmp_path / "root") == set()
    assert f"{PATH} is damaged" in refusal("toy", tmp_path / "mirror")


def test_a_mirror_without_the_file_does_not_change_the_stored_sum(tmp_path: Path, enter: Callable[..., None]) -> None:
    enter(File(PATH, RECORDED))
    mine = put(tmp_path / "root", b"my own", f"{PATH}.sha256")
    put(tmp_path / "mirror", b"0" * 64, f"{PATH}.sha256")
    refusal("toy", tmp_path / "root", str(tmp_path / "mirror"))
    assert mine.read_bytes() == b"my own"
    assert leftovers(tmp_path / "root") == {f"{PATH}.sha256"}


@pytest.mark.parametrize("mirror", ["x" * 300, "ftp://host/x", "http://[::1", "a\0b", "https://127.0.0.1:port"])
def test_invalid_mirrors_are_refused(mirror: str, kind: str, tmp_path: Path) -> None:
    line = refusal("toy", tmp_path / "root", mirror)
    assert "dataset toy" in line
    assert len(line) < 4500
    assert leftovers(tmp_path / "root") == set()


def test_a_pipe_in_a_mirror_is_not_waited_for(kind: str, tmp_path: Path) -> None:
    (tmp_path / "mirror" / PATH).parent.mkdir(parents=True)
    for suffix in ("", ".sha256"):
        os.mkfifo(tmp_path / "mirror" / f"{PATH}{suffix}")
    assert "not there" in refusal("toy", tmp_path / "root", str(tmp_path / "mirror"))


def test_a_valid_file_arrives(kind: str, tmp_path: Path) -> None:
    """Without this, the tests above would prove nothing."""
    sums = sha256(CONTENT).removeprefix("sha256:").encode()
    body = {True: sums, False: CONTENT}

    def talk(connection: socket.socket, path: str) -> None:
        connection.sendall(OK + b"\r\n" + body[path.endswith(".sha256")])

    with serve_answers(talk) as (url, _):
        (path,) = data.download("toy", tmp_path, url)
    assert path.read_bytes() == CONTENT
