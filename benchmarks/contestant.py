"""One contestant in its own process: `python -m benchmarks.contestant WHO WORKLOAD ROUNDS THREADS [processor]`
prints seconds per round, of the clock or of the processor.

The first round is reported separately: recording and the start of workers happen there.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from benchmarks.workloads import WORKLOADS, Workload
from fedweave.engine.engine import run_round
from fedweave.engine.evaluation import evaluate
from fedweave.engine.executors import Batched, Executor, Loop, Processes
from fedweave.engine.records import Settings
from fedweave.engine.start import begin
from fedweave.processes.parallel import keep_memory

EXECUTORS: dict[str, Executor] = {
    "loop": Loop(),
    "bfloat16": Loop(),
    "batched": Batched(),
    "kernel": Batched(kernel=True),
}


def make_round(executor: Executor, workload: Workload, participation: float = 1.0) -> Callable[[], object]:
    """A function that runs a round of FedAvg and evaluates every client's model, by the engine."""
    keep_memory()
    method = workload.method()
    federation = workload.federation
    settings = Settings(rounds=100, participation=participation)
    state = begin(method, federation, 0, executor)

    def run_one() -> None:
        nonlocal state
        state = run_round(method, state, federation, settings, executor)[0]
        evaluate(method, state, federation, settings, executor)

    return run_one


def time_rounds(
    run_one: Callable[[], object], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Seconds of every round."""
    seconds = []
    for _ in range(rounds):
        start = clock()
        run_one()
        seconds.append(clock() - start)
    return seconds


def main() -> None:
    """Time one contestant."""
    who, name, rounds, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    clock = time.process_time if sys.argv[5:] == ["processor"] else time.perf_counter
    torch.set_num_threads(threads)
    workload = WORKLOADS[name]()
    if who == "bfloat16":
        workload = replace(workload, task=replace(workload.task, products=torch.bfloat16))
    if who in ("pfl", "flwr"):
        from benchmarks import peers

        seconds = getattr(peers, who)(name, workload, rounds)
    elif who == "jax":
        if threads == 1:
            os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        from benchmarks import jax_rounds

        seconds = time_rounds(jax_rounds.make_round(name, workload), rounds, clock)
    elif who == "raw":
        from benchmarks import raw

        seconds = time_rounds(raw.make_round(name, workload), rounds, clock)
    else:
        executor = Processes(threads) if who == "processes" else EXECUTORS[who]
        if who == "kernel" and name == "lenet16":
            executor = Loop(kernel=True)  # as `auto` takes images: clients in sequence
        seconds = time_rounds(make_round(executor, workload), rounds, clock)
    print(json.dumps({"first": seconds[0], "seconds": seconds[1:]}))


if __name__ == "__main__":
    main()
