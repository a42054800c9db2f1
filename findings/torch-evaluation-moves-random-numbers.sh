#!/bin/sh
# PyTorch 2.13.0: to evaluate on an unshuffled loader changes the training that follows.
#
# Guess: `DataLoader(..., shuffle=False)` without worker processes draws no random number, so that one more evaluation
# leaves dropout and the next shuffles as they were.
# What happens: each `iter(loader)` takes a number from the global generator, as a seed for workers that it may not
# have. A run that evaluates every round and one that evaluates at the end differ, with the same seed. A generator of
# the loader's own (`generator=`) avoids it.
# Output seen: "same dropout mask after an evaluation: False, with an own generator: True".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" torch==2.13.0 numpy==2.4.6
cd "$dir"
env/bin/python -W ignore - <<'END'
import torch
from torch.utils.data import DataLoader, TensorDataset

rows = TensorDataset(torch.arange(4))


def mask(loader):
    torch.manual_seed(0)
    for _ in loader:
        pass
    return torch.nn.functional.dropout(torch.ones(100))


plain = torch.equal(mask([]), mask(DataLoader(rows, batch_size=2, shuffle=False)))
own = torch.equal(mask([]), mask(DataLoader(rows, batch_size=2, shuffle=False, generator=torch.Generator())))
print(f"same dropout mask after an evaluation: {plain}, with an own generator: {own}")
assert (plain, own) == (False, True)
END
