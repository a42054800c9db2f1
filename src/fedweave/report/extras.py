"""Optional files of a study: label tables, tuning, ablations. A missing file is no error."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedweave.errors import BadInput

ABLATION_COLUMNS = ("ablation", "variant", "task", "method", "metric", "mean", "std")


class Tuning(NamedTuple):
    """One search: a table of trials (column "value" and one per hyper-parameter), its best point and its budget."""

    run: str
    trials: pd.DataFrame
    best: Mapping[str, Any]
    budget: Mapping[str, Any]


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
