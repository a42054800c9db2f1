"""Clients described by their own rows: an embedding network, and a hypernetwork on its output (PeFLL)."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedweave.client.data import ClientData
from fedweave.client.task import CHUNK
from fedweave.engine.protocol import Start, init_parameters
from fedweave.families.generated_models import GeneratedModels
from fedweave.families.heads import body, head_shape, one_hot
from fedweave.families.networks import Architecture, TargetHypernetwork, architecture
from fedweave.settings import Count, Size
from fedweave.tensors import trees
from fedweave.tensors.trees import Params

BODY = "body."


@dataclass(frozen=True, kw_only=True)
class ClientDescriptors(GeneratedModels):
    """A client's vector is the mean output of an embedding network on its rows (x, y).

    The network is a body like that of the client's model, in evaluation mode with fresh BatchNorm statistics, and two
    layers on its features beside y; or one linear layer on y. y is one-hot for classes, else the mean of a row's
    targets.
    """

    reads: Annotated[Literal["rows", "targets"], "what the embedding network reads of a row: all, or y"] = "rows"
    embed_width: Annotated[Size, "width of the layer above the embedding network's body"] = 100
    width: Annotated[Size, "hidden width of the hypernetwork"] = 100
    hidden: Annotated[Count, "hidden layers of the hypernetwork"] = 3

    @property
    def _body(self) -> tuple[str, ...]:
        # A recurrent decoder reads its own forecasts, so its features depend on the head too.
        return self.task.params if self.task.template.reads == "series" else body(self.task)

    def embedding_network(self, size: int, start: Start) -> Params:
        """Parameters for vectors of length `size`; the body begins as that of the common initial model."""
        (outputs, width), dtype = head_shape(self.task), next(iter(start.model.values())).dtype
        targets = outputs if "classes" in self.task.capabilities else 1
        if self.reads == "targets":
            return init_parameters(lambda: nn.Linear(targets, size), start.seed, dtype)

        def top() -> nn.Module:
            return nn.ModuleList([nn.Linear(width + targets, self.embed_width), nn.Linear(self.embed_width, size)])

        lower = {f"{BODY}{name}": value for name, value in trees.select(start.model, self._body).items()}
        return {**lower, **init_parameters(top, start.seed, dtype)}

    def describe(self, embed: Params, data: ClientData) -> Tensor:
        """The vector [D] of the first minibatch of the round, or of all training rows if there is no training."""
        rows = next((rows for epoch in data.plan for rows in epoch), data.train)
        indices, is_row = rows.clamp(min=0), (rows >= 0).to(self.task.dtype)
        x = self._targets(data, indices)
        if self.reads == "targets":
            outputs = F.linear(x, embed["weight"], embed["bias"])
        else:
            x = torch.cat([self._features(embed, data, indices), x], -1)
            hidden = F.relu(F.linear(x, embed["0.weight"], embed["0.bias"]))
            outputs = F.linear(hidden, embed["1.weight"], embed["1.bias"])
        return (outputs * is_row[:, None]).sum(0) / is_row.sum().clamp(min=1)

    def _features(self, embed: Params, data: ClientData, rows: Tensor) -> Tensor:
        """Features [B, D] of `rows`."""
        like = next(iter(embed.values()))
        buffers = {name: value.to(like.device) for name, value in self.task.template.named_buffers()}
        model = {**buffers, **{name: embed[f"{BODY}{name}"] for name in self._body}}
        parts = [self.task.forward(model, data, part, method="features") for part in rows.split(CHUNK)]
        # A model of series has features per step.
        return torch.cat(parts).reshape(len(rows), -1, head_shape(self.task)[1]).mean(1)

    def _targets(self, data: ClientData, rows: Tensor) -> Tensor:
        """y [B, C] or [B, 1]."""
        if "classes" in self.task.capabilities:
            return one_hot(self.task, data, rows)
        return self.task.targets(data, rows).reshape(len(rows), -1).mean(1, keepdim=True)

    def init_hypernetwork(self, size: int, start: Start) -> Params:
        """Parameters of a new hypernetwork on vectors of length `size`."""
        return init_parameters(self.hypernetwork(size), start.seed + 1, next(iter(start.model.values())).dtype)

    def hypernetwork(self, size: int) -> Architecture:
        """The hypernetwork on vectors of length `size`."""
        return architecture(TargetHypernetwork, size, self.generated_shapes, width=self.width, hidden=self.hidden)

    def models(self, hyper: Params, vectors: Tensor, scale: Tensor) -> Params:
        """Models [P, ...] from vectors [P, D]; `scale` is (m, s), or zeros for the moments of each vector."""
        mean, deviation = torch.where(scale.any(), scale[:, None], moments(vectors.detach()))
        z = (vectors - mean[:, None]) / deviation.clamp(min=1e-6)[:, None]
        return self.hypernetwork(vectors.shape[1]).run(hyper, z)


def moments(vectors: Tensor) -> Tensor:
    """Mean and standard deviation [2, P] over the entries of every vector [P, D]."""
    return torch.stack([vectors.mean(1), vectors.std(1)])
