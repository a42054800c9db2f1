"""The collaboration graph as data: who learns from whom, how much, and what a mixture of models is.

Weights are [L, P, N]: one row-stochastic matrix per layer, row = the client that learns, column = the source.
Edges are [2, E] with both directions of every edge and no self loops; networks that want loops add their own.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedweave.errors import BadInput
from fedweave.tensors import tables, trees
from fedweave.tensors.tables import Table
from fedweave.tensors.trees import Params

LARGEST_GRAPH = 2**26  # weights of a graph of all clients, L · N²: 8192 clients with one layer, 2896 with eight
PART = 2**29  # bytes of the models that are compared with all models at once

Layers = Sequence[Sequence[str]]
"""Parameter names of every layer."""


def mix_models(weights: Tensor, models: Params, layers: Layers) -> Params:
    """Mix models layer by layer: weights [L, P, N] or [1, P, N], models [N, ...] -> [P, ...].

    Names in `layers` that `models` does not have (private parameters) are ignored. Names in no layer are dropped.
    """
    rows = weights.expand(len(layers), *weights.shape[1:])
    return {
        name: torch.tensordot(row, models[name], dims=1)
        for row, names in zip(rows, layers, strict=True)
        for name in names
        if name in models
    }


def is_recordable(layers: int, clients: int) -> bool:
    """Whether a graph of all clients [L, N, N] is small enough to be computed, recorded and described as a whole."""
    return layers * clients**2 <= LARGEST_GRAPH


def layer_cosines(
    updates: Params, layers: Layers, before: Tensor | None = None, changed: Tensor | None = None
) -> Tensor:
    """Cosine similarity [L, N, N] of stacked updates, each layer flattened; a zero update gives 0.

    Args:
        before, changed: the cosines before the updates of the clients `changed` [P] changed. Where updates lie in
            files, only the rows and columns of these clients are computed again.
    """
    if before is None or changed is None or not any(isinstance(value, Table) for value in updates.values()):
        return torch.stack([model_cosines({name: updates[name] for name in names}) for names in layers])
    rows = layer_cosine_rows(updates, layers, changed)
    return before.index_copy(1, changed, rows).index_copy(2, changed, rows.transpose(1, 2))


def model_cosines(models: Params, origin: Params | None = None, ids: Tensor | None = None) -> Tensor:
    """Cosine similarity [N, N] of stacked models [N, ...], or of their differences from a common `origin`.

    Products are summed over parameters, so that no copy of the models as one matrix is needed. A product of norms is
    at least 1e-12.

    Args:
        ids: the rows [P] that are returned, [P, N]; by default all.
    """
    if any(isinstance(value, Table) for value in models.values()):
        everybody = torch.arange(len(next(iter(models.values()))))
        return cosine_rows(models, everybody if ids is None else ids, origin)
    rows = [(value if origin is None else value - origin[name]).flatten(1) for name, value in models.items()]
    norms = trees.norms(rows)
    cosines = torch.stack([x @ x.T for x in rows]).sum(0) / (norms[:, None] * norms).clamp(min=1e-12)
    return cosines if ids is None else cosines[ids]


def layer_cosine_rows(updates: Params, layers: Layers, ids: Tensor) -> Tensor:
    """Rows `ids` [P] of `layer_cosines`, [L, P, N]; the other rows are not computed."""
    return torch.stack([cosine_rows({name: updates[name] for name in names}, ids) for names in layers])


def cosine_rows(models: Params, ids: Tensor, origin: Params | None = None) -> Tensor:
    """Rows `ids` [P] of `model_cosines`, [P, N]; the other rows are not computed. A part of the rows at a time."""
    return torch.cat([_part_cosines(models, part, origin) for part in _split_ids(models, ids)])


def _split_ids(models: Params, ids: Tensor) -> tuple[Tensor, ...]:
    """`ids` [P] in parts whose models take no more than `PART` bytes, as every part reads all models [N, ...] once."""
    return ids.split(max(1, PART // max(1, sum(value[0].nbytes for value in models.values()))))


def _part_cosines(models: Params, ids: Tensor, origin: Params | None) -> Tensor:
    """Rows `ids` [P] of `model_cosines` in one product, [P, N]."""
    pairs = []
    for name, value in models.items():
        center = None if origin is None else origin[name]
        rows = value[ids] if center is None else value[ids] - center
        pairs.append(tables.products(rows.flatten(1), value, center))
    norms = torch.stack([squares for _, squares in pairs]).sum(0).sqrt()
    return torch.stack([products for products, _ in pairs]).sum(0) / (norms[ids, None] * norms).clamp(min=1e-12)


def squared_distances(models: Params, ids: Tensor) -> Tensor:
    """‖θ_i − θ_j‖² [P, N] of clients `ids` [P] and all clients, of stacked models [N, ...]."""
    if not any(isinstance(value, Table) for value in models.values()):
        thetas = trees.to_matrix(models)
        return torch.cdist(thetas[ids], thetas).square()
    return torch.cat([_part_distances(models, part) for part in _split_ids(models, ids)])


def _part_distances(models: Params, ids: Tensor) -> Tensor:
    """`squared_distances` in one product, ‖a‖² + ‖b‖² − 2 a · b."""
    pairs = [tables.products(value[ids].flatten(1), value) for value in models.values()]
    products, squares = (torch.stack([pair[i] for pair in pairs]).sum(0) for i in (0, 1))
    return (squares[ids, None] + squares - 2.0 * products).clamp(min=0.0)


def cosines(x: Tensor) -> Tensor:
    """Cosine similarity [N, N] of the rows of `x` [N, D], as in `model_cosines`."""
    return model_cosines({"x": x})


def row_shares(weights: Tensor) -> Tensor:
    """Rows of non-negative weights [..., N] scaled to sum 1; a row without weight stays 0."""
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-12)


def simplex_projection(rows: Tensor) -> Tensor:
    """Euclidean projection of every row of [..., N] onto the probability simplex (Duchi et al., 2008).

    A row with NaN becomes NaN.
    """
    # This does not change the projection. Without it, rounding would lose the 1 below beside values such as 10⁸.
    rows = rows - rows.amax(-1, keepdim=True)
    descending = rows.sort(-1, descending=True).values
    rank = torch.arange(1, rows.shape[-1] + 1, device=rows.device)
    shift = (descending.cumsum(-1) - 1.0) / rank
    size = (descending > shift).sum(-1, keepdim=True)
    return (rows - shift.gather(-1, size.clamp(min=1) - 1)).clamp(min=0)


def edges_of(adjacency: Tensor) -> Tensor:
    """Edges [2, E] of a boolean matrix [N, N], symmetrised with OR, without self loops, sorted by source."""
    symmetric = (adjacency | adjacency.T).fill_diagonal_(False)
    return symmetric.nonzero().T.contiguous()


def knn_graph(x: Tensor, k: int) -> Tensor:
    """Edges [2, E] between every row of `x` [N, D] and its `k` most similar others by cosine; k = 0: no edge.

    Ties go to the lower index, so the graph is the same on every machine.

    Raises:
        BadInput: `k` is negative.
    """
    if k < 0:
        raise BadInput(f"k: {k} is negative; give the number of neighbours, 0 for none")
    similarity = cosines(x).fill_diagonal_(-torch.inf)
    nearest = torch.argsort(similarity, dim=1, descending=True, stable=True)[:, : min(k, len(x) - 1)]
    adjacency = torch.zeros(len(x), len(x), dtype=torch.bool, device=x.device)
    return edges_of(adjacency.scatter(1, nearest, True))


def threshold_graph(x: Tensor, tau: float) -> Tensor:
    """Edges [2, E] between rows of `x` [N, D] whose cosine is at least `tau`; none for tau = 1, despite rounding."""
    return edges_of((cosines(x) >= tau) & (tau < 1.0))


def complete_graph(n: int) -> Tensor:
    """Edges [2, E] between all pairs of `n` clients."""
    return edges_of(torch.ones(n, n, dtype=torch.bool))


def relation_graph(relation: np.ndarray | Tensor, n: int) -> Tensor:
    """Edges [2, E] of a stored client graph [2, R]: without direction, duplicates and self loops.

    Raises:
        BadInput: if the relation is not [2, R] or names a client outside 0..n-1.
    """
    edges = torch.as_tensor(relation).long()
    if edges.ndim != 2 or len(edges) != 2 or (edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < n):
        raise BadInput(f"relation: {tuple(edges.shape)} is not [2, R] with clients 0..{n - 1}; check the partition")
    adjacency = torch.zeros(n, n, dtype=torch.bool, device=edges.device)
    return edges_of(adjacency.index_put((edges[0], edges[1]), torch.tensor(True, device=edges.device)))


def dirichlet_energy(x: Tensor, edges: Tensor) -> Tensor:
    """½ Σ ‖x_u − x_v‖² over undirected edges, given in both directions [2, E]; x [N, D]. 0 for equal neighbours."""
    return 0.25 * (x[edges[0]] - x[edges[1]]).square().sum()


def smoothness(x: Tensor, edges: Tensor) -> dict[str, Tensor]:
    """How much neighbours differ: as it is, and divided by the scale of x [N, D]. 0 when a network over-smooths."""
    energy = dirichlet_energy(x, edges)
    return {"Dirichlet energy": energy, "Dirichlet quotient": energy / x.square().sum().clamp(min=1e-12)}


class Shares(NamedTuple):
    """Mean weight of one source: the client itself, a similar client (same group), another client."""

    own: float
    similar: float
    other: float


def weight_shares(weights: Tensor, group: Tensor) -> dict[str, Shares]:
    """Shares averaged over clients and over "all" layers, their "shallow" and their "deep" half [L, N, N].

    The figures of FedAGHN's Table 4. An odd middle layer belongs to both halves. A share is NaN if no client has
    a source of its kind.
    """
    itself = torch.eye(len(group), dtype=torch.bool, device=group.device)
    same = group[:, None] == group
    half = (len(weights) + 1) // 2
    parts = {"all": weights, "shallow": weights[:half], "deep": weights[-half:]}
    kinds = (itself, same & ~itself, ~same)
    return {name: Shares(*(_mean_over_rows(part.mean(0), kind) for kind in kinds)) for name, part in parts.items()}


def _mean_over_rows(weights: Tensor, kind: Tensor) -> float:
    rows = (weights * kind).sum(1) / kind.sum(1)
    return float(rows.nanmean())
