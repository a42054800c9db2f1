"""`python -m benchmarks.coverage`: whose local steps the kernel covers, for models of rows, images and series.

Every method trains for one round with three clients and its default settings. An empty cell is a kind of data that the
method does not take; otherwise the operation that the kernel lacks is named. Graphs are not covered.
"""

import warnings
from dataclasses import replace
from functools import partial

import torch

from benchmarks.workloads import images, sensors
from fedweave.engine.engine import run_round
from fedweave.engine.executors import Batched
from fedweave.engine.records import Settings
from fedweave.engine.start import begin
from fedweave.errors import BadInput
from fedweave.methods import METHODS

KINDS = {
    "rows": partial(images, "mlp", 3, shape=(4,), samples=20),
    "images": partial(images, "moon", 3, shape=(1, 20, 20), samples=20),
    "series": partial(sensors, clients=3, length=2000, window=3, horizon=2, steps=1),
}
PREFIX = "steps run without the kernel: "


def coverage(name: str, kind: str) -> str:
    """ "covered", the operation that the kernel lacks, or "" where the method `name` does not take such data."""
    work = KINDS[kind]()
    if not METHODS[name].needs <= work.task.capabilities:
        return ""
    federation = replace(work.federation, relation=torch.tensor([[0, 1], [1, 0]]))
    method, executor = work.method(name), Batched(kernel=True)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            run_round(method, begin(method, federation, 0, executor), federation, Settings(rounds=1), executor)
        except BadInput:  # the method needs more than this federation has
            return ""
    lacking = {str(w.message).removeprefix(PREFIX) for w in seen if str(w.message).startswith(PREFIX)}
    return ", ".join(sorted(lacking)) or "covered"


def main() -> None:
    """Print the table."""
    print(f"{'local steps by the kernel':28}{''.join(f'{kind:30}' for kind in KINDS)}".rstrip())
    for name in sorted(METHODS):
        cells = "".join(f"{coverage(name, kind):30}" for kind in KINDS)
        print(f"{name:28}{cells}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
