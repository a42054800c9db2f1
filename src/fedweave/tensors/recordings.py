"""Recorded steps and calls: their kernels as a CUDA graph, which replays them for all others of their shape.

A step of a small model is hundreds of kernels of a few microseconds, and Python needs more time to start them than a
GPU to run them. A replay starts all of them with one call. They are the kernels of the plain step, so the result has
the same bits.
"""

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedweave.errors import describe_error
from fedweave.tensors import closures

Leaves = list[Tensor]
# (variant, state, inputs, this step's slices of the tables) -> (new state, value); it may write to the state.
Advanced = tuple[Leaves, Tensor]
Step = Callable[[bool, Leaves, Leaves, Leaves], Advanced]
Capture = Callable[[Callable[[], None]], Callable[[], None]]
LIMIT = 16  # recordings of a process at a time
LARGE = 2**26  # bytes from which on an input is read without a copy, such as the features of a data set
WARM_UP = 2  # steps before recording, in which libraries choose kernels and allocate memory
_RECORDINGS: "OrderedDict[Hashable, Recording | RecordedCall | None]" = OrderedDict()  # in the order of their last use
_UNUSED: list[Hashable] = []  # consecutive recordings that were dropped after one run
_LOCK = threading.RLock()  # a recording's tensors serve one training at a time
_ENABLED: ContextVar[bool] = ContextVar("enabled", default=False)


class Recording:
    """Steps of one shape, over tensors at fixed addresses: each run first copies its tensors there.

    A large input is not copied as long as every run passes the same memory.

    Args:
        step: reads and returns tensors of fixed shapes and types, without waiting for the GPU.
        capture: records the kernels of a function, and returns the function that replays them.
        state, inputs, tables: examples; tables have a leading axis of steps [K, ...].
    """

    def __init__(self, step: Step, capture: Capture, state: Leaves, inputs: Leaves, tables: Leaves) -> None:
        self._step, self._capture = step, capture
        self.state, self._tables = ([_copy(t) for t in leaves] for leaves in (state, tables))
        self._inputs = [t.detach() if t.nbytes >= LARGE else _copy(t) for t in inputs]
        self._counter = torch.zeros(1, dtype=torch.int64, device=tables[0].device)
        self._values: Tensor | None = None
        self._copied: set[int] = set()  # positions of large inputs that change from run to run
        self._replays: dict[bool, Callable[[], None]] = {}
        self.runs = 0

    def load(self, state: Leaves, inputs: Leaves, tables: Leaves) -> None:
        """Begin a run at its first step."""
        for position, source in enumerate(inputs):
            if self._inputs[position].nbytes >= LARGE and not self._can_reuse(position, source):
                self._inputs[position] = _copy(source)
                self._copied.add(position)
                self._replays.clear()
        for target, source in zip((*self.state, *self._inputs, *self._tables), (*state, *inputs, *tables), strict=True):
            if target.data_ptr() != source.data_ptr():
                target.copy_(source)
        self._counter.zero_()
        self.runs += 1

    def _can_reuse(self, position: int, source: Tensor) -> bool:
        """Whether the memory of a large input can be used in this run: it is a copy, or the memory of `source`."""
        return position in self._copied or self._inputs[position].data_ptr() == source.data_ptr()

    def advance(self, variant: bool) -> None:
        """The next step; the first one of a variant is recorded."""
        if variant not in self._replays:
            self._replays[variant] = self._record(variant)
        self._replays[variant]()

    def results(self) -> Advanced:
        """The state, and the values [K, ...] of all steps, as copies."""
        if self._values is None:
            raise ValueError("no step has been taken")
        return [_copy(t) for t in self.state], _copy(self._values)

    def _record(self, variant: bool) -> Callable[[], None]:
        before = [_copy(t) for t in (*self.state, self._counter)]
        replay = self._capture(lambda: self._take_step(variant))
        for target, value in zip((*self.state, self._counter), before, strict=True):
            target.copy_(value)
        return replay

    def _take_step(self, variant: bool) -> None:
        slices = [table.index_select(0, self._counter)[0] for table in self._tables]
        state, value = self._step(variant, self.state, self._inputs, slices)
        for target, new in zip(self.state, state, strict=True):
            if new is not target:
                target.copy_(new)
        if self._values is None:
            self._values = value.new_zeros(len(self._tables[0]), *value.shape)
        self._values.index_copy_(0, self._counter, value[None])
        # Warm-up steps must not go beyond the end of the tables.
        self._counter.add_(1).clamp_(max=len(self._tables[0]) - 1)


class RecordedCall:
    """A function of tensors at fixed addresses: each call first copies its tensors there.

    Args:
        function: maps tensors to a tree of tensors, without waiting for the GPU.
        capture: as of `Recording`.
        inputs: examples.
    """

    def __init__(self, function: Callable[[Leaves], Any], capture: Capture, inputs: Leaves) -> None:
        self._function, self._inputs = function, [_copy(t) for t in inputs]
        self._outputs: tuple[Leaves, Any] = [], None
        self._replay = capture(self._compute)
        self.runs = 0

    def __call__(self, inputs: Leaves) -> Any:
        """The function of `inputs`, as copies."""
        for target, source in zip(self._inputs, inputs, strict=True):
            target.copy_(source)
        self._replay()
        self.runs += 1
        leaves, spec = self._outputs
        return tree_unflatten([_copy(t) for t in leaves], spec)

    def _compute(self) -> None:
        self._outputs = tree_flatten(self._function(self._inputs))


@contextmanager
def enable(enabled: bool = True) -> Iterator[None]:
    """Record the functions given to `call` inside this block."""
    token = _ENABLED.set(enabled)
    try:
        yield
    finally:
        _ENABLED.reset(token)


def call(function: Callable[[], Any]) -> Any:
    """`function()`, a tree of tensors; in a block of `enable`, by a recording.

    The function is recorded with the tensors of its closure as inputs, see `closures.capture`. It draws no random
    numbers. Inside of a computation whose derivative is taken, and where it cannot be recorded, it is called as usual.
    """
    if not _ENABLED.get():
        return function()
    tensors, form, rebuild = closures.capture(function)
    if len({t.device for t in tensors}) != 1 or any(t.requires_grad for t in tensors):
        return function()
    signature = ("call", form, _describe(tensors))

    def make() -> RecordedCall:
        return RecordedCall(lambda inputs: rebuild(inputs)(), cuda_graph, tensors)

    try:
        outputs = _serve(signature, make, lambda recording: recording(tensors))
    except torch.OutOfMemoryError:
        outputs = None
    return function() if outputs is None else outputs


def run(
    key: Hashable, step: Step, variants: Callable[[Recording], None], state: Leaves, inputs: Leaves, tables: Leaves
) -> Advanced | None:
    """A whole run: its last state and values [K, ...], or None where it cannot be recorded.

    Args:
        key: callers promise that equal keys mean equal steps.
        variants: calls `advance` K times.

    Raises:
        OutOfMemoryError: the GPU has no room for a second copy of a step's tensors; all recordings are dropped.
    """
    signature = (key, *map(_describe, (state, inputs, tables)))

    def use(recording: Recording) -> Advanced:
        recording.load(state, inputs, tables)
        variants(recording)
        return recording.results()

    return _serve(signature, lambda: Recording(step, cuda_graph, state, inputs, tables), use)


def _describe(leaves: Leaves) -> Hashable:
    return tuple((t.shape, t.dtype, t.device) for t in leaves)


def _serve(signature: Hashable, make: Callable[[], Recording | RecordedCall], use: Callable[[Any], Any]) -> Any | None:
    """`use(recording)` with the recording of this signature; None where there is none or `use` fails."""
    with _LOCK:
        try:
            recording = _find_recording(signature, make)
            return None if recording is None else use(recording)
        except torch.OutOfMemoryError:
            clear()
            raise
        except Exception as error:
            warnings.warn(f"a step is not recorded: {describe_error(error)}", stacklevel=3)
            _RECORDINGS[signature] = None
            return None


def clear() -> None:
    """Drop all recordings and their memory."""
    _RECORDINGS.clear()
    _UNUSED.clear()
    _pool_owner.cache_clear()


def _find_recording(
    signature: Hashable, make: Callable[[], Recording | RecordedCall]
) -> Recording | RecordedCall | None:
    """The recording of this shape; a new one replaces the least recently used one where there are too many.

    None if shapes always change, so that no recording serves two runs.
    """
    if signature not in _RECORDINGS:
        if len(_UNUSED) >= LIMIT:
            return None
        if len(_RECORDINGS) >= LIMIT:
            _drop_oldest()
        _RECORDINGS[signature] = make()
    _RECORDINGS.move_to_end(signature)
    return _RECORDINGS[signature]


def _drop_oldest() -> None:
    signature, recording = _RECORDINGS.popitem(last=False)
    if recording is None or recording.runs > 1:
        _UNUSED.clear()
    else:
        _UNUSED.append(signature)


def cuda_graph(step: Callable[[], None]) -> Callable[[], None]:
    """`step` as a CUDA graph, recorded after some warm-up steps."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    main.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_pool_owner().pool()):
        step()
    return graph.replay


@cache
def _pool_owner() -> torch.cuda.CUDAGraph:
    """A graph whose memory pool all graphs share: only one runs at a time, and none needs the memory afterwards.

    It stays when the others are dropped: PyTorch refuses a pool whose last graph is gone.
    """
    owner = torch.cuda.CUDAGraph()
    with torch.cuda.graph(owner):
        torch.zeros(1, device="cuda")
    return owner


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)
