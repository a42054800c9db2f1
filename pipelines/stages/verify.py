"""`fedweave verify`: one stored repetition is trained again, and the scores of every client are compared."""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedweave import results
from fedweave.errors import BadInput, choose, format_count
from fedweave.runs import archive, repetition
from fedweave.runs.inputs import load_inputs
from fedweave.study import validate

from .. import paths
from .train import progress_printer, tuned_values

KEYS = ["round", "point", "split", "client"]
SAME = "the same bits"


def main(key: str = "", seed: int | None = None) -> None:
    """Train a repetition of the run `key` of params.yaml again, without a change to its results; the first by default.

    Raises:
        BadInput: the run has no results, or others than params.yaml asks for.
        SystemExit: the scores differ.
    """
    study = validate.load()
    key = choose(key or next(iter(study.runs)), study.runs, "params.yaml: runs")
    stored = results.load_run(paths.run(study.name, key))
    seed = int(stored.seeds[0]) if seed is None else seed
    if seed not in stored.seeds:
        raise BadInput("--seed", f"{seed} is none of {key!r}, which has {', '.join(map(str, stored.seeds))}")
    run = study.run(key, tuned_values(study, key))
    if run.fingerprint() != stored.info["spec_hash"]:
        raise BadInput(
            stored.folder, "was trained with other settings than those of params.yaml; bring it up to date: dvc repro"
        )
    run = replace(run, seeds=(seed,))
    torch.set_num_threads(int(stored.info.get("threads", 1)))
    with tempfile.TemporaryDirectory() as folder:
        prepared = repetition.prepare(run, *load_inputs(run))
        show = progress_printer(key, prepared.rounds)
        history = repetition.run_repetition(prepared, seed, progress=lambda report: show(seed, report))
        archive.write(Path(folder) / key, prepared, {seed: history})
        again = results.load_run(Path(folder) / key)
        line = compare(stored, again, seed)
    print(line)
    if not line.endswith(SAME):
        sys.exit(1)


def compare(stored: results.Run, again: results.Run, seed: int) -> str:
    """One line: how many scores two trainings of a repetition have, and whether they are equal.

    Scores from another processor or other versions may differ in the last digits, so the line names them.
    """
    tables = (run.evaluations[run.evaluations["seed"] == seed] for run in (stored, again))
    first, second = (table.set_index(KEYS)["value"] for table in tables)
    name = f"{stored.name}, seed {seed}"
    if not first.index.sort_values().equals(second.index.sort_values()):
        return f"{name}: differs, as {len(first)} scores are stored and {len(second)} were made"
    gaps = (first - second.reindex(first.index)).abs()
    is_equal = (gaps == 0) | (first.isna() & second.reindex(first.index).isna())
    clients = len(first.index.unique("client"))
    count = f"{len(first)} scores of {format_count(clients, 'client')}"
    if is_equal.all():
        return f"{name}: {count}, {SAME}"
    worst = gaps.idxmax()
    place = f"client {stored.client_names[worst[3]]}, round {worst[0]}, {worst[2]}"
    text = f"{name}: {int((~is_equal).sum())} of {count} differ, by at most {np.nanmax(gaps):.3g} ({place})"
    other = [f"{old}, now {new}" for old, new in zip(_machine(stored), _machine(again), strict=True) if old != new]
    return f"{text}; stored on {'; '.join(other)}" if other else f"{text}, on the same processor and versions"


def _machine(run: results.Run) -> tuple[str, ...]:
    """What may change the last digits of a score."""
    versions: dict[str, Any] = run.info.get("versions") or {}
    named = (f"{name} {version}" for name, version in sorted(versions.items()))
    return (str(run.info.get("processor", "unknown")), f"executor {run.info.get('executor', 'unknown')}", *named)
