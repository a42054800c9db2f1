"""Copies of folders of results, which take the place of earlier results in one step."""

import shutil
import tempfile
from functools import partial
from pathlib import Path

from fedweave.errors import BadInput
from fedweave.files.atomic import check_writable, user_errors
from fedweave.results.runs import MARGINS
from fedweave.results.tables import FILES
from fedweave.study.spec import STATE

# What fedweave writes into a folder of results. Other entries are the user's, and a later copy keeps them.
FOLDERS = ("runs", "partitions", "tuned", "refit", "recommendation", "curves", "metrics", "ablations", "code")
RESULTS = (*FOLDERS, STATE.name, MARGINS, "report*.html", "leaderboard.txt", *(f"{n}.csv" for n in FILES.values()))


def copy(source: Path, target: Path, part: str) -> None:
    """Copy results to `target` and replace its earlier results in one step, so that they are never mixed.

    Args:
        part: a folder that marks `target` as results of this kind.

    Raises:
        BadInput: `target` has other content, or is `source` itself, or it cannot be written.
    """
    source, destination = source.resolve(), target.resolve()
    with user_errors():
        check_writable(destination.parent)
        if destination == source:
            return
        if source.is_relative_to(destination):
            raise BadInput(f"save: {target} holds the results that are to be copied; choose an empty folder")
        others = destination.exists() and {entry.name for entry in destination.iterdir()} - {STATE.name}
        if others and not (destination / part).is_dir():
            raise BadInput(f"save: {target} is not an empty folder; choose another one")
        with tempfile.TemporaryDirectory(prefix=f".{destination.name}-", dir=destination.parent) as staging:
            new = Path(staging, "new")
            if destination.exists():  # the user's own files beside earlier results
                shutil.copytree(destination, new, symlinks=True, ignore=partial(_find_replaced, destination, source))
            temporary = shutil.ignore_patterns(STATE.name, Path(staging).name)
            shutil.copytree(source, new, ignore=temporary, dirs_exist_ok=True)
            _swap(new, destination, Path(staging, "old"))


def _find_replaced(destination: Path, source: Path, folder: str, names: list[str]) -> list[str]:
    """The entries of `folder` that are earlier results or in `source` too, if it is the destination itself."""
    replaced = [(source / n).exists() or any(Path(n).match(pattern) for pattern in RESULTS) for n in names]
    return [n for n, goes in zip(names, replaced, strict=True) if goes and Path(folder) == destination]


def _swap(new: Path, destination: Path, old: Path) -> None:
    """Put `new` in the place of what is at `destination`, which moves to `old`, or back if that fails."""
    if destination.exists():
        destination.replace(old)
    try:
        new.replace(destination)
    except BaseException:
        if old.exists():
            old.replace(destination)
        raise
