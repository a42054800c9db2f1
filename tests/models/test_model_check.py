"""Modules that cannot be client models: each is refused with the reason and the way out."""

import pytest
import torch
import torch.nn.functional as F
from tiny import CLASSES
from torch import jit, nn

from fedweave.client.model_check import check_model, find_softmax
from fedweave.client.task import RowClassification
from fedweave.errors import BadInput
from fedweave.models.own_module import wrap
from tests.functional_model import Functional

pytestmark = pytest.mark.usefixtures("seeded")


class Always(Functional):
    """Dropout that is always active."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.dropout(self.first(x), 0.5))


class Noise(Functional):
    """Randomness without a key."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) + (torch.randn(len(x), 8) if self.training else 0))


class Branching(Functional):
    """Control flow that depends on the data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) if x.sum() > 0 else self.first(-x))


class Unused(Functional):
    """A layer that does nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x)[:, :CLASSES]


class Mixing(Functional):
    """Statistics over the batch by hand."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        return self.second(h - h.mean(0))


class Squeezed(Functional):
    """No batch axis for a batch of one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).squeeze())


class Pair(Functional):
    """Two outputs."""

    def forward(self, x: torch.Tensor) -> tuple:
        return super().forward(x), x


class Tied(Functional):
    """One parameter under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.third = nn.Linear(6, 8)
        self.third.weight = self.first.weight


REFUSED = [
    (Always, "is random in evaluation; use nn.Dropout"),
    (Noise, "draws random numbers that no key controls"),
    (Branching, "its control flow depends on the data"),
    (Unused, "no gradient reaches second.weight and 1 more"),
    (Mixing, "gives a row other outputs when other rows stand beside it"),
    (Squeezed, "for a batch of 1 where [1, 3] is needed; keep both axes"),
    (Pair, "gives a tuple; return the outputs alone"),
    (Tied, "first.weight and third.weight are one parameter"),
    (nn.Flatten, "has no parameters to train"),
    (lambda: nn.Linear(6, 3).requires_grad_(False), "every parameter is frozen; call requires_grad_"),
    (
        lambda shape, outputs: nn.Linear(6, outputs + 1),
        "gives outputs of shape [4, 4] for a batch of 4 where [4, 3] is needed",
    ),
    (
        lambda shape, outputs: nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)),
        "gives outputs of shape [4] for a batch of 4 where [4, 3] is needed; keep both axes",
    ),
    (lambda shape, outputs: nn.Linear(5, outputs), "fails on inputs of shape [2, 6]"),
    (lambda shape: nn.Linear(6, 3), "takes neither (shape, outputs) nor nothing"),
    (lambda shape, outputs: "mlp", "gives str, not an nn.Module"),
    (lambda shape, outputs: jit.trace(nn.Linear(6, outputs), torch.zeros(2, 6)), "a program of TorchScript"),
    (
        lambda shape, outputs: nn.Sequential(nn.Linear(6, outputs), nn.RReLU()),
        "RReLU draws random numbers that no key controls",
    ),
    (
        lambda shape, outputs: nn.Sequential(nn.BatchNorm1d(6, momentum=None), nn.Linear(6, outputs)),
        "momentum=None is not supported",
    ),
    (5, "is not a name, module or callable"),
]


@pytest.mark.parametrize(("model", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_a_bad_module_is_refused(model: object, message: str) -> None:
    """One line names the model, the error and the way out."""

    def build() -> None:
        adapter = wrap(model, (6,), CLASSES)
        check_model(RowClassification(adapter), torch.rand(8, 6), CLASSES, adapter.name)

    with pytest.raises(BadInput, match=r"\Amodel: .*;.*\Z") as caught:
        build()
    assert message in str(caught.value)


def test_buffers_of_integers_and_booleans_are_accepted() -> None:
    """This includes the check of several clients at once."""

    class Masked(Functional):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.tensor([True] * 5 + [False]))
            self.register_buffer("order", torch.tensor([1, 0, 2, 3, 4, 5]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x[:, self.order] * self.mask)

    adapter = wrap(Masked, (6,), CLASSES)
    check_model(RowClassification(adapter), torch.rand(8, 6), CLASSES, adapter.name)


def test_control_flow_may_depend_on_data_for_one_client_at_a_time() -> None:
    """The executor `loop` stacks nothing, so there is no reason to refuse it."""
    adapter = wrap(Branching, (6,), CLASSES)
    check_model(RowClassification(adapter), torch.rand(8, 6), CLASSES, adapter.name, stacked=False)


def test_a_head_that_is_not_the_last_layer_is_refused_by_methods_that_split() -> None:
    """The refusal is one line. Other methods train the model."""
    model = lambda shape, outputs: nn.Sequential(nn.Linear(6, 5), nn.Linear(5, outputs), nn.LogSoftmax(-1))  # noqa: E731
    task = RowClassification(wrap(model, (6,), CLASSES))
    with pytest.raises(BadInput, match="applies the head '1' alone"):
        task.call(task.init(0), torch.rand(2, 5), "classify")
    with pytest.raises(
        BadInput, match="head: 'nowhere' is not a layer of Functional with trained parameters; choices: first, second"
    ):
        wrap(Functional, (6,), CLASSES, head="nowhere")


def test_lazy_layers_of_a_module_are_initialised() -> None:
    """Of an object, which has no values yet, and of a function. An error is one line."""
    for lazy in (
        nn.Sequential(nn.LazyLinear(5), nn.Linear(5, CLASSES)),
        lambda: nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(affine=False), nn.Linear(5, CLASSES)),
    ):
        assert next(wrap(lazy, (6,), CLASSES)().parameters()).shape == (5, 6)
    with pytest.raises(BadInput, match=r"^model: Sequential: fails on inputs of shape \[2, 6\] .*\[B, 6\]$"):
        wrap(nn.Sequential(nn.LazyLinear(5), nn.Linear(4, CLASSES)), (6,), CLASSES)


class FunctionalSoftmax(Functional):
    """A softmax that is not a layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).softmax(-1)


class Gate(Functional):
    """A softmax inside."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).softmax(-1))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(6, CLASSES), nn.Softmax(1)), "model: net: layer '1', a softmax, makes its"),
        (FunctionalSoftmax, "model: net: its outputs are probabilities, but the loss applies log-softmax"),
        (lambda: nn.Sequential(nn.Linear(6, CLASSES), nn.LogSoftmax(1)), ""),
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.Softmax(1), nn.Linear(4, CLASSES)), ""),
        (Gate, ""),
        (Functional, ""),
    ],
)
def test_a_softmax_at_the_end_is_named(model: object, words: str) -> None:
    """One inside may be meant, and the loss does not change logarithms of probabilities."""
    line = find_softmax(RowClassification(wrap(model, (6,), CLASSES)), torch.randn(8, 6), "net")
    assert line.startswith(words) if words else not line
    assert "\n" not in line
