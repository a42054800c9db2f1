"""The same run on every device that is there: bit-identical on the CPU, within float64 rounding on a GPU."""

import pytest
import tiny
import torch

from fedweave.federation.engine import run
from fedweave.federation.executors import Batched, Loop
from fedweave.federation.records import Settings
from fedweave.methods import METHODS
from fedweave.tensors.trees import tree_leaves

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
CASES = [(name, next(k for k, (make, _) in tiny.TASKS.items() if tiny.suits(name, make()))) for name in METHODS]


def leaves(name: str, kind: str, device: str, executor: Loop | Batched) -> list[torch.Tensor]:
    """State and scores after two rounds, on the CPU."""
    task, federation = (make() for make in tiny.TASKS[kind])
    *_, report = run(
        tiny.method(name, task, kind), federation.to(device), Settings(rounds=2, seed=4, participation=0.8), executor
    )
    tensors = tree_leaves((report.state, report.scores))
    assert {leaf.device.type for leaf in tensors if isinstance(leaf, torch.Tensor)} <= {device}
    return [leaf.cpu() for leaf in tensors if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_same_run_on_every_device(name: str, kind: str, device: str) -> None:
    """Loop on the CPU is the reference; on a GPU clients are batched."""
    expected = leaves(name, kind, "cpu", Loop())
    actual = leaves(name, kind, device, Loop() if device == "cpu" else Batched())
    tolerance = 0.0 if device == "cpu" else 1e-7
    for a, b in zip(expected, actual, strict=True):
        torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance, equal_nan=True)
