#!/bin/sh
# PyTorch 2.13.0: models filled from one flat vector share its memory, so that clients train each other.
#
# Guess: `vector_to_parameters(v, model.parameters())` copies the values of v, as `load_state_dict` does. Its
# counterpart `parameters_to_vector` does copy.
# What happens: each parameter becomes a view of v. A server that hands one vector to several clients has one model:
# the first client's training changes the others, and the vector that the server later subtracts is changed too.
# Output seen: "second client: -1.0, server's vector: -1.0"; the guess is 0.0 and 0.0.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" torch==2.13.0 numpy==2.4.6
cd "$dir"
env/bin/python -W ignore - <<'END'
import torch
from torch.nn.utils import vector_to_parameters

clients = [torch.nn.Linear(3, 2) for _ in range(2)]
received = torch.zeros(8)
for client in clients:
    vector_to_parameters(received, client.parameters())
optimizer = torch.optim.SGD(clients[0].parameters(), lr=1.0)
clients[0](torch.ones(1, 3)).sum().backward()
optimizer.step()  # only the first client trains
second, server = clients[1].weight[0, 0].item(), received[0].item()
print(f"second client: {second}, server's vector: {server}")
assert (second, server) == (-1.0, -1.0)
END
