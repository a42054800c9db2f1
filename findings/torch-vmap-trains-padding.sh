#!/bin/sh
# PyTorch 2.13.0: of stacked models under torch.func.vmap, only the first one keeps its padding vector fixed.
#
# Guess: `nn.Embedding(padding_idx=0)` has no gradient for vector 0, also where several models with tables of their own
# are computed at once, as in PyTorch's own recipe for ensembles. `vmap(grad(loss))` does so.
# What happens: where the forward pass alone is mapped, each model with rows of its own, and the sum of the losses is
# differentiated outside, the padding vector of every model but the first one has a gradient. So padding is trained, and
# the result of a model depends on its place in the stack.
# Output seen: "vmap(grad): [0.0, 0.0, 0.0], grad of vmap: [0.0, 2.0, 2.0]".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" torch==2.13.0 numpy==2.4.6
cd "$dir"
env/bin/python -W ignore - <<'END'
import torch
from torch.func import functional_call, grad, stack_module_state, vmap

models = [torch.nn.Embedding(5, 1, padding_idx=0) for _ in range(3)]
stacked, _ = stack_module_state(models)
codes = torch.tensor([[0, 0, 3]] * 3)  # of each model two places of padding and a word


def loss(params, rows):
    return functional_call(models[0], params, (rows,)).sum()


inside = vmap(grad(loss))(stacked, codes)["weight"][:, 0, 0].tolist()
outside = grad(lambda params: vmap(loss)(params, codes).sum())(stacked)["weight"][:, 0, 0].tolist()
print(f"vmap(grad): {inside}, grad of vmap: {outside}")
assert (inside, outside) == ([0.0, 0.0, 0.0], [0.0, 2.0, 2.0])
END
