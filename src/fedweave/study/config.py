"""YAML files as plain dictionaries and typed records, with one-line errors: key, value and way out."""

import copy
import dataclasses
import math
import re
import types
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fedweave.errors import BadInput, choose, first_line, format_value, relocate
from fedweave.settings import describe

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
LARGEST_WHOLE = 2**31 - 1  # of a whole number without a bound of its own
LARGEST_REAL = 1e30  # of any other number: its square is still finite in float64, and it is in float32
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
    hints, settings = _hints(cls), {setting.name: setting for setting in describe(cls)}
    fields = {f.name: f for f in dataclasses.fields(cls) if f.name not in fixed}
    for name, value in block.items():
        if name not in fields:
            choose(str(name), fields, f"{key}.{name}: not a setting of {_block_name(key)}", words=OTHER_WORDS)
        check_value(value, hints[name], f"{key}.{name}", settings[name].maximum)
        settings[name].check_bounds(value, f"{key}.{name}")
    needed = [
        n for n, f in fields.items() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    missing = [n for n in needed if n not in block]
    if missing:
        raise BadInput(f"{key}.{missing[0]}", f"missing; it is a required setting of {_block_name(key)}")
    return cls(**{name: _coerce(value, hints[name]) for name, value in block.items()}, **fixed)


@cache
def _hints(cls: type) -> Mapping[str, Any]:
    """The types of a class's fields; cached, because Python evaluates their texts at every call."""
    return types.MappingProxyType(get_type_hints(cls))


def _block_name(key: str) -> str:
    """The name of the block with the address `key` in its file: the last word."""
    return re.split(r"[.:] ?", key)[-1] if re.search(r": |[.]\w+[.]", key) else key


def check_value(value: object, hint: Any, key: str, most: float | None = None) -> None:
    """Refuse `value` unless it has the annotated type; a message about a large number names `most`, its own bound.

    Raises:
        BadInput: naming `key`, the value and the type or the choices.
    """
    if get_origin(hint) is ClassVar:
        raise BadInput(key, "cannot be set; leave it out")
    if get_origin(hint) is Literal:
        _check_literal(value, get_args(hint), key)
        return
    if not _fits(value, hint):
        raise BadInput(key, f"{format_value(value)} is not {_describe_type(hint)}{_remedy(value, hint, key)}")
    _check_size(value, LARGEST_REAL if float in _types(hint) else LARGEST_WHOLE, key, most)


def _remedy(value: object, hint: Any, key: str) -> str:
    """What to write in place of the name of a model or a partition, or of a number in quotes; else empty."""
    if not isinstance(value, str):
        return ""
    if key.endswith((".model", ".partition")):
        return f"; write {key.rpartition('.')[2]}: {{name: {value}}}"
    try:
        number = float(value)
    except ValueError:
        return ""
    return "; leave the quotes out" if math.isfinite(number) and {int, float} & _types(hint) else ""


def check_numbers(value: object, key: str) -> None:
    """Refuse numbers that no setting can have: not finite, or too large for computations with them.

    Raises:
        BadInput: naming `key` and the value.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise BadInput(key, f"{value!r} is not a finite number")
    if isinstance(value, Mapping):
        for name, item in value.items():
            check_numbers(item, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for item in value:
            check_numbers(item, key)
    else:
        _check_size(value, LARGEST_REAL if isinstance(value, float) else LARGEST_WHOLE, key)


def _check_literal(value: object, options: tuple[Any, ...], key: str) -> None:
    if value == "compiled" and "kernel" in options:
        raise BadInput(key, "'compiled' is gone; use auto or kernel, which need no compilation for a model")
    is_option = isinstance(value, str | int | float | bool | None) and value in options
    if not is_option or isinstance(value, bool) != any(
        isinstance(option, bool) and option is value for option in options
    ):
        choose(str(value) if is_option else format_value(value).strip("'"), [str(option) for option in options], key)
        raise BadInput(key, f"{format_value(value)} has the wrong type; write it as text in quotes")


def _check_size(value: object, largest: float, key: str, most: float | None = None) -> None:
    """Refuse a number beyond `largest` in either direction, alone or in a list."""
    for item in value if isinstance(value, list | tuple) else (value,):
        if isinstance(item, int | float) and not isinstance(item, bool) and not -largest <= item <= largest:
            raise BadInput(
                key, f"{format_value(item)} is too large; it must be at most {largest if most is None else most:g}"
            )


def _types(hint: Any) -> set[Any]:
    """The plain types inside an annotation."""
    return {hint}.union(*map(_types, get_args(hint)))


def _fits(value: object, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if hint is float:
        # A whole number is finite. `isfinite` fails for one that is too large for a float.
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and (isinstance(value, int) or math.isfinite(value))
        )
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is Any:
        return True
    if origin in (list, tuple, Sequence):
        inner = get_args(hint)[0] if get_args(hint) else Any
        return isinstance(value, list | tuple) and all(_fits(item, inner) for item in value)
    return isinstance(value, origin or hint)


def _describe_type(hint: Any) -> str:
    names = {
        int: "a whole number",
        float: "a finite number",
        bool: "true or false",
        str: "text",
        dict: "a mapping",
        list: "a list",
        tuple: "a list",
        type(None): "null",
    }
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe_type(option) for option in get_args(hint))
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if origin in (list, tuple, Sequence) and get_args(hint):
        return f"a list, each entry {_describe_type(get_args(hint)[0])}"
    return names.get(origin or hint, str(hint))


def _coerce(value: object, hint: Any) -> object:
    if hint is float and isinstance(value, int):
        return float(value)
    return tuple(value) if get_origin(hint) is tuple and isinstance(value, list) else value


def example() -> str:
    """A study of this folder that a message can name: that of a checkout or of a new project; NAME if it has neither.

    `launching.reproduce` has the same rule.
    """
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
        raise BadInput(
            f"{path}",
            f"expected a mapping at the top, found {type(loaded).__name__}; see: fedweave study show {example()}",
        )
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
        raise BadInput(where, f"{format_value(value)} is a {type(value).__name__}; write it in quotes if it is a text")
