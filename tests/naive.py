"""Shared code of the tests of baselines: quick runs, and plain training with ordinary modules and optimisers."""

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import cache

import tiny
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedweave.engine.clients import Clients
from fedweave.engine.engine import run, train
from fedweave.engine.executors import Loop
from fedweave.engine.protocol import Method
from fedweave.engine.records import Report, Settings, State
from fedweave.engine.schedule import Training, cohort
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree

SEED, TRAINING = 2, Training(batch_size=4, epochs=2)
FED, NODES = tiny.rows_federation(), tiny.nodes_federation()


def build_method(name: str, kind: str = "rows", **overrides: object) -> Method:
    """A method on a toy task."""
    return tiny.method(name, tiny.TASKS[kind][0](), kind, **overrides)


def last_report(
    name: str, kind: str = "rows", federation: Clients | None = None, rounds: int = 3, **overrides: object
) -> Report:
    """The last report of a run with all clients."""
    *_, report = run(
        build_method(name, kind, **overrides),
        federation or tiny.TASKS[kind][1](),
        Settings(rounds=rounds, seed=SEED),
        Loop(),
    )
    return report


def models(report: Report, point: str = "post") -> Tensor:
    """Personalized models [N, P]."""
    return trees.to_matrix(dict(sorted(report.models[point].items())))


def server(report: Report) -> Tensor:
    """The one model of the server [1, P]."""
    return torch.cat([value.flatten() for _, value in sorted(report.state.server["model"].items())])[None]


def network(method: Method) -> nn.Module:
    """The common initial model."""
    net = copy.deepcopy(method.task.template)
    net.load_state_dict(method.task.init(SEED * 1000 + 4))
    return net


def batches(client: int, round: int, first: int, last: int) -> list[Tensor]:
    """A client's minibatches of epochs first … last − 1."""
    plan = cohort(FED, torch.arange(tiny.CLIENTS), TRAINING, last, SEED, round).plan[client]
    return [rows[rows >= 0] for epoch in plan[first:] for rows in epoch if (rows >= 0).any()]


def rows_of(client: int, part: str = "train") -> Tensor:
    """A client's rows, for training unless `part` is another one."""
    rows = getattr(FED, part)[client]
    return rows[rows >= 0]


@cache
def adjacency(client: int) -> Tensor:
    """Neighbours, bool [V, V], in a client's subgraph, without loops."""
    nodes, links = (int(NODES.extents[name][client]) for name in ("x", "edges"))
    edges, dense = NODES.own["edges"][client][:, :links], torch.zeros(nodes, nodes, dtype=torch.bool)
    dense[edges[1], edges[0]] = True
    return dense.fill_diagonal_(False)


def ce(net: nn.Module, rows: Tensor) -> Tensor:
    """Cross-entropy of a batch."""
    return F.cross_entropy(net(FED.shared["x"][rows]), FED.shared["y"][rows])


def body_of(net: nn.Module) -> list[nn.Parameter]:
    """The parameters of all layers but the head."""
    return [p for name, p in net.named_parameters() if not name.startswith("fc.")]


def sgd(
    net: nn.Module,
    steps: list[Tensor],
    loss: Callable[[nn.Module, Tensor], Tensor] = ce,
    params: Iterable[nn.Parameter] | None = None,
    lr: float = 0.1,
) -> nn.Module:
    """`net` after a step of torch.optim.SGD on `loss(net, batch)` for each batch of `steps`."""
    optimizer = torch.optim.SGD(net.parameters() if params is None else params, lr=lr)
    for rows in steps:
        net.zero_grad()
        optimizer.zero_grad()
        loss(net, rows).backward()
        optimizer.step()
    return net


def half_distance(net: nn.Module, anchor: nn.Module) -> Tensor:
    """½ ||w - anchor||², where `anchor` is a constant."""
    pairs = zip(net.parameters(), anchor.parameters(), strict=True)
    return 0.5 * sum(((p - a.detach()) ** 2).sum() for p, a in pairs)


def gradients(net: nn.Module, rows: Tensor) -> list[Tensor]:
    """Gradient of the cross-entropy."""
    return [*torch.autograd.grad(ce(net, rows), [*net.parameters()])]


def move(net: nn.Module, steps: list[Tensor], size: float) -> nn.Module:
    """A copy of `net` moved by size · steps."""
    other = copy.deepcopy(net)
    with torch.no_grad():
        for p, s in zip(other.parameters(), steps, strict=True):
            p.add_(s, alpha=size)
    return other


def average(nets: list[nn.Module], weights: Tensor) -> nn.Module:
    """The weighted mean of modules."""
    mean = copy.deepcopy(nets[0])
    with torch.no_grad():
        for target, *sources in zip(mean.parameters(), *(n.parameters() for n in nets), strict=True):
            target.copy_(sum(w * s for w, s in zip(weights.double() / weights.sum(), sources, strict=True)))
    return mean


def model_copies(net: nn.Module) -> Iterator[tuple[int, nn.Module]]:
    """(client, its copy of `net`)."""
    yield from ((i, copy.deepcopy(net)) for i in range(tiny.CLIENTS))


def assert_same_model(net: nn.Module, params: Params) -> None:
    """The models are equal to float64 rounding."""
    for name, value in net.named_parameters():
        torch.testing.assert_close(params[name], value.detach(), rtol=1e-10, atol=1e-12)


def first_uploads(method: Method, state: State) -> tuple[Tree, Tree, Tree]:
    """(shared, own, uploads) of a round 0 with all clients, from `state`."""
    shared, own, updates, _ = train(
        method, state, cohort(FED, torch.arange(tiny.CLIENTS), method.training, method.epochs, SEED, 0), Loop()
    )
    return shared, own, updates.upload
