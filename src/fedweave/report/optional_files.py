"""Optional files of a study: label tables, tuning, ablations. A missing file is not an error."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedweave.files.atomic import read_json, read_table

SCORES = ("mean", "std", "client_std", "worst10", "bytes", "seconds")
NUMBERS = (*SCORES, "difference", "low", "high", "p_adjusted", "margin", "seeds_needed")
VARIANT = ("ablation", "variant", "run", "task", "method", "metric", "settings", "declared")
ABLATION_COLUMNS = (*VARIANT, *NUMBERS, "over", "verdict")
TRIAL_COLUMNS = ("value", "reached", "rounds", "started", "seconds")  # columns of trials that are not hyper-parameters
BYTES = "bytes"  # one more, of searches with two objectives


class Tuning(NamedTuple):
    """One search.

    Attributes:
        run, file: the run of the search, and its file.
        trials: one row each: `value` (NaN for a pruned one), the best `reached`, `rounds`, `started`, `seconds`, with
            two objectives `bytes`, and a column per hyper-parameter.
        curves: of each trial, step -> the best validation value by then.
        best, value: parameters of the trial that training uses, and its value.
        best_row: position of that trial in `trials`.
        budget: of every search of the study.
        importance: share of the spread of values that a parameter explains.
    """

    run: str
    file: Path
    trials: pd.DataFrame
    curves: list[dict[int, float]]
    best: Mapping[str, Any]
    value: float
    best_row: int
    budget: Mapping[str, Any]
    importance: Mapping[str, float]

    @property
    def names(self) -> list[str]:
        """The hyper-parameters."""
        return [name for name in self.trials if name not in (*TRIAL_COLUMNS, BYTES)]


def label_counts(path: Path) -> tuple[np.ndarray, list[str]] | None:
    """Rows per client and label, [N, C], and the labels' names.

    None where the file is missing, or has no column "class_<label>": series have no labels.
    """
    if not path.is_file():
        return None
    counts = read_table(path, (), f"make the partition again: dvc repro partition@{path.parent.name}").filter(
        regex="^class_"
    )
    return (counts.to_numpy(), [name.removeprefix("class_") for name in counts]) if counts.to_numpy().any() else None


def tuning(folder: Path) -> list[Tuning]:
    """Every search under `folder`/tuned that has a finished trial.

    Raises:
        BadInput: a file that cannot be read.
    """
    return [search for path in sorted((folder / "tuned").glob("*/trials/*.json")) if (search := _search(path))]


def untuned_runs(folder: Path) -> set[str]:
    """Runs without a search in a study that has searches: their search space is empty."""
    searched = {path.name for path in (folder / "tuned").glob("*/trials/*.json")}
    if not searched:
        return set()
    return {path.stem for path in (folder / "tuned").glob("*/*.json") if path.name not in searched}


def _search(path: Path) -> Tuning | None:
    trials, curves, facts = read_json(path, "write it again from the search: dvc repro tune", _parse_search)
    if trials.empty or trials["value"].isna().all():
        return None
    run, best, budget, importance, best_row = facts
    trials = trials.astype({"value": float, "reached": float})
    return Tuning(run, path, trials, curves, best, float(trials["value"].iloc[best_row]), best_row, budget, importance)


def _parse_search(stored: Mapping[str, Any]) -> tuple[pd.DataFrame, list[dict[int, float]], tuple[Any, ...]]:
    """A file of the stage `tune`: trials, their curves, and facts about the whole search."""
    columns = [*TRIAL_COLUMNS, *([BYTES] if all(BYTES in trial for trial in stored["trials"]) else [])]
    trials = pd.DataFrame(
        [{**trial["params"], **{name: trial[name] for name in columns}} for trial in stored["trials"]]
    )
    curves = [{int(step): value for step, value in trial["curve"].items()} for trial in stored["trials"]]
    matches = (t["params"] == stored["best"] and t["value"] is not None for t in stored["trials"])
    best_row = next((number for number, match in enumerate(matches) if match), 0)
    return trials, curves, (*(stored[name] for name in ("run", "best", "budget", "importance")), best_row)


def ablations(folder: Path) -> pd.DataFrame:
    """The tables of all ablations as one; empty if none were run."""
    tables = [ablation(path) for path in sorted((folder / "ablations").glob("*/table.csv"))]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(ABLATION_COLUMNS))


def ablation(path: Path) -> pd.DataFrame:
    """The table of one ablation.

    Raises:
        BadInput: it is damaged, or a column is missing.
    """
    again = f"make it again with: dvc repro ablate@{path.parent.name}"
    names = dict.fromkeys(
        ("ablation", "variant", "run", "task", "method", "metric", "settings", "over", "verdict"), str
    )
    # A variant may be called nan.
    missing = {name: ["", "nan"] if name in NUMBERS else [""] for name in ABLATION_COLUMNS}
    table = read_table(path, ABLATION_COLUMNS, again, dtype=names, keep_default_na=False, na_values=missing)
    return table.fillna({"over": "", "verdict": ""})
