"""`python -m benchmarks.gpu [WORKLOAD ...]`: milliseconds a round of stacked clients on a GPU, by how their steps run.

One process; the first two rounds, in which steps are compiled and recorded, are not counted.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from benchmarks.contestant import ours, timed
from benchmarks.workloads import WORKLOADS
from fedweave.errors import BadInput
from fedweave.federation.executors import Batched, set_precision

EXECUTORS = {
    "batched": Batched(),
    "CUDA graphs": Batched(recorded=True),
    "compiled, CUDA graphs": Batched(compiled=True, recorded=True),
}
ROUNDS = 5


def measured(workload: str, executor: str, device: str = "cuda", rounds: int = ROUNDS) -> float:
    """Milliseconds of the median round.

    Raises:
        BadInput: there is no such device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise BadInput("benchmarks.gpu: this machine has no CUDA device")
    set_precision(device)
    work = WORKLOADS[workload]()
    one = ours(EXECUTORS[executor], replace(work, federation=work.federation.to(device)))
    return 1000 * statistics.median(timed(_finished(one, device), rounds + 2)[2:])


def _finished(one: Callable[[], object], device: str) -> Callable[[], object]:
    """`one`, and a wait for the GPU."""

    def whole() -> None:
        one()
        if device == "cuda":
            torch.cuda.synchronize()

    return whole


def main(workloads: Sequence[str]) -> None:
    """Print the table."""
    for workload in workloads or WORKLOADS:
        times = [f"{executor} {measured(workload, executor):.0f} ms" for executor in EXECUTORS]
        print(f"{workload}: {', '.join(times)}", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BadInput as error:
        sys.exit(str(error))
