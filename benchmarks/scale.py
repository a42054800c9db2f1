"""Growth with the number of clients, from 100 to 10,000: `python -m benchmarks.growth scale [full] [METHOD ...]`.

Each line is a process with at most 8 GiB of anonymous memory (`RLIMIT_DATA`). Pages of mapped files do not
count, because the kernel frees them when memory is short. It runs `ROUNDS` rounds as a run does: tables are in files if
the models of all clients need more than 2 GiB (`train.store: auto`), and 100 clients are evaluated after the last round
(`evaluate: {clients: 100}`). Evaluated clients that did not take part train a copy.

- cnn: the CNN of FedAGHN, 878,730 parameters, 50 images 3x32x32 a client for training and 10 to evaluate, drawn from
  20,000. One percent of the clients take part in a round, at least ten.
- mlp: 32-64-10, 2,762 parameters, 100 rows a client for training and 20 to evaluate. All clients take part.

`full` is one line, by default of FedAMP with 10,000 CNNs, whose server begins with a separate model for every client,
as after many rounds: 33 GiB of files.

Times are processor seconds of one thread: of the second of three rounds, and of the third with the evaluation. Memory
is the peak of anonymous memory, and of pages of mapped files.
"""

import multiprocessing
import resource
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.workloads import Workload, images, split
from fedweave.client.solvers import SGD
from fedweave.client.task import RowClassification
from fedweave.engine.clients import Clients
from fedweave.engine.engine import run
from fedweave.engine.executors import Batched, Executor, Loop
from fedweave.engine.protocol import Method
from fedweave.engine.records import Settings, State
from fedweave.engine.schedule import Training, evaluation_sample
from fedweave.engine.start import begin
from fedweave.models import build, parameter_count
from fedweave.processes.parallel import keep_memory
from fedweave.runs.build import LARGE_TABLE
from fedweave.tensors import trees
from fedweave.tensors.storage import Storage, temporary_storage, use_storage
from fedweave.tensors.tables import Table

METHODS = ("fedavg_ft", "fedper", "fedamp", "pfedhn", "fedaghn")
CLIENTS = (100, 1000, 10_000)
ROUNDS, EVALUATED, IMAGES = 3, 100, 20_000
FILLED = 16  # rows that are written at once
LIMIT = 8 * 2**30  # bytes
MIB = 2**10  # KiB, the unit of /proc


class Line(NamedTuple):
    """One line of the output: what is measured; `full` as in the module's docstring."""

    model: str
    method: str
    clients: int
    full: bool = False


class Peak(threading.Thread):
    """The largest anonymous memory and the largest part of mapped files that this process had, in KiB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.anonymous = self.files = 0

    def run(self) -> None:
        """Read the memory ten times a second."""
        while True:
            lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
            numbers = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
            self.anonymous = max(self.anonymous, int(numbers["RssAnon"]))
            self.files = max(self.files, int(numbers["RssFile"]))
            time.sleep(0.1)


def workload(line: Line) -> tuple[Workload, Executor, float]:
    """(clients, executor, participation) of a line."""
    if line.model == "mlp":
        return images("mlp", line.clients, shape=(32,), samples=100), Batched(), 1.0
    g, shape = np.random.default_rng(0), (3, 32, 32)
    x = torch.from_numpy(g.standard_normal((IMAGES, *shape), dtype=np.float32))
    rows = [g.choice(IMAGES, 60, replace=False) for _ in range(line.clients)]
    parts = split([r[:50] for r in rows], [r[50:] for r in rows])
    shared = {"x": x, "y": torch.from_numpy(g.integers(10, size=IMAGES))}
    task = RowClassification(partial(build, "aghn_cnn", shape, 10))
    federation = Clients(shared=shared, own={}, **parts, ids=torch.arange(line.clients))
    work = Workload("", task, federation, Training(batch_size=64, epochs=1), SGD(lr=0.01))
    return work, Loop(), max(10, line.clients // 100)


def measure(line: Line) -> None:
    """Measure a line and print it."""
    torch.set_num_threads(1)
    keep_memory()
    work, executor, participation = workload(line)
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    peak = Peak()
    peak.start()
    with temporary_storage() as files:
        is_mapped = 4 * parameter_count(work.task.template) * line.clients > LARGE_TABLE
        seconds, last = time_last_rounds(line, work, executor, participation, files if is_mapped else None)
        disk = sum(path.stat().st_blocks * 512 for path in files.folder.glob("*.rows")) / 2**30
    print(
        f"{line.model:4} {line.method:10} {line.clients:6} clients {'mapped' if is_mapped else 'memory':6} "
        f"{seconds:8.2f} s/round, with evaluation {last:8.2f} s   anonymous {peak.anonymous / MIB / 2**10:5.2f} GiB, "
        f"mapped {peak.files / MIB / 2**10:5.2f} GiB, files {disk:5.2f} GiB",
        flush=True,
    )


def time_last_rounds(
    line: Line, work: Workload, executor: Executor, participation: float, files: Storage | None
) -> tuple[float, float]:
    """Processor seconds of the last round but one, and of the last one with its evaluation."""
    ids = work.federation.ids
    federation = replace(work.federation, evaluated=evaluation_sample(0, ids, EVALUATED))
    settings = Settings(rounds=ROUNDS, participation=participation, every=ROUNDS, storage=files)
    method = work.method(line.method)
    state = full_state(method, federation, executor, files) if line.full and files else None
    reports = run(method, federation, settings, executor, state)
    durations, start = [], time.process_time()
    for report in reports:
        durations.append(time.process_time() - start)
        assert bool(report.scores) == (report.round == ROUNDS)
        start = time.process_time()
    return durations[-2], durations[-1]


def full_state(method: Method, federation: Clients, executor: Executor, files: Storage) -> State:
    """The state before round 0, with every row of the server's tables written, for every client."""
    noise = torch.Generator().manual_seed(0)

    def fill(table: Tensor) -> Tensor:
        if table.dtype == torch.bool:
            return torch.ones_like(table)
        if not isinstance(table, Table):
            return table
        for ids in torch.arange(federation.clients).split(FILLED):
            rows = table.default + 0.01 * torch.randn(len(ids), *table.default.shape, generator=noise)
            table = table.with_rows(ids, rows)
        return table

    with use_storage(files):
        state = begin(method, federation, 0, executor)
        return state._replace(server=trees.tree_map(fill, state.server))


def lines(*methods: str) -> Iterator[Line]:
    """All lines, or those of `methods`. After "full", the line of a server whose tables are written."""
    if methods[:1] == ("full",):
        yield from (Line("cnn", name, CLIENTS[-1], True) for name in methods[1:] or ("fedamp",))
        return
    for model in ("cnn", "mlp"):
        for method in methods or METHODS:
            yield from (Line(model, method, clients) for clients in CLIENTS)


def main(*methods: str) -> None:
    """Measure every line in a process of its own."""
    for line in lines(*methods):
        child = multiprocessing.get_context("spawn").Process(target=measure, args=(line,))
        child.start()
        child.join()
        if child.exitcode:
            print(f"{line.model:4} {line.method:10} {line.clients:6} clients failed: more than 8 GiB?", flush=True)
