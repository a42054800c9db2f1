"""Each client: the class whose mean of training rows is nearer, and how much nearer it is."""

import json
import sys
from pathlib import Path

import numpy as np

task, output = map(Path, sys.argv[1:])
about = json.loads((task / "task.json").read_text())
for client in about["clients"]:
    arrays = {part: np.load(task / client["folder"] / f"{part}.npz") for part in ("train", "val", "test")}
    x, y = (arrays["train"][name] for name in ("x", "y"))
    means = [x[y == k].mean(0) if (y == k).any() else x.mean(0) for k in range(about["outputs"])]
    (output / client["folder"]).mkdir(parents=True)
    for part in ("val", "test"):
        rows = arrays[part]["x"]
        far = np.stack([np.square(rows - mean).reshape(len(rows), -1).sum(1) for mean in means], 1)
        near = np.exp(far.min(1, keepdims=True) - far)
        np.savez(output / client["folder"] / f"{part}.npz", outputs=near / near.sum(1, keepdims=True))
