"""The shape of the code: imports go downward, sizes stay small, methods stay leaves."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedweave.methods import METHODS
from fedweave.settings import REQUIRED

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "fedweave"
CORE = sorted(path for path in SOURCE.rglob("*.py") if "pipelines" not in path.relative_to(SOURCE).parts)
ADAPTERS = sorted((ROOT / "pipelines").rglob("*.py"))
FILES = [*CORE, *ADAPTERS]


def layers(package: str) -> tuple[tuple[str, ...], ...]:
    """The figure of `package` in docs/architecture.md: a line per layer, lower layers first."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    figure = text.split(f"<!-- layers: {package} -->\n```\n")[1].split("```")[0]
    return tuple(tuple(line.split("  ")[0].split()) for line in figure.splitlines())


LAYERS = layers("fedweave")
PIPELINE_LAYERS = layers("fedweave.pipelines")
ORCHESTRATION = {"prefect", "mlflow", "optuna", "dvc", "typer", "rich"}


def imported(path: Path) -> Iterator[str]:
    """Every module a file imports, dotted, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def level(layers: tuple[tuple[str, ...], ...], name: str) -> int | None:
    """Position of a package in `layers`; None for what is not in them."""
    return next((i for i, names in enumerate(layers) if name in names), None)


def upward(path: Path, root: Path, prefix: str, layers: tuple[tuple[str, ...], ...]) -> set[str]:
    """The packages above the file's own that it imports."""
    mine = level(layers, path.relative_to(root).parts[0].removesuffix(".py"))
    if mine is None:
        return set()
    parts = {m.removeprefix(prefix).split(".")[0] for m in imported(path) if m.startswith(prefix)}
    return {part for part in parts if (above := level(layers, part)) is not None and above > mine}


@pytest.mark.parametrize("path", CORE, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_downward(path: Path) -> None:
    """No file imports from a higher layer, and none the tools of the pipelines."""
    assert not {m.split(".")[0] for m in imported(path)} & ORCHESTRATION
    assert not upward(path, SOURCE, "fedweave.", LAYERS)


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda p: str(p.relative_to(ROOT)))
def test_pipelines_import_downward(path: Path) -> None:
    """Commands may import stages, and not the reverse."""
    assert not upward(path, ROOT / "pipelines", "fedweave.pipelines.", PIPELINE_LAYERS)


def test_every_package_has_a_layer() -> None:
    """A new package takes a place in the order."""
    packages = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in CORE} - {"__init__"}
    assert packages == {name for names in LAYERS for name in names}
    adapters = {path.relative_to(ROOT / "pipelines").parts[0].removesuffix(".py") for path in ADAPTERS} - {"__init__"}
    assert adapters == {name for names in PIPELINE_LAYERS for name in names}


@pytest.mark.parametrize("path", sorted((SOURCE / "methods").glob("[a-z]*.py")), ids=lambda p: p.stem)
def test_a_method_is_one_leaf_file(path: Path) -> None:
    """At most 120 lines, no other method imported: the file is its train stage's cache boundary."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 120
    assert not [m for m in imported(path) if m.startswith("fedweave.methods")]


def test_the_table_has_every_file() -> None:
    """methods/<name>.py and METHODS[name] belong together."""
    assert {*METHODS} == {p.stem for p in (SOURCE / "methods").glob("[a-z]*.py")}
    assert all(cls.__module__ == f"fedweave.methods.{name}" for name, cls in METHODS.items())


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_frozen_final_and_documented(name: str) -> None:
    """A leaf is a frozen dataclass without subclasses, with every setting documented and no hook left abstract."""
    cls = METHODS[name]
    assert cls.__dataclass_params__.frozen
    assert not cls.__abstractmethods__
    assert not [c for c in cls.__subclasses__() if c.__module__.startswith("fedweave.")]
    assert [setting.name for setting in cls.settings() if not setting.meaning or setting.default is REQUIRED] == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_sizes(path: Path) -> None:
    """Files of at most 300 lines, functions of at most 40 lines of code.

    Docstrings do not count: shapes, units and errors belong into them, and nobody should save lines there.
    """
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert not [f.name for f in functions if f.end_lineno - f.lineno + 1 - documentation(f) > 40]


def documentation(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's docstring."""
    return len((ast.get_docstring(function, clean=False) or "").splitlines())


def test_no_method_is_named_outside() -> None:
    """The engine, the pipeline and the data never ask which method they run."""
    names = {f'"{n}"' for n in METHODS if n not in ("local",)}
    for path in FILES:
        if path.parent.name not in ("methods", "published"):
            text = re.sub(r'""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.S)  # examples may name some
            assert not [n for n in names if n in text], path
