"""The further models of IFCA and FedEM where the clients' model is a module, with the same values in every draw."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from torch import nn

import fedweave as fw
from fedweave.engine.protocol import Start
from fedweave.families.ensembles import initial_models


class Own(nn.Module):
    """A linear layer whose author wrote no `reset_parameters`."""

    def __init__(self, zeros: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 2) if zeros else torch.randn(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Zeros(Own):
    """A layer that always begins at 0."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_further_models_are_those_of_their_seeds() -> None:
    """Equal for equal seeds, different from each other, and with the buffers of the module."""
    task = tiny.rows_task()
    net = task.build()
    fixed = replace(task, build=lambda: copy.deepcopy(net))
    start = Start(fixed.init(0), {}, 3, 7, None, torch.arange(3))
    first, *further = initial_models(fixed, start, 3)
    assert first is start.model
    for name in fixed.params:
        assert not any(torch.equal(model[name], first[name]) for model in further)
        assert not torch.equal(further[0][name], further[1][name])
    for model, again in zip(further, initial_models(fixed, start, 3)[1:], strict=True):
        assert all(torch.equal(model[name], again[name]) for name in fixed.names)


@pytest.mark.parametrize(
    ("module", "message"),
    [(Own(), "has no reset_parameters"), (Zeros(zeros=True), "draw the same values again")],
    ids=["no reset", "always equal"],
)
def test_models_that_would_be_equal_are_refused(module: nn.Module, message: str) -> None:
    rows = fw.Federation.from_arrays(np.arange(80.0).reshape(40, 2), [0, 1] * 20, client=["a", "b"] * 20, name="rows")
    with pytest.raises(fw.BadInput, match=message) as error:
        fw.fit("ifca", rows, model=module, rounds=1, progress=False)
    assert "\n" not in str(error.value)
