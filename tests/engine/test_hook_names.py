"""A class whose hooks cannot be called, or are not called, is refused where it enters the table of methods."""

import re
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fedweave as fw
from fedweave.study import plugins

SOURCE = '''
from dataclasses import dataclass
from typing import ClassVar
import fedweave as fw

@fw.method("{name}")
@dataclass(frozen=True, kw_only=True)
class Mine(fw.methods.Ditto):
    """Ditto with one more function."""
    label = "Mine"
    {body}
'''


def load(folder: Path, name: str, body: str) -> None:
    """Load a file with the class as `uses` of a study does."""
    file = folder / f"{name}.py"
    file.write_text(SOURCE.format(name=name, body=body))
    plugins.load([str(file)])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "def aggregate(self, server, uploads, weights): return server",
            "Mine.aggregate has the arguments (self, server, uploads, weights), and is called with "
            "(self, server, ids, uploads, weights)",
        ),
        (
            "def diagnostics(self): return {}",
            "Mine.diagnostics has the arguments (self), and is called with (self, ser",
        ),
        ("def diagnostics(self, server, other): return {}", "Mine.diagnostics has the arguments (self, server, other)"),
        ("def epochs(self): return 2", "Mine.epochs is a function, and should be a property; add @property"),
        (
            "diagnostics = property(lambda self: {})",
            "Mine.diagnostics is a property, and should be a function; leave out @property",
        ),
        ("lam = 0.1", "Mine: lam = 0.1 has no type, so that the setting keeps its default 1.0; write lam: float = 0.1"),
    ],
)
def test_a_hook_that_would_not_be_called_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str
) -> None:
    """Before any work, by the line of the file."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"refused_{zlib.crc32(body.encode())}"
    with pytest.raises(fw.BadInput, match=re.escape(words)):
        load(tmp_path, name, body)


@pytest.mark.parametrize(
    "body",
    [
        "def diagnostics(self, server, more=None): return {}",
        "def diagnostics(self, *given): return {}",
        "def portrait(self, state): return None",
        "size = 3",
        "size: ClassVar[int] = 3",
        "def describe_all(self): return ''",
        "def labels(self): return ''",
    ],
)
@pytest.mark.filterwarnings("error")
def test_other_functions_and_values_are_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Further optional arguments, other names of arguments, constants, and functions for callers elsewhere."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    load(tmp_path, f"accepted_{zlib.crc32(body.encode())}", body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def agregate(self, server): return server", "nothing calls agregate; name it aggregate, or _agregate if"),
        ("kept = property(lambda self: ())", "nothing calls kept; name it local_names, or _kept if"),
    ],
)
def test_a_name_that_nothing_calls_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str
) -> None:
    """Misspelt, or that of a hook in version 0.1.0; it may be for callers elsewhere."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.warns(UserWarning, match=words):
        load(tmp_path, f"warned_{zlib.crc32(body.encode())}", body)


def test_helpers_of_a_users_own_bases_are_free() -> None:
    """Only hooks of fedweave have a form, and only that of the class that is called."""

    class Mixin:
        def helper(self, a: Any) -> Any:
            return a

    @dataclass(frozen=True, kw_only=True)
    class Base(Mixin, fw.methods.FedAvg):
        def aggregate(self, server: Any) -> Any:  # type: ignore[override]
            raise NotImplementedError

        @property
        def own(self) -> int:
            return 1

    @fw.method("derived-with-helpers")
    @dataclass(frozen=True, kw_only=True)
    class Derived(Base):
        label = "Derived"

        def aggregate(self, server: Any, ids: Any, uploads: Any, weights: Any) -> Any:  # type: ignore[override]
            return self.helper(server, 1)

        def helper(self, a: Any, b: Any) -> Any:  # type: ignore[override]
            return a

        def own(self) -> int:  # type: ignore[override]
            return 2


def test_a_base_of_the_user_is_checked_too() -> None:
    """Its hooks are those of the method."""

    @dataclass(frozen=True, kw_only=True)
    class Base(fw.methods.FedAvg):
        def aggregate(self, server: Any) -> Any:  # type: ignore[override]
            return server

    with pytest.raises(fw.BadInput, match=r"Base\.aggregate has the arguments"):

        @fw.method("derived-of-a-wrong-base")
        @dataclass(frozen=True, kw_only=True)
        class Derived(Base):
            label = "Derived"
