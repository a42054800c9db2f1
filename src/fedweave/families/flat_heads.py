"""A family whose server makes all parameters of a model in one wide last layer."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from fedweave.engine.protocol import Server
from fedweave.families.generated_models import GeneratedModels
from fedweave.families.hypernetworks import pull_back_heads
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree

HEAD = "hyper.head."


@dataclass(frozen=True, kw_only=True)
class FlatHead(GeneratedModels):
    """φ holds the last layer as "hyper.head.weight" and "hyper.head.bias"."""

    @abstractmethod
    def run_network(self, phi: Tree, fixed: Tree, ids: Tensor, method: Literal["forward", "hidden_features"]) -> Any:
        """Models of clients `ids` ("forward"), or the input of the last layer, [P, D] ("hidden_features")."""

    def generate(self, phi: Tree, fixed: Tree, ids: Tensor) -> Params:
        models: Params = self.run_network(phi, fixed, ids, "forward")
        return models

    def gradient(self, server: Server, ids: Tensor, uploads: Tree) -> tuple[Tree, Params]:
        if type(self).generate is not FlatHead.generate:  # a subclass that generates models in another way
            return super().gradient(server, ids, uploads)
        phi, fixed, start = server["phi"], server["fixed"], self.sent_models(server, ids)
        vector = self.cotangent(start, uploads)
        head = {name: value for name, value in phi.items() if name.startswith(HEAD)}
        rest_gradient, head_gradient = pull_back_heads(
            lambda phi: self.run_network(phi, fixed, ids, "hidden_features"),
            trees.omit(phi, head),
            head,
            [vector[name] for name in self.generated_shapes],
        )
        return {name: {**rest_gradient, **head_gradient}[name] for name in phi}, start
