"""The values of the setting `graph`: controls that replace a learned collaboration graph."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from fedweave.errors import BadInput, choose

PLAIN = ("uniform", "self", "shuffled", "oracle")
STORED = {"given": "file", "replayed": "run"}
BLOCKS = ("tasks", "runs", "methods", "tune", "ablate")  # of params.yaml, which may contain the setting


class GraphSetting(NamedTuple):
    """The setting `graph` in parts: its kind, and the file or run after the colon."""

    kind: str
    source: str = ""


def parse(word: str, own_graphs: Collection[str], where: str) -> GraphSetting:
    """The parts of `word`; `own_graphs` are the graphs of the method itself, which are not controls.

    Raises:
        BadInput: an unknown word, or no file or run where one is needed.
    """
    if word in (*own_graphs, *PLAIN):
        return GraphSetting(word)
    kind, _, source = word.partition(":")
    forms = [*own_graphs, *PLAIN, *(f"{name}:<{source_kind}>" for name, source_kind in STORED.items())]
    if kind not in STORED:
        choose(word, forms, where)
    if not source:
        raise BadInput(where, f"{word!r} names no {STORED[kind]}; write {kind}:<{STORED[kind]}>")
    return GraphSetting(kind, source)


def is_control(word: str) -> bool:
    """Whether `word` names a control, and not a graph of the method itself."""
    kind, _, source = word.partition(":")
    return word in PLAIN or (kind in STORED and bool(source))


def stored_graphs(content: Mapping[str, Any]) -> set[str]:
    """The words in a params.yaml that name a file or a run from which a graph is read."""
    texts = {text for block in BLOCKS for text in _texts(content.get(block))}
    return {text for text in texts for kind, _, source in [text.partition(":")] if kind in STORED and source}


def _texts(value: object) -> Iterator[str]:
    """All texts inside of a block."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)
