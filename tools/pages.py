"""Pages whose tables are made from files or from the code."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedweave.errors import BadInput
from fedweave.files.atomic import read_table, write_atomic
from fedweave.results import AS_WRITTEN


def rewrite(page: Path, **tables: Callable[..., str]) -> None:
    """Write a page with current tables in its blocks, see `fill`."""
    write_atomic(page, fill(page.read_text(encoding="utf-8"), **tables))


def fill(text: str, **tables: Callable[..., str]) -> str:
    """The text of a page with current tables in its blocks, from `<!-- kind: arguments -->` to `<!-- end -->`.

    Args:
        tables: kind of block -> what makes its table of the arguments, which are separated by spaces.
    """

    def fill_block(block: re.Match[str]) -> str:
        return block["mark"] + tables[block["kind"]](*block["arguments"].split()) + block["end"]

    return _pattern(tables).sub(fill_block, text)


def find_blocks(text: str, kind: str) -> list[str]:
    """The arguments of each block of a kind on a page."""
    return [block["arguments"] for block in _pattern([kind]).finditer(text)]


def _pattern(kinds: Iterable[str]) -> re.Pattern[str]:
    mark = rf"<!-- (?P<kind>{'|'.join(kinds)}): (?P<arguments>[^\n]*?) -->\n"
    return re.compile(rf"(?P<mark>{mark}).*?(?P<end><!-- end -->)", re.DOTALL)


def refresh(action: str, take: Callable[[], None], show: Callable[[], object]) -> None:
    """The command behind a page: `show` what is stored; with the action "take", first copy it from results."""
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


def read_stored(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """A table behind a page, which must be there and have `columns`."""
    return read_table(path, columns, "git restore brings it back", **AS_WRITTEN)


def store(rows: pd.DataFrame, path: Path, digits: int = 6) -> None:
    """Write a table behind a page, with so many digits."""
    write_atomic(path, rows.to_csv(index=False, lineterminator="\n", float_format=f"%.{digits}g"))


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table: the first line is its header; the first column stands left, the others right."""
    header, *rows = lines
    return join_cells([header, ["---", *["--:"] * (len(header) - 1)], *rows])


def join_cells(lines: Iterable[Iterable[str]]) -> str:
    """Lines of a table whose second one says how the columns stand."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
