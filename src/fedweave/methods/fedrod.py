"""FedRoD (Chen & Chao, ICLR 2022, arXiv:2107.00778).

Server keeps body B and generic head G and averages both (traffic 2P); every client keeps a private head H. B and G
learn from the balanced softmax CE(G(z) + log m_k, y), m_k the client's class counts, z = B(x); H learns from CE(G(z) +
H(z), y) with z and G(z) held fixed, on the same batches. The prediction is G(z) + H(z).

`local_generic` keeps G on the client too, as MediaBrain-SJTU/pFedGraph does; TsingZ0/PFLlib averages it.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.task import RowLosses
from fedweave.engine.protocol import ClientState, Update
from fedweave.engine.registry import method
from fedweave.families import GlobalModel
from fedweave.families.heads import classify, one_hot
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


@method("fedrod")
@dataclass(frozen=True, kw_only=True)
class FedRoD(GlobalModel):
    """A generic head that forgets class frequencies, and a private one that adds them back."""

    local_generic: Annotated[bool, "average only the body"] = False

    label = "FedRoD"
    needs = frozenset({"classes"})

    @property
    def local_names(self) -> tuple[str, ...]:
        return (*self.statistics, *(self.task.head if self.local_generic else ()))

    def join(self, model: Params) -> ClientState:
        return {"local": trees.select(model, self.local_names), "private": trees.select(model, self.task.head)}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        private = {f"private/{name}": value for name, value in client["private"].items()}
        fit = self.descend(
            {**shared, **client["local"], **private},
            data,
            (*self.task.params, *private),
            loss=self.task.objective(data, self._losses(data)),
        )
        model = trees.omit(fit.model, private)
        private_head = {name: fit.model[f"private/{name}"] for name in self.task.head}
        state = {"local": trees.select(model, self.local_names), "private": private_head}
        return Update(
            {"model": trees.omit(model, self.local_names)}, state, {"model": model, "private": private_head}, fit.loss
        )

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Tree:
        return {"model": {**shared, **client["local"]}, "private": client["private"]}

    def predict(self, model: Tree, data: ClientData, rows: Tensor) -> Tensor:
        z = self.task.features(model["model"], data, rows)
        with torch.no_grad():
            return classify(self.task, model["model"], z) + classify(self.task, model["private"], z)

    def _losses(self, data: ClientData) -> RowLosses:
        prior = one_hot(self.task, data, data.train).sum(0).clamp(min=1e-12).log()

        def losses(model: Params, rows: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
            private = {name: model[f"private/{name}"] for name in self.task.head}
            z = self.task.forward(
                trees.select(model, (*self.task.params, *self.task.buffers)), data, rows, key, mask, method="features"
            )
            generic, targets = classify(self.task, model, z), self.task.targets(data, rows)
            personal = generic.detach() + classify(self.task, private, z.detach())
            return self.task.row_loss(generic + prior.to(generic), targets) + self.task.row_loss(personal, targets)

        return losses
