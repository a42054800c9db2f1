"""Recorded steps: what a CUDA graph does, on a CPU: operations are recorded once and replayed over the same memory."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedweave.federation.engine import run
from fedweave.federation.executors import Batched
from fedweave.federation.records import Settings
from fedweave.methods import METHODS
from fedweave.tensors import recordings
from fedweave.tensors.trees import tree_leaves

PAIRS = [(name, kind) for kind, (task, _) in tiny.TASKS.items() for name in METHODS if tiny.suits(name, task())]
ELSEWHERE = {name for name in METHODS if (name, "rows") not in PAIRS}
# Rows are quick, and other kinds are for `make acceptance`, unless a method suits nothing else.
CASES = [
    pytest.param(*pair, marks=[] if pair[1] == "rows" or pair[0] in ELSEWHERE else pytest.mark.acceptance)
    for pair in PAIRS
]


class Tape(TorchDispatchMode):
    """Notes every operation with the tensors that it read and wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    @torch.no_grad()
    def replay(self) -> None:
        """The same operations on the same memory, as kernels of a graph have no other."""
        for func, args, kwargs, out in self.calls:
            for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and new.data_ptr() != old.data_ptr():
                    old.copy_(new)


def taped(step: Callable[[], None]) -> Callable[[], None]:
    """In place of `recordings.cuda_graph`; recording on a CPU also runs the step, whose effect is taken back."""
    with Tape() as tape:
        step()
    return tape.replay


@pytest.fixture(autouse=True)
def no_recordings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(recordings, "cuda_graph", taped)
    recordings.forget()
    yield
    recordings.forget()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_recorded_steps_have_the_same_bits(name: str, kind: str) -> None:
    """Every method, ragged clients, one of them away: replays give what plain steps give."""
    task, federation = (make() for make in tiny.TASKS[kind])
    method, settings = tiny.method(name, task, kind), Settings(rounds=3, seed=4, participation=0.8)
    *_, plain = run(method, federation, settings, Batched())
    *_, recorded = run(method, federation, settings, Batched(recorded=True))
    expected, actual = (tree_leaves((report.state, report.scores)) for report in (plain, recorded))
    for a, b in zip(expected, actual, strict=True):
        assert not isinstance(a, Tensor) or torch.equal(a.nan_to_num(-1), b.nan_to_num(-1))
    assert None not in recordings._RECORDINGS.values()
