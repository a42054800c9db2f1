#!/bin/sh
# PyTorch Geometric 2.8.1: `ToUndirected` of a graph that is undirected already doubles its weights, each time.
#
# Guess: the transform adds the missing directions, so that it leaves an undirected graph alone, also when it is in
# the list of transforms of the data set and of the client.
# What happens: it writes every edge in both directions and sums the weights of equal edges. Where all edges have both
# directions this is a factor of two. Where some have, as in a citation graph, only these get heavier.
# Output seen: "once: [2.0, 2.0, 1.0, 1.0], twice: [4.0, 4.0, 2.0, 2.0]"; the guess is ones.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" torch==2.13.0 torch-geometric==2.8.1 numpy==2.4.6
cd "$dir"
env/bin/python -W ignore - <<'END'
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import ToUndirected

edges = torch.tensor([[0, 1, 1], [1, 0, 2]])  # 0-1 in both directions, 1-2 in one
graph = Data(edge_index=edges, edge_weight=torch.ones(3), num_nodes=3)
once = ToUndirected()(graph.clone())
first, twice = sorted(once.edge_weight.tolist())[::-1], sorted(ToUndirected()(once.clone()).edge_weight.tolist())[::-1]
print(f"once: {first}, twice: {twice}")
assert (first, twice) == ([2.0, 2.0, 1.0, 1.0], [4.0, 4.0, 2.0, 2.0])
END
