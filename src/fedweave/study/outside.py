"""Contestants of a study: programs that stand among the methods, as `methods.NAME.contestant` declares them."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from fedweave.errors import BadInput, format_value

KEY = "contestant"  # of a method's block
MAKER = "fedweave.contestants.declared"  # it is above this layer, and imported by its name as a plug-in is


def split(methods: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(name -> declaration of a contestant, the blocks of settings without these declarations)."""
    blocks = {name: dict(block) if isinstance(block, Mapping) else block for name, block in methods.items()}
    declared = {name: block.pop(KEY) for name, block in blocks.items() if isinstance(block, dict) and KEY in block}
    return declared, blocks


def enter(declared: Mapping[str, Any], where: str) -> None:
    """List contestants among the methods; a wrong declaration, or one with the name of a method, is refused."""
    for name, block in declared.items():
        place = f"{where}: methods.{name}.{KEY}"
        if not isinstance(block, Mapping):
            raise BadInput(place, f"{format_value(block)} is not a mapping; write {{command: python mine.py}}")
        import_module(MAKER).declare(name, block, place)
