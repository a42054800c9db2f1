"""FedAS (Yang, Huang and Ye, CVPR 2024).

Server keeps the body B; head and a copy of its last body stay with the client. Parameter alignment: the received body
is trained for an epoch, with SGD, to give the class means of features that the client's last body has on its training
rows, Σ_c mean((z − p_c)²) over the classes of a batch. Then body and head are trained together. B comes up with the
Fisher trace of the trained model, the sum over batches of ‖∇F‖² (2|B| + 1), and the server weighs bodies by it:
B ← Σ_i B_i tr_i / Σ_i tr_i (client synchronisation: an undertrained client counts less).

The equations are those of the public code (xiyuanyang45/FedAS); the paper's text was not available.
Deviations:
1. Batches of alignment and of the trace have the run's size; the code aligns in batches of 16.
2. BatchNorm statistics that alignment moves are dropped, as the code copies parameters alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedweave.client.data import ClientData, shuffled_batches
from fedweave.client.solvers import SGD
from fedweave.client.task import RowLosses
from fedweave.engine.protocol import ClientState, Method, Server, Start, Update
from fedweave.engine.registry import method
from fedweave.families.fisher import fisher_trace
from fedweave.families.heads import body, class_statistics, one_hot
from fedweave.settings import Epochs, LogSpace, Rate
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree, is_mapped

ALIGNMENT, TRACE = 4, 5  # random streams of the client's key


@method("fedas")
@dataclass(frozen=True, kw_only=True)
class FedAS(Method):
    """A shared body that every client aligns to its last one, averaged by how much clients have learnt."""

    align_epochs: Annotated[Epochs, "epochs of alignment before local training; 0: none"] = 1
    align_lr: Annotated[Rate, LogSpace(0.001, 0.1), "learning rate of the alignment"] = 0.01
    weights: Annotated[Literal["fisher", "rows"], "clients count by Fisher trace, or by training rows"] = "fisher"

    label = "FedAS"
    needs = frozenset({"classes"})

    @property
    def local_names(self) -> tuple[str, ...]:
        return (*self.task.head, *self.statistics)

    def init(self, start: Start) -> Server:
        return {"model": trees.omit(start.model, self.local_names)}

    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        return server["model"], {}

    def join(self, model: Params) -> ClientState:
        return model

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        fit = self.descend(self.personalize(shared, own, client, data), data, phase="model")
        upload: Tree = {"model": trees.omit(fit.model, self.local_names)}
        if self.weights == "fisher":
            upload["trace"] = fisher_trace(self.task, fit.model, data, self._epoch(data, TRACE))
        return Update(upload, fit.model, fit.model, fit.loss)

    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        # Noise can make a trace negative, and all traces can be 0.
        counts = uploads["trace"].clamp(min=1e-12) if self.weights == "fisher" else weights
        return {"model": trees.weighted_mean(uploads["model"], counts)}

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        received = {**client, **shared}
        if not self.align_epochs:
            return received
        plan = [self._epoch(data, ALIGNMENT, epoch) for epoch in range(self.align_epochs)]
        arrays = trees.omit(data.arrays, ("class_weight",))
        alignment_data = replace(data, arrays=arrays, plan=plan, padded=is_mapped())
        losses = self._alignment(alignment_data, class_statistics(self.task, client, data)["means"])
        fit = self.descend(
            received,
            alignment_data,
            body(self.task),
            loss=self.task.objective(alignment_data, losses),
            epochs=slice(0, self.align_epochs),
            solver=SGD(lr=self.align_lr),
            phase="alignment",
        )
        return {**received, **trees.select(fit.model, body(self.task))}

    def _alignment(self, data: ClientData, means: Tensor) -> RowLosses:
        """Losses whose mean over the batch is the sum over its classes of mean((z − p_c)²); p are `means` [C, D]."""

        def losses(model: Params, rows: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
            z, y = self.task.forward(model, data, rows, key, mask, method="features"), self.task.targets(data, rows)
            is_row = torch.ones_like(z[:, 0]) if mask is None else mask.to(z)
            class_counts = (one_hot(self.task, data, rows) * is_row[:, None]).sum(0).clamp(min=1)
            return (z - means[y]).square().mean(-1) * is_row.sum() / class_counts[y]

        return losses

    def _epoch(self, data: ClientData, *purpose: int) -> Sequence[Tensor]:
        """Batches of the training rows in random order, because rows may be stored by class or time."""
        return shuffled_batches(data, self.training.batch_size, self.training.drop_last, *purpose)
