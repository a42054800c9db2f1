#!/bin/sh
# PyTorch 2.13.0: `contiguous(memory_format=torch.channels_last)` does nothing to greyscale images, and the first
# convolution takes the slow kernels.
#
# Guess: a convolution on the CPU computes with its channels last if its input was made so, with one channel as with
# three. And with one channel both layouts are the same order in memory, so that nothing could differ anyway.
# What happens: with one channel the tensor counts as contiguous in both layouts, so that `contiguous` returns it with
# the strides of the default layout. The strides alone choose the kernel of oneDNN: the output has its channels first,
# and a step of the first block takes three times as long (with AVX2; 1.3 times with SSE4.1) as with other strides for
# the same numbers in the same order. `to(memory_format=torch.channels_last)` sets them. `is_contiguous` says that both
# tensors are right. A model whose weights were converted too is not concerned.
# Output seen: "output has channels last: 3 channels True, 1 channel by contiguous False, by to True; slower by more
# than 1.4: True" (on one line).
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" torch==2.13.0 numpy==2.4.6
cd "$dir"
env/bin/python -W ignore - <<'END'
import sys
import time

import torch
from torch import nn

torch.set_num_threads(1)
layout = torch.channels_last
colour, grey = torch.randn(64, 3, 28, 28), torch.randn(64, 1, 28, 28)
inputs = [colour.contiguous(memory_format=layout), grey.contiguous(memory_format=layout), grey.to(memory_format=layout)]
assert all(x.is_contiguous(memory_format=layout) for x in inputs)
blocks = [nn.Sequential(nn.Conv2d(x.shape[1], 32, 5), nn.MaxPool2d(2), nn.ReLU()) for x in inputs[:2]]
blocks.append(blocks[1])
last = [block[0](x).is_contiguous(memory_format=layout) for block, x in zip(blocks, inputs)]
seconds = [[], []]
for _ in range(20):
    for x, times in zip(inputs[1:], seconds):
        start = time.process_time()
        for _ in range(3):
            blocks[1](x).sum().backward()
        times.append(time.process_time() - start)
ratio = min(seconds[0]) / min(seconds[1])
print("ratio:", round(ratio, 1), file=sys.stderr)
print(f"output has channels last: 3 channels {last[0]}, 1 channel by contiguous {last[1]}, by to {last[2]};",
      f"slower by more than 1.4: {ratio > 1.4}")
assert last == [True, False, True]
assert ratio > 1.4 or torch.backends.cpu.get_cpu_capability() != "AVX2"
END
