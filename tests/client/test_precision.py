"""Models that multiply in bfloat16: results change by rounding only, and only products of the model are rounded."""

from dataclasses import replace

import pytest
import tiny
import torch

from fedweave.client.solvers import value_and_grad
from fedweave.client.task import RowClassification, Task
from fedweave.engine.engine import run
from fedweave.engine.executors import Batched, Loop
from fedweave.engine.executors import set_precision as computing
from fedweave.engine.records import Settings
from fedweave.engine.schedule import evaluation_cohort
from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.models import build
from fedweave.tensors import dropout_keys, trees
from fedweave.tensors.trees import Params, tree_leaves

KINDS = ("rows", "series", "images")
FITS = {name: [kind for kind in KINDS if tiny.suits(name, kind)] for name in METHODS}
# Convolutions in bfloat16 are slow if the processor has no instructions for them: one method of each family.
IMAGES = ("fedavg", "fedrep", "fedaghn", "pfedgat", "shn")
CASES = [
    *(pytest.param(name, kinds[0], marks=tiny.sweep(name)) for name, kinds in FITS.items() if kinds),
    *((name, "images") for name in IMAGES),
]


def leaves(name: str, task: Task, kind: str, executor: Loop | Batched) -> list[torch.Tensor]:
    """State and scores after two rounds."""
    *_, report = run(
        tiny.method(name, task, kind), tiny.TASKS[kind][1](dtype=torch.float32), Settings(rounds=2, seed=4), executor
    )
    return [leaf for leaf in tree_leaves((report.state, report.scores)) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_stored_and_sent_tensors_keep_their_precision(name: str, kind: str) -> None:
    """For every method and executor: the numbers have the same types and are finite where they were. They differ where
    the network is trained.
    """
    task = tiny.TASKS[kind][0](dtype=torch.float32)
    full, half = leaves(name, task, kind, Loop()), leaves(name, replace(task, products=torch.bfloat16), kind, Loop())
    stacked = leaves(name, replace(task, products=torch.bfloat16), kind, Batched())
    assert [x.dtype for x in half] == [x.dtype for x in stacked] == [x.dtype for x in full]
    assert all(torch.equal(a.isfinite(), b.isfinite()) for a, b in zip(full, half, strict=True))
    differs = any(not torch.equal(a, b) for a, b in zip(full, half, strict=True))
    assert differs == (METHODS[name].epochs != 0)


def test_gradients_are_those_of_the_model_up_to_rounding() -> None:
    """bfloat16 keeps eight bits: the error of a batch's gradient is a few times 2⁻⁸ of its length, because the kinks of
    ReLU and pooling are elsewhere for some inputs.
    """
    federation = tiny.TASKS["images"][1](dtype=torch.float32)
    task = RowClassification(lambda: build("small_cnn", (1, 8, 8), tiny.CLASSES), torch.float32, augment=1)
    data, model, rows = evaluation_cohort(federation, 0, 0).client_data(0), task.init(0), torch.arange(8)
    params, buffers = trees.select(model, task.params), trees.select(model, task.buffers)

    def gradient(task: Task) -> Params:
        loss = task.objective(data)
        return value_and_grad(lambda some: loss({**some, **buffers}, rows, dropout_keys.key(0)), params)[2]

    exact, rounded = gradient(task), gradient(replace(task, products=torch.bfloat16))
    assert {value.dtype for value in rounded.values()} == {torch.float32}
    off = sum((exact[name] - rounded[name]).square().sum() for name in exact) / sum(
        value.square().sum() for value in exact.values()
    )
    assert 2**-10 < off.sqrt() < 0.1


def test_tf32_needs_a_gpu() -> None:
    with pytest.raises(BadInput, match=r"tf32.*CPU.*bfloat16"):
        computing("cpu", tf32=True)
