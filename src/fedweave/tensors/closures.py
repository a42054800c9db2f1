"""Closures as data: the tensors that a function has captured, and the same function over other tensors.

A loss is a closure over a client's data and over other values of its method. To train many clients at once outside the
transform that made their losses, and to compile a step once for all rounds, what was captured must become an argument.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

TensorsById = dict[int, Tensor]
Rebuild = Callable[[Sequence[Tensor]], Any]
VOLATILE = {"volatile": True}
"""Metadata of a dataclass field that a loss must not read: it changes from round to round without being a tensor."""


class Capture(NamedTuple):
    """A value split into tensors and form.

    Attributes:
        tensors: what it holds, every tensor once.
        form: everything else; values of equal forms differ in nothing but their tensors.
        rebuild: the same value over other tensors.
    """

    tensors: list[Tensor]
    form: Hashable
    rebuild: Rebuild


@dataclass(frozen=True)
class _IdentityKey:
    """An object that is equal to itself alone; holding it keeps its identity from being given away."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IdentityKey) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class VolatilePlaceholder:
    """The placeholder of a volatile field."""

    def __bool__(self) -> NoReturn:
        raise TypeError("a loss read a volatile field of its data; take what it needs from it before the loss is made")

    def __eq__(self, other: object) -> bool:
        return bool(self)

    __hash__ = object.__hash__


def capture(value: Any) -> Capture:
    """Split `value`: functions with their closures, partials, dictionaries, sequences, dataclasses with tensors in
    them.
    """
    captured: TensorsById = {}
    form, rebuild = _walk(value, captured)
    return Capture([*captured.values()], form, rebuild or (lambda tensors: value))


def _walk(value: Any, captured: TensorsById) -> tuple[Hashable, Rebuild | None]:
    """The form of `value` and how to rebuild it; None when it has no tensor and can stay unchanged."""
    if isinstance(value, Tensor):
        captured.setdefault(id(value), value)
        place = [*captured].index(id(value))
        return place, lambda tensors: tensors[place]
    if isinstance(value, dict):
        names = tuple(value)
        return _join_parts(
            (dict, names), [*value.values()], captured, lambda *parts: dict(zip(names, parts, strict=True))
        )
    if isinstance(value, tuple | list):
        kind = type(value)
        return _join_parts(kind, value, captured, kind if hasattr(kind, "_make") else lambda *parts: kind(parts))
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        build = partial(_rebuild_function, value.__code__, value.__globals__, value.__name__)
        return _join_parts(value.__code__, [cells, value.__defaults__, value.__kwdefaults__], captured, build)
    if isinstance(value, MethodType):
        return _join_parts(MethodType, [value.__func__, value.__self__], captured, MethodType)
    if isinstance(value, partial):
        return _join_parts(
            partial,
            [value.func, value.args, value.keywords],
            captured,
            lambda f, args, named: partial(f, *args, **named),
        )
    if is_dataclass(value) and not isinstance(value, type):
        names = tuple(f.name for f in fields(value) if not f.metadata.get("volatile"))
        return _join_parts(
            (type(value), names),
            [getattr(value, n) for n in names],
            captured,
            partial(_rebuild_dataclass, type(value), names),
        )
    plain = value is None or isinstance(value, int | float | str | torch.dtype | torch.device)
    return (type(value), value) if plain else _IdentityKey(value), None


def _join_parts(
    kind: Hashable, parts: Sequence[Any], captured: TensorsById, join: Callable[..., Any]
) -> tuple[Hashable, Rebuild | None]:
    walked = [_walk(part, captured) for part in parts]
    form = (kind, tuple(form for form, _ in walked))
    if all(rebuild is None for _, rebuild in walked):
        return form, None
    # Without the parts that are rebuilt: a program is kept for long, and they hold the tensors of one round.
    pairs = [(None if rebuild else part, rebuild) for part, (_, rebuild) in zip(parts, walked, strict=True)]
    return form, lambda tensors: join(*(part if rebuild is None else rebuild(tensors) for part, rebuild in pairs))


def _rebuild_function(
    code: CodeType,
    scope: dict[str, Any],
    name: str,
    cells: list[Any],
    defaults: tuple[Any, ...] | None,
    named: dict[str, Any] | None,
) -> FunctionType:
    closure = tuple(CellType(content) for content in cells)
    function = FunctionType(code, scope, name, defaults, closure)
    function.__kwdefaults__ = named
    return function


def _rebuild_dataclass(kind: type, names: tuple[str, ...], *parts: Any) -> Any:
    record: Any = object.__new__(kind)
    for name, part in (
        {f.name: VolatilePlaceholder() for f in fields(kind)} | dict(zip(names, parts, strict=True))
    ).items():
        object.__setattr__(record, name, part)
    return record
