"""Recorded steps on a CPU: like a CUDA graph, operations are recorded once and replayed on the same memory."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedweave.engine.engine import run
from fedweave.engine.executors import Batched
from fedweave.engine.records import Settings
from fedweave.methods import METHODS
from fedweave.tensors import recordings
from fedweave.tensors.trees import tree_leaves

PAIRS = [(name, kind) for kind in tiny.TASKS for name in METHODS if tiny.suits(name, kind)]
ELSEWHERE = {name for name in METHODS if (name, "rows") not in PAIRS}
# Tests on rows are quick, and other kinds belong to `make acceptance`, unless a method has no other task.
CASES = [
    pytest.param(*pair, marks=[] if pair[1] == "rows" or pair[0] in ELSEWHERE else pytest.mark.acceptance)
    for pair in PAIRS
]


# Without bincount, which graph convolutions use on a CPU only.
WAITS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "unique_consecutive"}


def waits(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a GPU would wait for this operation, because Python needs its values or the shape of its result."""
    name = func._schema.name.removeprefix("aten::")
    indices = args[1] if name == "index" else ()
    return name in WAITS or any(isinstance(i, Tensor) and i.dtype == torch.bool for i in indices)


def leaves(out: Any) -> list[Any]:
    """The results of an operation. Most have one, for which this is much faster than `tree_leaves`."""
    return [out] if isinstance(out, Tensor) else tree_leaves(out)


class Tape(TorchDispatchMode):
    """Records every operation with the tensors that it read and wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not waits(func, args), f"{func} cannot be recorded on a GPU"
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, leaves(out)))
        return out

    @torch.no_grad()
    def replay(self) -> None:
        """The same operations on the same memory, like the kernels of a graph."""
        for func, args, kwargs, outputs in self.calls:
            for old, new in zip(outputs, leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and new.data_ptr() != old.data_ptr():
                    old.copy_(new)


def taped(step: Callable[[], None]) -> Callable[[], None]:
    """Replaces `recordings.cuda_graph`. Recording on a CPU also runs the step, whose effect is undone."""
    with Tape() as tape:
        step()
    return tape.replay


@pytest.fixture(autouse=True)
def no_recordings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(recordings, "cuda_graph", taped)
    recordings.clear()
    yield
    recordings.clear()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_recorded_steps_have_the_same_bits(name: str, kind: str) -> None:
    """Every method, clients of different sizes, one of them absent: replays equal plain steps."""
    task, federation = (make() for make in tiny.TASKS[kind])
    method, settings = tiny.method(name, task, kind), Settings(rounds=3, seed=4, participation=0.8, every=3)
    *_, plain = run(method, federation, settings, Batched())
    *_, recorded = run(method, federation, settings, Batched(recorded=True))
    expected, actual = (tree_leaves((report.state, report.scores)) for report in (plain, recorded))
    for a, b in zip(expected, actual, strict=True):
        assert not isinstance(a, Tensor) or torch.equal(a.nan_to_num(-1), b.nan_to_num(-1))
    assert None not in recordings._RECORDINGS.values()


def step(variant: bool, state: list[Tensor], inputs: list[Tensor], at: list[Tensor]) -> recordings.Advanced:
    """Adds a row to the state."""
    return [state[0] + inputs[0] * at[0]], state[0].clone()


def three(recording: recordings.Recording) -> None:
    for _ in range(3):
        recording.advance(False)


def total(key: int, times: int = 1) -> float | None:
    """0 + 2 (1 + 2 + 3), `times` times. None if it was not recorded."""
    zero, two, rows = torch.zeros(()), torch.tensor(2.0), torch.tensor([1.0, 2.0, 3.0])
    runs = [recordings.run(key, step, three, [zero], [two], [rows]) for _ in range(times)]
    return None if runs[-1] is None else float(runs[-1][0][0])


def test_the_least_recently_used_recording_is_dropped() -> None:
    """A process that trains methods in sequence records the last ones."""
    for key in range(recordings.LIMIT + 5):
        assert total(key, times=2) == 12.0
    assert len(recordings._RECORDINGS) == recordings.LIMIT
    keys = [place[0] for place in recordings._RECORDINGS if isinstance(place, tuple)]
    assert keys == [*range(5, recordings.LIMIT + 5)]


def test_steps_that_always_change_are_no_longer_recorded() -> None:
    """No recording was used twice: later steps are plain, and earlier recordings are kept."""
    for key in range(2 * recordings.LIMIT):
        assert total(key) == 12.0
    assert total(1000) is None
    assert total(2 * recordings.LIMIT - 1) == 12.0


def test_a_failure_gives_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller runs a step that cannot be recorded, from then on. The executor handles a lack of memory."""
    monkeypatch.setattr(recordings, "cuda_graph", lambda step: 1 / 0)
    with pytest.warns(UserWarning, match="not recorded: ZeroDivisionError"):
        assert total(0) is None
    assert total(0) is None

    def full(step: Callable[[], None]) -> Callable[[], None]:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(recordings, "cuda_graph", full)
    with pytest.raises(torch.OutOfMemoryError):
        total(1)
    assert not recordings._RECORDINGS


def test_a_large_input_is_read_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds as long as it is the same tensor. One that changes from run to run is copied, and the steps are
    recorded again.
    """
    monkeypatch.setattr(recordings, "LARGE", 8)
    counts: list[int] = []
    monkeypatch.setattr(recordings, "cuda_graph", lambda step: counts.append(1) or taped(step))  # type: ignore[func-returns-value]
    zeros, rows, two = torch.zeros(2), torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0])

    def ends(factor: Tensor) -> list[float]:
        result = recordings.run(0, step, three, [zeros], [factor], [rows])
        assert result is not None
        return result[0][0].tolist()

    for _ in range(2):
        assert ends(two) == [12.0, 24.0]
    assert len(counts) == 1
    two.mul_(2)
    assert ends(two) == [24.0, 48.0]
    assert len(counts) == 1
    for k in (1.0, 3.0, 5.0):
        assert ends(torch.tensor([k, 0.0])) == [6 * k, 0.0]
    assert ends(two) == [24.0, 48.0]
    assert len(counts) == 2
    assert two.tolist() == [4.0, 8.0]


def test_a_call_is_recorded_once_for_all_tensors_of_its_shape() -> None:
    """The closure's tensors are its inputs; its results stay when it is called again."""

    def product(factor: Tensor, number: int) -> dict[str, Tensor]:
        return recordings.call(lambda: {"product": factor * number, "factor": factor})

    factors = [torch.tensor([k, 1.0]) for k in (1.0, 2.0, 3.0)]
    assert product(factors[0], 5)["product"].tolist() == [5.0, 5.0]
    assert not recordings._RECORDINGS
    with recordings.enable():
        results = [product(factor, 5) for factor in factors]
        assert len(recordings._RECORDINGS) == 1
        assert product(factors[0], 7)["product"].tolist() == [7.0, 7.0]
        assert product(factors[0][:1], 5)["product"].tolist() == [5.0]
        assert len(recordings._RECORDINGS) == 3
    for factor, result in zip(factors, results, strict=True):
        assert torch.equal(result["product"], factor * 5)
        assert torch.equal(result["factor"], factor)
        assert result["factor"].data_ptr() != factor.data_ptr()


def test_a_call_inside_of_a_derivative_is_not_recorded() -> None:
    with recordings.enable():
        value = torch.tensor(3.0, requires_grad=True)
        recordings.call(lambda: value.square()).backward()
    assert value.grad == 6.0
    assert not recordings._RECORDINGS


@pytest.mark.parametrize("error", [ValueError("no"), torch.OutOfMemoryError("full")])
def test_a_call_that_cannot_be_recorded_is_made_as_usual(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(step: Callable[[], None]) -> Callable[[], None]:
        raise error

    monkeypatch.setattr(recordings, "cuda_graph", refuse)
    value = torch.tensor(3.0)
    with recordings.enable(), warnings.catch_warnings(record=True) as messages:
        assert [float(recordings.call(lambda: value + 1)) for _ in range(2)] == [4.0, 4.0]
    assert len(messages) == isinstance(error, ValueError)


@pytest.mark.parametrize("name", ["pfedhn", "ghn", "shn", "panacea"])
def test_networks_of_a_server_are_recorded(name: str) -> None:
    """The codes of all clients, and the derivative of the network in front of the heads: once in each stage."""
    task, federation = (make() for make in tiny.TASKS["rows"])
    *_, last = run(tiny.method(name, task, "rows"), federation, Settings(rounds=4, seed=4), Batched(recorded=True))
    calls = [r for r in recordings._RECORDINGS.values() if isinstance(r, recordings.RecordedCall)]
    assert len(calls) >= (1 if name == "pfedhn" else 3)
    assert sum(call.runs for call in calls) > len(calls)
    assert last.round == 4 if name == "pfedhn" else last.round > 4
