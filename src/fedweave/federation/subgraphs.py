"""Clients that hold subgraphs, as stacked arrays of a `Federation`."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedweave.federation.federation import pad_arrays
from fedweave.models.gcn import add_column_order, gcn_norm

SPARSE = 0.05  # below this share of entries that are not zero, one product by cells costs less than one by all entries


def stack_clients(
    x: Sequence[np.ndarray], y: Sequence[np.ndarray], edges: Sequence[np.ndarray], dtype: torch.dtype = torch.float32
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(own, extents) of a federation from every client's features [V, F], labels [V] and directed edges [2, E].

    Each edge is listed in both directions.

    Features that are mostly zeros are there a second time, by their cells.
    """
    (features, vs), (labels, _) = pad_arrays(x), pad_arrays(y)
    last = features.shape[1] - 1
    graphs = [gcn_norm(torch.from_numpy(e), len(nodes)) for e, nodes in zip(edges, x, strict=True)]
    links, weight, es = _pad_matrices([g[0] for g in graphs], [g[1] for g in graphs], (last, last))
    nodes = torch.arange(features.shape[1]) < vs[:, None]
    own = {"x": features.to(dtype), "y": labels, "edges": links, "weight": weight.to(dtype), "nodes": nodes}
    extents = {"x": vs, "y": vs, "nodes": vs, "edges": es, "weight": es}
    if np.mean([np.count_nonzero(a) / a.size for a in x]) >= SPARSE:
        return own, extents
    filled = [torch.from_numpy(a).to_sparse().coalesce() for a in x]
    places, values, cs = _pad_matrices(
        [add_column_order(a.indices().flip(0)) for a in filled],
        [a.values() for a in filled],
        (features.shape[2] - 1, last),
    )
    return {**own, "cells": places, "values": values.to(dtype)}, {**extents, "cells": cs, "values": cs}


def _pad_matrices(
    places: Sequence[Tensor], values: Sequence[Tensor], corner: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Sparse matrices (cells with their column order, values) as (places [N, 3, C], values [N, C], extents [N]).

    Padding is cells of value 0 in the last `corner`, where they leave the others in order.
    """
    extents = torch.tensor([len(v) for v in values])
    width = int(extents.max())
    fill = torch.stack([torch.full((width,), corner[0]), torch.full((width,), corner[1]), torch.arange(width)])
    stacked = torch.stack([torch.cat([p, fill[:, p.shape[1] :]], 1) for p in places])
    return stacked, torch.nn.utils.rnn.pad_sequence([*values], batch_first=True), extents
