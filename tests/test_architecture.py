"""The shape of the code: imports go downward, sizes stay small, methods stay leaves."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedweave.methods import METHODS
from fedweave.settings import REQUIRED

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "fedweave"
FILES = sorted([*SOURCE.rglob("*.py"), *(ROOT / "pipelines").glob("*.py")])
# Lower layers first; a module may import what stands on its own line or above.
LAYERS = (
    {"arrays", "compiled", "errors", "files", "keys", "lifting", "settings", "sparse", "streams", "tensors", "trees", "unpickler",
     "_torchvision"},
    {"ablations", "augment", "blocks", "config", "data", "metrics", "models", "published", "stats"},
    {"attacks", "collaboration", "descent", "federation", "hyper", "parallel", "privacy", "robust", "solvers", "subgraphs"},
    {"schedule", "task", "wire"},
    {"protocol"},
    {"families", "registry"},
    {"methods"},
    {"executors"},
    {"engine", "spec"},
    {"catalogue", "checks", "spaces"},
    {"assemble"},
    {"experiment", "plots", "results"},
    {"archive", "deploy", "report"},
)
EDGES = {"prefect", "mlflow", "optuna", "dvc", "typer", "rich"}


def imported(path: Path) -> Iterator[str]:
    """Every module a file imports, dotted, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part(module: str) -> str | None:
    """fedweave.models.cnn -> models."""
    words = module.split(".")
    return words[1] if words[0] == "fedweave" and len(words) > 1 else None


def level(name: str) -> int:
    """Position of a part of the package in LAYERS."""
    return next(i for i, names in enumerate(LAYERS) if name in names)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_downward(path: Path) -> None:
    """No file imports from a higher layer, and none the tools of the edges."""
    mine = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    modules = {*imported(path)}
    assert not {m.split(".")[0] for m in modules} & EDGES
    known = {name for names in LAYERS for name in names}
    if mine in known:
        above = {m for m in modules if (p := part(m)) in known and level(p) > level(mine)}
        assert not above, f"{path.name} imports upward: {above}"
    else:
        assert mine == "__init__"


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
    assert not cls.__subclasses__()
    assert [setting.name for setting in cls.settings() if not setting.meaning or setting.default is REQUIRED] == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_sizes(path: Path) -> None:
    """Files of at most 300 lines, functions of at most 40."""
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert not [f.name for f in functions if f.end_lineno - f.lineno + 1 > 40]


def test_no_method_is_named_outside() -> None:
    """The engine, the pipeline and the data never ask which method they run."""
    names = {f'"{n}"' for n in METHODS if n not in ("local",)}
    for path in FILES:
        if path.parent.name not in ("methods", "published"):
            text = path.read_text(encoding="utf-8")
            assert not [n for n in names if n in text], path
