"""Files of data sets arrive complete from a folder, a server or an archive, or are refused in one line."""

import gzip
import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from fedweave import data
from fedweave.data.sources.origins import ANY, CATALOGUE, RECORDED, Archive, File, FileSet
from fedweave.data.sources.retrieval import require_files
from fedweave.errors import BadInput
from fedweave.tensors.random_streams import stream
from tests.servers import http_server

CONTENT = stream(1).bytes((3 << 20) + 17)
PATH = "Toy/raw/table.bin"


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class Site:
    """A web server: its files, its behaviour, and the requests that it got."""

    files: dict[str, bytes]
    breaks: int = 0  # the number of answers that stop in the middle
    requests: list[str] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site({PATH: CONTENT})

    def answer(request: BaseHTTPRequestHandler) -> None:
        path = request.path.lstrip("/")
        site.requests.append(path)
        if path not in site.files:
            request.send_error(404)
            return
        body = site.files[path]
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        sent = len(body) // 2 if site.breaks else len(body)
        site.breaks -= site.breaks > 0
        request.wfile.write(body[:sent])

    with http_server(do_GET=answer) as port:
        site.url = f"http://127.0.0.1:{port}"
        yield site


@pytest.fixture
def listed(enter: Callable[..., None]) -> None:
    """A data set of one file with a known sum and no official address."""
    enter(File(PATH, sha256(CONTENT)))


def put(folder: Path, content: bytes, path: str = PATH) -> Path:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(content)
    return folder / path


def refusal(name: str, root: Path, mirror: str | None = None) -> str:
    with pytest.raises(BadInput) as caught:
        data.download(name, root, mirror)
    return str(caught.value)


def leftovers(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_packaged_data_sets_need_no_download(tmp_path: Path) -> None:
    assert data.download("digits", tmp_path / "new", mirror="/nowhere") == ()
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize("way", ["folder", "server", "environment"])
def test_fresh_copy_from_a_mirror(
    way: str, listed: None, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "mirror", CONTENT)
    if way == "environment":
        monkeypatch.setenv("FEDWEAVE_MIRROR", site.url)
    mirror = {"folder": str(tmp_path / "mirror"), "server": site.url + "/", "environment": None}[way]
    seen: list[tuple[str, int, int | None]] = []
    (path,) = data.download("toy", tmp_path / "root", mirror, lambda *state: seen.append(state))
    assert path.read_bytes() == CONTENT
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})
    assert seen[-1] == ("table.bin", len(CONTENT), len(CONTENT))
    assert leftovers(tmp_path / "root") == {PATH}
    requests = len(site.requests)
    data.download("toy", tmp_path / "root", "http://127.0.0.1:9")
    assert len(site.requests) == requests  # files that exist are not downloaded again


def test_a_file_begins_again_after_a_broken_connection(listed: None, site: Site, tmp_path: Path) -> None:
    site.breaks = 2
    (path,) = data.download("toy", tmp_path, site.url)
    assert path.read_bytes() == CONTENT
    assert site.requests == [PATH] * 3
    site.breaks = 99
    path.unlink()
    assert "broke off" in refusal("toy", tmp_path, site.url)
    assert leftovers(tmp_path) == set()


@pytest.mark.parametrize("damage", [CONTENT[:-1], CONTENT[:-1] + b"\0", b""])
def test_a_damaged_file_is_replaced_or_named(damage: bytes, listed: None, tmp_path: Path) -> None:
    path = put(tmp_path / "root", damage)
    line = refusal("toy", tmp_path / "root")
    assert re.search(rf"dataset toy: {PATH} is damaged below .*FEDWEAVE_MIRROR=", line)
    with pytest.raises(BadInput, match=r"table\.bin: damaged"):
        require_files("toy", tmp_path / "root")
    put(tmp_path / "mirror", CONTENT)
    data.download("toy", tmp_path / "root", str(tmp_path / "mirror"))
    assert path.read_bytes() == CONTENT
    require_files("toy", tmp_path / "root")


def test_a_place_that_cannot_be_written_is_not_the_fault_of_a_source(listed: None, site: Site, tmp_path: Path) -> None:
    (tmp_path / "Toy").touch()
    assert re.match(rf"{tmp_path}/{PATH}: cannot be written .*make {tmp_path}/", refusal("toy", tmp_path, site.url))
    assert len(site.requests) == 1


def test_messages_name_the_attempts_and_the_way_out(listed: None, site: Site, tmp_path: Path) -> None:
    line = refusal("toy", tmp_path)
    assert all(
        word in line for word in ("dataset toy", PATH, "missing", "FEDWEAVE_MIRROR=<folder or URL that holds Toy/>")
    )
    assert f"{tmp_path}/gone/{PATH} (not there)" in refusal("toy", tmp_path, f"{tmp_path}/gone")
    site.files = {PATH: b"wrong"}
    assert "damaged: not sha256" in refusal("toy", tmp_path, site.url)
    site.files = {}
    assert f"{site.url}/{PATH} (HTTP 404)" in refusal("toy", tmp_path, site.url)
    assert "refused" in refusal("toy", tmp_path, "http://127.0.0.1:9")
    assert not [path for path in leftovers(tmp_path) if not path.endswith(".part")]
    with pytest.raises(BadInput, match="did you mean 'cora'"):
        data.download("corra", tmp_path)
    with pytest.raises(BadInput, match=r"ind\.cora\.\w+: not found; run the download stage for cora"):
        data.load("cora", tmp_path)
    assert "comp_cars" in refusal("compcars", tmp_path)


def test_mirror_comes_before_the_official_source(site: Site, tmp_path: Path, enter: Callable[..., None]) -> None:
    enter(File(PATH, sha256(CONTENT), f"{site.url}/{PATH}"))
    put(tmp_path / "mirror", CONTENT)
    data.download("toy", tmp_path / "a", str(tmp_path / "mirror"))
    assert site.requests == []
    put(tmp_path / "mirror", b"damaged")
    data.download("toy", tmp_path / "b", str(tmp_path / "mirror"))
    assert site.requests == [PATH]


def test_the_second_form_is_used_if_the_mirror_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDWEAVE_MIRROR", raising=False)
    first = FileSet((File("Toy/original", sha256(b"original"), "http://127.0.0.1:9/original"),))
    second = FileSet((File("Toy/copy", sha256(b"copy")), File("Toy/labels", sha256(b"labels"))))
    monkeypatch.setitem(CATALOGUE, "toy", (first, second))
    put(tmp_path / "mirror", b"copy", "Toy/copy")
    put(tmp_path / "mirror", b"labels", "Toy/labels")
    files = data.download("toy", tmp_path / "root", str(tmp_path / "mirror"))
    assert [path.name for path in files] == ["copy", "labels"]
    damaged = put(tmp_path / "root", b"damaged", "Toy/original")  # a loader would read this one
    with pytest.raises(BadInput, match="original: damaged"):
        require_files("toy", tmp_path / "root")
    put(tmp_path / "mirror", b"original", "Toy/original")
    data.download("toy", tmp_path / "root", str(tmp_path / "mirror"))
    assert damaged.read_bytes() == b"original"


def pack(kind: str, members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    elif kind == "tar.gz":
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name, content in members.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    else:
        (content,) = members.values()
        return content
    return buffer.getvalue()


@pytest.mark.parametrize("source", ["mirror", "official"])
@pytest.mark.parametrize("kind", ["zip", "tar.gz", "gz"])
def test_archives_extract_the_requested_members_only(
    kind: str, source: str, site: Site, tmp_path: Path, enter: Callable[..., None]
) -> None:
    members = {"in/table.bin.gz": gzip.compress(CONTENT)}
    if kind != "gz":
        members |= {"../../evil": b"evil", "/tmp/evil-of-fedweave": b"evil", "in/other": b"other"}
    content = pack(kind, members)
    site.files = {f"Toy/all.{kind}": content, f"away/all.{kind}": content}
    archive = Archive(f"Toy/all.{kind}", f"md5:{hashlib.md5(content).hexdigest()}", f"{site.url}/away/all.{kind}")
    enter(File(PATH, sha256(CONTENT), None, archive, "in/table.bin.gz"))
    root = tmp_path / "deep" / "er" / "root"
    data.download("toy", root, site.url if source == "mirror" else None)
    assert (root / PATH).read_bytes() == CONTENT
    assert leftovers(tmp_path) == {f"deep/er/root/{PATH}"}
    assert not Path("/tmp/evil-of-fedweave").exists()
    assert site.requests[-1].startswith("Toy/all" if source == "mirror" else "away/all")


def test_bad_archives_are_refused(site: Site, tmp_path: Path, enter: Callable[..., None]) -> None:
    lacking, wrong = pack("zip", {"other": b""}), pack("zip", {"table": b"wrong"})
    for content, message in (
        (lacking, "cannot read table"),
        (wrong, "holds a damaged table"),
        (b"PK", "cannot read table"),
    ):
        site.files = {"all.zip": content}
        archive = Archive("Toy/all.zip", sha256(content), f"{site.url}/all.zip")
        enter(File(PATH, sha256(CONTENT), None, archive, "table"))
        assert message in refusal("toy", tmp_path)


def test_files_without_a_published_sum_are_checked_against_the_recorded_one(
    site: Site, tmp_path: Path, enter: Callable[..., None]
) -> None:
    enter(File(PATH, RECORDED, f"{site.url}/{PATH}"), File("Toy/any", ANY))
    put(tmp_path / "root", b"x", "Toy/any")
    (path, _) = data.download("toy", tmp_path / "root")
    beside = path.with_name("table.bin.sha256")
    assert beside.read_text() == f"{sha256(CONTENT).removeprefix('sha256:')}  table.bin\n"
    path.write_bytes(b"damaged")
    with pytest.raises(BadInput, match="if it is the original, run: sha256sum"):
        require_files("toy", tmp_path / "root")
    mirror = put(tmp_path / "mirror", CONTENT)
    site.files = {}
    assert "table.bin.sha256 (not there)" in refusal("toy", tmp_path / "root", str(tmp_path / "mirror"))
    mirror.with_name("table.bin.sha256").write_text(f"{'0' * 64}  table.bin\n")
    assert "damaged: not sha256:0000" in refusal("toy", tmp_path / "root", str(tmp_path / "mirror"))
    mirror.with_name("table.bin.sha256").write_text(f"{sha256(CONTENT).removeprefix('sha256:')}\n")
    data.download("toy", tmp_path / "root", str(tmp_path / "mirror"))
    assert path.read_bytes() == CONTENT
