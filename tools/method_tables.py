"""Writes the settings table into every page of docs/methods, from the fields of the methods' classes.

Run it after a change of a setting: `python -m tools.method_tables`. Text outside of the table's markers is
written by hand and stays.
"""

import json
import re
from pathlib import Path
from typing import Literal, get_args, get_origin

from fedweave.errors import BadInput
from fedweave.files import write_atomic
from fedweave.methods import METHODS
from fedweave.settings import Setting

PAGES = Path(__file__).resolve().parent.parent / "docs" / "methods"
TABLE = re.compile(r"(<!-- settings: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
HEADER = "| setting | default | values | search | meaning |\n|---|---|---|---|---|\n"
SERVER = """
Its server takes the mean, or a step of `train.server_optimizer`: [server optimisers](README.md#server-optimisers).
"""
KINDS = {int: "whole numbers", float: "numbers", bool: "`true`, `false`"}


def main() -> None:
    """Rewrite the pages whose table is not that of the code.

    Raises:
        BadInput: a method has no page, or its page no place for the table.
    """
    for name in METHODS:
        page = PAGES / f"{name}.md"
        text = page.read_text(encoding="utf-8") if page.is_file() else ""
        if (new := filled(text, name)) != text:
            write_atomic(page, new)


def filled(text: str, name: str) -> str:
    """The text of the page of the method `name` with the table of today, and what its server can do."""
    places = [place[2] for place in TABLE.finditer(text)]
    if places != [name]:
        marker = f"<!-- settings: {name} --> <!-- end -->"
        raise BadInput(f"docs/methods/{name}.md: {len(places)} tables of settings; write the page, with {marker} once")
    content = table(METHODS[name].settings()) + (SERVER if METHODS[name].server_steps else "")
    return TABLE.sub(lambda place: place[1] + content + place[3], text)


def table(settings: tuple[Setting, ...]) -> str:
    """The settings as Markdown, or a sentence if there are none."""
    return HEADER + "".join(map(_line, settings)) if settings else "No settings of its own.\n"


def _line(setting: Setting) -> str:
    """One row: name, default, which values it takes, where a search looks, meaning."""
    default = setting.default if isinstance(setting.default, str) else json.dumps(setting.default)
    if get_origin(setting.type) is Literal:
        values = ", ".join(f"`{value}`" for value in get_args(setting.type))
    else:
        values = ", ".join(filter(None, (KINDS.get(setting.type), setting.range)))
    meaning = setting.meaning.replace("|", "\\|")
    return f"| `{setting.name}` | `{default}` | {values} | {setting.space or '–'} | {meaning} |\n"


if __name__ == "__main__":
    main()
