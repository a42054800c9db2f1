"""pFedHN, GHN, SHN and FedSheafHN: models generated from clients' vectors."""

from dataclasses import replace

import pytest
import tiny
import torch
from naive import FED, build_method
from torch import Tensor

from fedweave.client.solvers import SGD, Adam, GroupedSolver, clone
from fedweave.engine import sent_downloads
from fedweave.engine.clients import Clients
from fedweave.engine.engine import run, run_round
from fedweave.engine.executors import Loop
from fedweave.engine.protocol import Start
from fedweave.engine.records import Settings
from fedweave.engine.start import add_newcomers
from fedweave.errors import BadInput
from fedweave.families import GeneratedModels
from fedweave.tensors import trees
from fedweave.tensors.gradients import pull_back
from tests.generated_models import EVERYBODY, GENERATED, fixture

# Hypernetworks without settings that change their target.
STEADY: dict[str, dict] = {
    "pfedhn": {},
    "ghn": {},
    "shn": {},
    "fedsheafhn": {"dropout": 0.0, "lr_phi": 0.002, "lr_theta": 0.002},
}


def start_of(method: GeneratedModels, federation: Clients) -> Start:
    """The server's state before round 0."""
    return Start(method.task.init(1), {}, federation.clients, 7, federation.relation, federation.ids)


@pytest.mark.parametrize("name", ["pfedhn", "pefll", "panacea"])
def test_vectors_of_clients_have_a_quarter_of_their_number_as_length(name: str) -> None:
    method = build_method(name)
    start = start_of(method, FED)._replace(clients=13, ids=torch.arange(13), relation=None)
    assert (13, 4) in {tuple(leaf.shape) for leaf in trees.tree_leaves(method.stages(1)[0].method.init(start))}


@pytest.mark.parametrize(
    ("name", "settings"),
    [(name, {}) for name in GENERATED]
    + [("fedsheafhn", {"stalk": 3}), ("shn", {"lift_act": "none", "use_eps": False, "augmented": False})],
)
def test_pull_back_is_the_derivative_of_generate(name: str, settings: dict) -> None:
    """⟨gradient, d⟩ equals the central difference of ⟨c, generate(φ)⟩ along a random direction d, dropout included."""
    method, _, state = fixture(name, **settings)
    server, ids = state.server, torch.tensor([0, 2, 3])
    g = torch.Generator().manual_seed(3)
    start = method.generate(server["phi"], server["fixed"], ids)
    c = {n: torch.randn(v.shape, generator=g, dtype=v.dtype) for n, v in start.items()}
    d = trees.tree_map(lambda v: torch.randn(v.shape, generator=g, dtype=v.dtype), server["phi"])
    gradient, _ = pull_back(lambda phi: method.generate(phi, server["fixed"], ids), server["phi"], lambda _: c)

    def value(step: float) -> Tensor:
        moved = trees.tree_map(lambda v, w: v + step * w, server["phi"], d)
        return sum((c[n] * v).sum() for n, v in method.generate(moved, server["fixed"], ids).items())

    expected = (value(1e-6) - value(-1e-6)) / 2e-6
    inner = sum((a * b).sum() for a, b in zip(trees.tree_leaves(gradient), trees.tree_leaves(d), strict=True))
    torch.testing.assert_close(inner, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "settings"),
    [(name, {}) for name in GENERATED if name not in ("fedaghn", "pefll")] + [("heurpfedla", {"learn_retained": True})],
)
def test_a_servers_step_needs_no_second_generation(name: str, settings: dict) -> None:
    """The explicit derivative of heads and mixtures is that of autograd. From the sent models it has the same bits."""
    method, _, state = fixture(name, 1, **settings)
    server, ids = state.server, torch.tensor([0, 2, 3])
    own = method.download(server, ids)[1]
    model = {n: 1.1 * v + 0.1 for n, v in trees.select(own, method.task.params).items()}
    uploads = {"model": model, "gradient": trees.tree_map(torch.cos, model), "loss": torch.ones(3)}
    ours, start = method.gradient(server, ids, uploads)
    expected, models = GeneratedModels.gradient(method, server, ids, uploads)
    assert trees.tree_leaves(trees.tree_map(torch.equal, start, models)) == [True] * len(models)
    trees.tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12), ours, expected)
    anew = method.aggregate(server, ids, uploads, torch.ones(3))
    with sent_downloads.store(server, ids, own):
        after = method.aggregate(server, ids, uploads, torch.ones(3))
    assert all(trees.tree_leaves(trees.tree_map(torch.equal, after, anew)))


@pytest.mark.parametrize("name", STEADY)
def test_descent_moves_towards_the_trained_models(name: str) -> None:
    """With constant targets θ_i, descent lowers ½ Σ ‖θ̄_i − θ_i‖², and the sign as printed raises it."""
    losses = {}
    for sign in ("descent", "literal"):
        method, _, state = fixture(name, server_sign=sign, **STEADY[name])
        server = method.assemble(state.server["phi"], state.server["fixed"])
        first = method.download(server, EVERYBODY)[1]
        g = torch.Generator().manual_seed(0)
        target = {n: v + 0.1 * torch.randn(v.shape, generator=g, dtype=v.dtype) for n, v in first.items()}
        for _ in range(10):
            server = method.aggregate(server, EVERYBODY, {"model": target}, torch.ones(tiny.CLIENTS))
        losses[sign] = [
            float((trees.to_matrix(m) - trees.to_matrix(target)).square().sum())
            for m in (first, method.download(server, EVERYBODY)[1])
        ]
    assert losses["descent"][1] < 0.9 * losses["descent"][0]
    assert losses["literal"][1] > losses["literal"][0]


@pytest.mark.parametrize("name", ["pfedhn", "ghn", "shn"])
def test_loss_is_a_mean_over_participants(name: str) -> None:
    """Two participants with one difference each have half the weight of one participant with the same difference."""
    method, _, _ = fixture(name)
    start = {"w": torch.ones(2, 3)}
    torch.testing.assert_close(
        method.cotangent(start, {"model": {"w": torch.zeros(2, 3)}})["w"], torch.full((2, 3), 0.5)
    )


def test_a_server_step_equals_autograd_of_the_squared_distance() -> None:
    """pFedHN's server is torch.optim.SGD with clipping on ½ Σ ‖h(v_i) − θ_i‖² / P."""
    method, _, state = fixture("pfedhn", server_clip=0.5)
    ids, server = torch.tensor([1, 4]), method.assemble(state.server["phi"], {})
    target = trees.tree_map(lambda v: v + 1.0, method.download(server, ids)[1])
    leaves = trees.tree_map(lambda v: v.clone().requires_grad_(), server["phi"])
    flat = trees.tree_leaves(leaves)
    optimizer = torch.optim.SGD(flat, lr=method.server_lr, momentum=0.9, weight_decay=1e-3)
    difference = trees.sub(method.generate(leaves, {}, ids), target)
    (0.5 * sum(v.square().sum() for v in difference.values()) / 2).backward()
    torch.nn.utils.clip_grad_norm_(flat, 0.5)
    optimizer.step()
    ours = method.aggregate(server, ids, {"model": target}, torch.ones(2))["phi"]
    for a, b in zip(trees.tree_leaves(ours), flat, strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=1e-9, atol=1e-12)


def test_grouped_solvers_are_independent() -> None:
    """Every group takes the step of its own solver with its own state, pure and in place. Names keep their order."""
    g = torch.Generator().manual_seed(0)
    params = {name: torch.randn(3, 2, generator=g, dtype=torch.float64) for name in ("b/x", "a/x", "b/y")}
    parts = {"a": ["a/x"], "b": ["b/x", "b/y"]}
    grouped = GroupedSolver(solvers={"a": SGD(lr=0.1, momentum=0.9, clip=0.3), "b": Adam(lr=0.2, weight_decay=0.1)})
    state, ours, inplace = grouped.init(params), params, clone(params)
    written = clone(state)
    alone = {
        group: (trees.select(params, names), grouped.solvers[group].init(trees.select(params, names)))
        for group, names in parts.items()
    }
    for _ in range(3):
        grads = {name: torch.randn(3, 2, generator=g, dtype=torch.float64) for name in params}
        ours, state = grouped.step(ours, grads, state)
        inplace, written = grouped.step_(inplace, clone(grads), written)
        alone = {
            group: grouped.solvers[group].step(own, trees.select(grads, own), s) for group, (own, s) in alone.items()
        }
    for result in (ours, inplace):
        assert list(result) == list(params)
        for part, _ in alone.values():
            for name, value in part.items():
                torch.testing.assert_close(result[name], value, rtol=1e-12, atol=0)
    with pytest.raises(ValueError, match="contiguous"):
        Adam(lr=0.1).step_(
            {"w": torch.ones(2, 3).T}, {"w": torch.ones(3, 2)}, Adam(lr=0.1).init({"w": torch.ones(3, 2)})
        )


def test_vector_length_grows_with_the_federation() -> None:
    """⌊1 + N/4⌋ numbers per client by default. A client's draws depend on its identity."""
    method = build_method("pfedhn")
    for n, size in ((5, 2), (30, 8), (48, 13), (100, 26), (207, 52)):
        start = start_of(method, FED)._replace(clients=n, ids=torch.arange(n))
        assert method.begin(start)[0]["embedding"].shape == (n, size)
    start = start_of(method, FED)
    moved = method.begin(start._replace(ids=start.ids.flip(0)))[0]["embedding"]
    assert torch.equal(moved, method.begin(start)[0]["embedding"].flip(0))
    assert method.begin(start)[0].keys() | {"lift"} == replace(method, embedding="mlp").begin(start)[0].keys()


@pytest.mark.parametrize("name", ["ghn", "shn"])
@pytest.mark.parametrize("embedding", ["table", "mlp"])
def test_the_second_stage_uses_the_vectors_and_the_graph_of_the_first(name: str, embedding: str) -> None:
    """Stage 1 trains vectors. By default, stage 2 freezes them, keeps the graph and starts a new hypernetwork."""
    method = build_method(name, embedding=embedding)
    reports = list(run(method, FED, Settings(rounds=3, seed=2), Loop()))
    assert [type(r.method).__name__ for r in reports] == ["WarmUp"] * 2 + [type(method).__name__] * 3
    assert len(list(run(replace(method, stage1_rounds=0), FED, Settings(rounds=1, seed=2), Loop()))) == 2
    warm, start = reports[1].state.server, start_of(method, FED)
    cold, hot = method.take_over(warm, start), replace(method, warm_start=True, train_x=True).take_over(warm, start)
    assert torch.equal(cold["fixed"]["x"], method.client_vectors(warm["phi"]))
    assert torch.equal(hot["phi"]["x"], cold["fixed"]["x"])
    assert all(
        torch.equal(a, b) for a, b in zip(hot["phi"]["hyper"].values(), warm["phi"]["hyper"].values(), strict=True)
    )
    assert not torch.equal(trees.tree_leaves(cold["phi"]["hyper"])[0], trees.tree_leaves(warm["phi"]["hyper"])[0])
    assert torch.equal(reports[2].state.server["fixed"]["x"], reports[4].state.server["fixed"]["x"])
    trained = list(run(replace(method, train_x=True), FED, Settings(rounds=2, seed=2), Loop()))
    assert not torch.equal(trained[2].state.server["phi"]["x"], trained[3].state.server["phi"]["x"])


def test_graphs_are_given_or_built_from_vectors() -> None:
    """The graph is given, or built by nearest neighbours or a threshold. With k = 0 or τ = 1 there are no edges."""
    method, federation, _ = fixture("shn")
    x, start = (
        torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
        start_of(method, federation),
    )
    alone = start._replace(relation=None)
    assert method.edges(x, start).shape == federation.relation.shape
    assert replace(method, graph="knn", k=1).edges(x, start).shape[1] >= 5
    assert method.edges(x, alone).shape[1] > 0
    assert replace(method, graph="cosine", tau=-1.0).edges(x, start).shape[1] == 20
    for settings in ({"graph": "knn", "k": 0}, {"graph": "cosine", "tau": 1.0}):
        assert replace(method, **settings).edges(x, start).shape == (2, 0)
    with pytest.raises(BadInput, match="use knn or cosine"):
        replace(method, graph="given").edges(x, alone)


@pytest.mark.parametrize("name", ["ghn", "shn"])
def test_information_flows_along_edges_only(name: str) -> None:
    """Without edges a client's code depends on its own vector only. In the ring it depends on neighbours up to `depth`
    steps away.
    """
    method, _, state = fixture(name, depth=1)

    def reach(edges: Tensor) -> Tensor:
        def codes(x: Tensor) -> Tensor:
            return method.codes(state.server["phi"], {**state.server["fixed"], "x": x, "edges": edges})

        return torch.func.jacrev(codes)(state.server["fixed"]["x"]).abs().sum((1, 3)) > 1e-12

    own = torch.eye(tiny.CLIENTS, dtype=torch.bool)
    assert torch.equal(reach(torch.empty(2, 0, dtype=torch.int64)), own)
    assert torch.equal(reach(state.server["fixed"]["edges"]), method.collaboration(state.server)[0] > 0)


@pytest.mark.parametrize("name", ["ghn", "shn"])
@pytest.mark.parametrize("train_x", [False, True])
def test_newcomers_join_the_second_stage(name: str, train_x: bool) -> None:
    """Vectors, optimiser and graph grow. Earlier entries keep their bits. A newcomer begins at the mean vector."""
    method = build_method(name, train_x=train_x)
    present = FED.select(torch.arange(3))
    *_, report = run(method, present, Settings(rounds=1, seed=2), Loop())
    state = add_newcomers(method, report.state, FED, 2, 1, Loop())
    held, before = (
        state.server["phi" if train_x else "fixed"]["x"],
        report.state.server["phi" if train_x else "fixed"]["x"],
    )
    assert torch.equal(held[:3], before)
    torch.testing.assert_close(held[3:], before.mean(0).expand(2, -1))
    assert state.server["fixed"]["edges"].max() == 4
    after, report, _ = run_round(method, state, FED, Settings(rounds=1, seed=2), Loop())
    assert report.loss == report.loss
    assert method.collaboration(after.server).shape[1:] == (5, 5)


@pytest.mark.parametrize("name", ["ghn", "shn", "panacea"])
def test_a_dropout_mask_lasts_one_round_and_portraits_have_none(name: str) -> None:
    """The same φ gives other models in the next round, and the same codes in the portrait."""
    method, federation, state = fixture(name, dropout=0.5, server_lr=0.0, server_decay=0.0)
    after = run_round(method, state, federation, Settings(rounds=1, seed=2), Loop())[0]
    assert all(map(torch.equal, *(trees.tree_leaves(s.server["phi"]) for s in (state, after))))
    one, other = (method.download(s.server, EVERYBODY)[1] for s in (state, after))
    assert not any(map(torch.equal, one.values(), other.values()))
    assert torch.equal(*(method.portrait(s.server) for s in (state, after)))


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_all_settings_reach_the_optimiser_of_networks(rule: str) -> None:
    """This includes the bound on the gradient, where 0 means no bound."""
    for name in ("ghn", "pefll"):
        settings = {"server_optimizer": rule, "server_lr": 0.2, "server_momentum": 0.3, "server_decay": 0.4}
        for clip in (0.0, 5.0):
            solver = tiny.method(name, tiny.rows_task(), "rows", **settings, server_clip=clip).server_solver
            common = {"lr": 0.2, "weight_decay": 0.4, "clip": clip or None}
            assert solver == (SGD(**common, momentum=0.3) if rule == "sgd" else Adam(**common))
