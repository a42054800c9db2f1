"""Settings of methods, models and blocks: each is described once, at its field.

    lam: Annotated[float, AtLeast(0), LogSpace(0.01, 10), "λ, weight of the proximal term"] = 1.0

`describe` reads the type, the bounds, the default, the search space and the meaning. `Setting.check` refuses a value
that does not fit them, wherever it comes from. The searches, params.yaml, the command line and the tables of the
documentation are made from them, too.
"""

import dataclasses
import inspect
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, cast, get_args, get_origin, get_type_hints

from fedweave.errors import BadInput, choose, format_value

REQUIRED = dataclasses.MISSING
LARGEST_WHOLE = 2**31 - 1  # of a whole number without a bound of its own
LARGEST_REAL = 1e30  # of any other number: its square is still finite in float64, and it is in float32


def _format_number(number: float) -> str:
    """5.0 as 5, and a whole number with all its digits."""
    return f"{number:.0f}" if float(number).is_integer() else f"{number:g}"


class Bound(ABC):
    """A condition on a number (or a word, see `Words`); its text completes "it must be"."""

    @abstractmethod
    def admits(self, value: Any) -> bool:
        """Whether `value` fulfils it."""


@dataclass(frozen=True)
class OneSidedBound(Bound):
    """A bound on one side."""

    limit: float

    words: ClassVar[str]
    compare: ClassVar[Callable[[float, float], bool]]

    def admits(self, value: float) -> bool:
        return type(self).compare(value, self.limit)

    def __str__(self) -> str:
        return f"{self.words} {_format_number(self.limit)}"


class AtLeast(OneSidedBound):
    """No number below the limit."""

    words, compare = "at least", operator.ge


class Above(OneSidedBound):
    """The limit itself is not admitted either."""

    words, compare = "above", operator.gt


class AtMost(OneSidedBound):
    """No number above the limit."""

    words, compare = "at most", operator.le


class Below(OneSidedBound):
    """The limit itself is not admitted either."""

    words, compare = "below", operator.lt


@dataclass(frozen=True)
class Between(Bound):
    """From `low` to `high`, both included."""

    low: float
    high: float

    def admits(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"between {_format_number(self.low)} and {_format_number(self.high)}"


@dataclass(frozen=True)
class Words(Bound):
    """One of some words, or a word with a name behind a colon, such as given:FILE.

    Attributes:
        plain: words.
        named: word -> what its name stands for.
    """

    plain: tuple[str, ...]
    named: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def admits(self, value: object) -> bool:
        word, _, name = str(value).partition(":")
        return value in self.plain or (word in self.named and bool(name))

    def __str__(self) -> str:
        return ", ".join((*self.plain, *(f"{word}:{name}" for word, name in self.named.items())))


class Space(ABC):
    """The values that a search may try."""

    @abstractmethod
    def entry(self) -> dict[str, Any]:
        """The space as an entry of `tune.spaces`."""


@dataclass(frozen=True)
class LinearSpace(Space):
    """Numbers from `low` to `high`, both included, spread evenly."""

    low: float
    high: float

    def entry(self) -> dict[str, Any]:
        return {"low": float(self.low), "high": float(self.high)}

    def __str__(self) -> str:
        return f"{_format_number(self.low)} to {_format_number(self.high)}"


class LogSpace(LinearSpace):
    """Numbers from `low` to `high`, both included, spread by magnitude."""

    def entry(self) -> dict[str, Any]:
        return {**super().entry(), "log": True}

    def __str__(self) -> str:
        return f"{super().__str__()}, by magnitude"


class IntegerSpace(LinearSpace):
    """Whole numbers from `low` to `high`, both included."""

    def entry(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high}


@dataclass(frozen=True)
class Choices(Space):
    """A few values."""

    choices: tuple[Any, ...]

    def entry(self) -> dict[str, Any]:
        return {"choices": list(self.choices)}

    def __str__(self) -> str:
        return ", ".join(map(str, self.choices))


@dataclass(frozen=True)
class NotSearched(Space):
    """No search, although the base class has a space for this setting."""

    def entry(self) -> dict[str, Any]:
        return {}

    def __str__(self) -> str:
        return ""


# Types that several settings share.
NonNegative = Annotated[float, AtLeast(0)]
Rate = NonNegative
Weight = NonNegative
Positive = Annotated[float, AtLeast(1e-12)]
Share = Annotated[float, Between(0, 1)]
Momentum = Annotated[float, Between(0, 0.9999)]
Dropout = Annotated[float, Between(0, 0.99)]
Count = Annotated[int, AtLeast(0)]
Epochs = Annotated[int, AtLeast(0), AtMost(10_000)]
Rounds = Annotated[int, AtLeast(0), AtMost(1_000_000)]
Size = Annotated[int, AtLeast(1), AtMost(65_536)]


@dataclass(frozen=True)
class Setting:
    """The one description of a setting.

    Attributes:
        name: of the field or parameter.
        type: its annotation without what `Annotated` adds.
        default: its value if none is given; `REQUIRED` if it has no default.
        bounds: which a number must fulfil, all of them.
        space: the values that a search may try, or None for no search.
        meaning: one line; empty where nobody wrote one.
    """

    name: str
    type: Any
    default: Any = REQUIRED
    bounds: tuple[Bound, ...] = ()
    space: Space | None = None
    meaning: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether its numbers are whole ones."""
        return float not in _types(self.type)

    @property
    def range(self) -> str:
        """The allowed values in words; empty where the type alone defines them."""
        if get_origin(self.type) is Literal:
            return ", ".join(map(str, get_args(self.type)))
        return ", ".join(map(str, self.bounds))

    def check(self, value: object, key: str) -> None:
        """Refuse a value of another type, and a number, alone or in a list, that is out of bounds.

        Raises:
            BadInput: naming `key`, the value, and the type, the choices or the bounds.
        """
        check_type(value, self.type, key)
        types = _types(self.type)
        largest = LARGEST_REAL if float in types else LARGEST_WHOLE if int in types else math.inf
        for number in value if isinstance(value, list | tuple) else (value,):
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            bounds = [b for b in self.bounds if (isinstance(number, str) if isinstance(b, Words) else is_number)]
            violated = [str(bound) for bound in bounds if not bound.admits(number)]
            is_large = is_number and not -largest <= number <= largest
            if violated or is_large:
                problem = "too large" if is_large else "out of range"
                words = " and ".join(violated) or f"at most {largest:g}"
                raise BadInput(key, f"{format_value(value)} is {problem}; it must be {words}")


def check_type(value: object, hint: Any, key: str) -> None:
    """Refuse `value` unless it has the annotated type.

    Raises:
        BadInput: naming `key`, the value and the type or the choices.
    """
    if get_origin(hint) is Literal:
        _check_literal(value, get_args(hint), key)
    elif not _fits(value, hint):
        raise BadInput(key, f"{format_value(value)} is not {_describe_type(hint)}{_remedy(value, hint, key)}")


def _remedy(value: object, hint: Any, key: str) -> str:
    """What to write in place of a share, one entry of a list, the name of a model or partition, a number in quotes."""
    if key.endswith(".split"):
        return "; it must map train, val, test to shares"
    if isinstance(value, str | int | float) and _fits([value], hint):
        return f"; write [{format_value(value)}]"
    if not isinstance(value, str):
        return ""
    if key.endswith((".model", ".partition")):
        return f"; write {key.rpartition('.')[2]}: {{name: {value}}}"
    try:
        number = float(value)
    except ValueError:
        return ""
    return "; leave the quotes out" if math.isfinite(number) and {int, float} & _types(hint) else ""


def _check_literal(value: object, options: tuple[Any, ...], key: str) -> None:
    if value == "compiled" and "kernel" in options:
        raise BadInput(key, "'compiled' is gone; use auto or kernel, which need no compilation for a model")
    is_option = isinstance(value, str | int | float | bool | None) and value in options
    if not is_option or isinstance(value, bool) != any(
        isinstance(option, bool) and option is value for option in options
    ):
        choose(str(value) if is_option else format_value(value).strip("'"), [str(option) for option in options], key)
        raise BadInput(key, f"{format_value(value)} has the wrong type; write it as text in quotes")


def _types(hint: Any) -> set[Any]:
    """The plain types inside an annotation."""
    return {hint}.union(*map(_types, get_args(hint)))


def _fits(value: object, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if hint in (int, float):
        # A whole number is finite. `isfinite` fails for one that is too large for a float.
        is_number = isinstance(value, int) or (hint is float and isinstance(value, float) and math.isfinite(value))
        return is_number and not isinstance(value, bool)
    if origin in (list, tuple, Sequence):
        inner = get_args(hint)[0] if get_args(hint) else Any
        return isinstance(value, list | tuple) and all(_fits(item, inner) for item in value)
    kind = origin or hint
    cannot_tell = kind is Any or not isinstance(kind, type)
    return cannot_tell or isinstance(value, kind)


def _describe_type(hint: Any) -> str:
    names = {
        int: "a whole number",
        float: "a finite number",
        bool: "true or false",
        str: "text",
        Path: "a path",
        dict: "a mapping",
        Mapping: "a mapping",
        list: "a list",
        tuple: "a list",
        type(None): "null",
    }
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return " or ".join(_describe_type(option) for option in get_args(hint))
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if origin in (list, tuple, Sequence) and get_args(hint)[:1] not in ((), (Any,)):
        return f"a list, each entry {_describe_type(get_args(hint)[0])}"
    return names.get(origin or hint, str(hint))


@cache
def describe(owner: type | Callable[..., Any]) -> tuple[Setting, ...]:
    """The settings of a dataclass, its fields, or of a function, its keyword-only parameters, in their order.

    Where a class declares a field again, it inherits the bounds, the space and the meaning that it does not give.
    """
    types = get_type_hints(owner)
    if dataclasses.is_dataclass(owner):
        classes = cast(type, owner).__mro__[::-1]
        levels = [inspect.get_annotations(cls, eval_str=True) for cls in classes]
        defaults = {field.name: _default(field) for field in dataclasses.fields(owner)}
    else:
        levels = [get_type_hints(owner, include_extras=True)]
        parameters = inspect.signature(owner).parameters.values()
        defaults = {p.name: _default(p) for p in parameters if p.kind is p.KEYWORD_ONLY}
    return tuple(
        _add_annotations(
            Setting(name, types.get(name, Any), default), [level[name] for level in levels if name in level]
        )
        for name, default in defaults.items()
    )


def _default(source: dataclasses.Field[Any] | inspect.Parameter) -> Any:
    if isinstance(source, inspect.Parameter):
        return REQUIRED if source.default is inspect.Parameter.empty else source.default
    return source.default if source.default_factory is dataclasses.MISSING else source.default_factory()


def _add_annotations(setting: Setting, annotations: list[Any]) -> Setting:
    """`setting` with what its annotations add; those of the class itself come last."""
    bounds, space, meaning = setting.bounds, setting.space, setting.meaning
    for annotation in annotations:
        notes = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
        bounds = tuple(note for note in notes if isinstance(note, Bound)) or bounds
        space = next((note for note in reversed(notes) if isinstance(note, Space)), space)
        meaning = next((note for note in reversed(notes) if isinstance(note, str)), meaning)
    space = None if isinstance(space, NotSearched) else space
    return dataclasses.replace(setting, bounds=bounds, space=space, meaning=meaning)
