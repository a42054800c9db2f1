"""Methods compared with plain `torch.optim` implementations, clients in sequence, on random data."""

import copy
from dataclasses import replace

import pytest
import tiny
import torch
from naive import (
    FED,
    SEED,
    TRAINING,
    assert_same_model,
    average,
    batches,
    body_of,
    build_method,
    ce,
    half_distance,
    last_report,
    model_copies,
    network,
    rows_of,
    sgd,
)
from torch import nn
from torch.utils._pytree import tree_flatten_with_path

from fedweave.client.solvers import SGD, Adam, Solver
from fedweave.engine.engine import run_round
from fedweave.engine.executors import Loop
from fedweave.engine.records import Settings
from fedweave.engine.schedule import Training, cohort, participants
from fedweave.engine.start import begin
from fedweave.methods import METHODS
from fedweave.tensors import trees

ROUNDS = 3


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_fedavg_and_fedprox(mu: float) -> None:
    """Three rounds of FedAvg (mu = 0) and FedProx."""
    server = network(build_method("fedprox"))
    for r in range(ROUNDS):
        anchor = copy.deepcopy(server)
        nets = [
            sgd(net, batches(i, r, 0, 2), lambda w, rows, a=anchor: ce(w, rows) + mu * half_distance(w, a))
            for i, net in model_copies(server)
        ]
        server = average(nets, FED.sizes)
    assert_same_model(server, last_report("fedprox", mu=mu).state.server["model"])


def test_ditto() -> None:
    """The personal models of Ditto are tied to the received global model and trained before it changes."""
    server = network(build_method("ditto"))
    personal = [net for _, net in model_copies(server)]
    for r in range(ROUNDS):
        nets = []
        for i, net in model_copies(server):
            tied = lambda w, rows, a=server: ce(w, rows) + 0.4 * half_distance(w, a)  # noqa: E731
            sgd(personal[i], batches(i, r, 0, 3), tied)
            nets.append(sgd(net, batches(i, r, 0, 2)))
        server = average(nets, FED.sizes)
    clients = last_report("ditto", lam=0.4, personal_epochs=3).state.clients["personal"]
    for i, net in enumerate(personal):
        assert_same_model(net, trees.at(clients, i))


def test_fedrep() -> None:
    """Heads first with a frozen body, then bodies with frozen heads; only bodies are averaged."""
    nets = [net for _, net in model_copies(network(build_method("fedrep")))]
    for r in range(ROUNDS):
        for i, net in enumerate(nets):
            sgd(net, batches(i, r, 0, 2), params=net.fc.parameters())
            sgd(net, batches(i, r, 2, 4), params=body_of(net))
        mean = average(nets, FED.sizes)
        for net in nets:
            head = copy.deepcopy(net.fc)
            net.load_state_dict(mean.state_dict())
            net.fc = head
    state = last_report("fedrep", head_epochs=2).state
    for i, net in enumerate(nets):
        assert_same_model(net, {**state.server["model"], **trees.at(state.clients, i)})


def test_fedamp() -> None:
    """Mixtures u_i of the last models, then local training from the own model with the squared penalty."""
    alpha, lam, sigma = 2.0, 1.5, 20.0
    nets = [net for _, net in model_copies(network(build_method("fedamp")))]
    for r in range(ROUNDS):
        vectors = [nn.utils.parameters_to_vector(n.parameters()).detach() for n in nets]
        mixtures = []
        for i in range(tiny.CLIENTS):
            xi = [alpha / sigma * torch.exp(-(vectors[i] - v).square().sum() / sigma) for v in vectors]
            xi[i] = 1.0 - sum(x for j, x in enumerate(xi) if j != i)
            anchor = copy.deepcopy(nets[i])
            nn.utils.vector_to_parameters(sum(x * v for x, v in zip(xi, vectors, strict=True)), anchor.parameters())
            mixtures.append(anchor)
        for i, (net, mixture) in enumerate(zip(nets, mixtures, strict=True)):
            mu = lam / alpha if r else 0.0
            sgd(net, batches(i, r, 0, 2), lambda w, rows, a=mixture, mu=mu: ce(w, rows) + mu * half_distance(w, a))
    clients = last_report("fedamp", alpha=alpha, lam=lam, sigma=sigma).state.clients
    for i, net in enumerate(nets):
        assert_same_model(net, trees.at(clients, i))


def test_knn_per_distribution() -> None:
    """The neighbours' distribution and the mixture, by loops over rows."""
    report = last_report("knn_per", k=3, mix=0.3)
    net = network(report.method)
    net.load_state_dict(report.state.server["model"])
    x, y = FED.shared["x"], FED.shared["y"]
    for i in range(tiny.CLIENTS):
        train, test, hits = rows_of(i), rows_of(i, "test"), []
        with torch.no_grad():
            stored = net.features(x[train])
            for row in test:
                z = net.features(x[row][None])[0]
                distances = ((stored - z) ** 2).sum(1)
                near = distances.argsort()[:3]
                weights = torch.exp(-distances[near] / len(z))
                votes = torch.zeros(tiny.CLASSES, dtype=torch.float64).index_add(
                    0, y[train][near], weights / weights.sum()
                )
                hits.append((0.3 * votes + 0.7 * net(x[row][None])[0].softmax(0)).argmax() == y[row])
        assert float(report.scores["pre"]["test"][i]) == pytest.approx(100 * float(torch.tensor(hits).double().mean()))


@pytest.mark.parametrize(
    ("solver", "optimizer"),
    [
        (
            SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        ),
        (Adam(lr=0.05, weight_decay=0.02), lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.02)),
        (SGD(lr=0.1, clip=0.5), lambda p: torch.optim.SGD(p, lr=0.1)),
    ],
)
def test_solvers_equal_torch(solver: Solver, optimizer) -> None:
    """Pure and in-place steps equal torch.optim on random gradients."""
    g = torch.Generator().manual_seed(0)
    start = {
        "w": torch.randn(4, 3, generator=g, dtype=torch.float64),
        "b": torch.randn(3, generator=g, dtype=torch.float64),
    }
    theirs = [v.clone().requires_grad_() for v in start.values()]
    pure, inplace = dict(start), {n: v.clone() for n, v in start.items()}
    pure_state, inplace_state, reference = solver.init(pure), solver.init(inplace), optimizer(theirs)
    for _ in range(5):
        grads = {n: torch.randn(v.shape, generator=g, dtype=torch.float64) for n, v in start.items()}
        for p, grad in zip(theirs, grads.values(), strict=True):
            p.grad = grad.clone()
        if solver.clip:
            nn.utils.clip_grad_norm_(theirs, solver.clip)
        reference.step()
        pure, pure_state = solver.step(pure, grads, pure_state)
        inplace, inplace_state = solver.step_(inplace, {n: v.clone() for n, v in grads.items()}, inplace_state)
    for p, a, b in zip(theirs, pure.values(), inplace.values(), strict=True):
        torch.testing.assert_close(a, p.detach(), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(b, p.detach(), rtol=1e-10, atol=1e-12)


def test_batch_norm_statistics_stay_with_the_client() -> None:
    """FedAvg on a model with BatchNorm: every client's buffers are those of its own forward passes."""
    report = last_report("fedavg", "images")
    task, buffers = report.method.task, report.state.clients
    assert {*buffers} == {*task.buffers}
    assert not any(name in report.state.server["model"] for name in task.buffers)
    spread = torch.stack([value.std(0).max() for name, value in buffers.items() if name.endswith("mean")])
    assert (spread > 1e-3).all()


AVERAGING = [name for name, cls in METHODS.items() if cls.averages and not cls.pools and tiny.suits(name, "images")]


@pytest.mark.parametrize("name", AVERAGING)
def test_batch_norm_statistics_are_averaged_on_request(name: str) -> None:
    """After one round the server has the mean of the clients' statistics, weighted like the model. FedBN sends none."""
    task, federation = tiny.rows_task("cnn"), tiny.rows_federation((1, 8, 8))
    method = tiny.method(name, task, "images").stages(1)[0].method
    averaged = replace(method, training=replace(method.training, average_buffers=True))
    alone, together = (
        run_round(m, begin(m, federation, SEED, Loop()), federation, Settings(rounds=1), Loop())[0]
        for m in (method, averaged)
    )
    assert not any(buffer in alone.server["model"] for buffer in task.buffers)
    assert {*task.buffers} & {*together.server["model"]} == (set() if name == "fedbn" else {*task.buffers})
    states = tree_flatten_with_path(alone.clients)[0]
    for buffer in {*task.buffers} & {*together.server["model"]}:
        # A method with a second, personal model has its statistics too.
        means = [
            trees.weighted_mean({buffer: leaf}, federation.sizes)[buffer]
            for path, leaf in states
            if path[-1].key == buffer
        ]
        assert any(torch.allclose(together.server["model"][buffer], mean, rtol=1e-12, atol=1e-12) for mean in means)


@pytest.mark.parametrize(("name", "weight"), [("fedprox", "mu"), ("fedprox_ft", "mu"), ("ditto", "lam")])
def test_a_proximal_term_is_on_parameters_only(name: str, weight: str) -> None:
    """If no parameter moves, the loss is the one without the term, although averaged statistics change."""
    settings = {"training": replace(TRAINING, average_buffers=True), "solver": SGD(lr=0.0)}
    plain, tied = (last_report(name, "images", **settings, **{weight: strength}).loss for strength in (0.0, 1e3))
    assert plain == tied


def test_participation_is_a_sample() -> None:
    """It has the requested size, without repeats, and includes every client equally often."""
    draws = torch.stack(
        [torch.zeros(12).index_fill(0, participants(0, r, torch.arange(12), 3), 1.0) for r in range(2000)]
    )
    assert (draws.sum(1) == 3).all()
    assert (draws.mean(0) - 0.25).abs().max() < 5 * (0.25 * 0.75 / 2000) ** 0.5
    assert torch.equal(participants(0, 0, torch.arange(12), 1.0), torch.arange(12))


def test_means_have_the_precision_of_the_model() -> None:
    """Shares that float32 cannot represent, to the last bits of float64."""
    rows, sizes = tiny.numbers(3, 5), torch.tensor([1.0, 2.0, 4.0])
    expected = (rows * sizes.double()[:, None]).sum(0) / 7
    torch.testing.assert_close(trees.weighted_mean({"w": rows}, sizes)["w"], expected, rtol=1e-14, atol=1e-15)
    assert trees.weighted_mean({"w": rows.float()}, sizes)["w"].dtype == torch.float32


def test_fedamps_penalty_has_the_precision_of_the_model() -> None:
    """The penalty with λ / α = 0.1, which float32 cannot represent, moves one full-batch step by lr · 0.1 · (w − u)."""
    task, federation = tiny.rows_task(), tiny.rows_federation()
    method = tiny.method("fedamp", task, "rows", lam=0.2, alpha=2.0, training=Training(batch_size=0, epochs=1))
    data = cohort(federation, torch.arange(1), method.training, 1, SEED, 1).client_data(0)
    model = task.init(0)
    mixture = {name: value + 1.0 for name, value in model.items()}
    pulled, free = (
        method.client_update({}, {"mixture": mixture, "active": torch.tensor(on)}, model, data).model
        for on in (True, False)
    )
    for name, value in pulled.items():
        torch.testing.assert_close(
            value - free[name], torch.full_like(value, method.solver.lr * 0.1), rtol=1e-12, atol=1e-14
        )
