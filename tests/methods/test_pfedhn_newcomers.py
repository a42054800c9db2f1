"""Newcomers of pFedHN at a server that is frozen: their vectors are learned, the hypernetwork stays."""

from typing import Any

import pytest
import tiny
import torch

from fedweave.engine.engine import run
from fedweave.engine.executors import Loop
from fedweave.engine.protocol import Server, Start
from fedweave.engine.records import Settings
from fedweave.methods import PFedHN
from fedweave.tensors import trees

FOUNDERS, RATE, MOMENTUM, DECAY = 3, 0.05, 0.9, 0.01
EVERYBODY = torch.arange(tiny.CLIENTS)
OLD, NEW = EVERYBODY[:FOUNDERS], EVERYBODY[FOUNDERS:]
WEIGHTS = torch.ones(tiny.CLIENTS)


def build_method(**settings: Any) -> PFedHN:
    settings = {"server_lr": RATE, "server_momentum": MOMENTUM, "server_decay": DECAY, "server_clip": 0.0, **settings}
    return tiny.method("pfedhn", tiny.rows_task(), "rows", embedding_size=3, **settings)


def admit_two(**settings: Any) -> tuple[PFedHN, Server]:
    """The method, and its server after two rounds of three clients and the admission of two more."""
    federation, method = tiny.rows_federation(), build_method(**settings)
    *_, report = run(method, federation.select(OLD), Settings(rounds=2, seed=2), Loop())
    start = Start(method.task.init(1), {}, tiny.CLIENTS, 7, None, federation.ids)
    return method, method.admit(report.state.server, {}, len(NEW), start)


def train(models: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A change of what clients got that differs between parameters and clients."""
    return {name: value + 0.1 * torch.cos(3 * value + 1) for name, value in models.items()}


@pytest.mark.parametrize(
    ("embedding", "sequential", "sign"),
    [
        ("table", False, "descent"),
        ("table", True, "descent"),
        ("mlp", False, "descent"),
        ("mlp", True, "descent"),
        ("table", False, "literal"),
    ],
)
def test_vectors_learn_as_in_a_loop_with_autograd(embedding: str, sequential: bool, sign: str) -> None:
    """PyTorch's SGD of the newcomers' vectors alone, on the mean of ½ ‖θ̄ − θ‖², or on each client's own; the literal
    sign is that of ascent.
    """
    method, server = admit_two(embedding=embedding, sequential=sequential, server_sign=sign)
    fixed, phi = server["fixed"], server["phi"]
    vectors = phi["embedding"][FOUNDERS:].clone().requires_grad_()
    sgd = torch.optim.SGD([vectors], RATE, MOMENTUM, weight_decay=DECAY)
    for _ in range(3):
        sent = method.download(server, EVERYBODY)[1]
        uploads = {"model": train(trees.select(sent, method.task.params))}
        for group in [[0], [1]] if sequential else [[0, 1]]:
            rows = torch.cat([phi["embedding"][:FOUNDERS], vectors])
            made = method.generate({**phi, "embedding": rows}, fixed, NEW[group])
            changes = {name: (uploads["model"][name] - sent[name])[NEW[group]] for name in made}
            losses = [((made[n] - made[n].detach() - changes[n]) ** 2).sum() for n in made]
            sgd.zero_grad()
            (sum(losses) / 2 / len(group) * (-1 if sign == "literal" else 1)).backward()
            sgd.step()
        server = method.settle(server, EVERYBODY, uploads, WEIGHTS)
    torch.testing.assert_close(server["phi"]["embedding"][FOUNDERS:], vectors.detach())
    assert torch.equal(server["phi"]["embedding"][:FOUNDERS], phi["embedding"][:FOUNDERS])
    others = (trees.omit(tree, ["embedding"]) for tree in (server["phi"], phi))
    assert all(map(torch.equal, *map(trees.tree_leaves, others)))


def test_who_joins_later_than_others_does_not_end_their_learning() -> None:
    """Nodes of a deployment connect in different rounds. The momentum of the first one goes on."""
    method, both = admit_two()
    federation, old = tiny.rows_federation(), both["phi"]["embedding"][:FOUNDERS]
    server = {**both, "phi": {**both["phi"], "embedding": old}, "fixed": trees.omit(both["fixed"], ["joined"])}
    server = {**server, "optimizer": method.assemble(server["phi"], server["fixed"])["optimizer"]}
    for position in NEW.tolist():
        ids = federation.ids[: position + 1]
        server = method.admit(server, {}, 1, Start(method.task.init(1), {}, len(ids), 7, None, ids))
        before = server["phi"]["embedding"]
        uploads = {"model": trees.select(train(method.download(server, ids)[1]), method.task.params)}
        server = method.settle(server, ids, uploads, WEIGHTS[: len(ids)])
        moved = (server["phi"]["embedding"] != before).any(1)
        assert moved.tolist() == [i >= FOUNDERS for i in range(len(ids))]
    momentum = [leaf for leaf in trees.tree_leaves(server["fixed"]["joined"]["optimizer"]) if leaf.ndim]
    assert [len(leaf) for leaf in momentum] == [len(NEW)]


def test_without_newcomers_in_a_round_nothing_moves() -> None:
    method, server = admit_two()
    uploads = {"model": train(method.download(server, OLD)[1])}
    settled = method.settle(server, OLD, uploads, WEIGHTS[:FOUNDERS])
    assert all(map(torch.equal, *map(trees.tree_leaves, (settled, server))))


def test_a_frozen_run_changes_the_vectors_of_newcomers_alone() -> None:
    federation, method = tiny.rows_federation(), build_method()
    settings = Settings(rounds=5, seed=2, newcomers=2, join_round=2, freeze=True)
    servers = [report.state.server for report in run(method, federation, settings, Loop())]
    joined, last = servers[2]["phi"], servers[-1]["phi"]
    assert torch.equal(servers[1]["phi"]["embedding"], last["embedding"][:FOUNDERS])
    assert all(map(torch.equal, *(trees.tree_leaves(phi["hyper"]) for phi in (servers[1]["phi"], last))))
    assert (joined["embedding"][FOUNDERS:] != last["embedding"][FOUNDERS:]).all()


def test_a_vector_finds_a_model_that_the_hypernetwork_makes() -> None:
    method, server = admit_two(server_momentum=0.0, server_decay=0.0, server_lr=0.2)
    goal = trees.take(method.download(server, OLD)[1], torch.tensor([0, 1]))

    def distance(server: Server) -> torch.Tensor:
        made = method.download(server, NEW)[1]
        return sum((value - goal[name]).square().sum() for name, value in made.items())

    before = distance(server)
    for _ in range(300):
        server = method.settle(server, NEW, {"model": trees.select(goal, method.task.params)}, WEIGHTS[FOUNDERS:])
    assert distance(server) < 0.1 * before
