"""Pages whose tables are made from files or from the code."""

from collections.abc import Callable
from pathlib import Path

from fedweave.files.atomic import write_atomic


def rewrite(page: Path, fill: Callable[[str], str]) -> None:
    """Write a page anew, if `fill` makes another text of its own."""
    text = page.read_text(encoding="utf-8")
    if (new := fill(text)) != text:
        write_atomic(page, new)
