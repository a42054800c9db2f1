"""FedCP, conditional policies (Zhang et al., KDD 2023, arXiv:2307.01217).

Server keeps body B, head and a gate network C. The client trains B, its private head H_p and C, with frozen copies B_g
and H_g of what it received: with z = B(x) and the context c (the classes' rows of H_p summed, ℓ2-normalised, fixed for
the round) the gate splits features into z ⊙ s_p and z ⊙ s_g, C(z ⊙ c) = (s_p, s_g) a Gumbel-softmax over the two. The
logits are H_p(z ⊙ s_p) + H_g(z ⊙ s_g), the loss is CE + λ MMD²(z, B_g(x)) with Gaussian kernels. Up go B, C and (H_p +
H_g) / 2 (2P + 2|C|).

Deviation from TsingZ0/FedCP: no Gumbel noise in evaluation, where the code keeps drawing it.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn
from torch.nn import functional as F

from fedweave.client.data import ClientData
from fedweave.client.task import RowLosses
from fedweave.engine.protocol import ClientState, Start, Update, init_parameters
from fedweave.engine.registry import method
from fedweave.families import GlobalModel
from fedweave.families.heads import classify, head_shape
from fedweave.families.penalties import discrepancy
from fedweave.settings import AtLeast, LogSpace, Weight
from fedweave.tensors import dropout_keys, trees
from fedweave.tensors.trees import Params, Tree

GATE = ("gate/weight", "gate/bias", "gate/scale", "gate/shift")


@method("fedcp")
@dataclass(frozen=True, kw_only=True)
class FedCP(GlobalModel):
    """A gate per sample between personalized and global features."""

    lam: Annotated[Weight, LogSpace(0.1, 10), "λ, weight of the distance between local and global features"] = 5.0
    tau: Annotated[float, AtLeast(1e-6), "temperature of the Gumbel-softmax"] = 1.0

    label = "FedCP"
    needs = frozenset({"classes"})

    def extras(self, start: Start) -> Params:
        width, like = head_shape(self.task)[1], next(iter(start.model.values()))
        dense = init_parameters(lambda: nn.Linear(width, 2 * width), start.seed, like.dtype)
        return dict(
            zip(
                GATE, (dense["weight"], dense["bias"], like.new_ones(2 * width), like.new_zeros(2 * width)), strict=True
            )
        )

    def join(self, model: Params) -> ClientState:
        return trees.select(model, (*self.task.head, *self.local_names))

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        fit = self.descend(
            {**shared, **client},
            data,
            (*self.task.params, *GATE),
            loss=self.task.objective(data, self._losses(shared, self._context(client), data)),
        )
        head = {name: 0.5 * (fit.model[name] + shared[name]) for name in self.task.head}
        return Update(
            {"model": {**trees.omit(fit.model, self.local_names), **head}},
            trees.select(fit.model, client),
            self._deployed_model(fit.model, shared),
            fit.loss,
        )

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Tree:
        return self._deployed_model({**shared, **client}, shared)

    def predict(self, model: Tree, data: ClientData, rows: Tensor) -> Tensor:
        z = self.task.features(model["model"], data, rows)
        return self._logits({**model["model"], **model["gate"]}, model["head"], z, self._context(model["model"]))

    def _deployed_model(self, model: Params, received: Params) -> Tree:
        return {
            "model": trees.omit(model, GATE),
            "gate": trees.select(model, GATE),
            "head": trees.select(received, self.task.head),
        }

    def _context(self, model: Params) -> Tensor:
        """c [D]."""
        return F.normalize(next(model[name] for name in self.task.head if model[name].ndim == 2).sum(0), dim=0)

    def _logits(
        self, model: Params, global_head: Params, z: Tensor, context: Tensor, key: Tensor | None = None
    ) -> Tensor:
        weight, bias, scale, shift = (model[name] for name in GATE)
        gate = F.relu(F.layer_norm(F.linear(z * context, weight, bias), bias.shape, scale, shift)).unflatten(
            -1, (2, -1)
        )
        if key is not None:
            gate = gate - (-dropout_keys.uniform(key, gate.shape).clamp(min=2.0**-25).log()).log().to(gate)
        personal, common = (gate / self.tau).softmax(-2).unbind(-2)
        return classify(self.task, model, z * personal) + classify(self.task, global_head, z * common)

    def _losses(self, received: Params, context: Tensor, data: ClientData) -> RowLosses:
        names = (*self.task.params, *self.task.buffers)

        def losses(model: Params, rows: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
            frozen = {**trees.select(received, names), **{name: model[name].clone() for name in self.task.buffers}}
            z = self.task.forward(trees.select(model, names), data, rows, key, mask, method="features")
            reference = self.task.forward(frozen, data, rows, key, mask, method="features")
            logits = self._logits(model, received, z, context, dropout_keys.fold(key, 2))
            return self.task.row_loss(logits, self.task.targets(data, rows)) + self.lam * discrepancy(
                z, reference, mask
            )

        return losses
