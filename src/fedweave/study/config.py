"""YAML files as plain dictionaries and typed records, with one-line errors: key, value and way out."""

import copy
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

from fedweave.errors import BadInput, choose, first_line, format_value, relocate
from fedweave.settings import REQUIRED, describe

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
OTHER_WORDS = {  # of PFLlib, FL-bench, Flower and others -> the setting
    "join_ratio": "participation",
    "fraction_fit": "participation",
    "fraction_train": "participation",
    "global_epoch": "rounds",
    "global_rounds": "rounds",
    "num_rounds": "rounds",
    "num_server_rounds": "rounds",
    "local_epoch": "epochs",
    "local_epochs": "epochs",
    "learning_rate": "lr",
    "local_learning_rate": "lr",
}
LONGEST_PROBLEM = 200  # characters of a message of the parser
MOST_SEEDS = 1000


def construct(cls: type[T], block: object, key: str, **fixed: object) -> T:
    """An instance of dataclass `cls` from the mapping `block`; `fixed` fields are set by the caller, not by users.

    The fields' types and bounds are those that `fedweave.settings.describe` reads.

    Raises:
        BadInput: for an unknown, missing, ill-typed or out-of-range entry, naming it as `key.field`.
    """
    if not isinstance(block, Mapping):
        raise BadInput(key, f"{format_value(block)} is not a mapping of settings")
    settings = {setting.name: setting for setting in describe(cls) if setting.name not in fixed}
    for name, value in block.items():
        if name not in settings:
            choose(str(name), settings, f"{key}.{name}: not a setting of {_block_name(key)}", words=OTHER_WORDS)
        settings[name].check(value, f"{key}.{name}")
    missing = [name for name, setting in settings.items() if setting.default is REQUIRED and name not in block]
    if missing:
        raise BadInput(f"{key}.{missing[0]}", f"missing; it is a required setting of {_block_name(key)}")
    return cls(**{name: _coerce(value, settings[name].type) for name, value in block.items()}, **fixed)


def _block_name(key: str) -> str:
    """The name of the block with the address `key` in its file: the last word."""
    return re.split(r"[.:] ?", key)[-1] if re.search(r": |[.]\w+[.]", key) else key


def _coerce(value: object, hint: Any) -> object:
    if hint is float and isinstance(value, int):
        return float(value)
    return tuple(value) if get_origin(hint) is tuple and isinstance(value, list) else value


def example() -> str:
    """A study of this folder that messages can name: that of a checkout or of a new project, or NAME if it has none."""
    return next((name for name in ("quick", "first") if Path("studies", f"{name}.yaml").is_file()), "NAME")


def read_yaml(path: Path, empty: dict[str, Any] | None = None) -> dict[str, Any]:
    """A YAML mapping; `empty`, if given, is the value of a file without content.

    Raises:
        BadInput: for a missing, unreadable or malformed file, or one that names a key twice.
    """
    if not path.is_file():
        raise BadInput(
            path, f"not found; run from the project folder, or write it with: fedweave study use {example()}"
        )
    try:
        with relocate({"": f"{path}: "}):
            loaded = load_yaml(path.read_text(encoding="utf-8"))
    except BadInput:
        raise
    except (OSError, ValueError) as error:
        raise BadInput(path, f"not YAML: {error}; correct that file") from error
    if loaded is None and empty is not None:
        return empty
    if not isinstance(loaded, dict):
        raise BadInput(path, f"its content is not a mapping of keys to values; see: fedweave study show {example()}")
    return loaded


def load_yaml(text: str) -> Any:
    """Plain data of a YAML 1.2 text, which is the dialect of DVC: `010` is 10, `yes` and `1:30` are texts.

    Raises:
        BadInput: it is not YAML, names a key twice, or has other values than texts, numbers, true,
            false, null, lists and mappings.
    """
    return copy.deepcopy(_parse_yaml(text))


@lru_cache(maxsize=64)  # studies share their base, and build on one another
def _parse_yaml(text: str) -> Any:
    from ruamel.yaml import YAML

    try:
        loaded = YAML(typ="safe").load(text)
        _check_plain(loaded, "")
    except BadInput:
        raise
    except Exception as error:  # also other errors than YAMLError: numbers and dates that Python refuses
        raise BadInput(_describe_error(error)) from error
    return loaded


def _describe_error(error: Exception) -> str:
    """The error of the parser, in one line."""
    mark = getattr(error, "problem_mark", None)
    place = f", line {mark.line + 1}" if mark else ""
    problem = first_line(getattr(error, "problem", None) or error)
    if duplicate := re.match(r"found duplicate key (.*) with value", problem):
        return f"not YAML{place}: the key {duplicate[1]} occurs twice in its mapping; remove or rename one"
    return f"not YAML{place}: {problem[:LONGEST_PROBLEM]}; correct that line"


def _check_plain(value: Any, where: str) -> None:
    """Refuse values that are not data of JSON, such as dates; `where` is the key of `value`."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            _check_plain(item, f"{where}.{key}".removeprefix("."))
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise BadInput(where, f"{value} is a {type(value).__name__}; write it in quotes if it is a text")
