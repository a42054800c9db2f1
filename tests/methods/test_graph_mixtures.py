"""FedGTA and FedAux compared with plain loops over clients and nodes, with dense matrices and `torch.optim`."""

import math
from collections.abc import Callable
from functools import cache

import pytest
import tiny
import torch
from naive import NODES, SEED, adjacency
from torch import Tensor
from torch.nn import functional as F

from fedweave.client.solvers import SGD
from fedweave.client.task import NodeClassification
from fedweave.engine.engine import run, run_round
from fedweave.engine.executors import Loop
from fedweave.engine.protocol import Method
from fedweave.engine.records import Report, Settings
from fedweave.engine.schedule import Training, evaluation_cohort
from fedweave.engine.start import add_newcomers, begin
from fedweave.graphs.controls import GraphControl
from fedweave.methods.fedaux import MAP, VECTOR
from fedweave.models import build
from fedweave.tensors import trees
from fedweave.tensors.trees import Params

EVERYBODY = range(tiny.CLIENTS)
ALPHA, HEAT = 0.3, 5.0
WHOLE = {"solver": SGD(lr=0.3), "training": Training(batch_size=0, epochs=2)}


def build_method(name: str, **settings: object) -> Method:
    """A method on the toy, without dropout, whose clients take two steps of SGD per round."""
    task = NodeClassification(lambda: build("gcn", (7,), tiny.CLASSES, hidden=4, dropout=0.0), torch.float64)
    return tiny.method(name, task, "nodes", **{**WHOLE, **settings})


def last(method: Method, rounds: int = 3) -> Report:
    """The last report of a run with all clients."""
    *_, report = run(method, NODES, Settings(rounds=rounds, seed=SEED), Loop())
    return report


@cache
def normalised(client: int) -> Tensor:
    """D^-1/2 (A + I) D^-1/2 [V, V], in single precision as in a federation."""
    loops = adjacency(client).float() + torch.eye(len(adjacency(client)))
    scale = loops.sum(1).rsqrt()
    return (scale[:, None] * loops * scale).double()


def features(model: Params, client: int) -> Tensor:
    """Input of the classifier [V, D]."""
    a, h = normalised(client), NODES.own["x"][client][: len(adjacency(client))]
    for layer in ("gcn1", "gcn2"):
        h = F.relu(a @ (h @ model[f"{layer}.weight"]) + model[f"{layer}.bias"])
    return h


def plain(model: Params, client: int) -> Tensor:
    """Logits of a GCN [V, C]."""
    return features(model, client) @ model["fc.weight"].T + model["fc.bias"]


def train_two_steps(model: Params, client: int, logits: Callable[[Params, int], Tensor]) -> Params:
    """Two full steps on the training nodes."""
    leaves = {name: value.clone().requires_grad_() for name, value in model.items()}
    optimizer, rows = torch.optim.SGD([*leaves.values()], lr=0.3), training_nodes(client)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(logits(leaves, client)[rows], NODES.own["y"][client][rows]).backward()
        optimizer.step()
    return {name: value.detach() for name, value in leaves.items()}


def training_nodes(client: int) -> Tensor:
    """The indices of the training nodes."""
    return NODES.train[client][NODES.train[client] >= 0]


def mix_by_weights(models: list[Params], weights: Tensor) -> Params:
    """Σ_j weights_j θ_j."""
    return {name: sum(w * model[name] for w, model in zip(weights, models, strict=True)) for name in models[0]}


def assert_equal_models(actual: Params, expected: Params) -> None:
    """The models are equal up to rounding."""
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=1e-8, atol=1e-10)


def label_statistics(model: Params, client: int, kind: str) -> tuple[Tensor, float]:
    """FedGTA's moments and confidence, node by node."""
    truth, train = NODES.own["y"][client], {*training_nodes(client).tolist()}
    soft = plain(model, client).softmax(1)
    nodes, classes = soft.shape
    first = [F.one_hot(truth[v], classes).double() if v in train else soft[v] for v in range(nodes)]
    spread = first
    for _ in range(5):
        mean = [sum(normalised(client)[v, u] * spread[u] for u in range(nodes)) for v in range(nodes)]
        spread = [ALPHA * mean[v] + (1 - ALPHA) * first[v] + (first[v] if v in train else 0.0) for v in range(nodes)]
    sharp, flat = (
        torch.stack([first[v] if v in train else (spread[v] / t).softmax(0) for v in range(nodes)]) for t in (1.0, HEAT)
    )
    raw = [(sharp**p).mean(0) for p in range(1, 4)]
    central = [((sharp - sharp.mean(0)) ** p).mean(0) for p in range(1, 4)]
    terms = (
        float(adjacency(client)[v].sum()) * (1 / math.e + (p * math.log(p) if p > 0 else 0.0))
        for v in range(nodes)
        for p in flat[v].tolist()
    )
    return torch.cat({"hybrid": [*raw, *central], "raw": raw, "central": central}[kind]), sum(terms)


@pytest.mark.parametrize(("kind", "threshold"), [("hybrid", 0.9), ("raw", 0.9), ("central", 0.9)])
def test_fedgta(kind: str, threshold: float) -> None:
    """Three rounds: models of clients with similar moments, weighted by the confidence of their labels."""
    method = build_method("fedgta", threshold=threshold, moments=kind, alpha=ALPHA, temperature=HEAT)
    start = method.task.init(SEED * 1000 + 4)
    received = [dict(start) for _ in EVERYBODY]
    for _ in range(3):
        models = [train_two_steps(model, i, plain) for i, model in enumerate(received)]
        moments, confidence = zip(*(label_statistics(model, i, kind) for i, model in enumerate(models)), strict=True)
        alike = F.cosine_similarity(torch.stack(moments)[:, None], torch.stack(moments), dim=-1) > threshold
        weights = alike * torch.tensor(confidence, dtype=torch.float64)
        weights = weights / weights.sum(1, keepdim=True)
        received = [mix_by_weights(models, row) for row in weights]
    report = last(method)
    for i in EVERYBODY:
        assert_equal_models(trees.at(report.models["post"], i), models[i])
        assert_equal_models(trees.at(report.models["pre"], i), received[i])
    torch.testing.assert_close(method.collaboration(report.state.server)[0], weights)
    assert 5 < int(alike.sum()) < 25, "some clients are alike, and some are not"
    sent = sum(len(value.flatten()) for value in start.values())
    assert report.bytes_down == 4 * 5 * sent
    assert report.bytes_up == 4 * 5 * (sent + (2 if kind == "hybrid" else 1) * 3 * tiny.CLASSES + 1)


def test_fedgta_at_the_limits_of_the_threshold() -> None:
    """With 1 no clients are similar: Local. With −1 all are: one model."""
    local = trees.to_matrix(last(build_method("local")).models["pre"])
    torch.testing.assert_close(trees.to_matrix(last(build_method("fedgta", threshold=1.0)).models["pre"]), local)
    alone = {"threshold": -1.0, "control": GraphControl("self")}
    torch.testing.assert_close(trees.to_matrix(last(build_method("fedgta", **alone)).models["pre"]), local)
    one = trees.to_matrix(last(build_method("fedgta", threshold=-1.0)).models["pre"])
    torch.testing.assert_close(one, one[:1].expand_as(one))
    assert (one - local).abs().max() > 1e-3


def fedaux_logits(sigma: float) -> Callable[[Params, int], Tensor]:
    """FedAux's logits [V, C], node by node."""

    def logits(model: Params, client: int) -> Tensor:
        h, rows = features(model, client), []
        score = [torch.dot(x, model[VECTOR]) / (x.norm() * model[VECTOR].norm()).clamp(min=1e-8) for x in h]
        for v, own in enumerate(score):
            kernel = [torch.exp(-((own - other) ** 2) / sigma**2) for other in score]
            z = sum(k * x for k, x in zip(kernel, h, strict=True)) / sum(kernel)
            rows.append(model["fc.weight"] @ h[v] + model["fc.bias"] + model[MAP] @ z)
        return torch.stack(rows)

    return logits


@pytest.mark.parametrize("tau", [0.0, 8.0])
def test_fedaux(tau: float) -> None:
    """Two rounds: every client's model and vector, mixed by the cosines of the vectors."""
    method = build_method("fedaux", tau=tau, sigma=0.4)
    state = begin(method, NODES, SEED, Loop())
    start = {**method.task.init(SEED * 1000 + 4), **trees.at(state.server["fixed"], 0)}
    received = [dict(start) for _ in EVERYBODY]
    for _ in range(2):
        models = [train_two_steps(model, i, fedaux_logits(0.4)) for i, model in enumerate(received)]
        vectors = torch.stack([model[VECTOR] for model in models])
        weights = torch.softmax(tau * F.cosine_similarity(vectors[:, None], vectors, dim=-1), 1)
        received = [mix_by_weights(models, row) for row in weights]
    report = last(method, 2)
    for i in EVERYBODY:
        assert_equal_models(trees.at(report.models["post"], i), models[i])
        assert_equal_models(trees.at(report.models["pre"], i), received[i])
        data = evaluation_cohort(NODES, SEED, 0).client_data(i)
        rows = data.val[data.val >= 0]
        predicted = method.predict(trees.at(report.models["pre"], i), data, rows)
        torch.testing.assert_close(predicted, fedaux_logits(0.4)(received[i], i)[rows])
    torch.testing.assert_close(method.collaboration(report.state.server)[0], weights)
    assert (weights.std() > 1e-5) == (tau > 0)
    sent = sum(len(value.flatten()) for value in start.values())
    assert report.bytes_down == report.bytes_up == 4 * 5 * sent


@pytest.mark.parametrize("name", ["fedgta", "fedaux"])
def test_newcomers_get_a_mixture_of_clients_with_an_upload(name: str) -> None:
    """Newcomers have sent no update, so they have no weight for other clients yet."""
    method, present = build_method(name), NODES.select(torch.arange(3))
    settings = Settings(rounds=1, seed=SEED)
    state, _, _ = run_round(method, begin(method, present, SEED, Loop()), present, settings, Loop())
    state = add_newcomers(method, state, NODES, 2, SEED, Loop())
    weights = method.collaboration(state.server)[0]
    torch.testing.assert_close(weights.sum(1), torch.ones(5, dtype=weights.dtype))
    assert not weights[:, 3:].any()
    assert (weights[3:, :3] > 0).all()
