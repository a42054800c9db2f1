#!/bin/sh
# PyTorch 2.15.0 on a CPU: `manual_seed` uses the lowest 32 bits of a seed; clients that differ above them are one.
#
# Guess: seeds are numbers of 64 bits, as the documentation of `manual_seed` says, and different seeds give different
# runs. `(client << 32) + round` then gives each client and round a seed that no other has.
# What happens: the generator drops the upper half without a word. All clients of a round draw one mask of dropout,
# one noise, one order of rows, although `initial_seed` shows a seed of its own for each. The mean of their noise has
# the variance of one client's: with 100 clients 100 times too much. With `client + (round << 32)` all rounds are
# alike instead. NumPy uses all bits of the same seeds.
# Output seen: "seeds shown by PyTorch: 100, different noises: 1 (NumPy 100), variance of the mean times 100: 99
# (NumPy 1)".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" torch==2.15.0 numpy==2.4.6
cd "$dir"
env/bin/python -W ignore - <<'END'
import numpy as np
import torch

ROUND, CLIENTS = 7, 100
seeds = [(client << 32) + ROUND for client in range(CLIENTS)]
shown = len({torch.Generator().manual_seed(seed).initial_seed() for seed in seeds})


def torch_noise(seed):
    torch.manual_seed(seed)
    return torch.randn(10_000).numpy()


def summary(noises):
    return len({noise.tobytes() for noise in noises}), round(CLIENTS * np.mean(noises, axis=0).var().item())


pytorch = summary([torch_noise(seed) for seed in seeds])
numpy = summary([np.random.default_rng(seed).standard_normal(10_000) for seed in seeds])
print(f"seeds shown by PyTorch: {shown}, different noises: {pytorch[0]} (NumPy {numpy[0]}),",
      f"variance of the mean times 100: {pytorch[1]} (NumPy {numpy[1]})")
assert shown == 100 and pytorch[0] == 1 and numpy[0] == 100
assert pytorch[1] > 90 and numpy[1] == 1
END
