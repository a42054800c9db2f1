"""What the tables of the papers that were not run would cost: `python -m benchmarks.paper_costs`.

For every printed column without a number of ours whose data are at hand, it measures a few local steps of FedAvg on
this machine, on one core, and multiplies by the local steps of the whole budget. Evaluation is not in it. Rounds of
every method on digits, each beside one of FedAvg, give what else a method trains, and its server. It writes costs.csv
and shares.csv in docs/reproduction, from which the ledger takes its estimates. Data sets are downloaded to data/raw.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import NamedTuple

import pandas as pd

from fedweave import data
from fedweave.data.base import Partition
from fedweave.engine.engine import run_round
from fedweave.engine.schedule import sample_size
from fedweave.engine.start import begin
from fedweave.methods import METHODS
from fedweave.pipelines import paths
from fedweave.pipelines.processes import run_main
from fedweave.processes.forks import one_thread
from fedweave.results import published
from fedweave.runs.build import PreparedRun, prepare
from fedweave.study import catalogue, spec
from tools.docs import ledger
from tools.pages import store

Column = tuple[str, str, str, str]  # paper, table, data set, setting
TASKS = ("digits", "digits-graph")  # of the study zoo; a method's share is that on the first that has it
ROUNDS = 3  # of each method and of FedAvg, in turn, after a first one that is not measured
FEW, MORE = 2, 6  # local steps of the two rounds whose difference is measured
CLIENTS = 2  # that train in them


class Share(NamedTuple):
    """Processor time of a method's rounds, divided by that of FedAvg's."""

    method: str
    share: float


class Cost(NamedTuple):
    """The cost of FedAvg on one printed column. `minutes` are core-minutes of one seed."""

    paper: str
    table: str
    dataset: str
    setting: str
    study: str
    local_steps: int
    milliseconds: float
    minutes: float


def main() -> None:
    """Measure all columns and methods, and write both tables."""
    rows = [row for row in ledger.build() if row.state == ledger.NOT_RUN]
    missing = {(row.paper, row.table, row.dataset, row.setting) for row in rows}
    with one_thread():
        measured: dict[str, float] = {}
        store(pd.DataFrame([measure(*column, measured) for column in _tasks(missing)]), ledger.COSTS)
        store(pd.DataFrame(measure_shares()), ledger.SHARES)


def _tasks(missing: set[Column]) -> Iterator[tuple[spec.RunSpec, Column]]:
    """A run of FedAvg for each column of `missing` that a study has; the study of a table comes first."""
    for paper in published.PAPERS:
        names = [name for name in catalogue.studies() if name.startswith(f"{paper}/") and "reduced" not in name]
        for name in sorted(names, key=lambda name: ("/table" not in name, name)):
            study = spec.parse(catalogue.expand(name), name)
            for key, run in study.runs.items():
                task = study.tasks[run.task]
                if not task.published:
                    continue
                column = published.reference(task.published, task.dataset, task.setting)[:4]
                if column in missing:
                    missing.discard(column)
                    yield replace(study.run(key), method="fedavg", options={}), column


def measure(run: spec.RunSpec, column: Column, measured: dict[str, float]) -> Cost:
    """The cost of `run`, which stands in a printed column.

    Args:
        measured: milliseconds of a step by data, model and optimiser, which columns share; it is added to.
    """
    data.download(run.task.dataset, paths.RAW)
    content = data.load(run.task.dataset, paths.RAW)
    partition = data.partition(content, **data.splits(run.task.partition)[0])
    key = repr((run.task.dataset, run.task.model, run.train.batch_size, run.train.optimizer, run.train.augment))
    if key not in measured:
        prepared = prepare(run, content, partition)
        _seconds(prepared, FEW)
        measured[key] = 1e3 * (_seconds(prepared, MORE) - _seconds(prepared, FEW)) / CLIENTS / (MORE - FEW)
    steps, milliseconds = _local_steps(run, partition), measured[key]
    print(f"{run.study} {run.name}: {steps:,} local steps of {milliseconds:.2f} ms", flush=True)
    return Cost(*column, run.study, steps, milliseconds, steps * milliseconds / 60e3)


def measure_shares() -> Iterator[Share]:
    """The share of every method on `TASKS`, with one client after the other, as large models are trained."""
    study, seen = spec.parse(catalogue.expand("zoo"), "zoo"), set[str]()
    for task in TASKS:
        runs = {item.method: study.run(key) for key, item in study.runs.items() if item.task == task}
        content = data.load(runs["fedavg"].task.dataset, paths.RAW)
        partition = data.partition(content, **data.splits(runs["fedavg"].task.partition)[0])
        for name, run in runs.items():
            if name not in seen and not METHODS[name].pools:
                seen.add(name)
                both = [replace(one, train=replace(one.train, executor="loop")) for one in (run, runs["fedavg"])]
                times = [_round_seconds(prepare(one, content, partition)) for one in both * ROUNDS]
                yield Share(METHODS[name].label, sum(times[::2]) / sum(times[1::2]))


def _round_seconds(prepared: PreparedRun) -> float:
    """Processor seconds of the second round of a run, or of its last stage."""
    method, federation, executor = prepared.method, prepared.federation, prepared.executor
    method = method.stages(prepared.run.train.rounds)[-1].method
    state = begin(method, federation, 0, executor)
    state, *_ = run_round(method, state, federation, prepared.settings, executor)
    start = time.process_time()
    run_round(method, state, federation, prepared.settings, executor)
    return time.process_time() - start


def _local_steps(run: spec.RunSpec, partition: Partition) -> int:
    """Local steps of all clients in the whole budget of one seed."""
    sizes = [len(rows) for rows in partition.train]
    batch = run.train.batch_size or max(sizes)
    epoch = sum(ceil(size / batch) for size in sizes) / len(sizes)
    a_round = run.train.steps or run.train.epochs * epoch
    return round(run.train.rounds * sample_size(run.train.participation, len(sizes)) * a_round)


def _seconds(prepared: PreparedRun, steps: int) -> float:
    """Processor seconds of one round with so many local steps of a few clients."""
    training = replace(prepared.method.training, steps=steps, epochs=1)
    method, settings = replace(prepared.method, training=training), replace(prepared.settings, participation=CLIENTS)
    state = begin(method, prepared.federation, 0, prepared.executor)
    start = time.process_time()
    run_round(method, state, prepared.federation, settings, prepared.executor)
    return time.process_time() - start


if __name__ == "__main__":
    run_main(main)
