"""A family of clients that learn a weight of the global model for each of its entries (FedALA, FedAH)."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from fedweave.client.data import ClientData, remove_padding
from fedweave.client.local_training import Fit
from fedweave.client.solvers import value_and_grad
from fedweave.engine.protocol import ClientState, Update
from fedweave.families.base import GlobalModel
from fedweave.settings import AtLeast, AtMost, Between, LogSpace, NonNegative, Rate
from fedweave.tensors import dropout_keys, trees
from fedweave.tensors.trees import Params, Tree, is_mapped

RECORD = 10  # number of last losses whose standard deviation shows whether W has converged


@dataclass(frozen=True, kw_only=True)
class LocalAggregation(GlobalModel):
    """Starts local training from θ̂ = θ + (g − θ) ⊙ W in the tensors `aggregated_names`, and from g in the others.

    W starts at 1, stays with the client, and is trained on its rows: W ← clip(W − η ∂F/∂θ̂ ⊙ (g − θ), 0, 1), one epoch
    a round. In the first round in which its g differs from θ, a client trains W for up to `start_epochs` epochs, until
    the losses at the ends of ten epochs have a standard deviation below `threshold`.
    """

    eta: Annotated[Rate, LogSpace(0.1, 10), "η, step size of W"] = 1.0
    portion: Annotated[float, Between(0, 100), "percent of the training rows that W learns on"] = 100.0
    start_epochs: Annotated[int, AtLeast(1), AtMost(10_000), "most epochs in the first training of W"] = 1
    threshold: Annotated[NonNegative, "standard deviation of the last losses below which W has converged"] = 0.1

    @property
    @abstractmethod
    def aggregated_names(self) -> tuple[str, ...]:
        """Names of the tensors that are aggregated locally."""

    def fit(self, model: Params, data: ClientData) -> Fit:
        """Local training after the aggregation; by default of the whole model."""
        return self.descend(model, data)

    def join(self, model: Params) -> ClientState:
        ones = {name: torch.ones_like(model[name]) for name in self.aggregated_names}
        return {
            "model": model,
            "weights": ones,
            "started": model[self.aggregated_names[0]].new_zeros((), dtype=torch.bool),
        }

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        model, weights, started = self._aggregate_locally(shared, client, data)
        fit = self.fit(model, data)
        return Update(
            {"model": trees.omit(fit.model, self.local_names)},
            {"model": fit.model, "weights": weights, "started": started},
            fit.model,
            fit.loss,
        )

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return self._aggregate_locally(shared, client, data)[0]

    def _aggregate_locally(
        self, shared: Params, client: ClientState, data: ClientData
    ) -> tuple[Params, Params, Tensor]:
        """(model to start from, W, whether W has been trained until it converged)."""
        local, weights = client["model"], client["weights"]
        if data.round == 0:
            return {**local, **shared}, weights, client["started"]
        gap = {name: shared[name] - local[name] for name in self.aggregated_names}

        def mixture(weights: Params) -> Params:
            return {name: local[name] + gap[name] * weights[name] for name in weights}

        masked, batches = replace(data, padded=is_mapped()), self._batches(data)
        objective = self.task.objective(masked)

        def gradient(weights: Params, rows: Tensor, key: Tensor) -> tuple[Tensor, Tree, Params]:
            return value_and_grad(lambda p: objective({**local, **shared, **p}, rows, key), mixture(weights))

        def one_epoch(weights: Params, epoch: int) -> tuple[Params, Tensor]:
            last = next(iter(gap.values())).new_zeros(())
            for b, rows in enumerate(batches):
                value, _, grads = gradient(weights, rows, dropout_keys.fold(data.key, 1, epoch, b))
                step = {name: (w - self.eta * grads[name] * gap[name]).clamp(0.0, 1.0) for name, w in weights.items()}
                weights, last = _where((rows >= 0).any(), (step, value), (weights, last))
            return weights, last

        trained = self._train_weights(weights, client["started"], one_epoch)
        differs = torch.stack([(g != 0).any() for g in gap.values()]).any()
        return {**local, **shared, **mixture(trained)}, trained, client["started"] | differs

    def _train_weights(
        self, weights: Params, started: Tensor, one_epoch: Callable[[Params, int], tuple[Params, Tensor]]
    ) -> Params:
        losses: list[Tensor] = []
        active = torch.ones_like(started)
        for epoch in range(self.start_epochs):
            if epoch > 0:
                active = active & ~started
            if epoch > RECORD:
                active = active & (torch.stack(losses[-RECORD:]).std(correction=0) >= self.threshold)
            if not is_mapped() and not active:
                break
            new, loss = one_epoch(weights, epoch)
            weights = _where(active, new, weights)
            losses.append(loss)
        return weights

    def _batches(self, data: ClientData) -> tuple[Tensor, ...]:
        """The rows W learns on, in batches; padded with −1 under `vmap`."""
        share = self.portion / 100.0
        width = max(1, int(share * len(data.train)))
        count = (share * data.size).floor().clamp(min=1)
        offset = (dropout_keys.uniform(data.key, ()).to(count) * (data.size - count + 1)).floor().long()
        size = self.training.batch_size
        if self.training.drop_last and size:  # as in training, because BatchNorm cannot learn from a batch of one row
            count = torch.where(count >= size, count - count % size, count)
        position = torch.arange(width, device=data.train.device)
        rows = torch.where(position < count, data.train[(offset + position).clamp(max=len(data.train) - 1)], -1)
        return remove_padding(rows).split(size or width)


def _where(condition: Tensor, new: Tree, old: Tree) -> Tree:
    return trees.tree_map(lambda a, b: torch.where(condition, a, b), new, old)
