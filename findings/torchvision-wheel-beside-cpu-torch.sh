#!/bin/sh
# torchvision 0.28.0 beside a CPU build of PyTorch 2.13.0: the pins are met, and the import fails.
#
# Guess: the versions belong together, pip is content, and the parts of torchvision that are Python (data sets,
# transforms, models) need no operators of a GPU.
# What happens: the wheel of the index is built for CUDA. Its library cannot load beside a CPU build, which is noted
# and passed over; then the import itself fails, as it describes an operator that nobody has declared. Two
# declarations before the import are enough for data sets, transforms and models. Needs a CPU build of PyTorch;
# elsewhere it says so and ends with 2.
# Output seen: "import: operator torchvision::nms does not exist; with two declarations: 94 names of transforms"
# (the number does not matter).
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" torch==2.13.0 torchvision==0.28.0 numpy==2.4.6 pillow
cd "$dir"
env/bin/python -W ignore - <<'END'
import subprocess
import sys

import torch

if torch.version.cuda:
    print("needs a CPU build of PyTorch")
    sys.exit(2)
plain = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, text=True)
message = plain.stderr.strip().splitlines()[-1].removeprefix("RuntimeError: ") if plain.returncode else "works"
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from torchvision.transforms import v2

print(f"import: {message}; with two declarations: {len(dir(v2))} names of transforms")
assert message == "operator torchvision::nms does not exist"
END
