"""Run FL-bench's command line on a task: python drive_flbench.py CHECKOUT [settings of main.py] TASK OUTPUT.

It runs in FL-bench's environment and imports nothing of fedweave. The code of the checkout is copied to a temporary
folder, beside a partition made of the task, so that the checkout is read only. What its `evaluate_model` computes for
rows of validation and test are the predictions; those of its last evaluation are written. The targets of test rows are
not known here, so that the accuracies that FL-bench prints mean nothing.
"""

import json
import os
import pickle
import runpy
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

PARTS = ("train", "val", "test")
TABLE = "synthetic"  # its data set of vectors, whose sizes it reads from args.json


def main(words: list[str]) -> None:
    checkout, task, output = Path(words[0]), Path(words[-2]), Path(words[-1])
    about = json.loads((task / "task.json").read_text(encoding="utf-8"))
    if about["kind"] != "classes":
        raise SystemExit("FL-bench predicts classes; this task has numbers")
    own = [*words[1:-2], *(f"{name.replace('__', '.')}={value}" for name, value in about["settings"].items())]
    arguments = complete(own, about["budget"]["rounds"], about["seed"])
    name = next(word.partition("=")[2] for word in arguments if word.startswith("dataset.name="))
    rows = read_rows(task, about, flat=name == TABLE)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        for part in ("src", "config", "data/utils"):
            shutil.copytree(checkout / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(checkout / "main.py", root / "main.py")
        write_data(root / "data" / name, rows, about)
        os.chdir(root)
        sys.path.insert(0, str(root))
        scores = record_scores(name, rows, about["outputs"])
        sys.argv, os.environ["HYDRA_FULL_ERROR"] = ["main.py", *arguments], "1"  # else its last line is an advice
        runpy.run_path("main.py", run_name="__main__")
        os.chdir("/")
    for one, places in zip(about["clients"], rows["indices"], strict=True):
        if one["evaluated"]:
            write_scores(output / one["folder"], scores, places)


def complete(arguments: list[str], rounds: int, seed: int) -> list[str]:
    """The settings of its command line, with those that they lack; the last round evaluates all clients."""
    given = dict(word.partition("=")[::2] for word in arguments)
    defaults = {
        "dataset.name": TABLE,
        "model.name": "2nn",
        "common.global_epoch": rounds,
        "common.seed": seed,
        "common.use_cuda": "false",
    }
    last = given.get("common.global_epoch", rounds)
    # Without evaluation while clients train, all outputs are those of the last round.
    fixed = {"mode": "serial", "common.client_side_evaluation": "false", "common.test.client.interval": last}
    fixed |= dict.fromkeys(("common.test.client.val", "common.test.client.test"), "true")
    fixed |= {f"common.save_{what}": "false" for what in ("log", "learning_curve_plot", "metrics", "model")}
    return [f"{name}={value}" for name, value in {**defaults, **given, **fixed}.items()]


def read_rows(task: Path, about: dict[str, Any], flat: bool) -> dict[str, Any]:
    """All rows in one table, and of each client the positions of its parts; targets of test rows are all 0."""
    inputs, targets, indices, start = [], [], [], 0
    for one in about["clients"]:
        places = {}
        for part in PARTS:
            arrays = dict(np.load(task / one["folder"] / f"{part}.npz"))
            x = arrays["x"]
            inputs.append(x.reshape(len(x), -1) if flat else x)
            targets.append(arrays.get("y", np.zeros(len(x), dtype=np.int64)))
            places[part] = np.arange(start, start + len(x))
            start += len(x)
        indices.append(places)
    return {"x": np.concatenate(inputs), "y": np.concatenate(targets).astype(np.int64), "indices": indices}


def write_data(folder: Path, rows: dict[str, Any], about: dict[str, Any]) -> None:
    """The files that its partitioner writes, and the arrays of its own data sets of arrays."""
    folder.mkdir(parents=True)
    clients, count = [*range(len(rows["indices"]))], len(rows["indices"])
    separation = {"train": clients, "val": clients, "test": clients, "total": count}
    with (folder / "partition.pkl").open("wb") as file:
        pickle.dump({"separation": separation, "data_indices": rows["indices"]}, file)
    np.save(folder / "data.npy", rows["x"])
    np.save(folder / "targets.npy", rows["y"])
    facts = {
        "client_num": count,
        "split": "sample",
        "test_ratio": 0.25,
        "val_ratio": 0.25,
        "seed": about["seed"],
        "IID_ratio": 0.0,
        "dimension": int(np.prod(rows["x"].shape[1:])),
        "class_num": about["outputs"],
        "monitor_window_name_suffix": about["name"],
    }
    (folder / "args.json").write_text(json.dumps(facts), encoding="utf-8")


def record_scores(name: str, rows: dict[str, Any], classes: int) -> dict[int, np.ndarray]:
    """Position of a row -> its outputs in the last evaluation; the table is filled while FL-bench runs."""
    import torch
    from data.utils import datasets
    from src.utils import constants, functional
    from torch.utils.data import SequentialSampler

    constants.NUM_CLASSES[name] = classes
    if rows["x"].ndim == 4:
        constants.INPUT_CHANNELS[name] = rows["x"].shape[1]
    scores: dict[int, np.ndarray] = {}
    evaluate = functional.evaluate_model

    class TaskRows(datasets.BaseDataset):
        """The rows as they are: they are scaled already."""

        def __init__(self, *_: Any, **__: Any) -> None:
            x, y = torch.from_numpy(rows["x"]).float(), torch.from_numpy(rows["y"])
            super().__init__(x, y, list(range(classes)))

        def _rescale_data(self) -> None:
            pass

    def keep(model: Any, dataloader: Any, *arguments: Any, **named: Any) -> Any:
        seen: list[Any] = []
        hook = model.register_forward_hook(lambda module, given, output: seen.append(output))
        metrics = evaluate(model, dataloader, *arguments, **named)
        hook.remove()
        if isinstance(dataloader.sampler, SequentialSampler) and seen:
            values = torch.softmax(torch.cat(seen).double(), 1).cpu().numpy()
            places = getattr(dataloader.dataset, "indices", [])
            scores.update((int(place), row) for place, row in zip(places, values, strict=False))
        return metrics

    datasets.DATASETS[name], functional.evaluate_model = TaskRows, keep
    return scores


def write_scores(folder: Path, scores: dict[int, np.ndarray], places: dict[str, np.ndarray]) -> None:
    """Probabilities of validation and test rows."""
    folder.mkdir(parents=True)
    for part in ("val", "test"):
        if missing := [place for place in places[part].tolist() if place not in scores]:
            raise SystemExit(f"{folder.name}: {len(missing)} rows of {part} were not given to its evaluate_model")
        np.savez(folder / f"{part}.npz", outputs=np.array([scores[place] for place in places[part].tolist()]))


if __name__ == "__main__":
    main(sys.argv[1:])
