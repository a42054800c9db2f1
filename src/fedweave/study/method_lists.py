"""The list of methods of a task in a study file: what may stand in it."""

from collections.abc import Mapping
from typing import Any

from fedweave.errors import BadInput, choose, format_value

WAY = "fedavg, or such as {fedavg-slow: {method: fedavg, set: {train.lr: 0.01}}}"  # an entry of a task's methods
WORDS = ("method", "set")  # of a variant


def check_entries(methods: object, where: str) -> None:
    """Refuse a value that is not a list of methods and variants.

    Raises:
        BadInput: naming the entry and what to write.
    """
    if not isinstance(methods, list):
        raise BadInput(where, "missing, or not a list; such as [fedavg, fedaghn]")
    for entry in methods:
        _check_entry(entry, where)


def _check_entry(entry: object, where: str) -> None:
    """Refuse an entry that is neither the name of a method nor one variant: {name: {method: ..., set: {...}}}."""
    if isinstance(entry, Mapping) and len(entry) != 1:
        raise BadInput(where, f"{format_value(entry)} must be one variant; start each with a dash")
    name, item = next(iter(entry.items())) if isinstance(entry, Mapping) else (entry, {})
    if not isinstance(name, str) or not name or not isinstance(item, Mapping):
        raise BadInput(where, f"{format_value(entry)} is neither a name nor a variant; write {WAY}")
    for word in item:
        _check_key(word, item, name, f"{where}: {format_value(entry)}")
    if not isinstance(item.get("method", name), str) or not isinstance(item.get("set", {}), Mapping):
        raise BadInput(f"{where}: {format_value(entry)}", f"method is a name and set a mapping; write {WAY}")


def _check_key(word: Any, item: Mapping[Any, Any], name: str, where: str) -> None:
    """Refuse an unknown key of a variant; a setting of its method belongs below `set`."""
    if word in WORDS:
        return
    from fedweave.methods import METHODS  # imported here, because it loads torch, which a list of studies does not need

    method = METHODS.get(str(item.get("method", name)))
    settings = {"train", "evaluate", *(setting.name for setting in (method.settings() if method else ()))}
    if str(word).partition(".")[0] in settings:
        raise BadInput(where, f"{word!r} is a setting; write it under set: {{{word}: {item[word]}}}")
    choose(str(word), WORDS, where)
