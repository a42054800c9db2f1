"""A federation as tensors: features once, one row of indices per client.

`Federation` holds every client's data; `Cohort` is the view of the participants of one round; `ClientData` is what the
code of one client gets, without a client axis. Lists of rows are padded with −1. In the `batched` executor, under
`vmap`, plans, nodes and edges are padded too (rows of −1, edges of weight 0, masked nodes); the `loop` executor trims
them to the client's own sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.errors import BadInput
from fedweave.tensors.trees import take
from fedweave.threats.attacks import Attack

OF_A_CLIENT = ("class_weight", "test_weight", "adapter_rank")  # arrays without a meaning for pooled rows
PAIRS = ("edges", "cells")  # arrays [3, ...] with the positions of the entries of a sparse matrix


@dataclass(frozen=True)
class Clients:
    """All clients' data on one device.

    Attributes:
        shared: arrays every client indexes into, by name.
        own: arrays with a leading client axis [N, ...], padded to the largest client.
        extents: by name of such an array, int64 [N]: the length of each client without padding.
        train, val, test: int64 [N, m] rows padded with −1.
        ids: the clients' identities [N]; random streams depend on them, not on positions.
        relation: [2, R] the given client graph, both directions, or None.
        group: [N] planted group of each client, or None.
        divergence: [N, N] how much the training targets of two clients differ (Jensen-Shannon), or None.
        attack: which clients attack and how, or None.
        evaluated: bool [N] on the CPU, the clients that are evaluated, or None for all (`evaluation_sample`).
    """

    shared: dict[str, Tensor]
    own: dict[str, Tensor]
    train: Tensor
    val: Tensor
    test: Tensor
    ids: Tensor
    extents: dict[str, Tensor] = field(default_factory=dict)
    relation: Tensor | None = None
    group: Tensor | None = None
    divergence: Tensor | None = None
    attack: Attack | None = None
    evaluated: Tensor | None = None

    @property
    def clients(self) -> int:
        """N."""
        return len(self.ids)

    @cached_property
    def sample(self) -> Tensor:
        """Positions of the clients that are evaluated, int64 [K] on the CPU, ascending."""
        return torch.arange(self.clients) if self.evaluated is None else self.evaluated.nonzero()[:, 0]

    @cached_property
    def sizes(self) -> Tensor:
        """Training rows per client, float [N]."""
        return (self.train >= 0).sum(1).to(torch.get_default_dtype())

    @cached_property
    def pooled_federation(self) -> "Clients":
        """One client with the training rows of all clients, for a method that pools them. It has no other rows.

        The rows are in their order in the data, so that the order of clients has no influence.

        Raises:
            BadInput: values differ between clients, such as the units of targets, so that pooled rows cannot have them.
        """
        rows = self.train[self.train >= 0].sort().values[None]
        own = {name: value[:1] for name, value in self.own.items() if name not in OF_A_CLIENT}
        for name, first in own.items():
            if not torch.equal(self.own[name], first.expand_as(self.own[name])):
                raise BadInput(
                    f"central: every client has its own {name}, so that rows cannot be pooled; leave central out"
                )
        if "class_weight" in self.own:
            classes = self.own["class_weight"].shape[1]
            own["class_weight"] = balanced_weights(self.shared["y"][rows[0]], classes).to(self.sizes)[None]
        no_rows = rows[:, :0]
        return Clients(self.shared, own, rows, no_rows, no_rows, self.ids.min()[None])

    def select(self, positions: Tensor) -> "Clients":
        """The federation of the clients at `positions`, in that order; the client graph is restricted to them."""
        positions = positions.to(self.ids.device)
        rows = {name: getattr(self, name)[positions] for name in ("train", "val", "test", "ids")}
        group = None if self.group is None else self.group[positions]
        return replace(
            self,
            **rows,
            own=take(self.own, positions),
            extents=take(self.extents, positions),
            group=group,
            divergence=None if self.divergence is None else self.divergence[positions][:, positions],
            relation=_restrict(self.relation, positions, self.clients),
            attack=None if self.attack is None else self.attack.select(positions),
            evaluated=None if self.evaluated is None else self.evaluated[positions.cpu()],
        )

    def to(self, device: torch.device | str) -> "Clients":
        """The same federation on `device`."""
        required: dict[str, Any] = {name: getattr(self, name).to(device) for name in ("train", "val", "test", "ids")}
        names = ("relation", "group", "divergence", "attack")
        optional = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(
            self,
            shared={k: v.to(device) for k, v in self.shared.items()},
            own={k: v.to(device) for k, v in self.own.items()},
            **required,
            **{name: value.to(device) for name, value in optional.items()},
        )


def balanced_weights(labels: Tensor, classes: int) -> Tensor:
    """Weight of every class [C]: rows / (classes with rows x rows of the class); 0 for a class without rows."""
    counts = torch.bincount(labels, minlength=classes)
    present = counts > 0
    return torch.where(present, counts.sum() / (present.sum() * counts.clamp(min=1)), 0.0)


def _restrict(relation: Tensor | None, positions: Tensor, n: int) -> Tensor | None:
    if relation is None:
        return None
    new_positions = torch.full((n,), -1, dtype=torch.int64, device=relation.device)
    new_positions[positions] = torch.arange(len(positions), device=relation.device)
    edges = new_positions[relation]
    return edges[:, (edges >= 0).all(0)]


@dataclass(frozen=True)
class Cohort:
    """The participants of one round.

    Attributes:
        federation: the data of all clients.
        positions: int64 [P] the participants, on the CPU.
        plan: int64 [P, E, S, B] rows, −1 is padding, on the CPU; empty when nobody trains.
        keys: int64 [P].
        round: number of the round.
        testing: whether clients see their test rows: in evaluation, and if a method declares that it leaks.
    """

    federation: Clients
    positions: Tensor
    plan: Tensor
    keys: Tensor
    round: int
    testing: bool = False

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def counts(self) -> list[list[list[int]]]:
        """How many rows of every step are real, `[P][E][S]`."""
        return (self.plan >= 0).sum(-1).tolist()

    def chunk(self, start: int, stop: int) -> "Cohort":
        """Participants start … stop − 1."""
        return replace(
            self, positions=self.positions[start:stop], plan=self.plan[start:stop], keys=self.keys[start:stop]
        )

    def client_tensors(self) -> dict[str, Tensor]:
        """The per-client tensors with a leading axis [P, ...], input of a mapped function."""
        federation, device = self.federation, self.federation.ids.device
        rows = {
            "train": federation.train,
            "val": federation.val,
            "test": self._test(federation.test),
            "size": federation.sizes,
        }
        tensors = take({**rows, **{f"own/{name}": value for name, value in federation.own.items()}}, self.positions)
        return {**tensors, "plan": self.plan.to(device), "key": self.keys.to(device)}

    def view(self, tensors: dict[str, Any], padded: bool) -> ClientData:
        """One client's data from its slice of `client_tensors`."""
        own = {name.removeprefix("own/"): value for name, value in tensors.items() if name.startswith("own/")}
        rest = {name: value for name, value in tensors.items() if not name.startswith("own/")}
        return ClientData(arrays={**self.federation.shared, **own}, round=self.round, padded=padded, **rest)

    def client_data(self, i: int) -> ClientData:
        """Participant `i`, trimmed: no row of −1 in the plan, no padded node or edge."""
        federation, at, device = self.federation, int(self.positions[i]), self.federation.ids.device
        own = {f"own/{name}": _trim(name, value[at], federation.extents, at) for name, value in federation.own.items()}
        tensors: dict[str, Any] = {
            **own,
            "plan": _trim_plan(self.plan[i].to(device), self.counts[i]),
            "train": federation.train[at],
            "val": federation.val[at],
            "test": self._test(federation.test[at]),
            "key": self.keys[i].to(device),
            "size": federation.sizes[at],
        }
        return self.view(tensors, padded=False)

    def _test(self, rows: Tensor) -> Tensor:
        return rows if self.testing else rows[..., :0]


def _trim(name: str, value: Tensor, extents: dict[str, Tensor], client: int) -> Tensor:
    """An array without padding; the padded axis is the first one, and the second one of the arrays in `PAIRS`."""
    if name not in extents:
        return value
    extent = int(extents[name][client])
    return value[:, :extent] if name in PAIRS else value[:extent]


def _trim_plan(plan: Tensor, counts: list[list[int]]) -> list[list[Tensor]]:
    """Epochs of steps without padding; steps of nothing but padding are dropped."""
    return [
        [rows[:count] for rows, count in zip(steps, step_counts, strict=True) if count]
        for steps, step_counts in zip(plan, counts, strict=True)
    ]


def pad_rows(rows: Sequence[np.ndarray]) -> Tensor:
    """Ragged index lists as one int64 matrix [N, m] padded with −1."""
    padded = np.full((len(rows), max(map(len, rows), default=0)), -1, dtype=np.int64)
    for i, r in enumerate(rows):
        padded[i, : len(r)] = r
    return torch.from_numpy(padded)


def pad_arrays(arrays: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Ragged arrays stacked with zero padding along their first axis, and their real extents [N]."""
    extents = [len(a) for a in arrays]
    longest = max(extents)
    padded = np.stack([np.pad(a, [(0, longest - len(a)), *[(0, 0)] * (a.ndim - 1)]) for a in arrays])
    return torch.from_numpy(padded), torch.tensor(extents)


def check_clients(train: Sequence[np.ndarray], key: str) -> None:
    """Refuse a federation with a client that has no training rows."""
    for i, rows in enumerate(train):
        if len(rows) == 0:
            raise BadInput(key, f"client {i} has no training row; use fewer clients, another seed or a larger minimum")
