#!/bin/sh
# METIS by pymetis 2025.2.2: more than eight parts of a small graph leave clients without a node; eight do not.
#
# Guess: METIS balances: its parts differ by a few percent in size, so with fewer parts than nodes each has a node.
# What happens: up to eight parts pymetis cuts recursively, above it takes METIS' k-way method, which on a small graph
# merges parts and returns empty ones, without a message. The network of the karate club (34 nodes) has four empty
# parts of ten and seven of sixteen; with `recursive=True` none. The larger the number of clients in a study, the more
# of them are empty, and it begins between 8 and 9.
# Output seen: "8 parts: 0 empty, 10: 4, 16: 7; recursive 10: 0, 16: 0".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" pymetis==2025.2.2 networkx==3.6.1
cd "$dir"
env/bin/python -W ignore - <<'END'
import networkx
import pymetis

graph = networkx.karate_club_graph()
neighbours = [sorted(graph[node]) for node in range(len(graph))]


def empty(parts, recursive=None):
    membership = pymetis.part_graph(parts, adjacency=neighbours, recursive=recursive)[1]
    return parts - len(set(membership))


print(f"8 parts: {empty(8)} empty, 10: {empty(10)}, 16: {empty(16)};",
      f"recursive 10: {empty(10, True)}, 16: {empty(16, True)}")
assert empty(8) == 0 and empty(10) >= 3 and empty(16) >= 5
assert empty(10, True) == empty(16, True) == 0
END
