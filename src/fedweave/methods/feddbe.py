"""FedDBE: the domain bias eliminator (Zhang et al., NeurIPS 2023, arXiv:2311.14975) on FedAvg.

Server keeps one model g and the consensual mean z̄ of features. On joining, every client trains g for E epochs without
DBE and sends the running mean of its features alone; z̄ is their mean by training rows and never changes. A client
keeps its bias memory b (PRBM, 0 at first): the logits are H(z + b), z = B(x), and b is trained along. Mean
regularisation (MR): the loss gains κ/2 mean((r − z̄)²), r ← (1 − μ) r + μ mean(z) over the batch, from 0 in every round;
only the last term has a gradient. g and z̄ go down, the trained model comes up (2P + D, and D on joining).

Deviation from TsingZ0/DBE: b is trained by the run's optimiser, which there is SGD without momentum and decay.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.solvers import Loss
from fedweave.engine.protocol import ClientState, Start, Update
from fedweave.engine.registry import method
from fedweave.families import GlobalModel
from fedweave.families.heads import classify, head_shape
from fedweave.settings import LinearSpace, LogSpace, Share, Weight
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree

BIAS, RUNNING, CONSENSUS = "memory/bias", "memory/running", "memory/consensus"


@method("feddbe")
@dataclass(frozen=True, kw_only=True)
class FedDBE(GlobalModel):
    """FedAvg whose clients keep the bias of their features and hold the rest to a common mean."""

    kappa: Annotated[Weight, LogSpace(0.1, 100), "κ, weight of the mean regularisation; 0: none"] = 50.0
    momentum: Annotated[Share, LinearSpace(0.1, 1), "μ, share of a batch in the running mean"] = 1.0
    memory: Annotated[bool, "train the bias memory; false: it stays 0"] = True

    label = "FedDBE"
    point = "pre"
    public = ("rows",)

    @property
    def enrolment_epochs(self) -> int:
        return self.training.epochs

    def enrol(self, model: Params, data: ClientData) -> Tree:
        fit = self.descend({**model, RUNNING: self._zeros(model)}, data, loss=self._loss(data))
        return {"mean": fit.model[RUNNING], "rows": data.size}

    def extras(self, start: Start) -> Params:
        rows = start.enrolled["rows"]
        weights = rows.new_ones(len(rows)) if self.training.uniform_mean else rows
        return {CONSENSUS: trees.weighted_mean({"mean": start.enrolled["mean"]}, weights)["mean"]}

    def merge(self, old: Params, mean: Params) -> Params:
        return {**old, **mean}

    def join(self, model: Params) -> ClientState:
        return {**super().join(model), BIAS: self._zeros(model)}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        start = {**shared, **client, RUNNING: self._zeros(shared)}
        names = (*self.task.params, *([BIAS] if self.memory else []))
        fit = self.descend(start, data, names, loss=self._loss(data))
        model = trees.omit(fit.model, (CONSENSUS, RUNNING))
        return Update({"model": trees.omit(model, client)}, trees.select(model, client), model, fit.loss)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return {**trees.omit(shared, (CONSENSUS,)), **client}

    def predict(self, model: Params, data: ClientData, rows: Tensor) -> Tensor:
        return classify(self.task, model, self.task.features(self._plain(model), data, rows) + model[BIAS])

    def _loss(self, data: ClientData) -> Loss:
        """The loss of a batch, which also moves the running mean; without a consensual mean in the model, no DBE."""

        def loss(model: Params, rows: Tensor, key: Tensor) -> tuple[Tensor, Params]:
            means: list[Tensor] = []

            def losses(model: Params, rows: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
                z = self.task.forward(self._plain(model), data, rows, key, mask, method="features")
                means.append(_mean(z, mask))
                outputs = classify(self.task, model, z + model[BIAS] if BIAS in model else z)
                return self.task.row_loss(outputs, self.task.targets(data, rows))

            value, buffers = self.task.objective(data, losses)(model, rows, key)
            running = (1.0 - self.momentum) * model[RUNNING] + self.momentum * means[0]
            if CONSENSUS in model:
                value = value + 0.5 * self.kappa * (running - model[CONSENSUS]).square().mean()
            return value, {**buffers, RUNNING: running.detach()}

        return loss

    def _plain(self, model: Params) -> Params:
        return trees.select(model, (*self.task.params, *self.task.buffers))

    def _zeros(self, model: Params) -> Tensor:
        """Zeros [D], of the features' width."""
        return next(iter(model.values())).new_zeros(head_shape(self.task)[1])


def _mean(z: Tensor, mask: Tensor | None) -> Tensor:
    """Mean [D] of features [B, ..., D] over the rows where `mask` [B] holds, and over the steps of series."""
    rows = z.flatten(1, -2).mean(1) if z.ndim > 2 else z
    if mask is None:
        return rows.mean(0)
    return (rows * mask[:, None]).sum(0) / mask.sum().clamp(min=1)
