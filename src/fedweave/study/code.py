"""The files that a computation depends on, by the imports in their text, and a digest of their code.

No code is run for it. A module depends on what its import statements name, at any place of the file, but not on names
that only a type checker reads. If a package exports a name of another module, the dependency is the other module, not
the package. The tables of methods, data sets, models and partitions import their entries by file name, so an entry is a
dependency only of the code that uses it.
"""

import ast
import hashlib
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedweave.errors import BadInput
from fedweave.files import stored
from fedweave.study import syntax
from fedweave.study.syntax import dotted_names, tree_tokens

PACKAGE = Path(__file__).resolve().parent.parent  # the folder of fedweave
# Folders of Python and of packages, where a file keeps its place in a package.
INSTALLED = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")})

Reference = tuple[str, tuple[str, ...]]  # a module by its dotted name, and what is taken from it


class SourceFile(NamedTuple):
    """The facts that are read from one file.

    Attributes:
        digest: of its code without comments, docstrings, formatting and the texts of error messages.
        uses: what it imports, and takes from imported modules.
        exports: names that it imports from other modules, also those for type checkers only, which are imported on use.
        defines: names that it defines itself.
    """

    digest: str
    uses: tuple[Reference, ...]
    exports: dict[str, Reference]
    defines: frozenset[str]


class Root(NamedTuple):
    """A folder with plug-ins, as in `sys.path`.

    Attributes:
        folder: the folder.
        names: of the modules at its top that are plug-ins; empty for all. Installed packages are beside other packages.
    """

    folder: Path
    names: frozenset[str] = frozenset()


State = tuple[int, int]  # the time of the last change of a file [ns], and its size


class ImportWalk:
    """The walk along the imports of some files.

    Attributes:
        places: where modules are looked for.
        states: file -> its state, or None where there was none, of all files that decide the result.
    """

    def __init__(self, places: tuple[Root, ...]):
        self.places = places
        self.states: dict[Path, State | None] = {}
        self._resolved: dict[tuple[Reference, tuple[Root, ...]], tuple[Path, ...]] = {}

    def is_file(self, file: Path) -> bool:
        """Whether there is such a file, looked up once."""
        if file not in self.states:
            self.states[file] = find_state(file)
        return self.states[file] is not None

    def read(self, file: Path) -> SourceFile:
        """The facts of a file, in the state in which it was first met."""
        return read_source(file, self.states[file] if self.is_file(file) else None)

    def resolve(self, use: Reference, places: tuple[Root, ...]) -> tuple[Path, ...]:
        """The files behind what is taken from a module; most modules take the same things."""
        if (use, places) not in self._resolved:
            self._resolved[use, places] = tuple(_resolve_reference(*use, places, self, frozenset()))
        return self._resolved[use, places]


# (Files, places) -> the states that decided the last result for them, which is right until one changes, and the result.
_found: dict[tuple[frozenset[Path], tuple[Root, ...]], tuple[dict[Path, State | None], tuple[Path, ...]]] = {}


def find_dependencies(of: Iterable[Path], roots: Iterable[Root] = ()) -> tuple[Path, ...]:
    """The files `of` and every file inside the package or below `roots` that they import, directly or not, sorted.

    Args:
        of: files in the package, or below one of `roots`.
        roots: the folders of plug-ins.

    Raises:
        BadInput: a file cannot be read or is not Python.
    """
    places = (Root(PACKAGE.parent, frozenset({PACKAGE.name})), *(Root(r.folder.resolve(), r.names) for r in roots))
    waiting = [Path(file).resolve() for file in of]
    key = frozenset(waiting), places
    if key in _found and all(find_state(file) == state for file, state in _found[key][0].items()):
        return _found[key][1]
    walk, seen = ImportWalk(places), set[Path]()
    with _stored_facts():
        while waiting:
            file = waiting.pop()
            if file not in seen:
                seen.add(file)
                waiting += _direct_imports(file, walk)
    _found[key] = walk.states, tuple(sorted(seen))
    return _found[key][1]


def digest(files: Iterable[Path]) -> str:
    """A hash of the code in `files`, without comments, docstrings, formatting and messages. Folders have no influence.

    Of a file that is not Python, every byte counts.

    Raises:
        BadInput: a file cannot be read or is not Python.
    """
    with _stored_facts():
        lines = sorted(f"{label(file)} {read_source(file).digest}" for file in files)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@cache
def is_own(file: Path) -> bool:
    """Whether a file is one of the package."""
    return file.is_relative_to(PACKAGE)


def label(file: Path) -> str:
    """The name of a file in a list: with its folders below the package, elsewhere with its own folder only."""
    if not is_own(file):  # most are, and to resolve one takes ten times as long as the rest
        file = file.resolve()
    return _own_label(file) if is_own(file) else str(Path(file.parent.name, file.name))


@cache
def _own_label(file: Path) -> str:
    return str(file.relative_to(PACKAGE.parent))


def find_state(file: Path) -> State | None:
    """The state of a file; None where there is none."""
    try:
        status = file.stat()
    except (OSError, ValueError):
        return None
    return (status.st_mtime_ns, status.st_size) if stat.S_ISREG(status.st_mode) else None


def read_source(file: Path, state: State | None = None) -> SourceFile:
    """The facts of `file`, which is read again only after a change.

    Args:
        state: its state, where it is known.

    Raises:
        BadInput: it cannot be read or is not Python.
    """
    try:
        if state is None:
            status = file.stat()
            state = status.st_mtime_ns, status.st_size
        return _parse_source(file, *state)
    except SyntaxError as error:
        raise BadInput(file, f"line {error.lineno}: {error.msg}; correct that line") from error
    except (OSError, ValueError) as error:
        raise BadInput(file, f"cannot be read ({error}); correct or restore it") from error


@cache
def _parse_source(file: Path, _changed: int, _size: int) -> SourceFile:
    """The facts of a file. Those of packages are stored for the next process, because parsing all takes a second."""
    content = file.read_bytes()
    if not is_own(file) and not any(map(file.is_relative_to, INSTALLED)):
        return _parse(file, content)
    # Relative imports give the place of a file a part in its facts.
    facts, key = _stored(), f"{label(file) if is_own(file) else file} {hashlib.sha256(content).hexdigest()}"
    if key not in facts:
        source = _parse(file, content)
        facts[key] = [source.digest, source.uses, source.exports, sorted(source.defines)]
        _unstored.add(key)
    return _from_json(*facts[key])


STORED = 1500  # files whose facts are stored: those of a few states of the package
_unstored: set[str] = set()  # keys of facts that are not written yet


@contextmanager
def _stored_facts() -> Iterator[None]:
    """A block after which new facts of files of the package are stored."""
    try:
        yield
    finally:
        if _unstored:
            _unstored.clear()
            stored.write(_store_name(), dict([*_stored().items()][-STORED:]))


@cache
def _stored() -> dict[str, Any]:
    """Facts by the place of a file in the package and a hash of its content; the newest are the last."""
    return stored.read(_store_name())


@cache
def _store_name() -> str:
    """The name of the stored facts: they are those of one version of Python and of the code that reads files."""
    readers = [Path(file).read_bytes() for file in (__file__, syntax.__file__)]
    return f"code-{hashlib.sha256(repr([sys.version, readers]).encode()).hexdigest()[:16]}"


def _from_json(digest: str, uses: list[Any], exports: dict[str, Any], defines: list[str]) -> SourceFile:
    references = {name: (module, tuple(names)) for name, (module, names) in exports.items()}
    return SourceFile(digest, tuple((module, tuple(names)) for module, names in uses), references, frozenset(defines))


def _parse(file: Path, content: bytes) -> SourceFile:
    if file.suffix != ".py":
        return SourceFile(hashlib.sha256(content).hexdigest()[:16], (), {}, frozenset())
    tree = ast.parse(content)
    exports: dict[str, Reference] = {}
    nodes = [*ast.walk(tree)]  # once: walking takes most of the time
    for node in nodes:
        exports |= dict(_bindings(node, file)) if isinstance(node, ast.Import | ast.ImportFrom) else {}
    uses = [use for node in _runtime_nodes(tree) for use in _uses(node, exports, file)]
    code = hashlib.sha256("\0".join(tree_tokens(tree)).encode("utf-8", "surrogatepass")).hexdigest()[:16]
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
            package = alias.name.split(".")[0]
            yield (alias.asname, (alias.name, ())) if alias.asname else (package, (package, ()))
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
    """What a node imports, or takes from an imported module by a dotted name."""
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
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _direct_imports(file: Path, walk: ImportWalk) -> tuple[Path, ...]:
    """The files that `file` imports itself, and outside of the package those of the packages it lies in."""
    inside, places = is_own(file), walk.places
    # A plug-in may import the files of its own folder by their bare names; a file of the package does not.
    own_folder = () if inside or any(file.parent == place.folder for place in places) else (Root(file.parent),)
    files = [path for use in walk.read(file).uses for path in walk.resolve(use, (*own_folder, *places))]
    above, source = file.parent / "__init__.py", file.with_suffix(".cpp")  # which a module builds
    files += [path for path in (source,) if walk.is_file(path)]
    return (*files, above) if not inside and walk.is_file(above) else tuple(files)


def _resolve_reference(
    module: str, attributes: tuple[str, ...], places: tuple[Root, ...], walk: ImportWalk, visited: frozenset[Reference]
) -> Iterator[Path]:
    """The files behind what is taken from a module; none for what lies outside of `places`."""
    file = _find_module(module, places)
    if file is None or (module, attributes) in visited:
        return
    if not attributes or file.name != "__init__.py":
        if walk.is_file(file) and not (file.name == "__init__.py" and is_own(file) and not attributes):
            yield file
        return
    content = walk.read(file) if walk.is_file(file) else SourceFile("", (), {}, frozenset())
    origin = content.exports.get(attributes[0], (module, (attributes[0],)))
    if origin != (module, (attributes[0],)) and attributes[0] not in content.defines:
        other_module, names = origin
        further = visited | {(module, attributes)}
        yield from _resolve_reference(other_module, (*names, *attributes[1:]), places, walk, further)
    elif _find_module(f"{module}.{attributes[0]}", places):
        yield from _resolve_reference(f"{module}.{attributes[0]}", attributes[1:], places, walk, visited)
    elif walk.is_file(file) and attributes[0] in content.defines:
        yield file


@cache
def _find_module(module: str, places: tuple[Root, ...]) -> Path | None:
    """The file of a module below one of `places`; of a package its __init__.py, even if it has none.

    Cached, because a process asks for each many times; modules do not move while it runs.
    """
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
