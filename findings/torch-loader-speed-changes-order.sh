#!/bin/sh
# PyTorch 2.15.0: `num_workers` and `persistent_workers`, two settings of speed, change the order of the rows.
#
# Guess: a shuffled loader with a generator of its own draws the order in the main process, so that it depends on the
# seed, not on how the rows are read. In the first round it is so, which is as far as one usually looks.
# What happens: a client that trains for a fixed number of steps leaves its loader before the end. Workers have read
# ahead by then, and if they came to the end, the sampler has drawn numbers that it does not draw without workers: small
# clients go on in another order, large ones do not. Workers that stay alive need no new seed in a later round, so that
# the generator draws less, also if every round reads all rows. The same run on another machine, or a faster one, then
# has another result under the same seed.
# Output seen: "three rounds of two steps: no workers [5, 1, 0, 3] [3, 2, 4, 0] [0, 4, 1, 3], two workers [5, 1, 0, 3]
# [4, 2, 1, 3] [1, 5, 3, 2]; of all steps: second round equal False with persistent workers, True without".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" torch==2.15.0 numpy==2.4.6
cd "$dir"
env/bin/python -W ignore - <<'END'
import torch
from torch.utils.data import DataLoader


def rounds(steps, **options):
    loader = DataLoader(range(6), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(0), **options)
    return [[row for _, batch in zip(range(steps), loader) for row in batch.tolist()] for _ in range(3)]


alone, read_ahead = rounds(2), rounds(2, num_workers=2)
whole = rounds(99)  # to the end: `zip` asks for one batch more than there are
workers, persistent = rounds(99, num_workers=2), rounds(99, num_workers=2, persistent_workers=True)
print("three rounds of two steps: no workers", *alone, end=", two workers ")
print(*read_ahead, end="; ")
print(f"of all steps: second round equal {persistent[1] == whole[1]} with persistent workers,",
      f"{workers[1] == whole[1]} without")
assert alone[0] == read_ahead[0] and alone[1:] != read_ahead[1:]
assert workers == whole and persistent[0] == whole[0] and persistent[1] != whole[1]
END
