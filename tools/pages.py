"""Pages whose tables are made from files or from the code."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedweave.errors import BadInput
from fedweave.files.atomic import write_atomic


def rewrite(page: Path, fill: Callable[[str], str]) -> None:
    """Write a page anew, if `fill` makes another text of its own."""
    text = page.read_text(encoding="utf-8")
    if (new := fill(text)) != text:
        write_atomic(page, new)


def refresh(action: str, take: Callable[[], None], show: Callable[[], object]) -> None:
    """The command behind a page: `show` what is stored; with the action "take", first copy it from results.

    Raises:
        BadInput: another action.
    """
    if action not in ("", "take"):
        raise BadInput(f"{action!r} is unknown; write take, or nothing")
    if action:
        take()
    show()


def with_others(
    new: pd.DataFrame, path: Path, keys: Sequence[str], replaced: pd.DataFrame, **options: Any
) -> pd.DataFrame:
    """The rows of the table at `path` that differ in the columns `keys` from all rows of `replaced`, and then `new`.

    Args:
        options: of `pandas.read_csv`.
    """
    if not path.is_file():
        return new
    old, known = pd.read_csv(path, **options), set(zip(*(replaced[key] for key in keys), strict=True))
    is_other = [row not in known for row in zip(*(old[key] for key in keys), strict=True)]
    return pd.concat([old[is_other], new])


def store(rows: pd.DataFrame, path: Path, digits: int = 6) -> None:
    """Write a table behind a page, with so many digits."""
    write_atomic(path, rows.to_csv(index=False, lineterminator="\n", float_format=f"%.{digits}g"))


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table: the first line is its header; the first column stands left, the others right."""
    header, *rows = lines
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, ["---", *["--:"] * (len(header) - 1)], *rows))
