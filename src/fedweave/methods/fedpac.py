"""FedPAC (Xu et al., ICLR 2023, arXiv:2306.11867).

Server keeps the body B, class prototypes μ and every client's head H_i. A round trains H_i for an epoch with B frozen,
then B with CE + λ mean ‖z − μ_y‖². Up go B, H_i, the classes' mean features and counts, and statistics of the received
body on the client's rows: h_i,c = p_i(c) μ_i,c and V_i = (Σ_c p_i(c) E‖z‖²_c − Σ_c p_i(c)² ‖μ_i,c‖²) / m_i. Heads are
combined by min_α Σ_j V_j α_j² + ‖Σ_j α_j (h_i − h_j)‖² over the simplex, H_i ← Σ_j α_j H_j; shares below 10⁻³ count as
0.

Deviations from JianXu95/FedPAC:
1. The quadratic program is solved as the least-squares problem that it is, so its matrix needs no eigenvalues removed.
2. The head uses the run's optimiser unless `head_lr` is given.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.solvers import SGD, Solver
from fedweave.engine.protocol import ClientState, Server, Start, Update
from fedweave.engine.registry import method
from fedweave.families.heads import aligned_losses, body, class_statistics, head_shape, head_weights
from fedweave.families.weaving import Weaving
from fedweave.models.base import BODY
from fedweave.settings import Epochs, LogSpace, Rate, Share, Weight
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


@method("fedpac")
@dataclass(frozen=True, kw_only=True)
class FedPAC(Weaving):
    """Features aligned to common prototypes, heads combined where that helps."""

    lam: Annotated[Weight, LogSpace(0.01, 10), "λ, weight of the alignment"] = 1.0
    head_epochs: Annotated[Epochs, "epochs of head training before the body's"] = 1
    head_lr: Annotated[Rate, "learning rate of the head; 0 is the run's optimiser"] = 0.0
    head_momentum: Annotated[Share, "momentum of the head's own optimiser"] = 0.5
    head_decay: Annotated[Rate, "weight decay of the head's own optimiser"] = 5e-4
    weighted: Annotated[bool, "prototypes weigh clients by their class counts"] = True

    label = "FedPAC"
    parameters = ("model", "head")
    needs = frozenset({"classes", BODY})

    @property
    def epochs(self) -> int:
        return self.head_epochs + self.training.epochs

    @property
    def head_solver(self) -> Solver:
        """The optimiser of the head."""
        if not self.head_lr:
            return self.solver
        return SGD(lr=self.head_lr, momentum=self.head_momentum, weight_decay=self.head_decay)

    def init(self, start: Start) -> Server:
        classes, width = head_shape(self.task)
        like, n = next(iter(start.model.values())), start.clients
        return {
            "model": trees.select(start.model, body(self.task)),
            "heads": trees.build_table(trees.select(start.model, self.task.head), n),
            "prototypes": like.new_zeros(classes, width),
            "defined": torch.zeros(classes, dtype=torch.bool),
            "alpha": torch.eye(n, dtype=like.dtype),
            "sizes": like.new_zeros(n),
        }

    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        return {name: server[name] for name in ("model", "prototypes", "defined")}, trees.take(server["heads"], ids)

    def sent(self, shared: Tree, own: Tree) -> tuple[Params, Params]:
        return shared["model"], own

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        model = self.personalize(shared, own, client, data)
        head_fit = self.descend(model, data, self.task.head, epochs=slice(0, self.head_epochs), solver=self.head_solver)
        losses = aligned_losses(self.task, data, shared["prototypes"], shared["defined"], self.lam)
        aligned, body_epochs = self.task.objective(data, losses), slice(self.head_epochs, self.epochs)
        fit = self.descend(head_fit.model, data, body(self.task), epochs=body_epochs, loss=aligned)
        before, after = (class_statistics(self.task, m, data) for m in (model, fit.model))
        statistics = {**trees.select(before, ("h", "variance")), **trees.select(after, ("means", "counts"))}
        upload = {
            "model": trees.select(fit.model, body(self.task)),
            "head": trees.select(fit.model, self.task.head),
            **statistics,
        }
        return Update(upload, trees.select(fit.model, self.local_names), fit.model, fit.loss)

    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        counts = uploads["counts"] if self.weighted else (uploads["counts"] > 0).to(uploads["counts"].dtype)
        totals = counts.sum(0)
        alpha = head_weights(uploads["variance"], uploads["h"])
        present = torch.zeros_like(server["sizes"], dtype=torch.bool).index_fill(0, ids, True)
        rows = torch.zeros_like(server["alpha"][ids]).index_copy(1, ids, alpha)
        rows = self.controlled_row(rows, ids, present, ahead=1)
        return {
            "model": trees.weighted_mean(uploads["model"], weights),
            "heads": trees.put(server["heads"], ids, trees.mix_rows(uploads["head"], rows[:, ids])),
            "prototypes": torch.einsum("pc,pcd->cd", counts, uploads["means"]) / totals.clamp(min=1)[:, None],
            "defined": totals > 0,
            "alpha": server["alpha"].index_copy(0, ids, rows),
            "sizes": torch.zeros_like(server["sizes"]).index_copy(0, ids, weights.to(server["sizes"])),
        }

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return {**shared["model"], **own, **client}

    def admit(self, server: Server, enrolled: Tree, newcomers: int, start: Start) -> Server:
        return trees.grow(server, self.init(start))

    def collaboration(self, server: Server) -> Tensor:
        sizes, alpha = server["sizes"], server["alpha"]
        common = (sizes / sizes.sum()).expand_as(alpha) if sizes.any() else torch.full_like(alpha, 1 / len(alpha))
        return torch.stack([alpha if names[0] in self.task.head else common for names in self.task.layers.values()])
