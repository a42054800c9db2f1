"""`python -m benchmarks.gpu [WORKLOAD ...]`: milliseconds per round of stacked clients on a GPU, by executor.

Everything runs in one process. The first two rounds, which record steps, do not count.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from benchmarks.contestant import make_round, time_rounds
from benchmarks.workloads import WORKLOADS
from fedweave.engine.executors import Batched, set_precision
from fedweave.errors import BadInput

EXECUTORS = {"batched": Batched(), "CUDA graphs": Batched(recorded=True)}
ROUNDS = 5


def measure(workload: str, executor: str, device: str = "cuda", rounds: int = ROUNDS) -> float:
    """Milliseconds of the median round.

    Raises:
        BadInput: there is no such device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise BadInput("benchmarks.gpu: this machine has no CUDA device")
    set_precision(device)
    work = WORKLOADS[workload]()
    run_one = make_round(EXECUTORS[executor], replace(work, federation=work.federation.to(device)))
    return 1000 * statistics.median(time_rounds(_wait_for_gpu(run_one, device), rounds + 2)[2:])


def _wait_for_gpu(run_one: Callable[[], object], device: str) -> Callable[[], object]:
    """A function that calls `run_one` and waits until the GPU has finished."""

    def run_and_wait() -> None:
        run_one()
        if device == "cuda":
            torch.cuda.synchronize()

    return run_and_wait


def main(workloads: Sequence[str]) -> None:
    """Print the table."""
    for workload in workloads or WORKLOADS:
        times = [f"{executor} {measure(workload, executor):.0f} ms" for executor in EXECUTORS]
        print(f"{workload}: {', '.join(times)}", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BadInput as error:
        sys.exit(str(error))
