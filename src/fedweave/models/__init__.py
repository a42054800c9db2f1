"""Client models by name. A new one is a `ClientModel` in a file of this folder and a line in `MODELS`."""

from typing import Any

from fedweave.errors import BadInput, choose
from fedweave.models.base import ClientModel, Inputs, layers, parameter_count
from fedweave.models.cnn import AghnCNN, LeNet16, Moon, Moon3, SmallCNN
from fedweave.models.gcn import GCN, Cells, gcn_norm
from fedweave.models.gru import GRU
from fedweave.models.mlp import MLP, TptMLP
from fedweave.models.resnet import ResNet18
from fedweave.settings import Setting, describe

MODELS: dict[str, type[ClientModel]] = {
    "mlp": MLP,
    "tpt_mlp": TptMLP,
    "aghn_cnn": AghnCNN,
    "lenet16": LeNet16,
    "moon": Moon,
    "moon3": Moon3,
    "small_cnn": SmallCNN,
    "resnet18": ResNet18,
    "gru": GRU,
    "gcn": GCN,
}


def options(name: str) -> dict[str, Any]:
    """Option names and defaults of the model called `name`."""
    return {setting.name: setting.default for setting in settings(choose(name, MODELS, "model.name"))}


def settings(name: str) -> tuple[Setting, ...]:
    """The options of the model called `name`, as its constructor describes them."""
    return describe(MODELS[name].__init__)


def build(name: str, shape: tuple[int, ...], outputs: int, **values: Any) -> ClientModel:
    """Make a model for inputs of `shape` (no batch axis), initialised by torch's global generator.

    Raises:
        BadInput: for an unknown name or option, or a shape the model cannot take.
    """
    names = options(name)
    for option in values:
        if not names:
            raise BadInput(f"model.{option}: unknown; {name} has no options")
        choose(option, names, f"model ({name}): option")
    return MODELS[name](tuple(shape), outputs, **values)


__all__ = [
    "MODELS",
    "Cells",
    "ClientModel",
    "Inputs",
    "build",
    "gcn_norm",
    "layers",
    "options",
    "parameter_count",
    "settings",
]
