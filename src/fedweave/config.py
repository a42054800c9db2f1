"""YAML files as plain dictionaries and these as typed records, with one-line errors that name the key, the value and the way out."""

import dataclasses
import math
import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fedweave.errors import BadInput, choose
from fedweave.settings import describe

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
# A number with an exponent, as everybody and DVC write it; YAML 1.1 asks for a point and a sign, and takes 1e-3 for a text.
EXPONENT = ("tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789"))


def construct(cls: type[T], block: object, key: str, **given: object) -> T:
    """An instance of dataclass `cls` from the mapping `block`; `given` fields are set by the caller and not by users.

    The fields' types and bounds are those that `fedweave.settings.describe` reads.

    Raises:
        BadInput: for an unknown, missing, ill-typed or out-of-range entry, naming it as `key.field`.
    """
    if not isinstance(block, Mapping):
        raise BadInput(f"{key}: {block!r} is not a mapping of settings")
    hints, settings = get_type_hints(cls), {setting.name: setting for setting in describe(cls)}
    fields = {f.name: f for f in dataclasses.fields(cls) if f.name not in given}
    for name, value in block.items():
        if name not in fields:
            choose(str(name), fields, f"{key}.{name}: not a setting of {cls.__name__}")
        check_value(value, hints[name], f"{key}.{name}")
        settings[name].check_bounds(value, f"{key}.{name}")
        check_bounds(value, getattr(cls, "bounds", {}).get(name), f"{key}.{name}")
    needed = [n for n, f in fields.items() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    missing = [n for n in needed if n not in block]
    if missing:
        raise BadInput(f"{key}.{missing[0]}: missing; it is a required setting of {cls.__name__}")
    return cls(**{name: _coerced(value, hints[name]) for name, value in block.items()}, **given)


def check_value(value: object, hint: Any, key: str) -> None:
    """Refuse `value` unless it has the annotated type.

    Raises:
        BadInput: naming `key`, the value and the type or the choices.
    """
    if get_origin(hint) is ClassVar:
        raise BadInput(f"{key}: cannot be set")
    if get_origin(hint) is Literal:
        if value not in get_args(hint) or isinstance(value, bool) != any(isinstance(c, bool) and c is value for c in get_args(hint)):
            choose(str(value), [str(c) for c in get_args(hint)], key)
            raise BadInput(f"{key}: {value!r} has the wrong type; write it as text in quotes")
        return
    if not _fits(value, hint):
        raise BadInput(f"{key}: {value!r} is not {_named(hint)}")


def check_bounds(value: object, bounds: tuple[float | None, float | None] | None, key: str) -> None:
    """Refuse a number outside `bounds`.

    Raises:
        BadInput: naming `key`, the value and the range.
    """
    if bounds is None or not isinstance(value, int | float) or isinstance(value, bool):
        return
    low, high = bounds
    if (low is not None and value < low) or (high is not None and value > high):
        span = f"at least {low}" if high is None else f"at most {high}" if low is None else f"between {low} and {high}"
        raise BadInput(f"{key}: {value!r} is out of range; it must be {span}")


def _fits(value: object, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is Any:
        return True
    if origin in (list, tuple, Sequence):
        inner = get_args(hint)[0] if get_args(hint) else Any
        return isinstance(value, list | tuple) and all(_fits(item, inner) for item in value)
    return isinstance(value, origin or hint)


def _named(hint: Any) -> str:
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
        return " or ".join(_named(option) for option in get_args(hint))
    if origin in (list, tuple, Sequence) and get_args(hint):
        return f"a list, each entry {_named(get_args(hint)[0])}"
    return names.get(origin or hint, str(hint))


def _coerced(value: object, hint: Any) -> object:
    if hint is float and isinstance(value, int):
        return float(value)
    return tuple(value) if get_origin(hint) is tuple and isinstance(value, list) else value


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping.

    Raises:
        BadInput: for a missing, unreadable or malformed file, or one that names a key twice.
    """
    if not path.is_file():
        raise BadInput(f"{path}: not found; run from the project folder, or write it with: fedweave study use quick")
    try:
        loaded = load_yaml(path.read_text(encoding="utf-8"))
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    except Exception as error:  # beside YAMLError: numbers, dates and depths that Python refuses, a file one may not read
        mark = getattr(error, "problem_mark", None)
        problem = (str(getattr(error, "problem", None) or error).splitlines() or [type(error).__name__])[0]
        raise BadInput(f"{path}: not YAML{f', line {mark.line + 1}' if mark else ''}: {problem}; mend that line") from error
    if not isinstance(loaded, dict):
        raise BadInput(f"{path}: expected a mapping at the top, found {type(loaded).__name__}; see: fedweave study show quick")
    return loaded


def load_yaml(text: str) -> Any:
    """Plain data of a YAML text.

    Raises:
        BadInput: a key stands twice in a mapping.
        YAMLError: it is no YAML; other exceptions for numbers, dates and depths that Python refuses.
    """
    import yaml

    class Strict(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            seen: set[str] = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"):
                if key.value in seen:
                    raise BadInput(f"line {key.start_mark.line + 1}: {key.value!r} stands twice in its mapping; drop or rename one")
                seen.add(key.value)
            return node

    Strict.add_implicit_resolver(*EXPONENT)
    return yaml.load(text, Strict)
