#!/bin/sh
# h5py 3: numbers that do not fit the type of an HDF5 data set end at its limits, and NaN becomes 0.
#
# Guess: the values are converted as NumPy does (300 becomes 44 in uint8, -1 becomes 255), or refused.
# What happens: the HDF5 library converts them, and it saturates: 300 is 255, -1 is 0, infinity is 255, and NaN is 0,
# in writing and in reading with `astype`. Labels with -1 for "unknown" become class 0, and missing or noisy pixels
# turn to black and white. The same array goes another way through NumPy, so that shards written as .npz and as .h5
# differ.
# Output seen: "HDF5: [255, 0, 2, 0], NumPy: [44, 255, 2]".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" h5py==3.16.0 numpy==2.4.6
cd "$dir"
env/bin/python -W ignore - <<'END'
import h5py
import numpy as np

with h5py.File("shard.h5", "w") as file:
    labels = file.create_dataset("y", (4,), dtype="uint8")
    labels[...] = np.array([300.0, -1.0, 2.7, np.nan])
    stored = labels[:].tolist()
numpy = np.array([300, -1, 2]).astype("uint8").tolist()
print(f"HDF5: {stored}, NumPy: {numpy}")
assert stored == [255, 0, 2, 0] and numpy == [44, 255, 2]
END
