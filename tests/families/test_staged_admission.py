"""Newcomers of SHN go through the stages: their vectors by the frozen first network, the graph, then stage 2."""

import pytest
import tiny
import torch
from torch import Tensor

from fedweave.engine.engine import run
from fedweave.engine.executors import Loop
from fedweave.engine.protocol import Server, Start
from fedweave.engine.records import Settings
from fedweave.errors import BadInput
from fedweave.graphs.weights import knn_graph
from fedweave.methods import SHN
from fedweave.tensors import trees
from fedweave.tensors.trees import Tree

FOUNDERS, ROUNDS, RATE = 3, 3, 0.05
EVERYBODY = torch.arange(tiny.CLIENTS)
OLD, NEW = EVERYBODY[:FOUNDERS], EVERYBODY[FOUNDERS:]
WEIGHTS = torch.ones(tiny.CLIENTS)


def build_method(**settings: object) -> SHN:
    return tiny.method("shn", tiny.rows_task(), "rows", graph="knn", k=1, embedding_size=3, **settings)


def admit_two(**settings: object) -> tuple[SHN, Server, Server]:
    """The method, its server after both stages with three clients, and that server with two more."""
    federation = tiny.rows_federation()
    method = build_method(admission_rounds=ROUNDS, admission_lr=RATE, **settings)
    *_, report = run(method, federation.select(OLD), Settings(rounds=2, seed=2), Loop())
    start = Start(method.task.init(1), {}, tiny.CLIENTS, 7, None, federation.ids)
    return report.method, report.state.server, report.method.admit(report.state.server, {}, len(NEW), start)


def train(method: SHN, server: Server) -> Tree:
    """Uploads of all clients: what they got, and a change that differs between parameters and clients."""
    models = trees.select(method.download(server, EVERYBODY)[1], method.task.params)
    return {"model": {name: value + 0.1 * torch.cos(3 * value + 1) for name, value in models.items()}}


def first_network(stage1: Tree, vectors: Tensor) -> list[Tensor]:
    """The heads' outputs [n, ...] of stage 1 for `vectors` [n, D], layer by layer."""
    hyper = stage1["hyper"]
    if "lift" in stage1:
        vectors = vectors.relu() @ stage1["lift"]["weight"].T + stage1["lift"]["bias"]
    h = vectors @ hyper["trunk.0.weight"].T + hyper["trunk.0.bias"]
    h = h.relu() @ hyper["trunk.2.weight"].T + hyper["trunk.2.bias"]
    heads = sum(name.startswith("heads.") for name in hyper) // 2
    return [h @ hyper[f"heads.{i}.weight"].T + hyper[f"heads.{i}.bias"] for i in range(heads)]


@pytest.mark.parametrize("embedding", ["table", "mlp"])
@pytest.mark.parametrize("train_x", [False, True])
def test_the_five_steps_are_those_of_a_loop_with_autograd(embedding: str, train_x: bool) -> None:
    """Vectors by Adam on the frozen first network, then the graph of all vectors, then models by stage 2."""
    method, before, server = admit_two(embedding=embedding, train_x=train_x)
    stage1 = server["fixed"]["stage1"]
    vectors = stage1["mean"].repeat(len(NEW), 1).requires_grad_()
    adam = torch.optim.Adam([vectors], lr=RATE)
    for _ in range(ROUNDS):
        sent = method.download(server, NEW)[1]
        made = first_network(stage1, vectors)
        for name, value in zip(method.generated_shapes, made, strict=True):
            torch.testing.assert_close(sent[name].flatten(1), value.detach())
        uploads = train(method, server)
        trained = [uploads["model"][name][NEW].flatten(1) for name in method.generated_shapes]
        loss = sum(((a - b) ** 2).sum() for a, b in zip(made, trained, strict=True)) / 2 / len(NEW)
        adam.zero_grad()
        loss.backward()
        adam.step()
        assert torch.equal(server["fixed"]["edges"], before["fixed"]["edges"])
        server = method.settle(server, EVERYBODY, uploads, WEIGHTS)
    x = {**server["fixed"], **server["phi"]}["x"]
    torch.testing.assert_close(server["fixed"]["joining"]["vectors"]["embedding"], vectors.detach())
    assert torch.equal(x[:FOUNDERS], {**before["fixed"], **before["phi"]}["x"])
    assert torch.equal(server["fixed"]["edges"], knn_graph(x, 1))
    assert server["fixed"]["edges"].max() == tiny.CLIENTS - 1
    sent, made = method.download(server, NEW)[1], method.generate(server["phi"], server["fixed"], NEW)
    assert all(torch.equal(sent[name], value) for name, value in made.items())
    assert method.settle(server, EVERYBODY, train(method, server), WEIGHTS) is server


def test_a_frozen_server_learns_newcomers_vectors_and_nothing_else() -> None:
    """In a run with `freeze`. The others' models are those from before until the graph is made anew."""
    federation, method = tiny.rows_federation(), build_method(admission_rounds=2)
    settings = Settings(rounds=5, seed=2, newcomers=2, join_round=2, freeze=True)
    reports = list(run(method, federation, settings, Loop()))
    last, *joined = (report.state.server for report in reports[-4:])
    for server in joined:
        assert all(map(torch.equal, *map(trees.tree_leaves, (server["phi"], last["phi"]))))
        assert torch.equal(server["fixed"]["x"][:FOUNDERS], last["fixed"]["x"])
    models = [reports[-1].method.download(server, OLD)[1] for server in (last, joined[0])]
    trees.tree_map(torch.testing.assert_close, *models)
    moved = [server["fixed"]["x"][FOUNDERS:] for server in joined]
    assert not torch.equal(moved[0], moved[1])
    assert torch.equal(moved[1], moved[2])
    assert not torch.equal(joined[1]["fixed"]["edges"], last["fixed"]["edges"])


def test_others_learn_meanwhile_as_if_nobody_had_joined() -> None:
    method, before, server = admit_two()
    uploads = train(method, server)
    alone = method.aggregate(before, OLD, trees.take(uploads, OLD), WEIGHTS[:FOUNDERS])
    together = method.aggregate(server, EVERYBODY, uploads, WEIGHTS)
    trees.tree_map(torch.testing.assert_close, alone["phi"], together["phi"])
    absent = method.aggregate(server, NEW, trees.take(uploads, NEW), WEIGHTS[FOUNDERS:])
    assert all(map(torch.equal, *map(trees.tree_leaves, (before["phi"], absent["phi"]))))
    assert torch.equal(absent["fixed"]["x"], together["fixed"]["x"])


def test_who_joins_later_than_others_does_not_end_their_learning() -> None:
    """All vectors that are being learned move on, and the graph is made when the last rounds are over."""
    method, before, server = admit_two()
    federation = tiny.rows_federation()
    server = method.settle(server, EVERYBODY, train(method, server), WEIGHTS)
    learned = server["fixed"]["joining"]["vectors"]["embedding"]
    start = Start(method.task.init(1), {}, tiny.CLIENTS + 1, 7, None, torch.arange(tiny.CLIENTS + 1))
    server = method.admit(server, {}, 1, start)
    joining = server["fixed"]["joining"]["vectors"]["embedding"]
    assert torch.equal(joining[:-1], learned)
    assert torch.equal(joining[-1:], server["fixed"]["stage1"]["mean"])
    x = {**server["fixed"], **server["phi"]}["x"]
    assert len(x) == tiny.CLIENTS + 1
    server = method.settle(server, EVERYBODY, train(method, server), WEIGHTS)
    moved = (server["fixed"]["joining"]["vectors"]["embedding"] != joining).any(1)
    assert moved.tolist() == [True] * len(NEW) + [False]  # the last one has not trained yet
    for _ in range(ROUNDS - 1):
        assert torch.equal(server["fixed"]["edges"], before["fixed"]["edges"])
        server = method.settle(server, EVERYBODY, train(method, server), WEIGHTS)
    assert server["fixed"]["edges"].max() == len(federation.ids)


def test_without_a_first_stage_there_is_no_network_to_learn_a_vector_by() -> None:
    with pytest.raises(BadInput, match="admission_rounds: needs the network of stage 1, which single_stage leaves out"):
        build_method(single_stage=True, admission_rounds=1)
