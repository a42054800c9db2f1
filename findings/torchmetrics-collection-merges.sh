#!/bin/sh
# torchmetrics 1.9.0: two metrics of a collection become one if they agree on the first batch.
#
# Guess: a `MetricCollection` gives what its metrics give one by one. Sharing of states is for metrics that always
# have the same state, such as precision and recall.
# What happens: metrics whose states are equal after the first update share a state from then on, also if their
# settings differ. If the first client lacks the class that one metric ignores, accuracy without this class is wrong
# for all clients that follow; if another client comes first, both are right. `compute_groups=False` avoids it.
# Output seen: "without class 0: 0.43 in the collection, 0.50 alone".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
cd "$dir"
env/bin/python -W ignore - <<'END'
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy


def accuracies(**options):
    metrics = {"all": MulticlassAccuracy(3, average="micro"),
               "without 0": MulticlassAccuracy(3, average="micro", ignore_index=0)}
    collection = MetricCollection(metrics, **options)
    collection.update(torch.tensor([1, 2, 2]), torch.tensor([1, 2, 1]))  # the first client has no class 0
    collection.update(torch.tensor([1, 1, 0, 0]), torch.tensor([0, 0, 0, 1]))
    return round(collection.compute()["without 0"].item(), 2)


together, alone = accuracies(), accuracies(compute_groups=False)
print(f"without class 0: {together:.2f} in the collection, {alone:.2f} alone")
assert (together, alone) == (0.43, 0.5)
END
