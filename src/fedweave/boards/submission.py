"""Contestants enter a board: one of a file or folder, or those that a copy of the board proposes."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedweave.boards.board import (
    BOARD,
    CONTESTANTS,
    LEFT_OUT,
    STARTERS,
    Board,
    check_name,
    describe,
    list_files,
    read,
    write_entries,
)
from fedweave.boards.judging import judge, run
from fedweave.comparison.comparison import Comparison
from fedweave.errors import BadInput


def submit(folder: Path | str, contestant: Path | str, progress: bool = True) -> Comparison | None:
    """Judge a contestant on a board, and enter it if its predictions can be scored.

    Args:
        folder: of the board.
        contestant: a script; a folder with one script or a contestant.yaml; or a copy of the board, as of a pull
            request, whose new contestants enter.

    Returns:
        the board with them; None where the rows are not here, so that they are entered and not judged.

    Raises:
        BadInput: a contestant failed, has the name of another one, or is none; the copy has another board.yaml, or
            changes a contestant. The board is as before.
    """
    board, given = read(folder), Path(contestant)
    if not given.exists():
        raise BadInput(f"{given}: is not there; name a script, a folder of a contestant, or a copy of the board")
    for place in _proposed(board, given) if (given / BOARD).is_file() else [given]:
        board = _enter(board, place, progress)
    return judge(board, progress) if board.file.is_file() else None


def _proposed(board: Board, copy: Path) -> list[Path]:
    """The folders of the contestants that a copy of the board has and the board has not.

    Raises:
        BadInput: the copy differs elsewhere too.
    """
    proposal = read(copy)
    if (copy / BOARD).read_bytes() != (board.folder / BOARD).read_bytes():
        raise BadInput(
            f"{copy / BOARD}: differs from that of the board; a proposal adds contestants and changes no terms"
        )
    if changed := [name for name, entry in board.entries.items() if proposal.entries.get(name) != entry]:
        raise BadInput(f"{copy}: changes the contestant {changed[0]!r}; give a changed one a name of its own")
    new = [name for name in proposal.entries if name not in board.entries]
    if not new:
        raise BadInput(f"{copy}: proposes no new contestant; add one with: fedweave submit {copy} mine.py")
    return [proposal.check(name) for name in new]


def _enter(board: Board, given: Path, progress: bool) -> Board:
    """The board with one more contestant, which has run."""
    name = given.stem if given.is_file() else given.resolve().name
    check_name(name, f"{given}")
    if name in board.entries:
        raise BadInput(f"{given}: the board has a contestant {name!r}; give this one a name of its own")
    with _copy(given, name) as folder:
        entry = describe(folder)
        listed = board.build(name, folder)
        if board.file.is_file():
            lost = [line for line in run(board, [listed], progress).lost if line.startswith(f"{name}: ")]
            if lost:
                raise BadInput(str(given), f"it cannot enter the board: {lost[0].removeprefix(f'{name}: ')}")
        target = board.folder / CONTESTANTS / name
        shutil.rmtree(target, ignore_errors=True)  # of an entry that was interrupted
        shutil.copytree(folder, target)
    write_entries(board, {**board.entries, name: entry})
    return read(board.folder)


@contextmanager
def _copy(given: Path, name: str) -> Iterator[Path]:
    """A copy of the files of a contestant, so that what runs is what enters."""
    with tempfile.TemporaryDirectory(prefix="fedweave-submit-") as temporary:
        folder = Path(temporary, name)
        if given.is_dir():
            list(list_files(given))  # refuses links
            shutil.copytree(given, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))
        elif given.suffix in STARTERS and not given.is_symlink():
            folder.mkdir()
            shutil.copy(given, folder / given.name)
        else:
            endings = ", ".join(STARTERS)
            raise BadInput(f"{given}: is no script ({endings}); name a folder with a contestant.yaml in its place")
        yield folder
