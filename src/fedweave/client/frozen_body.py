"""Models of which nothing below the head changes: there it runs as in evaluation, and its features need one pass."""

from torch import Tensor, nn

from fedweave.models.base import ClientModel, find_constants, is_below
from fedweave.models.keyed_layers import KeyedLayer


def has_frozen_body(network: ClientModel) -> bool:
    """Whether features of rows are functions of the rows alone, by weights that are constants.

    No parameter below the head is trained and no buffer there changes, and the outputs are those of the head.
    """
    names = (name for name, _ in (*network.named_parameters(), *network.named_buffers()))
    below_head = {name for name in names if not is_below(name, network.head)}
    constants = below_head & {*find_constants(network)}
    heads = (layer for name in network.head for layer in network.get_submodule(name).modules())
    return (
        network.reads == "rows"
        and network.splits
        and bool(constants)
        and below_head == constants
        and not any(isinstance(layer, KeyedLayer) for layer in heads)
    )


class HeadModel(ClientModel):
    """The head of a model, under its names, for rows that are features already."""

    def __init__(self, network: ClientModel) -> None:
        super().__init__()
        self.__dict__["head"] = network.head
        for path in network.head:
            *outer, name = path.split(".")
            place: nn.Module = self
            for part in outer:
                if part not in place._modules:
                    place.add_module(part, nn.Module())
                place = place._modules[part]  # type: ignore[assignment]
            place.add_module(name, network.get_submodule(path))

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """The rows."""
        return x

    def classify(self, h: Tensor) -> Tensor:
        for path in self.__dict__["head"]:
            h = self.get_submodule(path)(h)
        return h
