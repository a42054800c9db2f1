"""Which files a computation depends on, by the imports in their text, and a digest of what they say to the interpreter.

No code is run for it. A module imports what its import statements name, wherever they stand; names that only a type
checker sees do not count. Where a package passes on a name of another module, the other module counts and the package
does not: the tables of methods, data sets, models and partitions import their entries by file name, so an entry is a
dependency of those who use it.
"""

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fedweave.errors import BadInput
from fedweave.study.call_cache import cache_calls, call_once
from fedweave.study.syntax import dotted_names, tree_tokens

PACKAGE = Path(__file__).resolve().parent.parent  # the folder of fedweave

Reference = tuple[str, tuple[str, ...]]  # a module by its dotted name, and what is taken from it


class SourceFile(NamedTuple):
    """What is read of one file.

    Attributes:
        digest: of its code without comments, docstrings, formatting and the texts of error messages.
        uses: what it imports and looks up in the imported.
        exports: names that it imports from elsewhere, also those for type checkers only, which are imported on use.
        defines: names that it makes itself.
    """

    digest: str
    uses: tuple[Reference, ...]
    exports: dict[str, Reference]
    defines: frozenset[str]


class Root(NamedTuple):
    """A folder in which plug-ins lie, as in `sys.path`.

    Attributes:
        folder: where they lie.
        names: of the modules at its top that are plug-ins; empty for all. Installed packages lie beside others.
    """

    folder: Path
    names: frozenset[str] = frozenset()


def find_dependencies(of: Iterable[Path], roots: Iterable[Root] = ()) -> tuple[Path, ...]:
    """The files `of` and every file inside the package or below `roots` that they import, directly or not, sorted.

    Args:
        of: files in the package, or below one of `roots`.
        roots: where plug-ins lie.

    Raises:
        BadInput: a file cannot be read or is no Python.
    """
    places = (Root(PACKAGE.parent, frozenset({PACKAGE.name})), *(Root(r.folder.resolve(), r.names) for r in roots))
    seen: set[Path] = set()
    waiting = [Path(file).resolve() for file in of]
    with cache_calls():  # quick enough for no file to change
        while waiting:
            file = waiting.pop()
            if file not in seen:
                seen.add(file)
                waiting += call_once(_direct_imports, file, places)
    return tuple(sorted(seen))


def digest(files: Iterable[Path]) -> str:
    """A hash of the code in `files`, the same wherever they lie: no comments, docstrings, formatting and messages.

    Of a file that is no Python every byte counts.

    Raises:
        BadInput: a file cannot be read or is no Python.
    """
    lines = sorted(f"{label(file)} {read_source(file).digest}" for file in files)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def label(file: Path) -> str:
    """The name of a file in a list: below the package with its folders, elsewhere with the folder that it lies in."""
    file = file.resolve()
    return str(file.relative_to(PACKAGE.parent) if file.is_relative_to(PACKAGE) else Path(file.parent.name, file.name))


def read_source(file: Path) -> SourceFile:
    """What `file` says, read once for as long as it is not changed.

    Raises:
        BadInput: it cannot be read or is no Python.
    """
    try:
        about = file.stat()
        return _parse_source(file, about.st_mtime_ns, about.st_size)
    except SyntaxError as error:
        raise BadInput(f"{file}: line {error.lineno}: {error.msg}; correct that line") from error
    except (OSError, ValueError) as error:
        raise BadInput(f"{file}: cannot be read ({error}); correct or restore it") from error


@cache
def _parse_source(file: Path, _changed: int, _size: int) -> SourceFile:
    content = file.read_bytes()
    if file.suffix != ".py":
        return SourceFile(hashlib.sha256(content).hexdigest()[:16], (), {}, frozenset())
    tree = ast.parse(content)
    exports: dict[str, Reference] = {}
    nodes = [*ast.walk(tree)]  # once: walking takes most of the time
    for node in nodes:
        exports |= dict(_bindings(node, file)) if isinstance(node, ast.Import | ast.ImportFrom) else {}
    uses = [use for node in _runtime_nodes(tree) for use in _uses(node, exports, file)]
    code = hashlib.sha256("\0".join(tree_tokens(tree, nodes)).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return SourceFile(code, tuple(dict.fromkeys(uses)), exports, frozenset(_defined_names(nodes)))


def _runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those behind `if TYPE_CHECKING`."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        hidden = isinstance(node, ast.If) and dotted_names(node.test)[-1:] == ("TYPE_CHECKING",)
        waiting += node.orelse if hidden and isinstance(node, ast.If) else ast.iter_child_nodes(node)


def _bindings(node: ast.Import | ast.ImportFrom, file: Path) -> Iterator[tuple[str, Reference]]:
    """Name in the file -> what an import statement binds to it."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.split(".")[0]
            yield (alias.asname, (alias.name, ())) if alias.asname else (top, (top, ()))
        return
    base = _absolute_name(node, file)
    for alias in node.names:
        yield alias.asname or alias.name, (base, (alias.name,))


def _absolute_name(node: ast.ImportFrom, file: Path) -> str:
    """The dotted name of the module after `from`; a relative one by the folders of packages above `file`."""
    if not node.level:
        return node.module or ""
    folder = file.parent
    for _ in range(node.level - 1):
        folder = folder.parent
    return ".".join([*_package_names(folder), *filter(None, [node.module])])


def _package_names(folder: Path) -> list[str]:
    """The name of the package in `folder`; without an __init__.py it is the folder itself."""
    names = [folder.name]
    while (folder.parent / "__init__.py").is_file():
        folder = folder.parent
        names.insert(0, folder.name)
    return names


def _uses(node: ast.AST, names: dict[str, Reference], file: Path) -> Iterator[Reference]:
    """What a node imports, or takes from an imported module by its dots."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, ()) for alias in node.names if alias.name != "fedweave")
    elif isinstance(node, ast.ImportFrom):
        base = _absolute_name(node, file)
        yield from ((base, () if alias.name == "*" else (alias.name,)) for alias in node.names)
    elif isinstance(node, ast.Attribute):
        chain = dotted_names(node)
        if chain and chain[0] in names:
            module, attributes = names[chain[0]]
            yield module, (*attributes, *chain[1:])
    elif isinstance(node, ast.Call) and dotted_names(node.func)[-1:] == ("import_module",):
        target = node.args[0] if node.args else None
        if isinstance(target, ast.Constant) and isinstance(target.value, str) and not target.value.startswith("."):
            yield target.value, ()


def _defined_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names that a module makes."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _direct_imports(file: Path, places: tuple[Root, ...]) -> tuple[Path, ...]:
    """The files that `file` imports itself, and outside of the package those of the packages it lies in."""
    inside = file.is_relative_to(PACKAGE)
    # A file of the package has no neighbours by their bare names.
    beside = () if inside or any(file.parent == place.folder for place in places) else (Root(file.parent),)
    files = [
        path
        for use in call_once(read_source, file).uses
        for path in _resolve_reference(*use, (*beside, *places), frozenset())
    ]
    above = file.parent / "__init__.py"
    return (*files, above) if not inside and above.is_file() else tuple(files)


def _resolve_reference(
    module: str, attributes: tuple[str, ...], places: tuple[Root, ...], above: frozenset[Reference]
) -> Iterator[Path]:
    """The files behind what is taken from a module; none for what lies outside of `places`."""
    file = call_once(_find_module, module, places)
    if file is None or (module, attributes) in above:
        return
    if not attributes or file.name != "__init__.py":
        if file.is_file() and not (file.name == "__init__.py" and file.is_relative_to(PACKAGE) and not attributes):
            yield file
        return
    content = call_once(read_source, file) if file.is_file() else SourceFile("", (), {}, frozenset())
    elsewhere = content.exports.get(attributes[0], (module, (attributes[0],)))
    if elsewhere != (module, (attributes[0],)) and attributes[0] not in content.defines:
        other, names = elsewhere
        yield from _resolve_reference(other, (*names, *attributes[1:]), places, above | {(module, attributes)})
    elif call_once(_find_module, f"{module}.{attributes[0]}", places):
        yield from _resolve_reference(f"{module}.{attributes[0]}", attributes[1:], places, above)
    elif file.is_file() and attributes[0] in content.defines:
        yield file


def _find_module(module: str, places: tuple[Root, ...]) -> Path | None:
    """The file of a module below one of `places`; of a package its __init__.py, even if it has none."""
    parts = module.split(".")
    if parts[0] in sys.stdlib_module_names or not all(parts):
        return None
    for place in places:
        if place.folder.is_relative_to(PACKAGE) or (place.names and parts[0] not in place.names):
            continue
        path = place.folder.joinpath(*parts)
        if path.with_suffix(".py").is_file() and not (path / "__init__.py").is_file():
            return path.with_suffix(".py")
        if path.is_dir():
            return path / "__init__.py"
    return None
