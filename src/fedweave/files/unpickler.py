"""An unpickler for files that others wrote. It calls and imports nothing, and the size of the file bounds its cost.

A global name becomes a `GlobalName`, which cannot be called; a table of builders makes the objects instead. Only the
instructions below are allowed. Each takes at most a few times the memory and time of the bytes that it was read from.
"""

import io
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

MAX_STEPS = 2_000_000  # instructions in one pickle; the largest real one, PubMed's graph, has 180,000
_MAX_KEY = 1 << 60  # larger numbers can be chosen so that they all collide in a dictionary
_MAX_KEY_LENGTH = 10_000
_MAX_KEY_PARTS = 8
_MAX_MEMO_INDEX = 1 << 32

_INSTRUCTIONS = (
    "PROTO FRAME STOP MARK POP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT "
    "STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 UNICODE BINUNICODE "
    "SHORT_BINUNICODE BINUNICODE8 EMPTY_LIST APPEND APPENDS LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT "
    "DICT SETITEM SETITEMS GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE GLOBAL STACK_GLOBAL REDUCE NEWOBJ "
    "BUILD BINPERSID"
)


class GlobalName(NamedTuple):
    """A global that the pickle names; a placeholder without code."""

    module: str
    name: str


Builder = Callable[[tuple[Any, ...]], Any]
Persistent = Callable[[Any], Any]


class PendingObject(ABC):
    """Stands for an object whose state comes later in the pickle, and is then replaced by that object."""

    value: Any = None
    done = False

    def complete(self, state: Any) -> Any:
        """The object that `build` returns; a second state is refused."""
        if self.done:
            raise pickle.UnpicklingError("an object has two states")
        self.value, self.done = self.build(state), True
        return self.value

    @abstractmethod
    def build(self, state: Any) -> Any:
        """The object of this state."""


class Unpickler(pickle._Unpickler):
    """Reads one pickle of plain values and of objects of `builders`; text of Python 2 is read as Latin-1.

    It derives from Python's unpickler in Python: nine bytes are enough to make the one in C allocate 32 GiB for its
    memo.
    """

    def __init__(
        self,
        raw: bytes,
        builders: Mapping[GlobalName, Builder],
        persistent: Persistent | None = None,
        steps: int = MAX_STEPS,
    ) -> None:
        super().__init__(io.BytesIO(raw), encoding="latin1")
        self.raw, self.builders, self.persistent = raw, builders, persistent
        self.steps = steps

    def find_class(self, module: str, name: str) -> GlobalName:
        """The name itself; raises UnpicklingError if there is no builder for it."""
        global_name = GlobalName(module, name)
        if global_name not in self.builders:
            raise pickle.UnpicklingError(f"refuses to load {module:.80}.{name:.80}")
        return global_name

    def persistent_load(self, pid: Any) -> Any:
        """The object with the identity `pid` outside of the pickle, if such objects are supported."""
        if self.persistent is None:
            raise pickle.UnpicklingError("refers to a place outside of itself")
        return self.persistent(pid)

    def load(self) -> Any:
        """The value of the pickle; raises UnpicklingError, or an error of a builder, if it is damaged."""
        value = super().load()
        return value.value if isinstance(value, PendingObject) else value


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


def _pair_items(items: list[Any]) -> list[tuple[Any, Any]]:
    return [(_check_key(key), value) for key, value in zip(items[::2], items[1::2], strict=True)]


def _set_item(machine: Any) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _target(machine, dict)[_check_key(key)] = value


def _set_items(machine: Any) -> None:
    items = machine.pop_mark()
    _target(machine, dict).update(_pair_items(items))


def _dict(machine: Any) -> None:
    items = machine.pop_mark()  # before `append` is looked up, which it replaces
    machine.append(dict(_pair_items(items)))


def _get(instruction: Callable[[Any], None]) -> Callable[[Any], None]:
    def step(machine: Any) -> None:
        instruction(machine)
        value = machine.stack[-1]
        if isinstance(value, PendingObject) and value.done:
            machine.stack[-1] = value.value

    return step


def _put(machine: Any) -> None:
    index = int(machine.readline()[:-1])
    if not 0 <= index < _MAX_MEMO_INDEX:
        raise pickle.UnpicklingError(f"memo index {index} is out of range")
    machine.memo[index] = machine.stack[-1]


def _bytearray(machine: Any) -> None:
    """Push bytes, not a bytearray: Python's instruction allocates the bytearray before it reads the file."""
    size = int.from_bytes(machine.read(8), "little")
    if size > len(machine.raw):
        raise pickle.UnpicklingError("it ends within a bytearray")
    machine.append(machine.read(size))


def _reduce(machine: Any) -> None:
    arguments, name = machine.stack.pop(), machine.stack[-1]
    if not isinstance(name, GlobalName) or not isinstance(arguments, tuple):
        raise pickle.UnpicklingError("calls what is not a global")
    machine.stack[-1] = machine.builders[name](arguments)


def _build(machine: Any) -> None:
    state, record = machine.stack.pop(), machine.stack[-1]
    if not isinstance(record, PendingObject):
        raise pickle.UnpicklingError("gives a state to what has none")
    machine.stack[-1] = record.complete(state)


def _count_steps(instruction: Callable[[Any], None]) -> Callable[[Any], None]:
    def step(machine: Any) -> None:
        machine.steps -= 1
        if machine.steps < 0:
            raise pickle.UnpicklingError("has too many instructions")
        instruction(machine)

    return step


_REPLACEMENTS: dict[str, Callable[[Any], None]] = {
    "APPEND": _append,
    "APPENDS": _appends,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "DICT": _dict,
    "PUT": _put,
    "BYTEARRAY8": _bytearray,
    "REDUCE": _reduce,
    "NEWOBJ": _reduce,  # a builder treats cls.__new__(cls, *arguments) like cls(*arguments)
    "BUILD": _build,
}


class _InstructionTable(dict[int, Callable[[Any], None]]):
    """The instructions by their code."""

    def __missing__(self, code: int) -> Callable[[Any], None]:
        raise pickle.UnpicklingError(f"instruction {chr(code)!r} is refused")


def _build_table() -> _InstructionTable:
    codes = {name: getattr(pickle, name)[0] for name in _INSTRUCTIONS.split()}
    steps = {name: _REPLACEMENTS.get(name, pickle._Unpickler.dispatch[code]) for name, code in codes.items()}
    steps |= {name: _get(steps[name]) for name in ("GET", "BINGET", "LONG_BINGET")}
    return _InstructionTable({codes[name]: _count_steps(step) for name, step in steps.items()})


Unpickler.dispatch = _build_table()
