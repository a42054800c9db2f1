"""The truth that a collaboration graph is compared with: groups of clients, and how much their targets differ."""

import numpy as np
import torch

from fedweave.client.task import Task
from fedweave.engine.clients import Clients
from fedweave.engine.schedule import evaluation_cohort

BINS = 10  # ranges of targets that are numbers
SHARPNESS = 4.0  # a pair of median divergence gets e⁻⁴ of the weight of equal clients


def target_shares(task: Task, federation: Clients) -> np.ndarray:
    """Shares [N, C] of the training targets of every client: of the classes, or of ten equally frequent ranges."""
    everybody = evaluation_cohort(federation, 0, 0, testing=False)
    targets = []
    for i in range(federation.clients):
        data = everybody.client_data(i)
        targets.append(task.targets(data, data.train[data.train >= 0]).flatten().cpu().numpy())
    pooled = np.concatenate(targets)
    if np.issubdtype(pooled.dtype, np.floating):
        edges = np.quantile(pooled, np.linspace(0, 1, BINS + 1)[1:-1])
        targets = [np.searchsorted(edges, values) for values in targets]
    classes = 1 + max(int(values.max()) for values in targets)
    counts = np.stack([np.bincount(values.astype(np.int64), minlength=classes) for values in targets])
    return counts / counts.sum(1, keepdims=True)


def jensen_shannon(shares: np.ndarray) -> np.ndarray:
    """Jensen-Shannon divergences [N, N] in nats between the rows of `shares` [N, C], each of sum 1: 0 to log 2."""
    p = np.asarray(shares, dtype=np.float64)
    entropy = _entropy(p)
    mixed = np.stack([_entropy((p + row) / 2) for row in p])
    return np.maximum(mixed - (entropy[:, None] + entropy) / 2, 0.0)


def _entropy(p: np.ndarray) -> np.ndarray:
    return -(p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum(-1)


def group_graph(group: np.ndarray) -> torch.Tensor:
    """Equal weights [N, N] on the clients of the learner's group [N], the learner included."""
    same = torch.from_numpy(np.asarray(group)[:, None] == np.asarray(group)).double()
    return same / same.sum(1, keepdim=True)


def similarity_graph(divergence: np.ndarray) -> torch.Tensor:
    """Weights [N, N] that fall with the `divergence` [N, N] of two clients: exp(−4 d / median), scaled to sum 1.

    Weights below 1 / N are set to 0, and the rows are scaled again, so that clients learn from similar ones only.
    """
    count = len(divergence)
    off_diagonal = divergence[~np.eye(count, dtype=bool)]
    scale = np.median(off_diagonal) if off_diagonal.size and np.median(off_diagonal) > 0 else 1.0
    weights = np.exp(-SHARPNESS * divergence / scale)
    weights = weights / weights.sum(1, keepdims=True)
    weights = np.where((weights >= 1.0 / count) | np.eye(count, dtype=bool), weights, 0.0)
    return torch.from_numpy(weights / weights.sum(1, keepdims=True))
