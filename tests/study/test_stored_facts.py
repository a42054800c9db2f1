"""Facts of the package's files are stored for the next process, and a change of a file is never overlooked."""

import os
import shutil
import time
from pathlib import Path

import pytest

from fedweave.files import stored
from fedweave.study import code


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of two files in the place of fedweave, with a cache folder of its own."""
    folder = tmp_path / "fedweave"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "a.py").write_text("from fedweave.b import X\n\ndef f(): return X\n")
    (folder / "b.py").write_text("X = 1\n")
    monkeypatch.setattr(code, "PACKAGE", folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget()
    return folder


def forget() -> None:
    """Forget what this process knows of files, as if it had just begun."""
    for function in (code._parse_source, code._stored, code._store_name):
        function.cache_clear()


def read(package: Path) -> tuple[tuple[Path, ...], str]:
    """(the dependencies of a.py, their digest), as another process finds them."""
    forget()
    files = code.find_dependencies([package / "a.py"])
    return files, code.digest(files)


def refuse(file: Path, content: bytes) -> code.SourceFile:
    raise AssertionError(f"{file} is parsed again")


def test_the_next_process_parses_nothing(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read(package)
    assert first[0] == (package / "a.py", package / "b.py")
    facts = {file: code.read_source(file) for file in first[0]}
    monkeypatch.setattr(code, "_parse", refuse)
    assert read(package) == first
    assert {file: code.read_source(file) for file in first[0]} == facts


def test_a_change_is_seen_even_if_size_and_time_are_the_same(package: Path) -> None:
    before, file = read(package), package / "b.py"
    times = file.stat()
    file.write_text("X = 2\n")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = read(package)
    assert after[0] == before[0]
    assert after[1] != before[1]
    file.write_text("X = 1\n")
    assert read(package) == before


def test_a_copy_of_the_package_parses_nothing(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read(package)
    copy = shutil.copytree(package, package.parent / "copy" / package.name)
    monkeypatch.setattr(code, "PACKAGE", copy)
    monkeypatch.setattr(code, "_parse", refuse)
    assert read(copy) == ((copy / "a.py", copy / "b.py"), first[1])


def test_the_place_of_a_file_is_a_part_of_its_facts(package: Path) -> None:
    """A relative import means another module in another folder."""
    text = "from .c import X\n"
    for folder in (package / "one", package / "two"):
        folder.mkdir()
        for name, content in (("__init__.py", ""), ("a.py", text), ("c.py", "X = 1\n")):
            (folder / name).write_text(content)
        for _ in range(2):
            forget()
            assert code.find_dependencies([folder / "a.py"]) == (folder / "a.py", folder / "c.py")


def test_the_newest_facts_stay(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "STORED", 3)
    for number in range(5):
        (package / "b.py").write_text(f"X = {number}\n")
        read(package)
    assert len(stored.read(code._store_name())) == 3
    monkeypatch.setattr(code, "_parse", refuse)
    assert read(package)[1] != ""


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_a_damaged_store_is_made_again(content: str, package: Path) -> None:
    before = read(package)
    (file,) = stored.folder().iterdir()
    file.write_text(content)
    assert read(package) == before
    assert file.read_text() != content


def test_a_folder_that_cannot_be_written_costs_time_only(package: Path) -> None:
    expected = read(package)
    for file in stored.folder().iterdir():
        file.unlink()
    stored.folder().rmdir()
    stored.folder().write_text("a file in the place of the folder")
    assert read(package) == expected


def test_the_oldest_stores_go(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "KEPT", 3)
    for number in range(5):
        stored.write(f"store{number}", {"number": number})
        os.utime(stored.folder() / f"store{number}.json", (time.time() - 100 + number,) * 2)
    assert [stored.read(f"store{number}") for number in range(5)] == [{}, {}, *({"number": n} for n in (2, 3, 4))]
