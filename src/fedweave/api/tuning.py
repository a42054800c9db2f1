"""Searches of a comparison: the same that the stage `tune` makes, on data in memory."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from fedweave.api.plan import Plan
from fedweave.errors import BadInput
from fedweave.files import write_atomic
from fedweave.runs import parallel
from fedweave.study import search_spaces


def tuned(plan: Plan, folder: Path) -> dict[str, dict[str, Any]]:
    """The best values of every run, empty where nothing is searched for; trials in `folder` are not made again.

    Raises:
        BadInput: Optuna is not installed.
    """
    study = plan.study
    if not study.tune.trials:
        return {key: {} for key in study.runs}
    try:
        from fedweave.pipelines.searching import search
        from fedweave.pipelines.stages import tune
    except ImportError as error:
        way = "pip install 'fedweave[pipeline]', or use tune=0"
        raise BadInput(f"tune: {study.tune.trials} trials need Optuna ({error}); {way}") from error
    keys = [key for key in study.runs if search_spaces.entries(study, key)]
    inputs = tuple(plan.inputs)

    def root(key: str) -> Path:
        return folder / ".fedweave" / plan.code(key)

    waiting = [key for key in keys if search.find(study, key, inputs, root(key)).left]
    workers = min(parallel.cores(), study.tune.workers, len(waiting))
    if workers > 1:
        parallel.side_by_side(lambda key: search.perform(study, key, inputs, root(key)), waiting, workers)
    best: dict[str, dict[str, Any]] = {}
    for key in study.runs:
        record: dict[str, Any] = {"run": key, "best": {}}
        place = folder / "tuned" / study.runs[key].task
        if key in keys:
            search.perform(study, key, inputs, root(key))  # what the processes have left, if one of them died
            with contextlib.redirect_stdout(io.StringIO()):
                record = tune.record(search.find(study, key, inputs, root(key)))
            write_atomic(place / "trials" / f"{key}.json", json.dumps(record, indent=2) + "\n")
        best[key] = record["best"]
        write_atomic(place / f"{key}.json", json.dumps({"run": key, "best": best[key]}, indent=2) + "\n")
    return best
