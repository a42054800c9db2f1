#!/bin/sh
# PyTorch Geometric 2.8.1: `NormalizeFeatures` of a client's subgraph differs from its rows of the whole graph.
#
# Guess: the transform works on rows, as its documentation says ("row-normalizes the attributes to sum up to one"), so
# that it does not matter whether a graph is cut into clients before or after it.
# What happens: it first subtracts the least value of the whole matrix, and it divides by at least 1. A client without
# the zeros of the others gets other features for the same nodes, a row with small values does not sum to 1, and a row
# whose values are all the least one becomes zero.
# Output seen: "whole graph: [0.25, 0.75], own subgraph: [0.0, 1.0], row of small values sums to 0.4".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" torch==2.13.0 torch-geometric==2.8.1 numpy==2.4.6
cd "$dir"
env/bin/python -W ignore - <<'END'
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import NormalizeFeatures

graph = Data(x=torch.tensor([[0.1, 0.3], [1.0, 3.0], [0.0, 0.0]]), edge_index=torch.empty(2, 0, dtype=torch.long))
whole = NormalizeFeatures()(graph.clone()).x
alone = NormalizeFeatures()(graph.subgraph(torch.tensor([1]))).x
print(f"whole graph: {whole[1].tolist()}, own subgraph: {alone[0].tolist()},",
      f"row of small values sums to {whole[0].sum().item():.1f}")
assert whole[1].tolist() == [0.25, 0.75] and alone[0].tolist() == [0.0, 1.0]
assert abs(whole[0].sum().item() - 0.4) < 1e-6
END
