"""Methods, data sets, models and partitions of users: files and folders that a study uses, and installed packages.

A plug-in is a Python file, or a folder of them, whose definitions are decorated with `@fw.method("name")`,
`@fw.dataset`, `@fw.model` or `@fw.partition`. It is imported by its own name, from its folder.
"""

import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from fedweave.errors import BadInput, format_value
from fedweave.study.code import Root

GROUP = "fedweave.plugins"  # of entry points, by which an installed package says that it is a plug-in
OPTION = "--uses"  # of the command line
OWN = "fedweave"  # the name of this package itself, which dvc.yaml uses
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")

# File or folder -> (whether it belongs to an installed package, names of its modules)
_loaded: dict[Path, tuple[bool, tuple[str, ...]]] = {}


def roots() -> tuple[Root, ...]:
    """The folders that contain the plug-ins of this process."""
    return tuple(
        Root(place.parent, frozenset({place.stem}) if packaged else frozenset())
        for place, (packaged, _) in _loaded.items()
    )


def list_loaded() -> dict[Path, tuple[str, ...]]:
    """The plug-ins of this process: file or folder -> names of its modules, in the order of their import."""
    return {place: names for place, (_, names) in _loaded.items()}


def load(uses: Iterable[Path | str] = ()) -> None:
    """Import the plug-ins of installed packages and those at the paths `uses`. Modules are imported once only.

    Raises:
        BadInput: a path does not exist, a plug-in cannot be imported or has the name of another module, or what it
            registers is wrong.
    """
    packages = find_installed()
    for name, place in packages.items():
        names = _module_names(place, name)
        _import(names, place, f"uninstall the package of plug-in {name!r}")
        _loaded[place] = True, tuple(names)
    for path in uses:
        place = Path(path).resolve()
        if place not in packages.values():
            _load_path(place, str(path))


def load_option(paths: Sequence[str] | None) -> None:
    """As `load`, of the paths that a user gave by `OPTION`, relative to the current folder."""
    load(resolve_paths(paths or [], OPTION).values())


def load_if_missing(name: object, table: Mapping[str, object]) -> None:
    """Import the plug-ins of installed packages, as `load` does, if `table` has no `name`."""
    if name not in table:
        load()


def find_installed() -> dict[str, Path]:
    """Plug-ins of installed packages: name of the module at the top -> file, or folder of a package."""
    return dict(_find_installed(tuple((place, _changed(Path(place))) for place in sys.path)))


def _changed(folder: Path) -> int:
    """When an entry of a folder has changed [ns], as an installation does; 0 where there is no such folder."""
    try:
        return folder.stat().st_mtime_ns
    except (OSError, ValueError):
        return 0


@cache
def _find_installed(_places: tuple[tuple[str, int], ...]) -> dict[str, Path]:
    """See `find_installed`. It reads a file of every installed package, so once for one state of the search path."""
    packages = {}
    for name in sorted({entry.module.partition(".")[0] for entry in entry_points(group=GROUP)}):
        spec = find_spec(name)
        if spec is not None and spec.origin:
            origin = Path(spec.origin).resolve()
            packages[name] = origin.parent if origin.name == "__init__.py" else origin
    return packages


def resolve_paths(uses: object, where: str, folder: Path = Path()) -> dict[str, str]:
    """The block `uses` of a study as name -> path: relative to the current folder if it lies below, else absolute.

    Args:
        uses: a list of paths, relative to `folder`, or a mapping of names to paths.
        where: the file with the block, for messages.

    Raises:
        BadInput: `uses` is neither, a path does not exist, or two plug-ins have one name.
    """
    check_names(uses, where)
    entries = list(uses.values()) if isinstance(uses, Mapping) else uses
    if not isinstance(entries, list | tuple) or not all(
        isinstance(path, str) and path and "\0" not in path for path in entries
    ):
        raise BadInput(_key(where), f"{format_value(uses)} is not a list of paths; for example [mybench/, other.py]")
    origins: dict[str, str] = {}
    keys = list(uses) if isinstance(uses, Mapping) else [None] * len(entries)
    for key, path in zip(keys, entries, strict=True):
        place = (folder / path).resolve()
        _check_path(place, path, where)
        current = Path.cwd()
        name = place.stem if place.is_file() else place.name
        if key not in (None, name):
            raise BadInput(f"{_key(where)}.{key}", f"{path} is imported as {name!r}; write {name}: {path}")
        text = str(place.relative_to(current)) if place.is_relative_to(current) else str(place)
        if origins.setdefault(name, text) != text:
            raise BadInput(_key(where), f"{origins[name]} and {text} have one name; rename one of them")
    return origins


def check_names(uses: object, where: str) -> None:
    """Refuse names of plug-ins that cannot be imported, as DVC makes paths from the names."""
    for name in uses if isinstance(uses, Mapping) else ():
        if not isinstance(name, str) or not WORD.fullmatch(name):
            raise BadInput(
                _key(where), f"{format_value(name)} is not a name of a plug-in; write a list of paths instead"
            )


def _key(where: str) -> str:
    """What a message calls the list of plug-ins: the option --uses, or the block of a file."""
    return where if where == OPTION else f"{where}: uses"


def _check_path(place: Path, text: str, where: str) -> None:
    """Refuse a path that does not exist, has no Python file, or cannot be imported by its name."""
    if not place.exists():
        base = "the current folder" if where == OPTION else "the file that names them"
        raise BadInput(f"{_key(where)}: {text}", f"not found ({place}); paths are relative to {base}")
    python = place.suffix == ".py" if place.is_file() else any(place.glob("*.py"))
    if not python:
        raise BadInput(
            f"{_key(where)}: {text}", "is neither a Python file nor a folder with one; for example mybench/ or own.py"
        )
    name = place.stem if place.is_file() else place.name
    if not WORD.fullmatch(name) or name in sys.stdlib_module_names or name == OWN:
        raise BadInput(
            f"{_key(where)}: {text}", f"{name!r} cannot be imported by that name; rename it, such as my_{name}"
        )


def _load_path(place: Path, text: str) -> None:
    _check_path(place, text, "plug-in")
    if str(place.parent) not in sys.path:
        sys.path.append(str(place.parent))  # also for processes that this one starts
    importlib.invalidate_caches()
    names = _module_names(place, place.stem if place.is_file() else place.name)
    _import(names, place, "take it out of uses")
    _loaded[place] = False, tuple(names)


def _module_names(place: Path, name: str) -> list[str]:
    """The names of the modules of a plug-in: of a folder its files, the package itself first."""
    if place.is_file():
        return [name]
    files = sorted(file.stem for file in place.glob("*.py") if WORD.fullmatch(file.stem))
    return [name, *(f"{name}.{stem}" for stem in files if not stem.startswith("__"))]


def _import(names: list[str], place: Path, way: str) -> None:
    """Import modules of the plug-in at `place`. A line names the file, the line and the error of one that fails."""
    for name in names:
        try:
            module = importlib.import_module(name)
        except (Exception, SystemExit) as error:
            where, reason = _describe_error(error, place)
            raise BadInput(f"plug-in {where}: {reason}; correct it, or {way}") from error
        _check_origin(module, name, place)


def _check_origin(module: ModuleType, name: str, place: Path) -> None:
    origins = [Path(file) for file in (getattr(module, "__file__", None), *getattr(module, "__path__", ())) if file]
    if not any(origin.resolve() == place or place in origin.resolve().parents for origin in origins):
        raise BadInput(f"plug-in {place}: {name!r} is the name of another module ({origins[0]}); rename yours")


def _describe_error(error: BaseException, place: Path) -> tuple[str, str]:
    """(file and line of the plug-in, the error)."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shorten(error.filename)}, line {error.lineno}", f"SyntaxError: {error.msg}"
    folder = place if place.is_dir() else place.parent
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(folder)
    ]
    where = f"{_shorten(frames[-1].filename)}, line {frames[-1].lineno}" if frames else _shorten(str(place))
    if isinstance(error, SystemExit):
        return (
            where,
            f"calls sys.exit({'' if error.code is None else format_value(error.code)}), which ends every program",
        )
    return where, str(error) if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"


def _shorten(file: str) -> str:
    return os.path.relpath(file) if Path(file).is_relative_to(Path.cwd()) else file
