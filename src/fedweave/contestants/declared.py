"""Contestants that a study declares: the block `methods.NAME.contestant` of params.yaml."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedweave.contestants import program
from fedweave.contestants.entry import enter, find_entry
from fedweave.errors import BadInput, choose, relocate
from fedweave.settings import check_type, describe


def declare(name: str, block: Mapping[str, Any], where: str) -> None:
    """List the contestant `name` among the methods.

    Args:
        block: arguments of `fedweave.contestants.program`; paths are relative to the current folder.

    Raises:
        BadInput: at `where`, which stands for the block.
    """
    settings = {setting.name: setting for setting in describe(program) if setting.name != "name"}
    for word, value in block.items():
        if choose(str(word), ["command", *settings], f"{where}.{word}") != "command":
            settings[word].check(value, f"{where}.{word}")
    if "command" not in block:
        raise BadInput(f"{where}.command", "missing; write how the program is called, such as python mine.py")
    check_type(block["command"], str, f"{where}.command")
    with relocate({"contestants.program": where, f"contestant {name}": where}):
        enter(program(**block, name=name), where)


def files_of(methods: Mapping[str, Any]) -> list[str]:
    """Files and folders that the contestants among `methods` depend on; relative to the current folder if below it."""
    entries = filter(None, map(find_entry, methods))
    here = Path.cwd()
    paths = {path for entry in entries for path in entry.runner.files}
    return sorted(str(path.relative_to(here)) if path.is_relative_to(here) else str(path) for path in paths)
