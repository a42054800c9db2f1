"""`python -m benchmarks.own_modules`: networks of a user's own, processor time of a local step under three executors.

Ten clients train for one epoch with batches of 32; a step of the table is one step of one client, and has a share of
the evaluation after its round.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.workloads import Workload, images
from fedweave.client.task import RowClassification
from fedweave.engine.engine import run_round
from fedweave.engine.executors import Batched, Executor, Loop
from fedweave.engine.records import Settings
from fedweave.engine.schedule import Training
from fedweave.engine.start import begin
from fedweave.models.own_module import wrap

CLIENTS, SAMPLES, BATCH, ROUNDS = 10, 320, 32, 5
VALUES, STEPS = 50, 10  # of a row, which the recurrent networks read as a series
EXECUTORS: dict[str, Executor] = {"loop": Loop(), "batched": Batched(), "kernel": Batched(kernel=True)}


class Recurrent(nn.Module):
    """A recurrent layer and a linear one on its last output."""

    def __init__(self, layer: Callable[..., nn.RNNBase], outputs: int) -> None:
        super().__init__()
        self.layer, self.head = layer(VALUES // STEPS, 64, batch_first=True), nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.layer(x.reshape(len(x), STEPS, -1))[0][:, -1])
        return outputs


class Transformer(nn.Module):
    """One encoder layer with four heads, and a linear layer on the mean of its outputs."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(VALUES // STEPS, 32), nn.Linear(32, outputs)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.encoder(self.embed(x.reshape(len(x), STEPS, -1))).mean(1))
        return outputs


def dense(norm: Callable[[int], nn.Module], outputs: int) -> nn.Module:
    """Two hidden layers of 200, with normalisation and dropout."""
    parts = [nn.Linear(VALUES, 200), norm(200), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*parts, nn.Linear(200, 200), norm(200), nn.GELU(), nn.Dropout(0.3), nn.Linear(200, outputs))


def of_series(_: tuple[int, ...], outputs: int) -> nn.Module:
    """Convolutions of 32 and 64 channels over a series of 128 places with 6 values, such as those of motion sensors."""
    first = [nn.Conv1d(6, 32, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2)]
    second = [nn.Conv1d(32, 64, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64, outputs))


def grouped(channels: int) -> nn.Module:
    """Normalisation of four groups of channels."""
    return nn.GroupNorm(4, channels)


def convolutional(norm: Callable[[int], nn.Module], outputs: int) -> nn.Module:
    """Convolutions of 16 and 32 channels."""
    first = [nn.Conv2d(1, 16, 3, padding=1), norm(16), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(16, 32, 3, padding=1), norm(32), nn.ReLU(), nn.AdaptiveAvgPool2d(4)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(512, outputs))


def nothing(_: int) -> nn.Module:
    """No normalisation."""
    return nn.Identity()


ROWS, IMAGES = (VALUES,), (1, 16, 16)
NETWORKS: dict[str, tuple[Callable[[tuple[int, ...], int], nn.Module], tuple[int, ...]]] = {
    "dense, dropout": (lambda _, outputs: dense(nothing, outputs), ROWS),
    "dense, layer normalisation, dropout": (lambda _, outputs: dense(nn.LayerNorm, outputs), ROWS),
    "dense, batch normalisation, dropout": (lambda _, outputs: dense(nn.BatchNorm1d, outputs), ROWS),
    "nn.GRU of 64": (lambda _, outputs: Recurrent(nn.GRU, outputs), ROWS),
    "nn.LSTM of 64": (lambda _, outputs: Recurrent(nn.LSTM, outputs), ROWS),
    "nn.TransformerEncoderLayer of 32": (lambda _, outputs: Transformer(outputs), ROWS),
    "two nn.Conv1d": (of_series, (6, 128)),
    "two convolutions": (lambda _, outputs: convolutional(nothing, outputs), IMAGES),
    "the same with group normalisation": (lambda _, outputs: convolutional(grouped, outputs), IMAGES),
    "the same with batch normalisation": (lambda _, outputs: convolutional(nn.BatchNorm2d, outputs), IMAGES),
}


def time_step(work: Workload, executor: Executor) -> float:
    """Milliseconds of a local step: the median of `ROUNDS` rounds, after one that does not count."""
    method = work.method()
    state, times = begin(method, work.federation, 0, executor), []
    for _ in range(ROUNDS + 1):
        start = time.process_time()
        state = run_round(method, state, work.federation, Settings(rounds=ROUNDS + 1), executor)[0]
        times.append(time.process_time() - start)
    return 1000 * median(times[1:]) / (CLIENTS * SAMPLES / BATCH)


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(f"{'milliseconds of a local step':40}{''.join(f'{name:>10}' for name in EXECUTORS)}")
    for name, (network, shape) in NETWORKS.items():
        work = images("mlp", CLIENTS, shape, SAMPLES)
        task = RowClassification(wrap(network, shape, 10))
        work = replace(work, task=task, training=Training(batch_size=BATCH, epochs=1))
        cells = "".join(f"{time_step(work, executor):10.3f}" for executor in EXECUTORS.values())
        print(f"{name:40}{cells}", flush=True)


if __name__ == "__main__":
    main()
