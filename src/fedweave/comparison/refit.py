"""The models to deploy: one method trained again on training and validation rows, as scikit-learn's `refit`.

Rounds and values are those that validation chose. A refitted model has no scores: those of the tables are of the models
that were trained on training rows alone.
"""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedweave import results
from fedweave.comparison import further_rounds
from fedweave.comparison.results_folder import check_description, write_description
from fedweave.engine.protocol import Method
from fedweave.engine.registry import METHODS
from fedweave.errors import Diverged, format_count
from fedweave.files.atomic import user_errors
from fedweave.own_data.arrays import partition_block
from fedweave.own_data.federation import Federation
from fedweave.processes.forks import one_thread
from fedweave.results import Run
from fedweave.runs import archive, repetition
from fedweave.study.search_spaces import has_rate

FOLDER = "refit"  # in a folder of results


def refit(
    finished: Run, seed: int, federation: Federation | None, model: Any, start: Path | None = None
) -> tuple[Run | None, str]:
    """(the run trained again, what it was trained on), or (None, why not).

    The result is stored beside the run, and a second call reads it.

    Args:
        finished: the run with the scores.
        seed: of the repetition.
        federation: the rows; None where they are not in memory.
        model: makes the clients' models, where they have no name.
        start: file of the state from which the run went on.
    """
    rounds = results.select_scores(finished).query("seed == @seed")["round"].unique()
    if len(rounds) != 1 or rounds[0] < 1:
        return None, "no round was chosen for all clients together"
    target, key = _target(finished, seed, int(rounds[0])), finished.name
    if not (target / "runs" / key / "run.json").is_file():
        if reason := _find_obstacle(finished, federation, start):
            return None, reason
        assert federation is not None
        with user_errors():
            if reason := _train(finished, seed, int(rounds[0]), _add_validation_rows(federation), model, target, start):
                return None, reason
    count, rate = format_count(int(rounds[0]), "round"), finished.info["spec"]["train"].get("lr")
    rate_text = "" if rate is None or not has_rate(finished.info["method"]) else f" with lr={rate:.3g}"
    return results.load_run(target / "runs" / key), f"training and validation rows for {count}{rate_text}"


def _target(finished: Run, seed: int, rounds: int) -> Path:
    """The folder of the models: another training of the run has another one."""
    code_file = finished.folder / "code.json"
    code = code_file.read_text(encoding="utf-8") if code_file.is_file() else ""
    content = json.dumps([finished.info.get("spec_hash"), code, rounds])
    name = f"{finished.name}-{seed}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    return finished.folder.parents[1] / FOLDER / name


def _find_obstacle(finished: Run, federation: Federation | None, start: Path | None) -> str:
    """Why a run cannot be trained again; empty if it can."""
    if federation is None:
        return "the rows are not in memory"
    if not any(len(rows) for rows in federation.partition.val):
        return "there are no validation rows"
    if finished.has_splits:
        return "every repetition has a split of its own"
    if start is None and finished.info["spec"]["train"].get("newcomers"):
        return "clients have joined after training"
    if METHODS[finished.info["method"]].needs_validation is not Method.needs_validation:
        return "the method learns from validation rows itself"
    return ""


def _add_validation_rows(federation: Federation) -> Federation:
    """`federation` with validation rows among the training rows, and without validation rows."""
    partition = federation.partition
    rows = tuple(np.sort(np.concatenate(parts)) for parts in zip(partition.train, partition.val, strict=True))
    partition = replace(partition, train=rows, val=tuple(part[:0] for part in partition.val))
    return replace(federation, partition=partition, partition_block=partition_block(federation.dataset, partition))


def _train(
    finished: Run, seed: int, rounds: int, federation: Federation, model: Any, target: Path, start: Path | None
) -> str:
    """Train up to the chosen round and write the models to `target`; returns why that failed, or an empty text.

    The number of all rounds stays, on which schedules of methods depend.
    """
    run = further_rounds.parse_run(finished, federation)
    evaluate = replace(run.evaluate, every=rounds, select="last", models=True, predictions=False, edges=0)
    run = replace(run, evaluate=evaluate, seeds=(seed,))
    prepared = repetition.prepare(run, federation.dataset, federation.partition, model)
    state = None if start is None else further_rounds.read_state(start, prepared)
    try:
        with one_thread():
            history, _ = further_rounds.train_on(prepared, seed, state, rounds)
    except Diverged:
        return "the training diverged"
    if not history.snapshot:
        return "the method has no models in that round"
    for earlier in target.parent.glob(f"{finished.name}-{seed}-*"):
        shutil.rmtree(earlier)
    write_description(federation, target, check_description(federation, target), figures=False)
    archive.write(target / "runs" / finished.name, prepared, {seed: history})
    return ""
