"""IFCA, iterative federated clustering (Ghosh et al., NeurIPS 2020, arXiv:2006.04088).

Server keeps k cluster models. All of them go down; client i takes the one with the lowest loss on its training rows,
j = argmin_j F_i(θ_j), trains it, and sends its change Δ_i = θ_i − θ_j and the indicator s_i of j ((k + 1) P + k).
"models" (model averaging, option II): θ_j ← θ_j + Σ s_ij n_i Δ_i / Σ s_ij n_i, which is the mean of the θ_i.
"gradients" (option I): Δ_i is one step of the run's optimiser on all training rows, −γ ∇F_i(θ_j) for plain SGD, and the
divisor is Σ n_i over all participants. A cluster that nobody took keeps its model.

Deviations:
1. Clients count by their training rows n_i; the paper's have equally many.
2. The first model is the common initial one and the others are drawn independently of it. The public code
   (jichan3751/ifca) draws all of them again until no cluster is too small.
3. A client has one set of BatchNorm statistics, which it uses with every cluster's model.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedweave.client.data import ClientData, remove_padding
from fedweave.client.local_training import Fit
from fedweave.engine.protocol import ClientState, Method, Server, Start, Update
from fedweave.engine.registry import method
from fedweave.families.ensembles import initial_models
from fedweave.graphs.weights import row_shares
from fedweave.settings import IntegerSpace, Size
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree, is_mapped


@method("ifca")
@dataclass(frozen=True, kw_only=True)
class IFCA(Method):
    """A few models for all clients, each of which chooses its own by the training loss."""

    clusters: Annotated[Size, IntegerSpace(2, 5), "k, number of cluster models; 1 is FedAvg"] = 2
    averaging: Annotated[Literal["models", "gradients"], "of trained models, or of one full-batch step each"] = "models"

    label = "IFCA"
    point = "pre"
    robust_part = "update"

    @property
    def epochs(self) -> int:
        return self.training.epochs if self.averaging == "models" else 0

    def init(self, start: Start) -> Server:
        models = initial_models(self.task, start, self.clusters)
        return {
            "models": trees.stack([trees.omit(model, self.local_names) for model in models]),
            "labels": torch.full((start.clients,), -1),
            "sizes": torch.zeros(start.clients, dtype=self.task.dtype),
        }

    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        return {"models": server["models"]}, {}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        cluster, model = self._choose(shared["models"], client, data)
        fit = self._fit(model, data)
        change = {name: fit.model[name] - model[name] for name in shared["models"]}
        indicator = F.one_hot(cluster, self.clusters).to(self.task.dtype)
        private = trees.select(fit.model, self.local_names)
        return Update({"update": change, "cluster": indicator}, private, fit.model, fit.loss)

    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        labels = uploads["cluster"].argmax(-1)
        counts = F.one_hot(labels, self.clusters).double() * weights.double()[:, None]
        total = counts.sum(0) if self.averaging == "models" else counts.sum()
        step = trees.mix_rows(uploads["update"], (counts / total.clamp(min=1e-12)).T)
        return {
            "models": trees.tree_map(torch.add, server["models"], step),
            "labels": server["labels"].index_copy(0, ids, labels),
            "sizes": server["sizes"].index_copy(0, ids, weights.to(server["sizes"])),
        }

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return self._choose(shared["models"], client, data)[1]

    def admit(self, server: Server, enrolled: Tree, newcomers: int, start: Start) -> Server:
        return trees.grow(server, self.init(start))

    def collaboration(self, server: Server) -> Tensor:
        labels, sizes = server["labels"], server["sizes"]
        mean = row_shares((labels[:, None] == labels) * sizes)
        # A client whose cluster is not known yet learns from nobody.
        rows = torch.where(labels[:, None] < 0, torch.eye(len(labels)).to(mean), mean)
        return rows.expand(len(self.task.layers), -1, -1)

    def diagnostics(self, server: Server) -> dict[str, Tensor]:
        labels = server["labels"]
        return {"clusters in use": (labels[:, None] == torch.arange(self.clusters).to(labels)).any(0).sum()}

    def _choose(self, models: Params, client: ClientState, data: ClientData) -> tuple[Tensor, Params]:
        """(the cluster whose model has the lowest loss on the training rows, this model with the client's own part)."""
        candidates = [{**trees.at(models, j), **client} for j in range(self.clusters)]
        outputs = (self.task.predict(model, data, data.train) for model in candidates)
        best = torch.stack([self.task.mean_loss(out, data, data.train) for out in outputs]).argmin()
        return best, {**{name: value.index_select(0, best[None])[0] for name, value in models.items()}, **client}

    def _fit(self, model: Params, data: ClientData) -> Fit:
        if self.averaging == "models":
            return self.descend(model, data)
        full_batch = replace(data, plan=[[remove_padding(data.train)]], padded=is_mapped())
        return self.descend(model, full_batch, epochs=slice(0, 1))
