"""The raw limit: the same steps in a loop written by hand with torch.nn, torch.optim and PyTorch Geometric.

No framework is involved: batches are taken by index from one tensor, the model object is reused, and evaluation is one
pass over every client's held-out rows.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads import Workload
from fedweave.client.solvers import SGD, Adam
from fedweave.engine.clients import Clients
from fedweave.engine.schedule import cohort

Batch = Callable[[nn.Module, int, Tensor], Tensor]


def cnn(classes: int, channels: tuple[int, int], widths: tuple[int, ...], batch_norm: bool) -> nn.Module:
    """Two 5x5 convolutions with pooling, then dense layers."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in zip((3, channels[0]), channels, strict=True):
        norm = [nn.BatchNorm2d(fan_out)] if batch_norm else []
        layers += [nn.Conv2d(fan_in, fan_out, 5), *norm, nn.ReLU(), nn.MaxPool2d(2)]
    sizes = (channels[1] * 25, *widths)
    dense = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers, nn.Flatten(), *dense, nn.Linear(sizes[-1], classes))


def mlp(*sizes: int) -> nn.Module:
    """Dense layers with ReLU between them."""
    layers = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class GCN(nn.Module):
    """Two graph convolutions of PyTorch Geometric with cached normalisation, dropout, and a dense head."""

    def __init__(self, features: int, classes: int, hidden: int = 128, dropout: float = 0.3) -> None:
        super().__init__()
        from torch_geometric.nn import GCNConv

        self.conv1, self.conv2 = (GCNConv(size, hidden, normalize=False) for size in (features, hidden))
        self.head, self.dropout = nn.Linear(hidden, classes), dropout

    def forward(self, x: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
        for conv in (self.conv1, self.conv2):
            x = F.dropout(F.relu(conv(x, edges, weight)), self.dropout, self.training)
        return self.head(x)


class Seq2Seq(nn.Module):
    """torch's GRU as encoder, and its cell as decoder that reads its own forecasts."""

    def __init__(self, hidden: int = 64, horizon: int = 12) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.GRU(2, hidden, batch_first=True), nn.GRUCell(2, hidden)
        self.head, self.horizon = nn.Linear(hidden, 1), horizon

    def forward(self, x: Tensor) -> Tensor:
        past, clock = x[:, : -self.horizon], x[:, -self.horizon :, 1:]
        state, token, outputs = self.encoder(past)[1][0], past[:, -1], []
        for t in range(self.horizon):
            state = self.decoder(token, state)
            outputs.append(self.head(state))
            token = torch.cat([outputs[-1], clock[:, t]], 1)
        return torch.cat(outputs, 1)


def network(name: str) -> nn.Module:
    """The model of the workload called `name`."""
    networks: dict[str, Callable[[], nn.Module]] = {
        "cnn": lambda: cnn(10, (32, 64), (512,), batch_norm=True),
        "lenet16": lambda: cnn(100, (16, 32), (120, 84), batch_norm=False),
        "mlp": lambda: mlp(32, 64, 10),
        "tpt": lambda: mlp(6, 16, 16, 6),
        "gcn": lambda: GCN(1433, 7),
        "gru": Seq2Seq,
    }
    return networks[name]()


def outputs(name: str, federation: Clients) -> Callable[[nn.Module, int, Tensor], tuple[Tensor, Tensor]]:
    """(model, client, rows) -> (outputs, targets)."""
    if name == "gcn":
        own = {k: [v[i] for i in range(federation.clients)] for k, v in federation.own.items()}
        edges = [e[:2] for e in own["edges"]]
        return lambda model, i, rows: (model(own["x"][i], edges[i], own["weight"][i])[rows], own["y"][i][rows])
    if name in ("tpt", "gru"):
        window, horizon = (6, 6) if name == "tpt" else (12, 12)
        values, time = federation.shared["x"].reshape(-1), federation.shared["time"]
        length, span = len(time), torch.arange(window + horizon)

        def forecast(model: nn.Module, i: int, rows: Tensor) -> tuple[Tensor, Tensor]:
            windows = values[rows[:, None] + span]
            inputs = (
                windows[:, :window]
                if name == "tpt"
                else torch.stack([windows, time[(rows % length)[:, None] + span]], -1)
            )
            return model(inputs), windows[:, window:]

        return forecast
    x, y = federation.shared["x"], federation.shared["y"]
    return lambda model, i, rows: (model(x[rows]), y[rows])


def error(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of the workload called `name`."""
    return F.mse_loss if name in ("tpt", "gru") else F.cross_entropy


def plans(workload: Workload) -> list[list[Tensor]]:
    """The rows of every step, per client."""
    federation = workload.federation
    clients = cohort(federation, torch.arange(federation.clients), workload.training, workload.training.epochs, 0, 0)
    return [[rows[rows >= 0] for epoch in plan for rows in epoch if (rows >= 0).any()] for plan in clients.plan]


def held_out_rows(federation: Clients) -> list[Tensor]:
    """The rows of the evaluation, per client."""
    return [torch.cat([v, t]) for v, t in zip(federation.val, federation.test, strict=True)]


def make_round(name: str, workload: Workload) -> Callable[[], float]:
    """A function that trains and evaluates one round of FedAvg, and returns the mean loss on held-out rows."""
    federation, model, run, loss = workload.federation, network(name), outputs(name, workload.federation), error(name)
    solver = workload.solver
    assert isinstance(solver, SGD | Adam)
    kind = torch.optim.SGD if isinstance(solver, SGD) else torch.optim.Adam
    train, test = plans(workload), held_out_rows(federation)
    common = {k: v.clone() for k, v in model.state_dict().items()}

    def run_one() -> float:
        total = {k: torch.zeros_like(v) for k, v in common.items()}
        model.train()
        for i, plan in enumerate(train):
            model.load_state_dict(common)
            optimizer = kind(model.parameters(), lr=solver.lr, foreach=True)
            for rows in plan:
                optimizer.zero_grad()
                loss(*run(model, i, rows)).backward()
                optimizer.step()
            for k, v in model.state_dict().items():
                total[k] += v
        common.update({k: v / len(train) if v.is_floating_point() else v // len(train) for k, v in total.items()})
        model.load_state_dict(common)
        model.eval()
        with torch.no_grad():
            return sum(float(loss(*run(model, i, rows))) for i, rows in enumerate(test)) / len(test)

    return run_one
