"""Lower limits for the time of any engine: `python -m benchmarks.limits [mlp|gru|seeds|evaluation]`.

`mlp` and `gru` time the bare operations of a round of stacked clients: matrix products, activations with what their
derivatives read, the loss, the optimiser, the selection of rows. They run at the sizes of the round, in one process
with the raw loop and with the whole round. `seeds` compares repetitions of a run that train together in one stack
with repetitions in sequence. `evaluation` prints, for the papers' set-ups, the share of a round's passes that
its evaluation has, where a backward pass counts as two forward passes. Times are processor times.
"""

import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks import raw
from benchmarks.contestant import make_round
from benchmarks.workloads import WORKLOADS, Workload, images, sensors, subgraphs
from fedweave.engine.engine import run_round
from fedweave.engine.executors import Batched
from fedweave.engine.records import Settings
from fedweave.engine.schedule import cohort
from fedweave.engine.start import begin
from fedweave.processes.parallel import keep_memory

REPEATS = 5


class Work(NamedTuple):
    """A bare operation of a round, and how often it occurs in the round."""

    kind: str
    times: int
    run: Callable[[], object]


def seconds(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """The shortest of `repeats` processor times of `run`, after a first one that does not count."""
    run()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def layer(
    clients: int, rows: int, fan_in: int, fan_out: int, steps: int, held: int, passes: int = 2, first: bool = False
) -> Iterator[Work]:
    """The operations of a dense layer of stacked clients: `steps` of training, `passes` forward on `held` rows.

    Args:
        clients, rows, fan_in, fan_out: sizes of the batched products.
        steps: training steps of a round.
        held: rows of the evaluation.
        passes: forward passes of the evaluation.
        first: whether the layer is the first one, which needs no derivative with respect to its inputs.
    """
    x, w = torch.randn(clients, rows, fan_in), torch.randn(clients, fan_in, fan_out)
    g, seen = torch.randn(clients, rows, fan_out), torch.randn(clients, held, fan_in)
    yield Work("products", steps, lambda: x @ w)
    yield Work("products", steps, lambda: x.mT @ g)
    if not first:
        yield Work("products", steps, lambda: g @ w.mT)
    yield Work("products", passes, lambda: seen @ w)


def mlps(clients: int = 200, rows: int = 64, steps: int = 8, held: int = 100) -> Iterator[Work]:
    """The bare operations of the MLPs 32-64-10: `steps` of `rows`, then two models on `held` rows."""
    yield from layer(clients, rows, 32, 64, steps, held, first=True)
    yield from layer(clients, rows, 64, 10, steps, held)
    hidden, target = torch.randn(clients, rows, 64), torch.zeros(clients, rows, 1, dtype=torch.int64)
    logits, params = torch.randn(clients, rows, 10), torch.randn(clients, 2762)
    x, index = torch.randn(clients * 600, 32), torch.randint(clients * 600, (clients, rows))
    yield Work("activations", steps, lambda: (torch.relu_(hidden), hidden * (hidden > 0)))
    yield Work("loss", steps, lambda: (logits.log_softmax(-1).gather(-1, target), logits.exp() - logits))
    yield Work("optimiser", steps, lambda: params.add_(params, alpha=-0.01))
    yield Work("rows", steps, lambda: x[index])
    work = WORKLOADS["mlp"]()
    everybody = torch.arange(clients)
    yield Work("order of batches", 1, lambda: cohort(work.federation, everybody, work.training, 1, 0, 0))


def grus(clients: int = 20, rows: int = 64, steps: int = 10, held: int = 300) -> Iterator[Work]:
    """The bare operations of the GRU with 64 units, 12 steps in and 12 out."""
    width, times = 64, 24
    yield from layer(clients, rows, width, 3 * width, steps * times, held, 2 * times)
    yield from layer(clients, rows, 2, 3 * width, steps * times, held, 2 * times, first=True)
    yield Work("activations", steps, Recurrence(clients, rows, width, times).both)
    yield Work("activations", 2, Recurrence(clients, held, width, times).forward)
    params = torch.randn(4, clients, 26177)
    yield Work("optimiser", steps, lambda: torch.addcdiv(params[0], params[1], params[2].square() + 1.0))


class Recurrence:
    """The operations of a GRU without its products, in as few operations as PyTorch allows.

    The results of the products, [times, clients, rows, width] for each gate, and what the backward pass reads have
    their own memory for every step, as in training.
    """

    def __init__(self, clients: int, rows: int, width: int, times: int) -> None:
        self.switches = torch.randn(times, 2, clients, rows, width)
        self.new_x, self.new_h = torch.randn(2, times, clients, rows, width)

    def forward(self) -> list[tuple[Tensor, ...]]:
        """A forward pass. Returns the tensors that the backward pass reads, (reset, update, new, state before) of every
        step.
        """
        h, steps = torch.zeros_like(self.new_x[0]), list[tuple[Tensor, ...]]()
        for switches, new_x, new_h in zip(self.switches, self.new_x, self.new_h, strict=True):
            reset, update = torch.sigmoid(switches)
            new = torch.addcmul(new_x, reset, new_h).tanh_()
            steps.append((reset, update, new, h))
            h = torch.lerp(new, h, update)
        return steps

    def both(self) -> None:
        """A forward and a backward pass."""
        back = torch.ones_like(self.new_x[0])
        for (reset, update, new, h), new_h in zip(reversed(self.forward()), self.new_h, strict=True):
            slope = torch.addcmul(back, back, update, value=-1.0)
            slope = torch.ops.aten.tanh_backward(slope, new)
            torch.ops.aten.sigmoid_backward(slope * new_h, reset)
            torch.ops.aten.sigmoid_backward(back * (h - new), update)
            torch.mul(slope, reset)
            back = back * update


def print_limits(name: str, operations: Iterator[Work]) -> None:
    """Print a line for each kind of operation, then their sum, the whole round, and the raw loop."""
    workload, totals = WORKLOADS[name](), dict[str, float]()
    with torch.no_grad():
        for kind, times, run in operations:
            totals[kind] = totals.get(kind, 0.0) + times * seconds(run)
    loop = seconds(raw.make_round(name, workload))
    rounds = {
        "all of these": sum(totals.values()),
        "batched round": seconds(make_round(Batched(), workload)),
        "raw loop": loop,
    }
    for what, value in (totals | rounds).items():
        print(f"{name:6} {what:18} {1e3 * value:9.1f} ms {loop / value:7.1f} times as fast as the raw loop", flush=True)


def seeds(repetitions: int = 3) -> None:
    """Print times of `repetitions` rounds: stacked as one federation with all their clients, and in sequence."""
    cases: dict[str, Callable[[int], Workload]] = {
        "mlp, 10 clients": lambda k: images("mlp", 10 * k, shape=(32,)),
        "mlp, 50 clients": lambda k: images("mlp", 50 * k, shape=(32,)),
        "tpt, 20 clients": lambda k: sensors("tpt_mlp", 20 * k, window=6, horizon=6, steps=50),
        "gcn, 10 clients": lambda k: subgraphs(10 * k),
        "gru, 10 clients": lambda k: sensors(clients=10 * k),
    }
    for what, work in cases.items():
        apart = repetitions * seconds(make_round(Batched(), work(1)))
        together = seconds(make_round(Batched(), work(repetitions)))
        print(
            f"{what:16} apart {1e3 * apart:8.1f} ms   together {1e3 * together:8.1f} ms   {apart / together:5.2f} times"
            f"   same bits: {have_same_bits(work, repetitions)}",
            flush=True,
        )


def have_same_bits(work: Callable[[int], Workload], repetitions: int) -> bool:
    """Whether local training of clients has the same bits with and without other repetitions in the stack."""
    models = []
    for count in (1, repetitions):
        workload = work(count)
        method, federation = workload.method("local"), workload.federation
        state = begin(method, federation, 0, Batched())
        models.append(run_round(method, state, federation, Settings(rounds=1), Batched())[2])
    alone, beside = models
    return all(torch.equal(value, beside[name][: len(value)]) for name, value in alone.items())


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


def evaluation() -> None:
    """Print for each set-up the share of a round's passes that its evaluation has, with two models for each client.

    Clients that are absent from the round also train before their evaluation after training. The second number counts
    this training too.
    """
    for what, trained, evaluated, every, present in SETUPS:
        work, held, absent = 3 * trained * every * present, 2 * evaluated, 3 * trained * (1 - present)
        shares = [100 * part / (work + held + absent) for part in (held, held + absent)]
        print(f"{what:60} {shares[0]:5.1f} % {shares[1]:5.1f} %")


PARTS: dict[str, Callable[[], None]] = {
    "mlp": lambda: print_limits("mlp", mlps()),
    "gru": lambda: print_limits("gru", grus()),
    "seeds": seeds,
    "evaluation": evaluation,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    keep_memory()
    for part in sys.argv[1:] or tuple(PARTS):
        PARTS[part]()
