"""Clients that hold subgraphs, as stacked arrays of a `Federation`."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedweave.engine.clients import pad_arrays
from fedweave.models.gcn import add_column_order, gcn_norm

SPARSE = 0.05  # share of entries that are not zero, below which a sparse product takes less time than a dense one


def stack_clients(
    x: Sequence[np.ndarray], y: Sequence[np.ndarray], edges: Sequence[np.ndarray], dtype: torch.dtype = torch.float32
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(own, extents) of a federation from every client's features [V, F], labels [V] and directed edges [2, E].

    Each edge is listed in both directions.

    Features that are mostly zeros are stored a second time as sparse matrices, in "cells" and "values".
    """
    (features, node_counts), (labels, _) = pad_arrays(x), pad_arrays(y)
    last_node = features.shape[1] - 1
    graphs = [gcn_norm(torch.from_numpy(e), len(nodes)) for e, nodes in zip(edges, x, strict=True)]
    edge_cells, weight, edge_counts = _pad_matrices(
        [g[0] for g in graphs], [g[1] for g in graphs], (last_node, last_node)
    )
    nodes = torch.arange(features.shape[1]) < node_counts[:, None]
    own = {"x": features.to(dtype), "y": labels, "edges": edge_cells, "weight": weight.to(dtype), "nodes": nodes}
    extents = {"x": node_counts, "y": node_counts, "nodes": node_counts, "edges": edge_counts, "weight": edge_counts}
    if np.mean([np.count_nonzero(a) / a.size for a in x]) >= SPARSE:
        return own, extents
    sparse = [torch.from_numpy(a).to_sparse().coalesce() for a in x]
    cells, values, cell_counts = _pad_matrices(
        [add_column_order(a.indices().flip(0)) for a in sparse],
        [a.values() for a in sparse],
        (features.shape[2] - 1, last_node),
    )
    return {**own, "cells": cells, "values": values.to(dtype)}, {**extents, "cells": cell_counts, "values": cell_counts}


def _pad_matrices(
    cells: Sequence[Tensor], values: Sequence[Tensor], corner: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Sparse matrices (cells with their column order, values) as (cells [N, 3, C], values [N, C], extents [N]).

    The padding is cells of value 0 at `corner`, the last cell, so that all cells stay in order.
    """
    extents = torch.tensor([len(v) for v in values])
    width = int(extents.max())
    fill = torch.stack([torch.full((width,), corner[0]), torch.full((width,), corner[1]), torch.arange(width)])
    padded = torch.stack([torch.cat([cell, fill[:, cell.shape[1] :]], 1) for cell in cells])
    return padded, torch.nn.utils.rnn.pad_sequence([*values], batch_first=True), extents
