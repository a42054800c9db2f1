"""PeFLL: the server's step compared with autograd through both networks, and newcomers."""

import copy
from dataclasses import replace

import pytest
import tiny
import torch
from naive import FED, SEED, batches, build_method, network, sgd
from torch import Tensor
from torch.nn import functional as F

from fedweave.engine.engine import run_round
from fedweave.engine.evaluation import evaluate
from fedweave.engine.executors import Batched, Loop
from fedweave.engine.protocol import Method, Server
from fedweave.engine.records import Settings
from fedweave.engine.start import add_newcomers, begin
from fedweave.families.networks import TargetHypernetwork
from fedweave.models.mlp import MLP
from fedweave.tensors import trees
from fedweave.tensors.trees import Params
from fedweave.testing.contract import CLOSE, assert_close

SETTINGS = Settings(rounds=1, seed=SEED)
PLAIN = {"server_optimizer": "sgd", "server_momentum": 0.0, "server_clip": 0.0, "server_lr": 1.0}


def vector(method: Method, embed: Params, rows: Tensor) -> Tensor:
    """The mean output of the embedding network on `rows` [B]."""
    y = F.one_hot(FED.shared["y"][rows], tiny.CLASSES).double()
    if method.reads == "targets":
        return (y @ embed["weight"].T + embed["bias"]).mean(0)
    body = F.relu(FED.shared["x"][rows] @ embed["body.fc1.weight"].T + embed["body.fc1.bias"])
    hidden = F.relu(torch.cat([body, y], 1) @ embed["0.weight"].T + embed["0.bias"])
    return (hidden @ embed["1.weight"].T + embed["1.bias"]).mean(0)


def model(method: Method, phi: Params, scale: Tensor, rows: Tensor) -> tuple[Params, Tensor]:
    """θ̄ from both networks, and the vector between them."""
    v = vector(method, phi["embed"], rows)
    mean, deviation = scale if scale.any() else (v.detach().mean(), v.detach().std())
    hyper = TargetHypernetwork(len(v), method.task.shapes(), width=16, hidden=1).double()
    z = ((v - mean) / deviation)[None]
    return {n: p[0] for n, p in torch.func.functional_call(hyper, phi["hyper"], (z,)).items()}, v


def expected_step(method: Method, server: Server, round: int) -> tuple[Params, Tensor]:
    """Both networks after a step on the mean of ½ ‖θ̄_i − θ_i‖², and the vectors."""
    phi = trees.tree_map(lambda p: p.clone().requires_grad_(), server["phi"])
    total, vectors, net = 0.0, [], copy.deepcopy(network(method))
    for i in range(tiny.CLIENTS):
        made_, v = model(method, phi, server["fixed"]["scale"], batches(i, round, 0, 1)[0])
        net.load_state_dict({name: value.detach() for name, value in made_.items()})
        after = dict(sgd(net, batches(i, round, 0, 2)).named_parameters())
        total = total + sum((made_[n] - after[n].detach()).square().sum() for n in made_) / 2 / tiny.CLIENTS
        vectors.append(v.detach())
    total.backward()
    return trees.tree_map(lambda p: p.detach() - p.grad, phi), torch.stack(vectors)


@pytest.mark.parametrize("reads", ["rows", "targets"])
def test_both_networks_descend(reads: str) -> None:
    """Two rounds: with each client's own scale, and with the mean of the scales."""
    method = build_method("pefll", reads=reads, **PLAIN)
    state = begin(method, FED, SEED, Loop())
    for round in range(2):
        phi, vectors = expected_step(method, state.server, round)
        state, report, _ = run_round(method, state, FED, SETTINGS, Loop())
        torch.testing.assert_close(state.server["phi"], phi, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(state.server["fixed"]["embeddings"], vectors)
        if round == 0:
            scale = torch.stack([vectors.mean(1).mean(), vectors.std(1).mean()])
        torch.testing.assert_close(state.server["fixed"]["scale"], scale)
    sent = [sum(p.numel() for p in tree.values()) for tree in (method.task.init(0), phi["embed"])]
    assert report.bytes_down == report.bytes_up == 4 * tiny.CLIENTS * (sum(sent) + 2)


def test_newcomers_have_a_model_before_they_train() -> None:
    """All their training rows determine it. Of the server only the table changes."""
    method, present = build_method("pefll"), FED.select(torch.arange(3))
    state, _, _ = run_round(method, begin(method, present, SEED, Loop()), present, SETTINGS, Loop())
    joined = add_newcomers(method, state, FED, 2, SEED, Loop())
    torch.testing.assert_close(joined.server["phi"], state.server["phi"], rtol=0, atol=0)
    _, models = evaluate(method, joined, FED, SETTINGS, Loop())
    for i in range(tiny.CLIENTS):
        rows = FED.train[i][FED.train[i] >= 0]
        made_, _ = model(method, joined.server["phi"], joined.server["fixed"]["scale"], rows)
        for name, value in made_.items():
            torch.testing.assert_close(models["pre"][name][i], value.detach())
    assert (models["pre"]["fc1.weight"][3] - models["pre"]["fc1.weight"][4]).abs().max() > 1e-4
    longer = build_method("pefll", embedding_size=7)
    assert begin(longer, FED, SEED, Loop()).server["fixed"]["embeddings"].shape == (tiny.CLIENTS, 7)


def test_stacked_clients_may_have_wide_layers() -> None:
    """A head of the hypernetwork with more outputs than it computes at once outside of a stack."""
    method = build_method("pefll")
    method = replace(method, task=replace(method.task, build=lambda: MLP((6,), tiny.CLASSES, hidden=500)))
    rounds = [run_round(method, begin(method, FED, SEED, each), FED, SETTINGS, each)[0] for each in (Loop(), Batched())]
    assert_close(rounds[1], rounds[0], CLOSE)
