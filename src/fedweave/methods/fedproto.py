"""FedProto (Tan et al., AAAI 2022, arXiv:2105.00243).

Server keeps one prototype μ_c [D] per class. It goes down; a client, whose whole model is its own, trains on
CE + λ mean((z − μ_y)²) and sends the mean features of its classes on its training rows with the numbers of rows; no
model is ever sent ((K + K_i) D + C, and C flags, for K classes with a prototype and K_i own classes). μ_c becomes the
mean over the clients that have the class, by their rows of it. The prediction is the class with the nearest prototype,
argmin_c ‖z − μ_c‖.

Deviations:
1. The paper divides a prototype once more by the number of clients that have the class, which would shrink it.
2. The distance is taken for each row, as in the public code (yuetan031/FedProto), and not between class means.
3. A client's class means are those of its trained model; the public code gathers them while it trains.
4. A class that no participant has keeps its prototype. While no class has one, the client's head predicts.
`weighted: false` and `classes: own` are as in the public code.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.engine.protocol import ClientState, Method, Server, Start, Update
from fedweave.engine.registry import method
from fedweave.families.heads import aligned_losses, class_statistics, head_shape, one_hot
from fedweave.settings import LogSpace, Weight
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree

NEVER = -1e30  # score of a class without a prototype


@method("fedproto")
@dataclass(frozen=True, kw_only=True)
class FedProto(Method):
    """Local models that agree on the mean features of every class."""

    lam: Annotated[Weight, LogSpace(0.01, 10), "λ, weight of the distance to the prototype; 0 is local training"] = 1.0
    prediction: Annotated[Literal["prototypes", "head"], "by the nearest prototype, or by the head"] = "prototypes"
    classes: Annotated[Literal["all", "own"], "which prototypes compete: all, or those of a client's classes"] = "all"
    weighted: Annotated[bool, "prototypes weigh clients by their class counts"] = True

    label = "FedProto"
    point = "pre"
    robust_part = ""
    needs = frozenset({"classes"})

    def init(self, start: Start) -> Server:
        classes, width = head_shape(self.task)
        like = next(iter(start.model.values()))
        return {"prototypes": like.new_zeros(classes, width), "defined": torch.zeros(classes, dtype=torch.bool)}

    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        return server, {}

    def join(self, model: Params) -> ClientState:
        return model

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        losses = aligned_losses(self.task, data, shared["prototypes"], shared["defined"], self.lam)
        fit = self.descend(client, data, loss=self.task.objective(data, losses))
        statistics = class_statistics(self.task, fit.model, data)
        upload = {"prototypes": statistics["means"], "counts": statistics["counts"]}
        return Update(upload, fit.model, self.personalize(shared, own, fit.model, data), fit.loss)

    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        present = (uploads["counts"] > 0.5).to(uploads["counts"])  # noise can make a count fractional or negative
        counts = present * uploads["counts"] if self.weighted else present
        mean = torch.einsum("pc,pcd->cd", counts / counts.sum(0).clamp(min=1e-12), uploads["prototypes"])
        is_updated = present.any(0)
        prototypes = torch.where(is_updated[:, None], mean, server["prototypes"])
        return {"prototypes": prototypes, "defined": server["defined"] | is_updated}

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Tree:
        defined = shared["defined"]
        if self.classes == "own":
            defined = defined & one_hot(self.task, data, data.train).any(0)
        return {"model": client, "prototypes": shared["prototypes"], "defined": defined}

    def predict(self, model: Tree, data: ClientData, rows: Tensor) -> Tensor:
        logits = self.task.predict(model["model"], data, rows)
        if self.prediction == "head":
            return logits
        z, defined = self.task.features(model["model"], data, rows), model["defined"]
        scores = -(z[:, None] - model["prototypes"]).square().mean(-1)
        return torch.where(defined.any(), scores.masked_fill(~defined, NEVER), logits)

    def traffic(self, shared: Tree, own: Tree, uploads: Tree, participants: int) -> tuple[int, int]:
        """Prototypes of the classes that have one; which classes these are, and their rows, for all classes."""
        size = trees.nbytes(shared["prototypes"][0])
        down = participants * (int(shared["defined"].sum()) * size + trees.nbytes(shared["defined"]))
        # Under privacy all counts are noise, and all classes are sent.
        return down, int((uploads["counts"] != 0).sum()) * size + trees.nbytes(uploads["counts"])
