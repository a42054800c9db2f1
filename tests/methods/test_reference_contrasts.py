"""MOON, FedDyn, LG-FedAvg and GPFL beside plain loops with ordinary modules, written from the papers."""

import copy
from dataclasses import replace

import naive
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedweave.engine.engine import run
from fedweave.engine.executors import Loop
from fedweave.engine.records import Settings
from fedweave.engine.start import begin
from fedweave.methods.gpfl import PREFIX
from fedweave.tensors import trees

ROUNDS, LR = 3, 0.1


def step(modules: list[nn.Module], loss: Tensor) -> None:
    """A step of SGD on all parameters."""
    parameters = [p for module in modules for p in module.parameters()]
    with torch.no_grad():
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.sub_(LR * g)


def features(net: nn.Module, rows: Tensor) -> Tensor:
    return net.features(naive.FED.shared["x"][rows])


def test_moon_is_drawn_to_the_received_features() -> None:
    report = naive.last_report("moon", rounds=ROUNDS, mu=2.0, tau=0.7)
    net = naive.network(report.method)
    previous = [copy.deepcopy(net) for _ in naive.model_copies(net)]
    for r in range(ROUNDS):
        nets = []
        for i, own in naive.model_copies(net):
            for rows in naive.batches(i, r, 0, 2):
                z, near, far = (features(one, rows) for one in (own, net, previous[i]))
                a, b = (torch.exp(F.cosine_similarity(z, other.detach()) / 0.7) for other in (near, far))
                step([own], naive.ce(own, rows) - 2.0 * torch.log(a / (a + b)).mean())
            previous[i] = copy.deepcopy(own)
            nets.append(own)
        net = naive.average(nets, naive.FED.sizes)
    naive.assert_same_model(net, report.state.server["model"])


def test_feddyn_remembers_how_far_clients_moved() -> None:
    """In the words of the paper: gradients of the clients, and the state h of the server, which here is the mean."""
    alpha, whole = 0.3, naive.FED.sizes.double() / naive.FED.sizes.sum()
    report = naive.last_report("feddyn", rounds=ROUNDS, alpha=alpha)
    net = naive.network(report.method)
    names = [name for name, _ in net.named_parameters()]
    clients, h = [[torch.zeros_like(p) for p in net.parameters()] for _ in whole], [0.0] * len(names)
    for r in range(ROUNDS):
        nets = []
        for i, own in naive.model_copies(net):
            for rows in naive.batches(i, r, 0, 2):
                pairs = [*zip(own.parameters(), net.parameters(), clients[i], strict=True)]
                terms = [alpha / 2 * (p - x.detach()).square().sum() - (g * p).sum() for p, x, g in pairs]
                step([own], naive.ce(own, rows) + sum(terms))
            moved = [(p - x).detach() for p, x in zip(own.parameters(), net.parameters(), strict=True)]
            clients[i] = [g - alpha * m for g, m in zip(clients[i], moved, strict=True)]
            nets.append(own)
        mean = naive.average(nets, naive.FED.sizes)
        moved = [(p - x).detach() for p, x in zip(mean.parameters(), net.parameters(), strict=True)]
        h = [old - alpha * m for old, m in zip(h, moved, strict=True)]
        net = naive.move(mean, h, -1 / alpha)
    naive.assert_same_model(net, report.state.server["model"])
    drift = report.state.clients["drift"]
    for name, g, own in zip(names, map(torch.stack, zip(*clients, strict=True)), h, strict=True):
        torch.testing.assert_close(drift[name], -g / alpha, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(report.state.server["drift"][name], -own / alpha, rtol=1e-7, atol=1e-9)


def test_the_drift_of_feddyns_server_is_the_mean_of_the_clients() -> None:
    """With uniform weights, for any participants and newcomers, which also move."""
    method = naive.build_method("feddyn", training=replace(naive.TRAINING, uniform_mean=True))
    settings = Settings(rounds=6, seed=1, participation=2, newcomers=2, join_round=3)
    *_, report = run(method, naive.FED, settings, Loop())
    clients = report.state.clients["drift"]
    for name, value in report.state.server["drift"].items():
        torch.testing.assert_close(value, clients[name].mean(0), rtol=1e-10, atol=1e-13)
    old, new = trees.norms(clients).gt(0).split(3)
    assert old.any()
    assert new.any()


def test_lg_fedavg_shares_the_head_alone() -> None:
    report = naive.last_report("lg_fedavg", rounds=ROUNDS)
    nets = [copy.deepcopy(naive.network(report.method)) for _ in naive.FED.sizes]
    for r in range(ROUNDS):
        for i, own in enumerate(nets):
            naive.sgd(own, naive.batches(i, r, 0, 2))
        head = naive.average([net.fc for net in nets], naive.FED.sizes)
        for net in nets:
            net.fc.load_state_dict(head.state_dict())
    for i, net in enumerate(nets):
        naive.assert_same_model(net, {name: value[i] for name, value in report.models["pre"].items()})


def test_gpfl_has_guided_and_personal_features() -> None:
    lam, mu = 0.3, 0.02
    report = naive.last_report("gpfl", rounds=ROUNDS, lam=lam, mu=mu)
    width, classes = naive.network(report.method).fc.in_features, naive.network(report.method).fc.out_features
    branch = lambda: nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width))  # noqa: E731
    guide = nn.ModuleDict({"categories": nn.Embedding(classes, width), "gamma": branch(), "beta": branch()}).double()
    drawn = begin(report.method, naive.FED, naive.SEED, Loop()).server["model"]
    guide.load_state_dict({n.removeprefix(PREFIX): v for n, v in drawn.items() if n.startswith(PREFIX)})
    nets, y = [copy.deepcopy(naive.network(report.method)) for _ in naive.FED.sizes], naive.FED.shared["y"]

    def valve(own: nn.ModuleDict, z: Tensor, context: Tensor) -> Tensor:
        return F.relu(z * (1 + own["gamma"](context)) + own["beta"](context))

    for r in range(ROUNDS):
        guides, embeddings = [], guide["categories"].weight.detach().clone()
        for i, net in enumerate(nets):
            own, known = copy.deepcopy(guide), naive.FED.train[i]
            shares = torch.bincount(y[known[known >= 0]], minlength=classes).double()
            contexts = embeddings.mean(0), shares / shares.sum() @ embeddings
            for rows in naive.batches(i, r, 0, 2):
                z = features(net, rows)
                generic, personal = (valve(own, z, context) for context in contexts)
                angles = F.cosine_similarity(generic[:, None], own["categories"].weight[None], dim=2)
                loss = F.cross_entropy(net.fc(personal), y[rows]) + F.cross_entropy(angles, y[rows])
                loss = loss + lam * (generic - embeddings[y[rows]]).norm(dim=1).mean()
                step([net, own], loss + mu / 2 * sum(p.square().sum() for p in own.parameters()))
            guides.append(own)
        guide = naive.average(guides, naive.FED.sizes)
        body = naive.average(nets, naive.FED.sizes)
        for net in nets:
            head = copy.deepcopy(net.fc)
            net.load_state_dict(body.state_dict())
            net.fc = head
    model = report.state.server["model"]
    naive.assert_same_model(guide, {n.removeprefix(PREFIX): v for n, v in model.items() if n.startswith(PREFIX)})
    for i, net in enumerate(nets):
        naive.assert_same_model(net, {n: v[i] for n, v in report.models["pre"]["model"].items()})
