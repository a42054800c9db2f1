"""FedSheafHN: the learning of its server, refreshed embeddings, newcomers, ablations."""

from dataclasses import replace
from itertools import pairwise

import pytest
import tiny
import torch

from fedweave.client.solvers import SGD
from fedweave.engine.engine import run, run_round
from fedweave.engine.evaluation import evaluate
from fedweave.engine.executors import Loop
from fedweave.engine.records import Settings
from fedweave.engine.schedule import Training
from fedweave.engine.start import add_newcomers, begin
from fedweave.families.networks import SheafDiffusion
from fedweave.graphs.weights import complete_graph
from fedweave.tensors import trees
from tests.generated_models import EVERYBODY, fixture


def test_fedsheafhn_learns_from_the_clients_updates() -> None:
    """Δω̃ ≠ 0 after a round. The classifier never reaches the server. Attention is the identity at first."""
    method, federation, _ = fixture("fedsheafhn")
    state = begin(method, federation, 0, Loop())
    assert torch.equal(state.server["phi"]["attention.matrix"], torch.eye(5, dtype=torch.float64))
    after, _, post = run_round(method, state, federation, Settings(rounds=9), Loop())
    sent = method.download(state.server, EVERYBODY)[1]
    assert sent.keys().isdisjoint(method.task.head)
    for i in range(federation.clients):
        assert (trees.to_matrix(sent)[i] - trees.to_matrix(trees.select(post, sent))[i]).abs().max() > 1e-3
    for name in method.task.head:
        assert torch.equal(after.clients["model"][name], post[name])
    assert (after.clients["moments"]["t"] == 2).all()
    assert not torch.equal(after.server["phi"]["attention.matrix"], state.server["phi"]["attention.matrix"])


def test_fedsheafhn_without_server_learning() -> None:
    """The control equals a learning rate of 0 and changes no network."""
    _, _, control = fixture("fedsheafhn", rounds=3, server_learning=False)
    method, federation, zero = fixture("fedsheafhn", rounds=3, lr_theta=0.0, lr_phi=0.0)
    fresh = begin(method, federation, 2, Loop()).server["phi"]
    for name, value in fresh.items():
        assert torch.equal(control.server["phi"][name], value)
        assert torch.equal(zero.server["phi"][name], value)
    assert all(
        torch.equal(a, b)
        for a, b in zip(trees.tree_leaves(control.clients), trees.tree_leaves(zero.clients), strict=True)
    )


def test_fedsheafhn_refreshes_embeddings() -> None:
    """Clients upload embeddings only in every `refresh`-th round, which count as traffic. Static ones never change."""
    method, federation, _ = fixture("fedsheafhn")
    reports = list(run(method, federation, Settings(rounds=5, seed=2), Loop()))
    d = reports[0].state.server["fixed"]["x"].shape[1]
    up = [r.bytes_up - reports[0].bytes_down for r in reports]
    assert up == [0, 0, 4 * tiny.CLIENTS * d, 0, 4 * tiny.CLIENTS * d]
    embeddings = [r.state.server["fixed"]["x"] for r in reports]
    assert [not torch.equal(a, b) for a, b in pairwise(embeddings)] == [False, True, False, True]
    static = list(run(replace(method, refresh=0), federation, Settings(rounds=4, seed=2), Loop()))
    assert torch.equal(static[0].state.server["fixed"]["x"], static[-1].state.server["fixed"]["x"])


def test_fedsheafhn_newcomers() -> None:
    """A newcomer attends to itself. It changes other clients only through the encoder, if there is one."""
    for gnn in ("none", "sheaf"):
        task, federation = tiny.nodes_task(), tiny.nodes_federation()
        method = tiny.method("fedsheafhn", task, "nodes", gnn=gnn, dropout=0.0, solver=SGD(lr=0.1))
        present, ids = federation.select(torch.arange(3)), torch.arange(3)
        state, _, _ = run_round(method, begin(method, present, 1, Loop()), present, Settings(rounds=1), Loop())
        joined = add_newcomers(method, state, federation, 2, 1, Loop())
        matrix = joined.server["phi"]["attention.matrix"]
        assert torch.equal(matrix[:3, :3], state.server["phi"]["attention.matrix"])
        assert torch.equal(matrix[3:], torch.eye(5, dtype=matrix.dtype)[3:])
        before, after = (trees.to_matrix(method.download(s.server, ids)[1]) for s in (state, joined))
        assert torch.allclose(before, after, rtol=0, atol=1e-12) == (gnn == "none")
        scores, _ = evaluate(method, joined, federation, Settings(rounds=1), Loop())
        assert scores["pre"]["test"].shape == (5,)


@pytest.mark.parametrize("settings", [{}, {"stalk": 1}, {"stalk": 3}])
def test_stalks_of_one_dimension_are_the_default(settings: dict) -> None:
    """The server's encoder has the bits of a diffusion of its own with stalks of this dimension."""
    method, _, state = fixture("fedsheafhn", **settings)
    stalk, phi, x = settings.get("stalk", 1), state.server["phi"], state.server["fixed"]["x"]
    d = x.shape[1]
    encoder = SheafDiffusion(
        d, d, stalk=stalk, channels=method.channels, depth=method.depth, maps="diagonal", shared_maps=True
    ).double()
    encoder.load_state_dict(
        {name.removeprefix("encoder."): v for name, v in phi.items() if name.startswith("encoder.")}
    )
    with torch.no_grad():
        assert torch.equal(method.portrait(state.server), encoder(x, complete_graph(len(x))))
    assert encoder.layers[0].left.shape == (stalk, stalk)


@pytest.mark.parametrize(
    "overrides",
    [
        {"stalk": 2},
        {"gnn": "gcn"},
        {"gnn": "gat"},
        {"attention": "dot"},
        {"attention": "none"},
        {"embedding": "onehot", "gnn": "none", "attention": "none", "refresh": 0},
    ],
)
def test_fedsheafhn_ablations(overrides: dict) -> None:
    """Every part can be replaced or removed. One-hot vectors do not depend on the data."""
    overrides = {"width": 16, **overrides}
    method, _, state = fixture("fedsheafhn", **overrides)
    assert torch.isfinite(trees.to_matrix(method.download(state.server, EVERYBODY)[1])).all()
    assert (method.collaboration(state.server) is None) == (overrides.get("attention") == "none")
    if "embedding" in overrides:
        assert torch.equal(state.server["fixed"]["x"], torch.eye(5, dtype=torch.float64))


def test_the_classifier_keeps_its_optimiser() -> None:
    """The count of its steps continues over the rounds, even if clients begin every round with new optimisers."""
    task, federation = tiny.nodes_task(), tiny.nodes_federation()
    method = tiny.method("fedsheafhn", task, "nodes", training=Training(batch_size=0, epochs=2))
    reports = [*run(method, federation, Settings(rounds=3, seed=2), Loop())]
    steps = [report.state.clients["moments"]["t"].tolist() for report in reports]
    assert steps == [[2.0] * 5, [4.0] * 5, [6.0] * 5]
