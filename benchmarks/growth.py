"""Growth of time and memory with clients, participation and model: `python -m benchmarks.growth [PART]`.

PART is memory, clients, participation or model, or scale for five methods with up to 10,000 clients
(`benchmarks.scale`), which takes an hour.

Every line is a process of its own, so that its peak memory (resident, with torch and data) is its own. Times are the
median of three rounds of FedAvg with their evaluation, after a first one that does not count. CNN is LeNet-16 on
3x32x32 (128,832 parameters) with fifty images per client, so that a thousand clients have as many as CIFAR. MLP is
32-h-10 with a hundred rows per client.
"""

import multiprocessing
import resource
import statistics
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from benchmarks import scale
from benchmarks.contestant import make_round, time_rounds
from benchmarks.workloads import Workload, images
from fedweave.engine.executors import Batched, Executor, Loop, describe
from fedweave.models import parameter_count

ROUNDS = 3


class Case(NamedTuple):
    """One line of the output: the part that it belongs to, its title, and what is measured."""

    part: str
    what: str
    model: str
    clients: int
    executor: Executor
    participation: float = 1.0
    options: dict[str, Any] = {}  # noqa: RUF012


def cases() -> Iterator[Case]:
    """The cases of all lines."""
    for executor in (Loop(), Batched(20)):
        yield Case("memory", "1000 clients", "lenet16", 1000, executor)
    for clients in (10, 100, 1000):
        yield Case("clients", f"{clients} clients", "lenet16", clients, Loop())
        yield Case("clients", f"{clients} clients", "mlp", clients, Batched())
    for percent in (1, 10, 100):
        for model, executor in (("lenet16", Loop()), ("mlp", Batched())):
            yield Case("participation", f"{percent} % of 100 clients", model, 100, executor, percent / 100)
    for hidden in (16, 64, 256):
        yield Case("model", f"100 clients, h = {hidden}", "mlp", 100, Batched(), options={"hidden": hidden})
    for model in ("lenet16", "aghn_cnn"):
        yield Case("model", f"20 clients, {model}", model, 20, Loop())


def workload(case: Case) -> Workload:
    """The work of a case."""
    if case.model == "mlp":
        return images("mlp", case.clients, shape=(32,), samples=100, **case.options)
    return images(case.model, case.clients, samples=50, classes=100 if case.model == "lenet16" else 10)


def measure(case: Case) -> None:
    """Measure a case and print its line."""
    torch.set_num_threads(1)
    work = workload(case)
    seconds = time_rounds(make_round(case.executor, work, case.participation), ROUNDS + 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    data = work.federation.shared["x"].nbytes / 2**30
    size = parameter_count(work.task.template)
    print(
        f"{case.part:14} {case.what:24} {size:8,} parameters  {describe(case.executor):32}"
        f"{1e3 * statistics.median(seconds[1:]):9.1f} ms/round   peak {peak:.2f} GiB, data {data:.2f} GiB",
        flush=True,
    )


def main(*parts: str) -> None:
    """Measure the lines of `parts`, by default of all but scale."""
    if parts[:1] == ("scale",):
        scale.main(*parts[1:])
        return
    for case in cases():
        if not parts or case.part in parts:
            child = multiprocessing.get_context("spawn").Process(target=measure, args=(case,))
            child.start()
            child.join()
            if child.exitcode:
                sys.exit(f"{case.part}, {case.what}: exit code {child.exitcode}")


if __name__ == "__main__":
    main(*sys.argv[1:])
