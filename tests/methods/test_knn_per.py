"""kNN-Per: the votes of the nearest training rows, and their weight."""

import pytest
import tiny
import torch
from naive import FED, SEED, build_method, last_report, network
from torch import Tensor, nn

from fedweave.client.solvers import SGD
from fedweave.engine.schedule import evaluation_cohort
from fedweave.tensors import trees


def votes(net: nn.Module, client: int, row: Tensor, rule: str, k: int, scale: float) -> Tensor:
    """p_kNN [C] of one row, from the client's training rows."""
    train = FED.train[client][FED.train[client] >= 0]
    stored, z = (net.features(FED.shared["x"][rows]).detach() for rows in (train, row[None]))
    labels = FED.shared["y"][train].tolist()
    distances = sorted((float((a - z[0]).square().sum()), y) for a, y in zip(stored, labels, strict=True))
    total = torch.zeros(tiny.CLASSES, dtype=torch.float64)
    for distance, label in distances[:k]:
        total[label] += torch.exp(torch.tensor(-distance / (scale * len(z[0]) if rule == "original" else 1.0)))
    return total / total.sum() if rule == "original" else total.softmax(0)


def parts(net: nn.Module, client: int, rows: Tensor, *settings: object) -> tuple[Tensor, Tensor]:
    """p_kNN and the model's probabilities [B, C]."""
    near = torch.stack([votes(net, client, row, *settings) for row in rows])
    return near, net(FED.shared["x"][rows]).softmax(1).detach()


@pytest.mark.parametrize(("rule", "scale"), [("original", 0.2), ("original", 4.0), ("pfedgraph", 1.0)])
def test_predictions(rule: str, scale: float) -> None:
    """For each row, λ is the given value, or the smallest of the grid with the most correct validation rows."""
    chosen = set()
    for mix in (-1.0, 0.3):
        report = last_report("knn_per", k=3, solver=SGD(lr=1e-3), rule=rule, scale=scale, mix=mix)
        net = network(build_method("knn_per"))
        net.load_state_dict(report.state.server["model"])
        for i in range(tiny.CLIENTS):
            val, test = (rows[i][rows[i] >= 0] for rows in (FED.val, FED.test))
            near, model = parts(net, i, val, rule, 3, scale)
            labels = FED.shared["y"][val]
            hits = [int(((m * near + (100 - m) * model).argmax(1) == labels).sum()) for m in range(101)]
            share = hits.index(max(hits)) / 100 if mix < 0 else mix
            chosen.add(share)
            near, model = parts(net, i, test, rule, 3, scale)
            memory = trees.at(report.models["pre"], i)
            assert float(memory["mix"]) == pytest.approx(share)
            data = evaluation_cohort(FED, SEED, 0).client_data(i)
            torch.testing.assert_close(report.method.predict(memory, data, test), share * near + (1 - share) * model)
    assert len(chosen) > 2
