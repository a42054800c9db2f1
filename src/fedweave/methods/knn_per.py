"""kNN-Per (Marfoq et al., ICML 2022, arXiv:2111.09360).

Server and traffic as FedAvg (2P). Every client has a memory of its training rows' penultimate features z_j: the
prediction is λ · p_kNN + (1 − λ) · softmax(g(x)), with p_kNN weighting the k nearest by exp(−‖z − z_j‖² / (D s)), D the
feature width. λ is chosen per client on a grid of 0.01 by validation accuracy, on the rows that also choose the
reported round; a client without such rows is refused.

`rule="pfedgraph"` is the reading of MediaBrain-SJTU/pFedGraph: weights exp(−‖z − z_j‖²) summed per class and passed
through a softmax over classes, λ fixed (`mix`).
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.engine.protocol import ClientState, Update
from fedweave.engine.registry import method
from fedweave.families import GlobalModel
from fedweave.families.heads import row_features
from fedweave.settings import AtMost, IntegerSpace, LogSpace, Positive, Size
from fedweave.tensors.trees import Params, Tree


@method("knn_per")
@dataclass(frozen=True, kw_only=True)
class KnnPer(GlobalModel):
    """FedAvg with a local nearest-neighbour memory."""

    k: Annotated[Size, IntegerSpace(3, 30), "neighbours"] = 10
    scale: Annotated[Positive, LogSpace(0.1, 10), "s, the kernel's width in units of the feature dimension"] = 1.0
    mix: Annotated[float, AtMost(1), "λ, weight of the memory; a negative one is chosen by validation"] = -1.0
    rule: Annotated[Literal["original", "pfedgraph"], "kernel and mixture: the paper's or pFedGraph's"] = "original"

    label = "kNN-Per"
    point = "pre"
    needs = frozenset({"classes"})

    @property
    def needs_validation(self) -> str:
        return "" if self.mix >= 0 else "which choose mix; set mix, such as 0.5"

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        fit = self.descend({**shared, **client}, data)
        return self.split_update(fit)._replace(model=self._memory(fit.model, data))

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Tree:
        return self._memory({**shared, **client}, data)

    def predict(self, model: Tree, data: ClientData, rows: Tensor) -> Tensor:
        p_knn, p_model = self._votes(model, data, rows)
        return model["mix"] * p_knn + (1.0 - model["mix"]) * p_model

    def _memory(self, model: Params, data: ClientData) -> Tree:
        memory = {
            "model": model,
            "features": row_features(self.task, model, data, data.train),
            "labels": self.task.targets(data, data.train.clamp(min=0)),
            "real": data.train >= 0,
        }
        p_knn, p_model = self._votes(memory, data, data.val)
        return {**memory, "mix": self._best_mix(p_knn, p_model, data)}

    def _best_mix(self, p_knn: Tensor, p_model: Tensor, data: ClientData) -> Tensor:
        if self.mix >= 0:
            return torch.full_like(p_knn[0, 0], self.mix)
        grid = torch.linspace(0, 1, 101, dtype=p_knn.dtype, device=p_knn.device)
        mixtures = grid[:, None, None] * p_knn + (1 - grid)[:, None, None] * p_model
        hits = mixtures.argmax(-1) == self.task.targets(data, data.val.clamp(min=0))
        return grid[(hits & (data.val >= 0)).sum(-1).argmax()]

    def _votes(self, memory: Tree, data: ClientData, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Class distributions [B, C] of the neighbours and of the model."""
        logits = self.task.predict(memory["model"], data, rows)
        z = row_features(self.task, memory["model"], data, rows)
        distance = torch.cdist(z, memory["features"]).square().masked_fill(~memory["real"], torch.inf)
        nearest, neighbours = distance.topk(min(self.k, distance.shape[1]), largest=False)
        classes = torch.arange(logits.shape[-1], device=logits.device)
        onehot = (memory["labels"][neighbours][..., None] == classes).to(logits.dtype)
        if self.rule == "original":
            weights = torch.softmax(-nearest / (z.shape[-1] * self.scale), -1)
            return (weights[..., None] * onehot).sum(-2), logits.softmax(-1)
        return torch.softmax((torch.exp(-nearest)[..., None] * onehot).sum(-2), -1), logits.softmax(-1)
