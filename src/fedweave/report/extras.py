"""Optional files of a study: label tables, tuning, ablations. A missing file is no error."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedweave.errors import BadInput

NUMBERS = ("mean", "std", "client_std", "worst10", "bytes", "seconds", "difference", "low", "high", "p_adjusted")
ABLATION_COLUMNS = ("ablation", "variant", "run", "task", "method", "metric", "settings", "declared", *NUMBERS, "verdict")
COMMON = ("value", "reached", "rounds", "started", "seconds")  # columns of trials that are no hyper-parameters


class Tuning(NamedTuple):
    """One search.

    Attributes:
        run, file: whose, and where it is stored.
        trials: a row each: `value` (NaN for a pruned one), the best `reached`, `rounds`, `started` and `seconds`, and a column
            per hyper-parameter.
        curves: of each trial, step -> the best validation value by then.
        best, value: parameters of the best trial, and its value.
        budget: what every search of the study had.
        importance: share of the spread of values that a parameter explains.
    """

    run: str
    file: Path
    trials: pd.DataFrame
    curves: list[dict[int, float]]
    best: Mapping[str, Any]
    value: float
    budget: Mapping[str, Any]
    importance: Mapping[str, float]

    @property
    def names(self) -> list[str]:
        """The hyper-parameters."""
        return [name for name in self.trials if name not in COMMON]


def label_counts(path: Path) -> tuple[np.ndarray, list[str]] | None:
    """Rows per client and label, [N, C], and the labels' names.

    None where the file is missing, or has no column "class_<label>": series have no labels.
    """
    if not path.is_file():
        return None
    counts = pd.read_csv(path).filter(regex="^class_")
    return (counts.to_numpy(), [name.removeprefix("class_") for name in counts]) if counts.to_numpy().any() else None


def tuning(folder: Path) -> list[Tuning]:
    """Every search under `folder`/tuned that has a finished trial.

    Raises:
        BadInput: a file that cannot be read.
    """
    return [found for path in sorted((folder / "tuned").glob("*/trials/*.json")) if (found := _search(path))]


def _search(path: Path) -> Tuning | None:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        trials = pd.DataFrame([{**trial["params"], **{name: trial[name] for name in COMMON}} for trial in stored["trials"]])
        curves = [{int(step): value for step, value in trial["curve"].items()} for trial in stored["trials"]]
        facts = stored["run"], stored["best"], stored["budget"], stored["importance"], stored["maximize"]
    except (ValueError, KeyError) as error:
        raise BadInput(f"{path}: not readable ({error!r}); search again with: dvc repro -f tune") from error
    if trials.empty or trials["value"].isna().all():
        return None
    run, best, budget, importance, maximize = facts
    trials = trials.astype({"value": float, "reached": float})
    value = float(trials["value"].max() if maximize else trials["value"].min())
    return Tuning(run, path, trials, curves, best, value, budget, importance)


def ablations(folder: Path) -> pd.DataFrame:
    """The tables of all ablations as one; empty if none were run."""
    tables = [ablation(path) for path in sorted((folder / "ablations").glob("*/table.csv"))]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(ABLATION_COLUMNS))


def ablation(path: Path) -> pd.DataFrame:
    """The table of one ablation.

    Raises:
        BadInput: a column is missing.
    """
    table = pd.read_csv(path, dtype={"verdict": str, "settings": str, "variant": str})
    missing = [name for name in ABLATION_COLUMNS if name not in table]
    if missing:
        raise BadInput(f"{path}: no column {', '.join(missing)}; make it again with: dvc repro -f ablate")
    return table.fillna({"verdict": ""})
