"""The shares of the phases of a round: `python -m benchmarks.shares [rounds|servers|evaluations] [METHOD ...]`.

`rounds` prints the share of each phase of FedAvg's rounds, as `run_repetition` runs them with evaluation, record and
checkpoint every round. `servers` prints, for methods whose server computes, its share of a round of 100 clients with
500 samples each. `evaluations` prints, for the papers' set-ups, the share of a round's passes that its evaluation has,
where a backward pass counts as two forward passes. Times are processor times. Functions are wrapped to be timed. A
phase inside another one has its own time, but forward passes of a server or an evaluation count as theirs.
"""

import functools
import itertools
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.load import prepare
from benchmarks.workloads import WORKLOADS, Workload, images, subgraphs
from fedweave.client import local_training, stacked_steps
from fedweave.engine import engine, evaluation, schedule
from fedweave.engine.executors import Batched, Executor, Loop
from fedweave.engine.protocol import Method
from fedweave.engine.records import DownloadCache, Settings
from fedweave.processes.parallel import keep_memory
from fedweave.runs import repetition

ROUNDS = 4
PHASES = ("forward", "backward", "optimiser", "data", "server", "evaluation", "recording", "rest")
WHOLE = {"server", "recording"}  # phases that are not divided further
PROFILED = {"cnn": "loop", "lenet16": "loop", "mlp": "batched", "gcn": "batched", "gru": "batched"}
SERVERS = (
    "fedavg",
    "fedaghn",
    "pfedgat",
    "pfedla",
    "heurpfedla",
    "pfedhn",
    "shn",
    "panacea",
    "fedfomo",
    "pfedgraph",
    "fedpac",
    "fedamp",
)
GRAPHS = ("fedavg", "fedsheafhn", "fedpub")
OPTIONS: dict[str, dict[str, Any]] = {"shn": {"stage1_rounds": 1}, "panacea": {"stage1_rounds": 1}}
Place = tuple[Any, str]


class Clock:
    """Seconds of processor time per phase; `running` is the stack of phases at this moment."""

    def __init__(self) -> None:
        self.seconds, self.running, self.since = defaultdict[str, float](float), ["rest"], time.process_time()

    def switch(self) -> None:
        """Add the time since the last switch to the current phase."""
        now = time.process_time()
        self.seconds[self.running[-1]] += now - self.since
        self.since = now

    def wrap(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` with its time counted for `phase`, unless the calling phase is not divided (`WHOLE`)."""

        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            if self.running[-1] in WHOLE or (self.running[-1] == "evaluation" and phase not in WHOLE):
                return function(*args, **options)
            self.switch()
            self.running.append(phase)
            try:
                return function(*args, **options)
            finally:
                self.switch()
                self.running.pop()

        return timed


@contextmanager
def time_phases(places: dict[str, list[Place]]) -> Iterator[Clock]:
    """Time the phases during the block; `places` lists the functions of each phase as (owner, name)."""
    clock = Clock()
    originals = [(owner, name, getattr(owner, name)) for functions in places.values() for owner, name in functions]
    for phase, functions in places.items():
        for owner, name in functions:
            setattr(owner, name, clock.wrap(phase, getattr(owner, name)))
    try:
        yield clock
    finally:
        clock.switch()
        for owner, name, function in originals:
            setattr(owner, name, function)


def server_functions(method: Method) -> list[Place]:
    """The functions that the server of a method runs in a round."""
    return [(type(method), "download"), (type(method), "aggregate")]


def phases(work: Workload, method: Method) -> dict[str, list[Place]]:
    """The functions of every phase."""
    task, solver = type(work.task), type(work.solver)
    return {
        "forward": [
            (task, "call"),
            (task, "row_loss"),
            (local_training, "value_and_grad"),
            (stacked_steps, "_advance"),
        ],
        "backward": [(torch.autograd, "backward"), (torch.autograd, "grad")],
        "optimiser": [(solver, "step"), (solver, "step_")],
        "data": [(task, "forward"), (task, "targets"), (schedule, "cohort")],
        "server": server_functions(method),
        "evaluation": [(engine, "evaluate")],
        "recording": [(repetition, "record"), (repetition, "save")],
    }


def rounds(*names: str) -> None:
    """Print a line for each workload: milliseconds per round, and percent of every phase."""
    print(f"{'workload':10} {'executor':10} {'ms/round':>9} " + " ".join(f"{p:>10}" for p in PHASES))
    for name in names or tuple(PROFILED):
        work, kind = WORKLOADS[name](), PROFILED[name]
        method = work.method()
        prepared = prepare(10, 10, {"rounds": ROUNDS, "executor": kind, "checkpoint": 1}, {"every": 1})
        prepared = replace(prepared, method=method, federation=work.federation)
        with tempfile.TemporaryDirectory() as folder:
            repetition.run_repetition(prepared, 1, Path(folder))
            with time_phases(phases(work, method)) as clock:
                repetition.run_repetition(prepared, 0, Path(folder))
        total = sum(clock.seconds.values())
        shares = " ".join(f"{100 * clock.seconds[phase] / total:9.1f}%" for phase in PHASES)
        print(f"{name:10} {kind:10} {1e3 * total / ROUNDS:9.1f} {shares}", flush=True)


def servers(*names: str) -> None:
    """Print a line for each method: seconds of a late round with its evaluation, and the server's part of it."""
    print(f"{'method':12} {'model':10} {'s/round':>8} {'server, s':>10} {'share':>7}")
    for model, methods, work, executor, repeats in (
        ("aghn_cnn", SERVERS, functools.partial(images, "aghn_cnn", 100), Loop(), 1),
        ("gcn", GRAPHS, functools.partial(subgraphs, 100), Batched(), 7),
        ("gcn-5", GRAPHS, functools.partial(subgraphs, 100, epochs=5), Batched(), 7),
    ):
        selected = [name for name in methods if not names or name in names]
        if not selected:
            continue
        case = work()
        for name in selected:
            total, server = late_rounds(case.method(name, **OPTIONS.get(name, {})), case, executor, repeats)
            print(f"{name:12} {model:10} {total:8.2f} {server:10.3f} {100 * server / total:6.1f}%", flush=True)


def late_rounds(method: Method, work: Workload, executor: Executor, repeats: int) -> tuple[float, float]:
    """(seconds of a typical late round with its evaluation, seconds of its server): medians of `repeats` rounds."""
    federation, settings = work.federation, Settings(rounds=2, every=1)
    small = replace(federation, train=federation.train[:, :8])  # few rows, for the rounds before the timed ones
    state = None
    for report in itertools.islice(
        engine.run(method, small, settings, executor), sum(stage.rounds for stage in method.stages(2)) - 1
    ):
        state = report.state
    assert state is not None
    downloads = DownloadCache()
    downloads(method, state.server, federation.ids)  # like the previous evaluation
    seconds = []
    for _ in range(repeats):
        with time_phases({"server": server_functions(method)}) as clock:
            state, _, models = engine.run_round(method, state, federation, settings, executor, True, downloads)
            evaluation.evaluate(method, state, federation, settings, executor, models, downloads)
            evaluation.diagnose(method, state.server, federation)
            evaluation.portray(method, state.server, federation)
        seconds.append((sum(clock.seconds.values()), clock.seconds["server"]))
    total, server = map(statistics.median, zip(*seconds, strict=True))
    return total, server


class Setup(NamedTuple):
    """A paper's set-up, per client: training rows of a round, rows evaluated, rounds between evaluations."""

    what: str
    trained: int
    evaluated: int
    every: int = 1
    present: float = 1.0


SETUPS = (
    Setup("CIFAR-10, FedAGHN: 5 epochs of 70 %", 5 * 70, 30),
    Setup("Fashion-MNIST, pFedGAT: 5 epochs of 4800, 10,000 test images", 5 * 4800, 1200 + 10_000),
    Setup("the same, of two classes of ten", 5 * 4800, 1200 + 2000),
    Setup("EMNIST, pFedLA: 10 epochs of 360, every 5", 10 * 360, 240, 5),
    Setup("Cora, FedSheafHN: 5 passes of the graph", 5, 1),
    Setup("ogbn-arxiv, FedSheafHN: 10 passes of the graph", 10, 1),
    Setup("TPT-48, SHN: 50 x 64, 5 of 48, every 500", 3200, 83, 500, 5 / 48),
    Setup("CIFAR-100, SHN: 50 x 64, 5 of 100, every 500", 3200, 150, 500, 0.05),
    Setup("METR-LA, SHN: 50 x 64, 5 of 207, every 1000", 3200, 10_300, 1000, 5 / 207),
)


def evaluations() -> None:
    """Print for each set-up the share of a round's passes that its evaluation has, with two models for each client.

    Clients that are absent from the round also train before their evaluation after training. The second number counts
    this training too.
    """
    for what, trained, evaluated, every, present in SETUPS:
        work, held, absent = 3 * trained * every * present, 2 * evaluated, 3 * trained * (1 - present)
        shares = [100 * part / (work + held + absent) for part in (held, held + absent)]
        print(f"{what:60} {shares[0]:5.1f} % {shares[1]:5.1f} %")


if __name__ == "__main__":
    torch.set_num_threads(1)
    keep_memory()
    if sys.argv[1:2] == ["evaluations"]:
        evaluations()
    elif sys.argv[1:2] == ["servers"]:
        servers(*sys.argv[2:])
    else:
        rounds(*sys.argv[2:])
