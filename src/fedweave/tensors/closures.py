"""Closures as data: the tensors that a function has captured, and the same function over other tensors.

A loss is a closure over a client's data and over other values of its method. Many clients are trained at once outside
the transform that made their losses, and a step is recorded once for all rounds. For both, the captured tensors must
become arguments.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

TensorsById = dict[int, tuple[int, Tensor]]  # id -> (position, tensor)
Rebuild = Callable[[Sequence[Tensor]], Any]
VOLATILE = {"volatile": True}
"""Metadata of a dataclass field that a loss must not read: its value is not a tensor and changes every round."""


class Capture(NamedTuple):
    """A value split into tensors and form.

    Attributes:
        tensors: all tensors in the value, each once.
        form: everything else; values of equal forms differ only in their tensors.
        rebuild: makes the same value over other tensors.
    """

    tensors: list[Tensor]
    form: Hashable
    rebuild: Rebuild


@dataclass(frozen=True)
class _IdentityKey:
    """Equal only for the same object; the reference keeps the identity from being used for another object."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IdentityKey) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class VolatilePlaceholder:
    """The value of a volatile field in a rebuilt dataclass; raises TypeError when a loss reads it."""

    def __bool__(self) -> NoReturn:
        raise TypeError("a loss read a volatile field of its data; read the field before you make the loss")

    def __eq__(self, other: object) -> bool:
        return bool(self)

    __hash__ = object.__hash__


def capture(value: Any) -> Capture:
    """Split `value` into tensors and form.

    Functions with their closures, partials, dictionaries, sequences and dataclasses are searched for tensors.
    """
    captured: TensorsById = {}
    form, rebuild = _walk(value, captured)
    return Capture([tensor for _, tensor in captured.values()], form, rebuild or (lambda tensors: value))


def _walk(value: Any, captured: TensorsById) -> tuple[Hashable, Rebuild | None]:
    """The form of `value`, and the function that rebuilds it; None if it has no tensor and stays unchanged."""
    if isinstance(value, Tensor):
        position, _ = captured.setdefault(id(value), (len(captured), value))
        return position, lambda tensors: tensors[position]
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
    is_plain = value is None or isinstance(value, int | float | str | torch.dtype | torch.device)
    return (type(value), value) if is_plain else _IdentityKey(value), None


def _join_parts(
    kind: Hashable, parts: Sequence[Any], captured: TensorsById, join: Callable[..., Any]
) -> tuple[Hashable, Rebuild | None]:
    results = [_walk(part, captured) for part in parts]
    form = (kind, tuple(form for form, _ in results))
    if all(rebuild is None for _, rebuild in results):
        return form, None
    # Parts that are rebuilt are left out: they hold tensors of one round, and a program stays in memory for long.
    pairs = [(None if rebuild else part, rebuild) for part, (_, rebuild) in zip(parts, results, strict=True)]
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
