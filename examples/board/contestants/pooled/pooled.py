"""One logistic regression of the rows of all clients."""

import json
import sys
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

task, output = map(Path, sys.argv[1:])
about = json.loads((task / "task.json").read_text())


def read(client, part, name):
    return np.load(task / client["folder"] / f"{part}.npz")[name]


def flat(x):
    return x.reshape(len(x), -1)


x, y = (np.concatenate([read(client, "train", name) for client in about["clients"]]) for name in ("x", "y"))
model = LogisticRegression(C=about["settings"]["strength"]).fit(flat(x), y)
for client in about["clients"]:
    (output / client["folder"]).mkdir(parents=True)
    for part in ("val", "test"):
        np.savez(output / client["folder"] / f"{part}.npz", outputs=model.predict_proba(flat(read(client, part, "x"))))
