#!/bin/sh
# flwr-datasets 0.6.1: the partitioner for IID clients does not draw; it cuts the table into slices.
#
# Guess: `IidPartitioner` gives each client rows drawn at random, as its documentation says ("sampled randomly"), so
# that ten clients of 100 rows have about the same labels in any table.
# What happens: client k has the k-th slice of the table as it lies. A table that is sorted by label, as many are that
# were read from a folder for each class, gives each of ten clients one label: the opposite of IID. Only
# `FederatedDataset` shuffles before it; who sets `partitioner.dataset` for an own table gets the slices. Baselines
# "on IID data" are then the hardest split of all. `DirichletPartitioner` of the same package does draw.
# Output seen: "labels of a client, of 10: IID 1, Dirichlet with alpha = 1000: 10".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" flwr-datasets==0.6.1 datasets==4.8.5 numpy==2.4.6
cd "$dir"
HF_HOME="$dir" HF_HUB_OFFLINE=1 env/bin/python -W ignore - <<'END'
from datasets import Dataset
from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner


def most_labels(partitioner):
    partitioner.dataset = Dataset.from_dict({"label": [label for label in range(10) for _ in range(100)]})
    return max(len({*partitioner.load_partition(client)["label"]}) for client in range(10))


iid = most_labels(IidPartitioner(num_partitions=10))
drawn = most_labels(DirichletPartitioner(num_partitions=10, partition_by="label", alpha=1000.0, seed=0))
print(f"labels of a client, of 10: IID {iid}, Dirichlet with alpha = 1000: {drawn}")
assert iid == 1 and drawn == 10
END
