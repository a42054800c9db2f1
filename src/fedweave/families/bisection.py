"""Clusters of clients, each with one model, that split in two where their members contradict each other."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from fedweave.engine.protocol import Server, Stage, Start
from fedweave.families.base import SplitClient
from fedweave.families.weaving import Weaving, all_ids
from fedweave.graphs.weights import row_shares
from fedweave.settings import AtLeast, AtMost, LogSpace, NonNegative, Size
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


@dataclass(frozen=True, kw_only=True)
class Bisection(Weaving, SplitClient):
    """The server keeps a partition of the clients and one model per cluster.

    Δ_k = θ_k − what client k received. A cluster whose members have ‖mean Δ‖ < ε1 and max ‖Δ‖ > ε2 splits; then every
    member's model gains the mean of Δ over the participants of its (new) cluster. Under partial participation, a split
    uses every member's latest update, and members without any stay in the larger part. Newcomers join the largest
    cluster.

    State: {"models", "updates": rows [N, ...], "round", "labels": cluster of every client [N], "seen": bool [N]}, and
    that of `observe`.
    """

    eps1: Annotated[NonNegative, LogSpace(0.1, 4), "ε1, a cluster is stationary below this norm of its mean"] = 0.5
    eps2: Annotated[NonNegative, LogSpace(0.1, 4), "ε2, a client is not stationary above this norm of its update"] = 0.5
    min_size: Annotated[Size, "clusters of this size or smaller never split"] = 2
    first_split: Annotated[int, AtLeast(-1), AtMost(1_000_000), "t0, rounds without splits; -1: a tenth of all"] = -1

    @abstractmethod
    def part(self, server: Server, members: Tensor) -> Tensor | None:
        """Bool [n], one of the two parts of a cluster's `members` [n], which all have sent updates; None: no split."""

    def observe(self, server: Server, ids: Tensor, updates: Params, weights: Tensor) -> Tree:
        """Further state after the updates [P, ...] of clients `ids`; by default none."""
        return {}

    def state_after_splits(self, server: Server) -> Tree:
        """Changes of the further state after a round in which clusters split; by default none."""
        return {}

    def client_weights(self, server: Server) -> Tensor:
        """The weight of every client [N] in the mean of its cluster; by default equal weights."""
        return torch.ones_like(server["seen"], dtype=torch.float64)

    def stages(self, rounds: int) -> list[Stage]:
        first_split = rounds // 10 if self.first_split < 0 else self.first_split
        return [Stage(replace(self, first_split=first_split), rounds)]

    def init(self, start: Start) -> Server:
        model = trees.omit(start.model, self.local_names)
        return {
            "models": trees.build_table(model, start.clients),
            "updates": trees.build_table(trees.tree_map(torch.zeros_like, model), start.clients),
            "round": torch.zeros((), dtype=torch.int64),
            "labels": torch.zeros(start.clients, dtype=torch.int64),
            "seen": torch.zeros(start.clients, dtype=torch.bool),
        }

    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        return {}, trees.take(server["models"], ids)

    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        server = self._record(server, ids, uploads, weights)
        server = self._split(server) if int(server["round"]) >= self.first_split else server
        present = torch.zeros_like(server["seen"]).index_fill(0, ids, True)
        learned = self._shares(server, present)
        share = self.controlled_row(learned, all_ids(learned), present, ahead=1) * present
        models = trees.tree_map(torch.add, server["models"], trees.mix_rows(server["updates"], share))
        return {**server, "models": models, "round": server["round"] + 1}

    def admit(self, server: Server, enrolled: Tree, newcomers: int, start: Start) -> Server:
        largest = server["labels"].mode().values
        member = (server["labels"] == largest).nonzero()[0]
        grown = trees.grow(server, self.init(start))
        new = torch.arange(start.clients - newcomers, start.clients, device=member.device)
        models = trees.put(grown["models"], new, trees.take(grown["models"], member.expand(newcomers)))
        return {**grown, "models": models, "labels": grown["labels"].index_fill(0, new, int(largest))}

    def collaboration(self, server: Server) -> Tensor:
        shares = self._shares(server, torch.ones_like(server["seen"])).to(torch.get_default_dtype())
        return self.controlled_row(shares, all_ids(shares)).expand(len(self.task.layers), -1, -1)

    def _shares(self, server: Server, present: Tensor) -> Tensor:
        """Weights [N, N] of the clients `present` [N] in the means of the clusters."""
        same = server["labels"][:, None] == server["labels"]
        return row_shares((same & present) * self.client_weights(server))

    def _record(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        new_updates = trees.sub(uploads["model"], trees.take(server["models"], ids))
        updates, seen = trees.put(server["updates"], ids, new_updates), server["seen"].index_fill(0, ids, True)
        return {**server, "updates": updates, "seen": seen, **self.observe(server, ids, new_updates, weights)}

    def _split(self, server: Server) -> Server:
        """The server after the splits of this round; the smaller part of a cluster gets a new label."""
        labels, updates = server["labels"], trees.to_matrix(server["updates"])
        for label in server["labels"].unique():
            members = (server["labels"] == label).nonzero().flatten()
            senders = members[server["seen"][members]]
            if len(members) <= self.min_size or len(senders) < 2 or not self._is_contradictory(updates[senders]):
                continue
            second = self.part(server, senders)
            if second is not None:
                second = second if 2 * int(second.sum()) <= len(senders) else ~second
                labels = labels.index_fill(0, senders[second], int(labels.max()) + 1)
        has_split = bool((labels != server["labels"]).any())
        return {**server, "labels": labels, **(self.state_after_splits(server) if has_split else {})}

    def _is_contradictory(self, updates: Tensor) -> bool:
        return float(updates.mean(0).norm()) < self.eps1 and float(updates.norm(dim=1).max()) > self.eps2
