#!/bin/sh
# PyTorch 2.13.0 on a CPU: the first normal numbers of a seed depend on how many are drawn.
#
# Guess: with one seed, `randn(15)` is the start of `randn(16)`, and `randn(17)` begins as `randn(32)`. This is so for
# `rand`, and for NumPy's generators.
# What happens: from 16 numbers on another algorithm fills whole blocks of 16, and a rest rewrites the last 16
# numbers. Noise or weights of the first clients therefore change when a client is added, and a layer with 15 weights
# starts elsewhere than the same layer padded to 16.
# Output seen: "normal: 15 of 16: False, 16 of 32: True, 17 of 32: False; uniform: True, True, True".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" torch==2.13.0 numpy==2.4.6
cd "$dir"
env/bin/python -W ignore - <<'END'
import torch


def starts_equal(draw, short, long):
    torch.manual_seed(0)
    first = draw(short)
    torch.manual_seed(0)
    return torch.equal(first, draw(long)[:short])


pairs = (15, 16), (16, 32), (17, 32)
normal = [starts_equal(torch.randn, *pair) for pair in pairs]
uniform = [starts_equal(torch.rand, *pair) for pair in pairs]
print(f"normal: 15 of 16: {normal[0]}, 16 of 32: {normal[1]}, 17 of 32: {normal[2]};",
      f"uniform: {', '.join(map(str, uniform))}")
assert normal == [False, True, False] and uniform == [True, True, True]
END
