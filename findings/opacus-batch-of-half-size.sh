#!/bin/sh
# Opacus 1.6.0: the same batch size is 64 on a client with 64 rows, and 32 on one with 65.
#
# Guess: a private loader made from `DataLoader(rows, batch_size=64)` draws each row with probability 64 / rows, so
# that batches have 64 rows in the mean; this is what the accountant's sampling rate means.
# What happens: the probability is 1 / number of batches, rounded up. With 65 rows this is 1/2, and the mean batch and
# the divisor of the gradient are 32. The noise of a step counts double there, and the guarantee is another one.
# Clients differ in size, so each has its own batch size; from 64 rows on it lies between the asked one and half of
# it.
# Output seen: "64 rows: 64, 65 rows: 32, 96 rows: 48, 128 rows: 64".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" opacus==1.6.0 torch==2.13.0 numpy==2.4.6
cd "$dir"
env/bin/python -W ignore - <<'END'
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset


def mean_batch(rows):
    model = torch.nn.Linear(2, 1)
    loader = DataLoader(TensorDataset(torch.zeros(rows, 2)), batch_size=64)
    optimizer = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=loader,
        noise_multiplier=1.0, max_grad_norm=1.0)[1]
    return optimizer.expected_batch_size


found = {rows: mean_batch(rows) for rows in (64, 65, 96, 128)}
print(", ".join(f"{rows} rows: {batch}" for rows, batch in found.items()))
assert found == {64: 64, 65: 32, 96: 48, 128: 64}
END
