"""A family whose server learns mixtures from the clients' loss on held-out rows, at the model as they received it."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedweave.client.data import ClientData
from fedweave.client.local_training import total_gradient
from fedweave.client.solvers import SGD, Adam
from fedweave.client.task import CHUNK
from fedweave.engine.protocol import Server, Start
from fedweave.errors import BadInput
from fedweave.families.mixtures import LearnedMixtures
from fedweave.settings import LogSpace, Positive, Size
from fedweave.tensors import dropout_keys, trees
from fedweave.tensors.trees import Params, Tree

Gradient = Literal["client_grad", "delta", "simulated", "spsa"]


@dataclass(frozen=True, kw_only=True)
class ValidatedMixtures(LearnedMixtures):
    """Mixtures that learn from held-out losses (pFedGAT); one step a round on the *sum* of the clients' losses.

    `gat_grad` decides what is uploaded in addition to the model, from which the gradient of φ follows:
    client_grad: the loss and its gradient, which give the exact one.
    simulated: the same, but only the loss counts as traffic, which is possible in a single process only.
    delta: nothing; the gradient is (θ̄ − θ) / (lr · steps), where a step with momentum counts more (`_plain_steps`).
    spsa: the losses at the models of φ ± c u, by simultaneous perturbation (Spall, 1992).
    State: fixed gains {"key": of this round's probes}.
    """

    solver: SGD | Adam
    server_lr: Annotated[float, LogSpace(0.001, 0.1)] = 0.01
    gat_grad: Annotated[Gradient, "what the gradient of φ is computed from"] = "client_grad"
    gat_split: Annotated[Literal["val", "test"], "held-out rows; a run on test rows leaks"] = "val"
    probes: Annotated[Size, "random directions u ∈ {−1, 1}^|φ| a round, of spsa"] = 1
    perturbation: Annotated[Positive, "c, size of the perturbation, of spsa"] = 0.01

    public = ("steps",)

    def __post_init__(self) -> None:
        if self.gat_grad == "delta" and isinstance(self.solver, Adam):
            raise BadInput("gat_grad: 'delta' reads gradients off steps of SGD, not of adam; use client_grad, or sgd")
        if self.gat_grad == "delta" and isinstance(self.solver, SGD) and self.solver.momentum >= 1:
            raise BadInput(f"gat_grad: 'delta' needs a momentum below 1, not {self.solver.momentum}; use client_grad")

    @property
    def leaks(self) -> bool:
        return self.gat_split == "test"

    @property
    def needs_validation(self) -> str:
        return "" if self.leaks or self.gat_grad == "delta" else "from which the server learns; use gat_grad: delta"

    def begin(self, start: Start) -> tuple[Tree, Tree]:
        phi, fixed = super().begin(start)
        return phi, {**fixed, "key": dropout_keys.key(start.seed)}

    def remember(self, fixed: Tree, ids: Tensor, start: Params, uploads: Tree) -> Tree:
        return {**super().remember(fixed, ids, start, uploads), "key": dropout_keys.fold(fixed["key"], 1)}

    def attach(self, server: Server, ids: Tensor) -> Tree:
        if self.gat_grad != "spsa":
            return {}
        phi, fixed = server["phi"], server["fixed"]
        perturbed = [
            trees.tree_map(lambda p, u, c=c: p + c * u, phi, self.direction(phi, fixed, k))
            for k, c in self._perturbations()
        ]
        models = [self.generate(perturbed_phi, fixed, ids) for perturbed_phi in perturbed]
        return {"probes": trees.tree_map(lambda *rows: torch.stack(rows, dim=1), *models)}

    def received(self, shared: Tree, own: Tree) -> Params:
        return trees.omit(own, ("probes",))

    def feedback(self, model: Params, own: Tree, data: ClientData) -> Tree:
        if self.gat_grad == "delta":
            return {"steps": sum(((rows >= 0).any() for epoch in data.plan for rows in epoch), data.size.new_zeros(()))}
        held_out = _split_rows(data.test if self.leaks else data.val)
        total = torch.stack([self._row_weights(data, rows).sum() for rows in held_out]).sum().clamp(min=1e-12)

        def weighted_loss(params: Params, rows: Tensor, key: Tensor) -> tuple[Tensor, Params]:
            weights, places = self._row_weights(data, rows), rows.clamp(min=0)
            values = self.task.row_loss(self.task.forward(params, data, places), self.task.targets(data, places))
            return torch.where(weights > 0, values * weights, 0.0).sum() / total, {}

        if self.gat_grad == "spsa":
            with torch.no_grad():
                models = [{**model, **trees.at(own["probes"], k)} for k, _ in enumerate(self._perturbations())]
                losses = [
                    torch.stack([weighted_loss(params, rows, data.key)[0] for rows in held_out]).sum()
                    for params in models
                ]
                return {"losses": torch.stack(losses)}
        value, gradient = total_gradient(weighted_loss, model, held_out, data.key, self.task.params)
        return {"loss": value, "gradient": gradient}

    def cotangent(self, start: Params, uploads: Tree) -> Params:
        if self.gat_grad != "delta":
            return uploads["gradient"]
        momentum = self.solver.momentum if isinstance(self.solver, SGD) else 0.0
        scale = self.solver.lr * _plain_steps(uploads["steps"].clamp(min=1), momentum)
        return {name: (value - uploads["model"][name]) / trees.column(scale, value) for name, value in start.items()}

    def gradient(self, server: Server, ids: Tensor, uploads: Tree) -> tuple[Tree, Params]:
        if self.gat_grad != "spsa":
            return super().gradient(server, ids, uploads)
        phi, fixed = server["phi"], server["fixed"]
        slopes = uploads["losses"].sum(0) / (2 * self.probes * self.perturbation)  # [2 · probes], of + and − in turn
        terms = [
            trees.tree_map(lambda u, s=slopes[2 * k] - slopes[2 * k + 1]: s * u, self.direction(phi, fixed, k))
            for k in range(self.probes)
        ]
        with torch.no_grad():
            total = trees.tree_map(lambda *rows: torch.stack(rows).sum(0), *terms)
        return total, self.sent_models(server, ids)

    def traffic(self, shared: Tree, own: Tree, uploads: Tree, participants: int) -> tuple[int, int]:
        # The number of steps is not sent, because the server has set it.
        unsent = ("steps", "gradient") if self.gat_grad == "simulated" else ("steps",)
        return trees.nbytes(own), trees.nbytes(trees.omit(uploads, unsent))

    def direction(self, phi: Tree, fixed: Tree, probe: int) -> Tree:
        """u of this round's `probe`: independent signs in the form of φ."""
        leaves, form = tree_flatten(phi)
        draws = [
            dropout_keys.uniform(dropout_keys.fold(fixed["key"], probe, n), leaf.shape) for n, leaf in enumerate(leaves)
        ]
        return tree_unflatten(
            [torch.where(draw < 0.5, -1.0, 1.0).to(leaf) for draw, leaf in zip(draws, leaves, strict=True)], form
        )

    def _perturbations(self) -> list[tuple[int, float]]:
        """(probe, ± c) of every additional model in a download."""
        return [(k, c) for k in range(self.probes) for c in (self.perturbation, -self.perturbation)]

    def _row_weights(self, data: ClientData, rows: Tensor) -> Tensor:
        """Weight [B] of held-out rows: 0 for padding; a shared test set counts by the client's own labels."""
        is_row = (rows >= 0).to(self.task.dtype)
        if not self.leaks or "test_weight" not in data.arrays:
            return is_row
        return is_row * data.arrays["test_weight"][self.task.targets(data, rows.clamp(min=0))]


def _plain_steps(steps: Tensor, momentum: float) -> Tensor:
    """Number of steps without momentum that move as far as `steps` with momentum, on a constant gradient.

    Σ_{k ≤ K} (1 + μ + … + μ^{k−1}) = (K − μ (1 − μ^K) / (1 − μ)) / (1 − μ).
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum) if momentum else steps


def _split_rows(rows: Tensor) -> tuple[Tensor, ...]:
    """`rows` [R] in parts of equal length, at most `CHUNK`; -1 fills the last."""
    size = max(1, min(CHUNK, len(rows)))
    return F.pad(rows, (0, -len(rows) % size), value=-1).split(size)
