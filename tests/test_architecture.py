"""The structure of the code: imports from lower layers only, small files and functions, independent methods."""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path
from types import FrameType

import pytest

from fedweave.deployment import export
from fedweave.methods import METHODS
from fedweave.models import MODELS
from fedweave.runs import build
from fedweave.settings import REQUIRED
from fedweave.study.spec import RunSpec
from tests import trained

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "fedweave"
CORE = sorted(SOURCE.rglob("*.py"))
ADAPTERS = sorted((ROOT / "pipelines").rglob("*.py"))
FILES = [*CORE, *ADAPTERS]


def dotted(path: Path) -> str:
    """The name by which a file is imported."""
    below = path.relative_to(SOURCE if path.is_relative_to(SOURCE) else ROOT)
    return ".".join(["fedweave", *below.with_suffix("").parts]).removesuffix(".__init__")


def layers(package: str) -> tuple[tuple[str, ...], ...]:
    """The figure of `package` in docs/architecture.md: a line per layer, lower layers first."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    figure = text.split(f"<!-- layers: {package} -->\n```\n")[1].split("```")[0]
    return tuple(tuple(line.split("  ")[0].split()) for line in figure.splitlines())


LAYERS = layers("fedweave")
PIPELINE_LAYERS = layers("fedweave.pipelines")
ORCHESTRATION = {"prefect", "mlflow", "optuna", "dvc", "typer", "rich"}


MODULES = {dotted(path): path for path in FILES}


@cache
def imported(path: Path) -> frozenset[str]:
    """Every name that a file imports, dotted: also in functions, and for type checkers only."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, path)
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def absolute(node: ast.ImportFrom, path: Path) -> str:
    """The module after `from`; a relative one by the place of the file."""
    if not node.level:
        return node.module or ""
    package = dotted(path.parent / "__init__.py").split(".")
    return ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])


def imported_files(module: str) -> set[str]:
    """The modules of the project that a module imports; a package that it takes a submodule from is none of them."""
    found = set()
    for name in imported(MODULES[module]):
        if name not in MODULES and name.rpartition(".")[0] in MODULES:  # a name of a module
            found.add(name.rpartition(".")[0])
        elif name in MODULES and not any(other.startswith(f"{name}.") for other in imported(MODULES[module])):
            found.add(name)
    return found - {module, "fedweave"}  # which imports its parts when they are used


def level(layers: tuple[tuple[str, ...], ...], name: str) -> int | None:
    """Position of a package in `layers`. None if it is not there."""
    return next((i for i, names in enumerate(layers) if name in names), None)


def higher_imports(path: Path, root: Path, prefix: str, layers: tuple[tuple[str, ...], ...]) -> set[str]:
    """The packages above the file's own that it imports."""
    mine = level(layers, path.relative_to(root).parts[0].removesuffix(".py"))
    if mine is None:
        return set()
    parts = {m.removeprefix(prefix).split(".")[0] for m in imported(path) if m.startswith(prefix)}
    return {part for part in parts if (above := level(layers, part)) is not None and above > mine}


@pytest.mark.parametrize("path", CORE, ids=lambda p: str(p.relative_to(SOURCE)))
def test_modules_import_from_lower_layers_only(path: Path) -> None:
    """They import no tools of the pipelines either; searches are by Optuna."""
    allowed = {"optuna"} if path.parent.name == "search" else set()
    assert not {m.split(".")[0] for m in imported(path)} & ORCHESTRATION - allowed
    assert not higher_imports(path, SOURCE, "fedweave.", (*LAYERS, ("pipelines",)))


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda p: str(p.relative_to(ROOT)))
def test_pipelines_import_from_lower_layers_only(path: Path) -> None:
    """Commands may import stages, and not the reverse."""
    assert not higher_imports(path, ROOT / "pipelines", "fedweave.pipelines.", PIPELINE_LAYERS)


def test_no_files_import_each_other() -> None:
    """There is no circle of imports, those in functions and for type checkers counted."""
    order = TopologicalSorter({module: imported_files(module) for module in MODULES})
    order.prepare()  # raises CycleError, which names a circle


def layers_on_the_way(call: Callable[[], object]) -> list[int]:
    """The layers of the functions that a call enters with a run as an argument, in their order."""
    entered: list[int] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        file = Path(code.co_filename)
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if event != "call" or not file.is_relative_to(SOURCE):
            return
        if any(isinstance(frame.f_locals.get(name), RunSpec) for name in names):
            above = level(LAYERS, file.relative_to(SOURCE).parts[0].removesuffix(".py"))
            assert above is not None
            entered.append(above)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


@pytest.mark.parametrize(("name", "most"), [("prepare", 8), ("export", 10)])
def test_the_way_of_a_run_seldom_goes_back_up(name: str, most: int, tmp_path: Path) -> None:
    """Who follows the argument `run` through the calls reads folder below folder, and seldom comes back to a higher
    one.
    """
    run = trained.study("images", {"fedavg": {}}, (0,)).run("blobs-fedavg")
    dataset, partition = trained.dataset("images"), trained.partition("images")
    calls = {
        "prepare": partial(build.prepare, run, dataset, partition),
        "export": partial(export.export, run, dataset, partition, tmp_path / "app", 0, False),
    }
    entered = layers_on_the_way(calls[name])
    assert {*entered} >= {level(LAYERS, "study"), level(LAYERS, "runs")}
    assert sum(after > before for before, after in pairwise(entered)) <= most


def test_no_two_classes_have_one_name() -> None:
    """A name says which class is meant; names with an underscore belong to their file."""
    places = defaultdict(list)
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_every_package_has_a_layer() -> None:
    """A new package needs a place in the order."""
    packages = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in CORE} - {"__init__"}
    assert packages == {name for names in LAYERS for name in names}
    adapters = {path.relative_to(ROOT / "pipelines").parts[0].removesuffix(".py") for path in ADAPTERS} - {"__init__"}
    assert adapters == {name for names in PIPELINE_LAYERS for name in names}


@pytest.mark.parametrize("path", sorted((SOURCE / "methods").glob("[a-z]*.py")), ids=lambda p: p.stem)
def test_a_method_is_one_file_that_imports_no_other_method(path: Path) -> None:
    """It has at most 120 lines. The file decides whether the method's train stage runs again."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 120
    assert not [m for m in imported(path) if m.startswith("fedweave.methods")]


def test_the_table_has_every_file() -> None:
    """methods/<name>.py and METHODS[name] have the same names."""
    assert {*METHODS} == {p.stem for p in (SOURCE / "methods").glob("[a-z]*.py")}
    assert all(cls.__module__ == f"fedweave.methods.{name}" for name, cls in METHODS.items())


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_frozen_final_and_documented(name: str) -> None:
    """A method is a frozen dataclass without subclasses. Every setting is documented, and no hook is abstract."""
    cls = METHODS[name]
    assert cls.__dataclass_params__.frozen
    assert not cls.__abstractmethods__
    assert not [c for c in cls.__subclasses__() if c.__module__.startswith("fedweave.")]
    assert [setting.name for setting in cls.settings() if not setting.meaning or setting.default is REQUIRED] == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_sizes(path: Path) -> None:
    """Files have at most 500 lines, and functions at most 60 lines of code.

    Docstrings do not count, because they must have room for shapes, units and errors.
    """
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 500
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert not [f.name for f in functions if f.end_lineno - f.lineno + 1 - documentation(f) > 60]


def documentation(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The number of lines of a function's docstring."""
    return len((ast.get_docstring(function, clean=False) or "").splitlines())


def test_no_method_is_named_outside_of_the_methods() -> None:
    """The engine, the pipeline and the data do not depend on the method of a run."""
    names = {f'"{n}"' for n in METHODS if n not in ("local", *MODELS)}  # MOON's authors have named a network, too
    for path in FILES:
        if path.parent.name not in ("methods", "published"):
            text = re.sub(r'""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.S)  # examples may name some
            assert not [n for n in names if n in text], path
