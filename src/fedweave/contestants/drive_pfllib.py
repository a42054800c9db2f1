"""Run PFLlib's command line on a task: python drive_pfllib.py CHECKOUT [arguments of main.py] TASK OUTPUT.

It runs in PFLlib's environment and imports nothing of fedweave. `system/` of the checkout is copied to a temporary
folder, beside a data set made of the task, so that the checkout is read only. The scores that a client's evaluation
gives to scikit-learn's `roc_auc_score` are its predictions; those of the last evaluation are written. The targets of
test rows are not known here, so that the accuracies that PFLlib prints mean nothing.
"""

import json
import os
import random
import runpy
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

PARTS = ("train", "val", "test")


def main(words: list[str]) -> None:
    checkout, task, output = Path(words[0]), Path(words[-2]), Path(words[-1])
    about = json.loads((task / "task.json").read_text(encoding="utf-8"))
    if about["kind"] != "classes":
        raise SystemExit("PFLlib predicts classes; this task has numbers")
    arguments = [
        *words[1:-2],
        *(str(word) for name, value in about["settings"].items() for word in (f"-{name}", value)),
    ]
    defaults = {
        "-data": "fedweave",
        "-gr": about["budget"]["rounds"],
        "-dev": "cpu",
        "-nc": len(about["clients"]),
        "-ncl": about["outputs"],
        "-t": 1,
    }
    arguments += [str(w) for name, value in defaults.items() if name not in arguments for w in (name, value)]
    clients = [
        {part: dict(np.load(task / one["folder"] / f"{part}.npz")) for part in PARTS} for one in about["clients"]
    ]
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        shutil.copytree(checkout / "system", root / "system", ignore=shutil.ignore_patterns("*.pt", "__pycache__"))
        write_data(root / "dataset" / arguments[arguments.index("-data") + 1], clients, about["outputs"])
        os.chdir(root / "system")
        sys.path.insert(0, str(root / "system"))
        scores = record_scores(about["seed"])
        sys.argv = ["main.py", *arguments]
        runpy.run_path("main.py", run_name="__main__")
        os.chdir(temporary)
    for i, (one, rows) in enumerate(zip(about["clients"], clients, strict=True)):
        if one["evaluated"]:
            write_scores(output / one["folder"], scores.get(i), len(rows["val"]["x"]), i)


def write_data(folder: Path, clients: list[dict[str, Any]], classes: int) -> None:
    """The rows of each client as PFLlib writes them; its test rows are our validation rows and then our test rows."""
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
    for i, rows in enumerate(clients):
        val, test = rows["val"], rows["test"]["x"]
        hidden = np.zeros(len(test), dtype=np.int64)
        held = {"x": np.concatenate([val["x"], test]), "y": np.concatenate([val["y"], hidden])}
        if not len(held["x"]):  # a client without test rows is evaluated too
            held = {"x": rows["train"]["x"][:1], "y": rows["train"]["y"][:1]}
        for part, data in (("train", rows["train"]), ("test", held)):
            with (folder / part / f"{i}.npz").open("wb") as file:
                np.savez_compressed(file, data=np.array({"x": data["x"], "y": data["y"]}, dtype=object))
    config = {"num_clients": len(clients), "num_classes": classes, "non_iid": True, "balance": False}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def record_scores(seed: int) -> dict[int, Any]:
    """Position of a client -> the scores of its last evaluation; the table is filled while PFLlib runs."""
    import sklearn.metrics
    import torch
    from flcore.clients.clientbase import Client
    from torch.utils.data import DataLoader

    scores: dict[int, Any] = {}
    current, load, set_seed = [0], Client.load_test_data, torch.manual_seed

    def load_in_order(self: Any, *arguments: Any, **named: Any) -> Any:
        current[0] = self.id
        loader = load(self, *arguments, **named)
        return DataLoader(loader.dataset, loader.batch_size, shuffle=False)

    def keep(y_true: Any, y_score: Any, *arguments: Any, **named: Any) -> float:
        scores[current[0]] = np.array(y_score)
        return 0.5  # its targets of test rows are not the true ones

    Client.load_test_data, sklearn.metrics.roc_auc_score = load_in_order, keep
    torch.manual_seed = lambda own: set_seed(int(own) + 1000 * seed)  # type: ignore[assignment]  # PFLlib has one, 0
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  PFLlib draws from it
    return scores


def write_scores(folder: Path, scores: Any, validation: int, position: int) -> None:
    """Probabilities of validation and test rows: the scores, or their softmax if they are none yet."""
    if scores is None:
        raise SystemExit(f"client {position}: its evaluation gives roc_auc_score nothing, as that of few algorithms")
    values = np.asarray(scores, dtype=np.float64)
    if (values < 0).any() or (abs(values.sum(1) - 1) > 1e-3).any():
        values = np.exp(values - values.max(1, keepdims=True))
    values /= values.sum(1, keepdims=True)
    folder.mkdir(parents=True)
    for part, rows in (("val", values[:validation]), ("test", values[validation:])):
        np.savez(folder / f"{part}.npz", outputs=rows)


if __name__ == "__main__":
    main(sys.argv[1:])
