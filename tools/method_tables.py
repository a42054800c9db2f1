"""Writes the settings tables into docs/settings.md, docs/own-data/options.md and docs/methods, from fields of classes.

Run it after a change of a setting: `python -m tools.method_tables`. Text outside of the table's markers is
written by hand and is kept.
"""

import json
from pathlib import Path
from types import UnionType
from typing import Literal, Union, get_args, get_origin

from fedweave.errors import BadInput
from fedweave.files.atomic import write_atomic
from fedweave.methods import METHODS
from fedweave.own_data.options import DataFields
from fedweave.settings import REQUIRED, Setting, describe
from fedweave.study.schema import EvaluateSpec, TrainSpec, TuneSpec
from tools.pages import fill, find_blocks, rewrite

PAGES = Path(__file__).resolve().parent.parent / "docs" / "methods"
# Tables of the blocks of a study, and of the options of one's own data.
BLOCKS = {"train": TrainSpec, "evaluate": EvaluateSpec, "tune": TuneSpec, "data": DataFields}
BLOCK_PAGES = [PAGES.parent / name for name in ("settings.md", "own-data/options.md")]
OPTIONAL = (Union, UnionType)  # of settings that may be null, the kind before None
HEADER = "| setting | default | values | search | meaning |\n|---|---|---|---|---|\n"
SERVER = """
Its server takes the mean, or a step of `train.server_optimizer`: [server optimisers](README.md#server-optimisers).
"""
KINDS = {int: "whole numbers", float: "numbers", bool: "`true`, `false`", list: "a list", dict: "a block"}


def main() -> None:
    """Rewrite the pages whose tables differ from the code. Every method needs a page with a place for the table."""
    for name in METHODS:
        page = PAGES / f"{name}.md"
        text = page.read_text(encoding="utf-8") if page.is_file() else ""
        if (new := fill_page(text, name)) != text:
            write_atomic(page, new)
    for page in BLOCK_PAGES:
        rewrite(page, settings=block_table)


def fill_page(text: str, name: str) -> str:
    """The text of the page of the method `name` with the current table, and a sentence about server optimisers."""
    places = find_blocks(text, "settings")
    if places != [name]:
        marker = f"<!-- settings: {name} --> <!-- end -->"
        raise BadInput(f"docs/methods/{name}.md: {len(places)} tables of settings; write the page, with {marker} once")
    content = table(METHODS[name].settings()) + (SERVER if METHODS[name].server_steps else "")
    return fill(text, settings=lambda method: content)


def block_table(block: str) -> str:
    """The settings of a block of a study as Markdown."""
    return table(describe(BLOCKS[block]))


def table(settings: tuple[Setting, ...]) -> str:
    """The settings as Markdown, or a sentence if there are none."""
    return HEADER + "".join(map(_line, settings)) if settings else "No settings of its own.\n"


def _line(setting: Setting) -> str:
    """One row: name, default, allowed values, search space, meaning."""
    default = setting.default if isinstance(setting.default, str) else json.dumps(setting.default, default=str)
    default_cell = "required" if setting.default is REQUIRED else f"`{default}`"
    kind = next((part for part in get_args(setting.type) if get_origin(setting.type) in OPTIONAL), setting.type)
    if get_origin(kind) is Literal:
        values = ", ".join(f"`{value}`" for value in get_args(kind))
    else:
        values = ", ".join(filter(None, (KINDS.get(get_origin(kind) or kind), setting.range)))
    meaning = setting.meaning.replace("|", "\\|")
    return f"| `{setting.name}` | {default_cell} | {values} | {setting.space or '–'} | {meaning} |\n"


if __name__ == "__main__":
    main()
