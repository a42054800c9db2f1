"""Benchmarks and tools use names of the package that exist; most of their code runs in no test."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    str(file.relative_to(ROOT)) for folder in ("benchmarks", "tools") for file in ROOT.glob(f"{folder}/**/*.py")
)


def missing_names(text: str) -> Iterator[str]:
    """Names imported from fedweave, and attributes of its modules, that are not there."""
    nodes = [*ast.walk(ast.parse(text))]
    modules: dict[str, ModuleType] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedweave":
            for alias in node.names:
                found = find(str(node.module), alias.name)
                if found is None:
                    yield f"{node.module}.{alias.name}"
                if isinstance(found, ModuleType):
                    modules[alias.asname or alias.name] = found
    assigned = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    assigned |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id not in assigned:
            module = modules.get(node.value.id)
            if module is not None and find(module.__name__, node.attr) is None:
                yield f"{module.__name__}.{node.attr}"


def find(module: str, name: str) -> Any:
    found = getattr(import_module(module), name, None)
    if found is None:
        try:
            return import_module(f"{module}.{name}")
        except ModuleNotFoundError:
            return None
    return found


@pytest.mark.parametrize("file", FILES)
def test_names_of_the_package_exist(file: str) -> None:
    assert [*missing_names((ROOT / file).read_text(encoding="utf-8"))] == []


def test_a_name_that_is_gone_is_found() -> None:
    text = "def f():\n    from fedweave.data import storage\n    storage.gone()\nfrom fedweave.data import lost\n"
    assert [*missing_names(text)] == ["fedweave.data.lost", "fedweave.data.storage.gone"]
