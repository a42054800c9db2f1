"""Optional files of a study: collaboration graphs, label tables, tuning, ablations. A missing file is no error."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedweave.errors import BadInput
from fedweave.results import Run

ABLATION_COLUMNS = ("ablation", "variant", "task", "method", "metric", "mean", "std")


class Graphs(NamedTuple):
    """Who learned from whom in one seed: rounds [R], weights [R, L, N, N] (row = learner), names of the L layers.

    A graph that is the same for every layer is kept once (L = 1).
    """

    seed: int
    rounds: list[int]
    weights: np.ndarray
    layers: list[str]


class Tuning(NamedTuple):
    """One search: a table of trials (column "value" and one per hyper-parameter), its best point and its budget."""

    run: str
    trials: pd.DataFrame
    best: Mapping[str, Any]
    budget: Mapping[str, Any]


def collaboration(run: Run) -> Graphs | None:
    """The run's collaboration graphs of its first seed, if the method has any.

    Raises:
        BadInput: a file that is not [R, L, N, N] with a round for each R.
    """
    for seed in sorted(run.info.get("seeds", [])):
        path = run.folder / f"collaboration-{seed}.npz"
        if not path.is_file():
            continue
        try:
            with np.load(path, allow_pickle=False) as stored:
                weights, rounds, layers = stored["weights"], stored["rounds"].tolist(), stored["layers"].tolist()
        except (ValueError, KeyError, zipfile.BadZipFile) as error:
            raise BadInput(f"{path}: not readable ({error}); train the run again") from error
        if weights.ndim != 4 or weights.shape[:2] != (len(rounds), len(layers)):
            shape, expected = weights.shape, (len(rounds), len(layers))
            raise BadInput(f"{path}: weights {shape} for {expected} rounds and layers; train the run again")
        if (weights == weights[:, :1]).all():
            weights, layers = weights[:, :1], ["all layers"]
        return Graphs(int(seed), rounds, weights, layers) if weights.size else None
    return None


def label_counts(path: Path) -> tuple[np.ndarray, list[str]] | None:
    """Rows per client and label, [N, C], and the labels' names.

    None where the file is missing, or has no column "class_<label>": series have no labels.
    """
    if not path.is_file():
        return None
    counts = pd.read_csv(path).filter(regex="^class_")
    return (counts.to_numpy(), [name.removeprefix("class_") for name in counts]) if counts.to_numpy().any() else None


def tuning(folder: Path) -> list[Tuning]:
    """Every search under `folder`/tuned that has a finished trial."""
    found = []
    for path in sorted((folder / "tuned").rglob("*.json")):
        stored = json.loads(path.read_text(encoding="utf-8"))
        trials = pd.DataFrame([{**t["params"], "value": t.get("value")} for t in stored.get("trials") or []])
        if len(trials.columns) > 1 and trials["value"].notna().any():
            found.append(Tuning(stored.get("run", path.stem), trials, stored.get("best") or {}, stored.get("budget") or {}))
    return found


def ablations(folder: Path) -> pd.DataFrame:
    """The table of ablations; empty if none were run."""
    path = folder / "ablations.csv"
    if not path.is_file() or not path.read_text(encoding="utf-8").strip():
        return pd.DataFrame(columns=list(ABLATION_COLUMNS))
    table = pd.read_csv(path)
    missing = [name for name in ABLATION_COLUMNS if name not in table]
    if missing:
        raise BadInput(f"{path}: no column {', '.join(missing)}; expected {', '.join(ABLATION_COLUMNS)}")
    return table
