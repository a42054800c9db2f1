"""Heads of client models: modules with several layers, and heads that a method does not support."""

from collections import OrderedDict

import pytest
import torch
from tiny import CLASSES, rows_federation
from torch import nn

from fedweave.client.solvers import SGD
from fedweave.client.task import RowClassification
from fedweave.engine.engine import run
from fedweave.engine.executors import Batched, Loop
from fedweave.engine.records import Settings
from fedweave.engine.schedule import Training
from fedweave.errors import BadInput
from fedweave.families.heads import head_shape
from fedweave.methods import METHODS
from fedweave.models.own_module import wrap

pytestmark = pytest.mark.usefixtures("seeded")


@pytest.mark.parametrize("top", ["top", "head"])  # client models have an attribute `head`
def test_a_head_may_have_several_layers(top: str) -> None:
    """A method that needs the size of the head uses that of all layers."""
    layers = nn.Sequential(nn.ReLU(), nn.Linear(8, 5), nn.Linear(5, CLASSES))
    model = nn.Sequential(OrderedDict([("body", nn.Linear(6, 8)), (top, layers)]))
    task = RowClassification(wrap(model, (6,), CLASSES, head=top), torch.float64)
    assert task.head == tuple(f"{top}.{name}" for name in ("1.weight", "1.bias", "2.weight", "2.bias"))
    assert head_shape(task) == (CLASSES, 8)
    for name in ("fedper", "fedcp", "fedrod", "fedpac"):
        method = METHODS[name](task=task, solver=SGD(lr=0.1), training=Training(batch_size=4))
        *_, report = run(method, rows_federation(), Settings(rounds=1, seed=1), Loop())
        assert not report.dropped, name


class Column(nn.Module):
    """A convolution as its head, on features with an axis of length 1 for positions."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.conv = nn.Linear(6, 8), nn.Conv1d(8, CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(self.body(x)[..., None])[..., 0]


class Averaged(nn.Module):
    """A linear head on every position; the outputs are its mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(1, 4), nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x[..., None]).relu()).mean(1)


def transposed() -> nn.Module:
    """Parameters that belong to no layer, in the order of a matrix product."""

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(6, CLASSES))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    return Product()


@pytest.mark.parametrize("executor", [Loop(), Batched()], ids=["loop", "batched"])
@pytest.mark.parametrize("name", ["fedas", "fedcp", "fedpac", "fedproto", "fedrod", "knn_per"])
def test_unsupported_heads_are_refused(name: str, executor: Loop | Batched) -> None:
    """One line has the method's requirement and the way out."""
    for model in (Column, transposed, Averaged):
        task = RowClassification(wrap(model, (6,), CLASSES), torch.float64)
        method = METHODS[name](task=task, solver=SGD(lr=0.1), training=Training(batch_size=4))
        if name == "knn_per" and model is transposed:
            continue  # it uses features only
        with pytest.raises(BadInput, match=r"model: .*; (end |flatten )"):
            [*run(method, rows_federation(), Settings(rounds=1, seed=1), executor)]
