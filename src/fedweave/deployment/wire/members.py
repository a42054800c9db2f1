"""What the server knows of its clients: identities, names, units and graph, without any data."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fedweave.engine.clients import Clients


class Declared(Protocol):
    """The part of a specification that names clients; see `AppSpec`."""

    @property
    def clients(self) -> tuple[str, ...]: ...
    @property
    def group(self) -> tuple[int, ...] | None: ...
    @property
    def relation(self) -> tuple[Any, ...] | None: ...
    @property
    def units(self) -> tuple[str, ...]: ...
    @property
    def evaluated_clients(self) -> Tensor | None: ...


def placeholder_federation(spec: Declared, members: Sequence[int]) -> Clients:
    """A federation of `members` (identities in the order in which they joined) that holds no data."""
    no_rows = torch.full((len(members), 0), -1, dtype=torch.int64)
    ids = torch.tensor([*members], dtype=torch.int64)
    known = spec.group is not None and all(i < len(spec.group) for i in members)
    group = torch.tensor([spec.group[i] for i in members]) if known and spec.group is not None else None
    evaluated = None if spec.evaluated_clients is None else torch.isin(ids, spec.evaluated_clients)
    return Clients(
        {}, {}, no_rows, no_rows, no_rows, ids, relation=_relation(spec, ids), group=group, evaluated=evaluated
    )


def evaluated_positions(spec: Declared, members: Sequence[int]) -> list[int]:
    """Positions of the members that are evaluated, ascending."""
    if spec.evaluated_clients is None:
        return [*range(len(members))]
    return torch.isin(torch.tensor([*members], dtype=torch.int64), spec.evaluated_clients).nonzero()[:, 0].tolist()


def names(spec: Declared, members: Sequence[int]) -> tuple[str, ...]:
    """Names of the members; the name of a client that the specification does not know is its number."""
    return tuple(spec.clients[i] if i < len(spec.clients) else f"client {i}" for i in members)


def units(spec: Declared, members: Sequence[int]) -> tuple[str, ...]:
    """Units of the members, or none; a client that the specification does not know is a unit of its own."""
    declared = spec.units
    return tuple(declared[i] if i < len(declared) else f"client {i}" for i in members) if declared else ()


def _relation(spec: Declared, ids: Tensor) -> Tensor | None:
    if spec.relation is None:
        return None
    positions = {identity: i for i, identity in enumerate(ids.tolist())}
    pairs = [
        (positions[a], positions[b]) for a, b in zip(*spec.relation, strict=True) if a in positions and b in positions
    ]
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T
