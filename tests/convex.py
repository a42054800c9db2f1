"""Two convex tasks, on which FedAvg of any framework ends at the same model in full batches, whatever its start."""

import warnings

import numpy as np
from torch import nn

import fedweave as fw

RATE, ROUNDS, SEEDS, NEAR = 0.5, 20, 2, 0.01  # NEAR: of log-losses, what the first model leaves
TASKS = ("two classes", "three classes, clients of different sizes")


def federation(task: str) -> "fw.Federation":
    """Rows of four clients."""
    draws = np.random.default_rng(3)
    x = draws.normal(size=(240, 4)).astype(np.float32)
    if task == TASKS[0]:
        labels, clients = 2 * x[:, 0] - x[:, 1] + draws.logistic(size=240) > 0, np.arange(240) % 4
    else:
        labels = (x[:, :3] * 2 + draws.gumbel(size=(240, 3))).argmax(1)
        clients = np.repeat([0, 1, 2, 3], [120, 60, 40, 20])
    return fw.Federation.from_arrays(x, [f"class {k}" for k in labels], client=[f"c{i}" for i in clients])


def compare(task: str, contestant: object) -> "fw.Comparison":
    """Our FedAvg, as "fedavg", and a contestant on a task."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fw.compare(
            federation(task),
            ["fedavg", contestant],
            rounds=ROUNDS,
            batch_size=0,
            lr=RATE,
            seeds=SEEDS,
            model=lambda shape, k: nn.Sequential(nn.Flatten(), nn.Linear(4, k)),
            metric="log_loss",
            central=False,
            progress=False,
        )


def distance(task: str, contestant: object) -> float:
    """The log-loss of a contestant minus that of our FedAvg, mean over clients and seeds; ours knows no shares."""
    result = compare(task, contestant)
    assert not result.lost, result.lost
    ours, theirs = (result[name].select_scores()["value"].mean() for name in result.methods)
    return float(theirs - ours)
