"""On a GPU with batched clients, every method has the run of the CPU up to float64 rounding."""

import pytest
import tiny
import torch

from fedweave.engine.engine import run
from fedweave.engine.executors import Batched, Loop
from fedweave.engine.records import Settings
from fedweave.methods import METHODS
from fedweave.tensors import recordings
from fedweave.tensors.trees import tree_leaves

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

CASES = [(name, next(kind for kind in tiny.TASKS if tiny.suits(name, kind))) for name in METHODS]


def leaves(name: str, kind: str, device: str, executor: Loop | Batched) -> list[torch.Tensor]:
    """State and scores after two rounds, on the CPU."""
    task, federation = (make() for make in tiny.TASKS[kind])
    *_, report = run(
        tiny.method(name, task, kind), federation.to(device), Settings(rounds=2, seed=4, participation=0.8), executor
    )
    tensors = tree_leaves((report.state, report.scores))
    assert {leaf.device.type for leaf in tensors if isinstance(leaf, torch.Tensor)} <= {device}
    return [leaf.cpu() for leaf in tensors if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_same_run_on_a_gpu(name: str, kind: str) -> None:
    """The loop on the CPU is the reference."""
    expected, actual = leaves(name, kind, "cpu", Loop()), leaves(name, kind, "cuda", Batched())
    for a, b in zip(expected, actual, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-7, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_recorded_steps_have_the_same_bits(name: str, kind: str) -> None:
    """Steps as CUDA graphs, with clients of different sizes, one of them absent. On a GPU, sums over edges have no
    fixed order.
    """
    recordings.clear()
    plain, recorded = (leaves(name, kind, "cuda", executor) for executor in (Batched(), Batched(recorded=True)))
    tolerance = 1e-9 if kind == "nodes" else 0
    for a, b in zip(plain, recorded, strict=True):
        torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert None not in recordings._RECORDINGS.values()
