#!/bin/sh
# PyTorch Geometric 2.8.1: GAT layers replace the attribute of an edge from a node to itself by a mean of others.
#
# Guess: a graph with self-loops keeps them. `add_self_loops`, which is on, adds those that are missing, as it does in
# GCNConv, where the weight that a node gives itself counts. So `GATConv(edge_dim=1)` learns from how much a client
# trusts itself.
# What happens: GATConv and GATv2Conv remove each self-loop with its attribute and add one with the mean of the
# attributes of the node's other incoming edges. Self-weights of 0 and of 1000 give the same output, and no gradient
# reaches them. GCN and GAT are then compared on different graphs, and a given or learned trust in oneself is lost.
# `add_self_loops=False` keeps the graph. Moreover GATConv without `edge_dim` drops all edge attributes that it is
# called with, also without a word; GATv2Conv refuses them.
# Output seen: "self-weights change the output: GCNConv True, GATConv False, GATv2Conv False; without add_self_loops
# True, True; largest gradient in a self-weight 0.0".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" torch==2.15.0 torch-geometric==2.8.1 numpy==2.4.6
cd "$dir"
env/bin/python -W ignore - <<'END'
import torch
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv

torch.manual_seed(0)
x = torch.randn(3, 4)
edges = torch.tensor([[0, 1, 2, 0, 1, 2], [1, 2, 0, 0, 1, 2]])  # a ring, and each node to itself
own = torch.tensor([[0.0], [1000.0]])


def changes(layer, shape):
    weights = [torch.cat([torch.tensor([1.0, 2.0, 3.0]), value.expand(3)]).view(shape) for value in own]
    return not torch.allclose(*(layer(x, edges, weight) for weight in weights))


gcn = changes(GCNConv(4, 2), (6,))
gat, kept = ([changes(kind(4, 2, edge_dim=1, add_self_loops=loops), (6, 1)) for kind in (GATConv, GATv2Conv)]
             for loops in (True, False))
plain = changes(GATConv(4, 2, add_self_loops=False), (6, 1))  # without `edge_dim`
weights = torch.rand(6, 1, requires_grad=True)
GATv2Conv(4, 2, edge_dim=1)(x, edges, weights).square().sum().backward()
gradient = weights.grad[3:].abs().max().item()
print(f"self-weights change the output: GCNConv {gcn}, GATConv {gat[0]}, GATv2Conv {gat[1]};",
      f"without add_self_loops {kept[0]}, {kept[1]}; largest gradient in a self-weight {gradient}")
assert gcn and gat == [False, False] and kept == [True, True] and not plain
assert gradient == 0 and weights.grad.abs().max() > 0
END
