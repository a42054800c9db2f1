"""An unpickler for files that others wrote. It calls and imports nothing, and the size of the file bounds its cost.

A global name becomes a `GlobalName`, which cannot be called; a table of builders makes the objects instead. Only the
instructions below are allowed. Each takes at most a few times the memory and time of the bytes that it was read from.
"""

import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_MAX_KEY = 1 << 60  # larger numbers can be chosen so that they all collide in a dictionary
_MAX_KEY_LENGTH = 10_000
_MAX_KEY_PARTS = 8

# Those of protocol 2, which `torch.save` writes.
_INSTRUCTIONS = (
    "PROTO STOP MARK POP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT BINUNICODE EMPTY_LIST "
    "APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT SETITEM SETITEMS BINGET LONG_BINGET BINPUT "
    "LONG_BINPUT GLOBAL REDUCE BINPERSID"
)


class GlobalName(NamedTuple):
    """A global that the pickle names; a placeholder without code."""

    module: str
    name: str


Builder = Callable[[tuple[Any, ...]], Any]
Persistent = Callable[[Any], Any]


class Unpickler(pickle._Unpickler):
    """Reads one pickle of plain values and of objects of `builders`.

    It derives from Python's unpickler in Python: nine bytes are enough to make the one in C allocate 32 GiB for its
    memo.
    """

    def __init__(self, raw: bytes, builders: Mapping[GlobalName, Builder], persistent: Persistent) -> None:
        super().__init__(io.BytesIO(raw))
        self.builders, self.persistent = builders, persistent

    def find_class(self, module: str, name: str) -> GlobalName:
        """The name itself; raises UnpicklingError if there is no builder for it."""
        global_name = GlobalName(module, name)
        if global_name not in self.builders:
            raise pickle.UnpicklingError(f"refuses to load {module:.80}.{name:.80}")
        return global_name

    def persistent_load(self, pid: Any) -> Any:
        """The object with the identity `pid` outside of the pickle."""
        return self.persistent(pid)


def _target(machine: Any, kind: type) -> Any:
    """The container on top of the stack; only containers that the pickle itself created are changed."""
    target = machine.stack[-1]
    if not isinstance(target, kind):
        raise pickle.UnpicklingError(f"adds to what is not a {kind.__name__}")
    return target


def _check_key(key: Any) -> Any:
    """`key` if its hash is cheap and cannot be made to collide; the hash of deeply nested tuples takes too long."""
    parts = key if type(key) is tuple and len(key) <= _MAX_KEY_PARTS else (key,)
    if not all(_is_plain(part) for part in parts):
        raise pickle.UnpicklingError(f"a key is {type(key).__name__}, not a short text or a number")
    return key


def _is_plain(part: Any) -> bool:
    if isinstance(part, str | bytes):
        return len(part) <= _MAX_KEY_LENGTH
    return part is None or (isinstance(part, int) and -_MAX_KEY < part < _MAX_KEY)


def _append(machine: Any) -> None:
    value = machine.stack.pop()
    _target(machine, list).append(value)


def _appends(machine: Any) -> None:
    items = machine.pop_mark()
    _target(machine, list).extend(items)


def _set_item(machine: Any) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _target(machine, dict)[_check_key(key)] = value


def _set_items(machine: Any) -> None:
    items = machine.pop_mark()
    pairs = zip(items[::2], items[1::2], strict=True)
    _target(machine, dict).update((_check_key(key), value) for key, value in pairs)


def _reduce(machine: Any) -> None:
    arguments, name = machine.stack.pop(), machine.stack[-1]
    if not isinstance(name, GlobalName) or not isinstance(arguments, tuple):
        raise pickle.UnpicklingError("calls what is not a global")
    machine.stack[-1] = machine.builders[name](arguments)


_REPLACEMENTS: dict[str, Callable[[Any], None]] = {
    "APPEND": _append,
    "APPENDS": _appends,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "REDUCE": _reduce,
}


class _InstructionTable(dict[int, Callable[[Any], None]]):
    """The instructions by their code."""

    def __missing__(self, code: int) -> Callable[[Any], None]:
        raise pickle.UnpicklingError(f"instruction {chr(code)!r} is refused")


def _build_table() -> _InstructionTable:
    codes = {name: getattr(pickle, name)[0] for name in _INSTRUCTIONS.split()}
    steps = {name: _REPLACEMENTS.get(name, pickle._Unpickler.dispatch[code]) for name, code in codes.items()}
    return _InstructionTable({codes[name]: step for name, step in steps.items()})


Unpickler.dispatch = _build_table()
