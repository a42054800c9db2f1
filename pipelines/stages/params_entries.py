"""What a stage has read of params.yaml: DVC records the entries that stand there when a stage has ended."""

from collections.abc import Callable, Iterable
from typing import Any

from fedweave.errors import BadInput
from fedweave.study.config import load_yaml
from fedweave.study.spec import PARAMS

CHANGED = f"{PARAMS} has changed while this stage ran; run it again"


def create_check() -> Callable[..., None]:
    """Note params.yaml as it is; what this returns takes names of entries, such as "runs", KEY, and refuses another
    value of one.
    """
    before = _text()

    def check(*names: tuple[str, ...]) -> None:
        if (now := _text()) != before and _entries(now, names) != _entries(before, names):
            raise BadInput(CHANGED)

    return check


def run_entries(task: str, method: str, key: str) -> tuple[tuple[str, ...], ...]:
    """The entries that say what a run computes."""
    return ("study",), ("seeds",), ("tasks", task), ("methods", method), ("runs", key)


def _text() -> str:
    return PARAMS.read_text(encoding="utf-8") if PARAMS.is_file() else ""


def _entries(text: str, names: Iterable[tuple[str, ...]]) -> list[Any]:
    """The values of entries; None for one that is not there, or in a file that is no YAML."""
    try:
        content = load_yaml(text)
    except BadInput:
        content = None
    return [_value(content, name) for name in names]


def _value(content: Any, name: tuple[str, ...]) -> Any:
    for word in name:
        content = content.get(word) if isinstance(content, dict) else None
    return content
