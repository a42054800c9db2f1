"""A check that params.yaml did not change while a stage ran: DVC records the entries as they are at the stage's end."""

from collections.abc import Callable, Iterable
from typing import Any

from fedweave.errors import BadInput
from fedweave.study.config import load_yaml
from fedweave.study.spec import PARAMS

CHANGED = f"{PARAMS} has changed while this stage ran; run it again"


def create_check() -> Callable[..., None]:
    """Read params.yaml now; the returned function compares entries with it at the end of a stage.

    The function takes names of entries, such as ("runs", KEY), and raises `BadInput` if one has another value.
    """
    before = _text()

    def check(*names: tuple[str, ...]) -> None:
        if (text := _text()) != before and _entries(text, names) != _entries(before, names):
            raise BadInput(CHANGED)

    return check


def run_entries(task: str, method: str, key: str) -> tuple[tuple[str, ...], ...]:
    """The names of the entries that decide what a run computes."""
    return ("study",), ("seeds",), ("tasks", task), ("methods", method), ("runs", key)


def _text() -> str:
    return PARAMS.read_text(encoding="utf-8") if PARAMS.is_file() else ""


def _entries(text: str, names: Iterable[tuple[str, ...]]) -> list[Any]:
    """The values of entries; None for a missing one, and for all if the file is not YAML."""
    try:
        content = load_yaml(text)
    except BadInput:
        content = None
    return [_value(content, name) for name in names]


def _value(content: Any, name: tuple[str, ...]) -> Any:
    for word in name:
        content = content.get(word) if isinstance(content, dict) else None
    return content
