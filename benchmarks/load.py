"""Load: many clients, many rounds, many runs in one MLflow database. `python -m benchmarks.load
[clients|rounds|mlflow]`.

Prints one line per measurement. docs/robustness.md has the figures of one machine.
"""

import copy
import json
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedweave import data, results
from fedweave.data import Dataset
from fedweave.runs import archive, repetition
from fedweave.runs.repetition import PreparedRun
from fedweave.study import catalogue, spec, validate

MIB = 2**20
STUDIES = Path(__file__).resolve().parent.parent / "studies"
CLIENTS, ROUNDS, RUNS, WRITERS = 1000, 10_000, 500, 8


def main(*parts: str) -> None:
    """Measure `parts`, by default all of them, each in its own process with its own memory."""
    for part in parts or tuple(PARTS):
        child = multiprocessing.get_context("spawn").Process(target=PARTS[part])
        child.start()
        child.join()
        if child.exitcode:
            sys.exit(f"{part}: exit code {child.exitcode}")


def clients() -> None:
    """A thousand clients with ten samples each: time of a round and peak memory, for both executors."""
    for executor in ("loop", "batched"):
        prepared = prepare(CLIENTS, 10, {"rounds": 3, "executor": executor}, {"every": 3})
        start = time.perf_counter()
        history = repetition.run_repetition(prepared, 0)
        per_round, duration = np.median([row.seconds for row in history.ledger]), time.perf_counter() - start
        print_line(
            "clients", executor, f"{CLIENTS} clients: {per_round:.2f} s a round, {duration:.1f} s for 3 with evaluation"
        )


def rounds() -> None:
    """Ten thousand rounds with checkpoints: resident memory after some of them, which must not grow."""
    prepared = prepare(10, 20, {"rounds": ROUNDS, "checkpoint": 500, "batch_size": 0}, {"every": 100})
    memory_at: dict[int, float] = {}
    start = time.perf_counter()

    def record_memory(report: Any) -> None:
        if report.round in (1000, 2500, 5000, 7500, ROUNDS):
            memory_at[report.round] = resident()

    with tempfile.TemporaryDirectory() as folder:
        repetition.run_repetition(prepared, 0, Path(folder), record_memory)
        size = sum(path.stat().st_size for path in Path(folder).iterdir()) / MIB
    growth = memory_at[ROUNDS] - memory_at[1000]
    duration = time.perf_counter() - start
    curve = ", ".join(f"{round_}: {value:.1f}" for round_, value in memory_at.items())
    print_line(
        "rounds",
        "auto",
        f"{ROUNDS} rounds in {duration:.0f} s; MiB at {curve}; grown by {growth:.1f}; checkpoints {size:.1f}",
    )


def mlflow() -> None:
    """Eight processes write five hundred runs to one database at the same time. Then all runs must be finished."""
    from mlflow import MlflowClient
    from mlflow.entities import Run

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        folders, uri = [*_write_runs(Path(folder) / "results")], f"sqlite:///{folder}/mlflow.db"
        _log(folders[:1], uri)  # the first writer makes the tables
        start = time.perf_counter()
        shares = [folders[1 + i :: WRITERS] for i in range(WRITERS)]
        writers = [multiprocessing.get_context("spawn").Process(target=_log, args=(share, uri)) for share in shares]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        duration = time.perf_counter() - start
        client = MlflowClient(uri)
        start, runs, page = time.perf_counter(), list[Run](), None
        experiment = client.get_experiment_by_name("load")
        assert experiment is not None
        while page != "":
            answer = client.search_runs([experiment.experiment_id], page_token=page)
            runs, page = [*runs, *answer], answer.token or ""
        parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
        unfinished = sum(run.info.status != "FINISHED" for run in runs)
        size, failed = Path(folder, "mlflow.db").stat().st_size / MIB, sum(bool(writer.exitcode) for writer in writers)
        print_line(
            "mlflow",
            f"{WRITERS} writers",
            f"{len(parents)} of {RUNS} runs and {len(runs) - len(parents)} children in {duration:.0f} s; "
            f"{failed} writers failed, "
            f"{unfinished} not finished; listed in {time.perf_counter() - start:.1f} s; database {size:.0f} MiB",
        )
        os.chdir("/")


def _log(folders: list[Path], uri: str) -> None:
    from fedweave.pipelines.mlflow_records import entries, writer

    store = writer.connect("load", uri)
    for folder in folders:
        run = results.load_run(folder)
        tables = results.compute_tables(results.Study("load", folder, (run,), ()))
        writer.log(store, entries.run_unit(run, tables))


def _write_runs(place: Path) -> Iterator[Path]:
    """One short run, copied under many names."""
    prepared = prepare(10, 20, {"rounds": 10}, {"every": 1})
    first = place / "load" / "runs" / "run-000"
    archive.write(first, prepared, {0: repetition.run_repetition(prepared, 0)})
    info = json.loads((first / "run.json").read_text(encoding="utf-8"))
    for number in range(RUNS):
        folder = first.parent / f"run-{number:03d}"
        if number:
            shutil.copytree(first, folder)
        (folder / "run.json").write_text(json.dumps({**info, "study": "load", "run": folder.name}), encoding="utf-8")
        yield folder


def prepare(count: int, size: int, train: dict[str, Any], evaluate: dict[str, Any]) -> PreparedRun:
    """FedAvg with a small perceptron on `count` clients of `size` digits each."""
    digits = data.load("digits", "unused")
    rows = np.random.default_rng(0).integers(len(digits.labels), size=count * size)
    dataset: Dataset = replace(digits, x=digits.x[rows], y=digits.labels[rows])
    content = copy.deepcopy(catalogue.expand("zoo", STUDIES))
    block = content["tasks"]["digits"]
    block |= {
        "partition": {"name": "iid", "clients": count, "seed": 0},
        "model": {"name": "mlp", "hidden": 16},
        "evaluate": evaluate,
    }
    block["train"] = {"lr": 0.05, "batch_size": 8, **train}
    content |= {"runs": {"load": {"task": "digits", "method": "fedavg"}}, "ablate": {}}
    run = validate.check(spec.parse(content)).run("load")
    torch.set_num_threads(1)
    return repetition.prepare(replace(run, seeds=(0,)), dataset, data.partition(dataset, "iid", count, 0))


def resident() -> float:
    """Resident memory of this process at this moment [MiB]."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / MIB


def print_line(part: str, how: str, what: str) -> None:
    """Print one line, with the peak memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{part:8} {how:10} {what}; peak {peak:.0f} MiB", flush=True)


PARTS = {"clients": clients, "rounds": rounds, "mlflow": mlflow}

if __name__ == "__main__":
    main(*sys.argv[1:])
