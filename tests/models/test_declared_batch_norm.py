"""Batch normalisation of a user's model: what the class says is compared with its layers."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedweave.client.task import RowClassification
from fedweave.errors import BadInput
from fedweave.models import MODELS, ClientModel
from fedweave.models.base import BatchNorm
from fedweave.study import spec, validate
from fedweave.testing import check_model
from tests.study.test_spec import good


class OwnNorm(nn.Module):
    """Batch normalisation with another base class than PyTorch's, and with its buffers."""

    momentum, eps = 0.1, 1e-5

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    forward, _normalise_masked = BatchNorm.forward, BatchNorm._normalise_masked


class Silent(ClientModel):
    """A convolution and batch normalisation, of which the class says nothing."""

    head = ("out",)
    norm: type[nn.Module] = BatchNorm

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.conv, self.bn, self.out = nn.Conv2d(shape[0], 4, 3), self.norm(4), nn.Linear(4, outputs)

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return F.relu(self.bn(self.conv(x), key=key, mask=mask)).mean((2, 3))


class Honest(Silent):
    """It says so."""

    has_batch_norm = True


class Own(Honest):
    """It says so, and its layer is not a class of PyTorch."""

    norm = OwnNorm


class SilentOwn(Own):
    """It says nothing."""

    has_batch_norm = False


class Without(Honest):
    """It has none."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__(shape, outputs)
        del self.bn

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return F.relu(self.conv(x)).mean((2, 3))


def test_the_class_says_what_its_layers_are() -> None:
    """The check names the layer and the line that is missing, or the line that is wrong."""
    check_model(Honest)
    check_model(Own)
    for cls in (Silent, SilentOwn):
        with pytest.raises(AssertionError, match=f"{cls.__name__}: bn is a BatchNorm layer; set has_batch_norm = True"):
            check_model(cls)
    with pytest.raises(AssertionError, match="Without: has_batch_norm is True, but no layer is batch normalisation"):
        check_model(Without)


@pytest.mark.parametrize("cls", [Silent, Own])
def test_training_finds_the_layers_themselves(cls: type[ClientModel]) -> None:
    """FedBN keeps the scale and shift of such a layer at the client, whatever the class says and derives from."""
    task = RowClassification(lambda: cls((1, 8, 8), 3))
    assert task.norms == ("bn.weight", "bn.bias")
    assert "batch_norm" in task.capabilities


@pytest.mark.parametrize(("method", "buffers"), [("fedbn", None), ("fedavg", "average")])
def test_a_refusal_says_how_a_model_declares_its_layers(
    method: str, buffers: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings are checked before a model is made, so a study knows only what the class says."""
    content = good(method)
    content["tasks"]["digits"] |= {"model": {"name": "silent"}}
    content["tasks"]["digits"]["train"] |= {"bn_buffers": buffers}
    monkeypatch.setitem(MODELS, "silent", Silent)
    with pytest.raises(BadInput, match="or set has_batch_norm = True in Silent if it has BatchNorm layers") as caught:
        validate.check(spec.parse(content))
    assert "\n" not in str(caught.value)
    monkeypatch.setitem(MODELS, "silent", Honest)
    validate.check(spec.parse(content))
