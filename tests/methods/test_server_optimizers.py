"""Server optimisers: plain loops, their limits for extreme settings, and the methods that use one."""

import math
from dataclasses import replace
from typing import Any

import naive
import pytest
import tiny
import torch
from torch import nn

from fedweave.client.solvers import SGD
from fedweave.engine.clients import Clients
from fedweave.engine.engine import train
from fedweave.engine.executors import Loop
from fedweave.engine.protocol import Method
from fedweave.engine.records import State
from fedweave.engine.schedule import Training, cohort
from fedweave.engine.start import begin
from fedweave.errors import BadInput
from fedweave.families.server_solvers import AdaptiveSolver
from fedweave.methods import METHODS
from fedweave.study import spec, validate
from fedweave.tensors import trees
from fedweave.tensors.trees import Tree
from tests.study.test_spec import good

ROUNDS = 3
ROWS = ("fedavgm", "fedadam", "fedyogi", "fedadagrad")
AVERAGING = sorted(name for name, cls in METHODS.items() if cls.server_steps)
EVERYBODY, TRAINING = torch.arange(tiny.CLIENTS), Training(batch_size=4, epochs=1)


def local_means(net: nn.Module, round: int) -> nn.Module:
    """The mean of the clients' models after two epochs of SGD from `net`."""
    nets = [naive.sgd(own, naive.batches(i, round, 0, 2)) for i, own in naive.model_copies(net)]
    return naive.average(nets, naive.FED.sizes)


def second_moment(rule: str, v: float, d: float) -> float:
    """v of one entry after the update `d`."""
    match rule:
        case "fedadagrad":
            return v + d * d
        case "fedadam":
            return 0.9 * v + 0.1 * d * d
        case "fedyogi":
            return v - 0.1 * d * d * math.copysign(1.0, v - d * d)
    raise AssertionError(rule)


@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])
def test_adaptive_servers_entry_by_entry(name: str) -> None:
    """Three rounds of Algorithm 2, for each number of the model."""
    beta1 = 0.0 if name == "fedadagrad" else 0.6
    free = {} if name == "fedadagrad" else {"server_momentum": beta1, "server_beta2": 0.9}
    report = naive.last_report(name, rounds=ROUNDS, server_lr=0.05, server_tau=0.01, **free)
    net = naive.network(report.method)
    count = sum(p.numel() for p in net.parameters())
    m, v = [0.0] * count, [0.01**2] * count
    for r in range(ROUNDS):
        x = nn.utils.parameters_to_vector(net.parameters()).tolist()
        means = nn.utils.parameters_to_vector(local_means(net, r).parameters()).tolist()
        for j, d in enumerate(mean - old for mean, old in zip(means, x, strict=True)):
            m[j], v[j] = beta1 * m[j] + (1 - beta1) * d, second_moment(name, v[j], d)
            x[j] += 0.05 * m[j] / (math.sqrt(v[j]) + 0.01)
        nn.utils.vector_to_parameters(torch.tensor(x, dtype=torch.float64), net.parameters())
    naive.assert_same_model(net, report.state.server["model"])


def test_momentum_of_the_server_is_that_of_torch() -> None:
    """FedAvgM is torch.optim.SGD on the gradient x − mean."""
    report = naive.last_report("fedavgm", rounds=ROUNDS, server_lr=0.7, server_momentum=0.8)
    net = naive.network(report.method)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.7, momentum=0.8)
    for r in range(ROUNDS):
        for p, mean in zip(net.parameters(), local_means(net, r).parameters(), strict=True):
            p.grad = p.detach() - mean.detach()
        optimizer.step()
    naive.assert_same_model(net, report.state.server["model"])


def test_without_momentum_the_server_takes_the_mean() -> None:
    """FedAvgM with β = 0 and η = 1 is FedAvg, up to the rounding of x − (x − mean). With momentum it is not."""
    plain = naive.server(naive.last_report("fedavg"))
    torch.testing.assert_close(
        naive.server(naive.last_report("fedavgm", server_momentum=0.0)), plain, rtol=1e-12, atol=1e-14
    )
    assert (naive.server(naive.last_report("fedavgm")) - plain).abs().max() > 1e-2


@pytest.mark.parametrize("name", AVERAGING)
def test_every_method_that_averages_takes_a_server_optimizer(name: str) -> None:
    """A round ends with the optimiser's step from the last model towards the method's own mean."""
    kind = "rows" if tiny.suits(name, "rows") else "images"
    method, federation = tiny.pair(name, kind, training=TRAINING)
    with_optimizer = replace(method, training=replace(TRAINING, server=AdaptiveSolver(rule="adam", lr=0.05, beta1=0.9)))
    state = begin(method, federation, 1, Loop())
    uploads = first_uploads(method, state, federation)
    old, mean = state.server["model"], method.aggregate(state.server, EVERYBODY, uploads, federation.sizes)["model"]
    solver = with_optimizer.server_solver
    expected, _ = solver.step(old, trees.sub(old, mean), solver.init(old))
    server = with_optimizer.aggregate(
        begin(with_optimizer, federation, 1, Loop()).server, EVERYBODY, uploads, federation.sizes
    )
    assert list(server["model"]) == list(mean)
    for part, value in server["model"].items():
        torch.testing.assert_close(value, expected[part], rtol=1e-12, atol=1e-14)


def first_uploads(method: Method, state: State, federation: Clients) -> Tree:
    """The uploads of a round 0 with all clients."""
    participants = cohort(federation, EVERYBODY, method.training, method.epochs, 1, 0)
    return train(method, state, participants, Loop()).updates.upload


def test_statistics_are_averaged() -> None:
    """With `bn_buffers: average`, BatchNorm statistics are averaged for any server optimiser."""
    task, federation = tiny.rows_task("cnn"), tiny.rows_federation((1, 8, 8))
    method = tiny.method("fedadam", task, "images", training=replace(TRAINING, average_buffers=True))
    state = begin(method, federation, 1, Loop())
    uploads = first_uploads(method, state, federation)
    server = method.aggregate(state.server, EVERYBODY, uploads, federation.sizes)
    mean = trees.weighted_mean(uploads["model"], federation.sizes)
    assert task.buffers
    assert all(torch.equal(server["model"][name], mean[name]) for name in task.buffers)
    assert not any(torch.equal(server["model"][name], mean[name]) for name in task.head)
    assert {*task.buffers}.isdisjoint(server["optimizer"]["m"])


def test_the_settings_of_a_run_make_the_optimizer() -> None:
    """Settings without a value have that of the rows, which are methods of their own. Plain averages use the mean."""
    rules = ("sgd", "adam", "yogi", "adagrad")
    methods = [build_checked_method("fedper", {"server_optimizer": rule}) for rule in rules]
    assert [method.server_solver for method in methods] == [METHODS[name]().server_solver for name in ROWS]
    assert methods[0].server_solver == SGD(lr=1.0, momentum=0.9)
    assert methods[3].server_solver == AdaptiveSolver(rule="adagrad", lr=0.1, beta1=0.0)
    one = build_checked_method(
        "ditto", {"server_optimizer": "yogi", "server_lr": 0.5, "server_momentum": 0, "server_tau": 0.1}
    )
    assert one.server_solver == AdaptiveSolver(rule="yogi", lr=0.5, beta1=0.0, beta2=0.99, tau=0.1)
    assert build_checked_method("fedavg", {}).server_solver is None
    averaging = {name for name, cls in METHODS.items() if cls.averages}
    assert {*AVERAGING} == averaging - {*ROWS, "central", "feddyn"}  # FedDyn's own step follows its mean


@pytest.mark.parametrize(
    ("method", "train", "words"),
    [
        (
            "local",
            {"server_optimizer": "yogi"},
            r"runs\.digits-local: train\.server_optimizer yogi replaces a mean.*fedper",
        ),
        ("fedadam", {"server_optimizer": "yogi"}, r"fedadam takes none or has an optimiser of its own"),
        ("pfedhn", {"server_optimizer": "sgd"}, r"train\.server_optimizer sgd replaces a mean, and pfedhn"),
        ("central", {"server_optimizer": "sgd"}, r"and central takes none"),
        ("fedper", {"server_lr": 0.5}, r"train\.server_lr: 0\.5 .*sgd, adam, yogi, adagrad, not by the mean"),
        ("fedper", {"server_optimizer": "sgd", "server_beta2": 0.5}, r"server_beta2: 0\.5 .*adam, yogi, not by sgd"),
        ("fedper", {"server_optimizer": "adagrad", "server_momentum": 0.5}, r"server_momentum.*not by adagrad"),
        ("fedper", {"server_optimizer": "adam", "server_momentum": 1.0}, r"server_momentum: 1\.0 is out of range"),
        ("fedper", {"server_optimizer": "adm"}, r"server_optimizer: 'adm'.*adam"),
    ],
)
def test_unsupported_server_settings_are_refused(method: str, train: dict[str, Any], words: str) -> None:
    """One line names the run, the setting and the way out."""
    with pytest.raises(BadInput, match=words) as caught:
        build_checked_method(method, train)
    assert "\n" not in str(caught.value)


def build_checked_method(method: str, train: dict[str, Any]) -> Method:
    """The method of a run with further settings of `train`, checked as a study's."""
    raw = {**good(), "runs": {f"digits-{method}": {"task": "digits", "method": method, "set": {"train": train}}}}
    study = spec.parse({**raw, "methods": {method: {}}})
    return validate.check_run(study.run(f"digits-{method}"), "params.yaml")
