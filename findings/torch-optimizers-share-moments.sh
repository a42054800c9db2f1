#!/bin/sh
# PyTorch 2.15.0: optimisers that start from one `state_dict` in one process have one momentum together.
#
# Guess: `load_state_dict` of an optimiser copies, as that of a module does. Clients that get the server's Adam moments
# at the start of a round then train apart from each other, and the server keeps its own.
# What happens: `state_dict` hands out the moments themselves, and `load_state_dict` takes them over where type and
# device fit. The steps of one client move the moments and the step count of all others and of the server. What a client
# learns depends on who trained before it, so that a simulation that trains clients in turn differs from one in
# processes or with files, which copies. Copy the state with `copy.deepcopy`.
# Output seen: "weight of the second client: trained first -1.00, trained after the other -0.04, with a deep copy
# -1.00".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" torch==2.15.0 numpy==2.4.6
cd "$dir"
env/bin/python -W ignore - <<'END'
from copy import deepcopy

import torch


def client(state=None):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    if state:
        optimizer.load_state_dict(state)
    return weight, optimizer


def train(weight, optimizer, gradient, steps):
    for _ in range(steps):
        weight.grad = torch.tensor([gradient])
        optimizer.step()


def learn(steps_of_other, copy=lambda state: state):
    server = client()
    train(*server, 1.0, 1)
    other, second = (client(copy(server[1].state_dict())) for _ in range(2))
    train(*other, -1.0, steps_of_other)
    train(*second, 1.0, 10)
    return second[0].item()


first, after, copied = learn(0), learn(10), learn(10, deepcopy)
print(f"weight of the second client: trained first {first:.2f}, trained after the other {after:.2f},",
      f"with a deep copy {copied:.2f}")
assert abs(first + 1) < 0.01 and copied == first and after > -0.2
END
