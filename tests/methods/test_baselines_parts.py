"""Parts of baselines compared with brute force: quadratic programs, clusters, selections, gates, penalties,
reconstruction.
"""

from itertools import combinations, permutations

import numpy as np
import pytest
import tiny
import torch
from naive import FED, SEED, build_method, ce, first_uploads, gradients, last_report, move, network
from torch import nn
from torch.nn import functional as F

from fedweave.engine.engine import run, run_round
from fedweave.engine.executors import Loop
from fedweave.engine.records import Settings
from fedweave.engine.schedule import Training, evaluation_cohort
from fedweave.engine.start import admission, begin
from fedweave.families import heads, penalties
from fedweave.graphs.weights import simplex_projection
from fedweave.methods import cfl
from fedweave.tensors import dropout_keys, trees


def minimum(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """argmin xᵀ p x + qᵀ x over the simplex by a general solver."""
    from scipy.optimize import minimize

    n = len(q)
    on_simplex = {"type": "eq", "fun": lambda x: x.sum() - 1, "jac": lambda x: np.ones(n)}
    solution = minimize(
        lambda x: x @ p @ x + q @ x,
        np.full(n, 1 / n),
        jac=lambda x: 2 * p @ x + q,
        method="SLSQP",
        bounds=[(0, 1)] * n,
        constraints=on_simplex,
        options={"ftol": 1e-15, "maxiter": 500},
    )
    return solution.x


@pytest.mark.parametrize("seed", range(4))
def test_fedpac_program(seed: int) -> None:
    """Head shares minimise variance plus bias over the simplex."""
    g = np.random.default_rng(seed)
    v, h = torch.from_numpy(g.uniform(0.05, 1.0, 5)), torch.from_numpy(g.normal(size=(5, 3, 4)) * 0.5)
    alpha = heads.head_weights(v, h, smallest=0.0).numpy()
    for i in range(5):
        gap = (h[i] - h).flatten(1)
        p = (v.diag() + gap @ gap.T).numpy()
        np.testing.assert_allclose(alpha[i], minimum(p, np.zeros(5)), atol=2e-5)
    np.testing.assert_allclose(
        heads.head_weights(v, h[:1].expand_as(h)).numpy(), np.tile((1 / v / (1 / v).sum()).numpy(), (5, 1)), rtol=1e-9
    )
    small = heads.head_weights(v, h, smallest=0.1)
    assert ((small == 0) | (small >= 0.1)).all()
    torch.testing.assert_close(small.sum(1), torch.ones(5, dtype=torch.float64))
    equal = heads.head_weights(torch.ones(5), torch.zeros(5, 1, 1), smallest=0.3)  # as with more than 1000 clients
    torch.testing.assert_close(equal, torch.full((5, 5), 0.2))


def test_fedpac_statistics_and_prototypes() -> None:
    """h, V and prototypes by loops over rows."""
    method = build_method("fedpac")
    before = begin(method, FED, SEED, Loop())
    state, _, _ = run_round(method, before, FED, Settings(rounds=1, seed=SEED), Loop())
    net = network(method)
    total, count = torch.zeros(3, 5, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for i in range(tiny.CLIENTS):
        rows = FED.train[i][FED.train[i] >= 0]
        z, y = net.features(FED.shared["x"][rows]).detach(), FED.shared["y"][rows]
        statistics = heads.class_statistics(
            method.task, dict(net.named_parameters()), evaluation_cohort(FED, SEED, 0).client_data(i)
        )
        m, v = len(rows), 0.0
        for c in range(3):
            p, zc = float((y == c).double().mean()), z[y == c]
            if len(zc):
                torch.testing.assert_close(statistics["h"][c], p * zc.mean(0))
                v += p * float(zc.square().sum(1).mean()) - p**2 * float(zc.mean(0).square().sum())
        assert float(statistics["variance"]) == pytest.approx(v / m)
    _, _, updates = first_uploads(method, before)
    for i in range(tiny.CLIENTS):
        total += updates["counts"][i][:, None] * updates["means"][i]
        count += updates["counts"][i]
    torch.testing.assert_close(state.server["prototypes"], total / count[:, None])
    assert state.server["defined"].all()


def test_fedpac_pulls_features_to_prototypes() -> None:
    """The gradient of the alignment is that of λ mean (z − μ)², and 0 for classes without a prototype."""
    method = build_method("fedpac", lam=2.0)
    net, data, rows = network(method), evaluation_cohort(FED, SEED, 0).client_data(0), FED.train[0][:5]
    protos, y = (
        torch.randn(3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
        FED.shared["y"][FED.train[0][:5]],
    )
    for defined in (torch.tensor([True, True, True]), torch.tensor([True, False, False])):
        params = {n: p.detach().requires_grad_() for n, p in net.named_parameters()}
        losses = heads.aligned_losses(method.task, data, protos, defined, method.lam)
        ours = losses(params, rows, dropout_keys.key(0), None).mean()
        z = torch.func.functional_call(net, params, (FED.shared["x"][rows],))
        features = method.task.call(params, FED.shared["x"][rows], "features")
        theirs = F.cross_entropy(z, y) + 2.0 * ((features - protos[y]).square() * defined[y][:, None]).mean()
        for a, b in zip(
            *(torch.autograd.grad(v, [*params.values()], retain_graph=True) for v in (ours, theirs)), strict=True
        ):
            torch.testing.assert_close(a, b)


def test_pfedgraph_program() -> None:
    """The closed form is the minimum of Σ a d + α ‖a − n‖² over the simplex, unseen clients excluded."""
    method = build_method("pfedgraph", alpha=0.8)
    state, _, _ = run_round(
        method, begin(method, FED, SEED, Loop()), FED, Settings(rounds=1, seed=SEED, participation=4), Loop()
    )
    server, ids = state.server, torch.arange(5)
    learnt = trees.to_matrix(server["models"]) - trees.to_matrix(trees.broadcast(server["fixed"]["initial"], 1))
    seen = server["seen"].nonzero()[:, 0]
    n = (FED.sizes[seen] / FED.sizes[seen].sum()).double().numpy()
    weights = method.weights(server, ids)[0]
    assert not weights[:, ~server["seen"]].any()
    for i in seen.tolist():
        d = -F.cosine_similarity(learnt[i][None], learnt[seen]).numpy()
        d[d < -0.9] = -1.0
        np.testing.assert_allclose(weights[i, seen].numpy(), minimum(0.8 * np.eye(len(n)), d - 1.6 * n), atol=1e-6)
    torch.testing.assert_close(simplex_projection(weights), weights)


def test_fedfomo_weights() -> None:
    """Weights by losses and distances from the model before training: models that reduce the loss count in proportion,
    the own one too, the others do not.
    """
    method, data = build_method("fedfomo", models=3), evaluation_cohort(FED, SEED, 1).client_data(1)
    base, rows = network(method), FED.val[1][FED.val[1] >= 0]
    others = [
        move(base, gradients(base, helps), size)
        for helps, size in ((rows, -0.5), (FED.train[1][:4], -0.2), (rows, 0.3), (rows, -0.1))
    ]
    losses = [float(ce(n, rows).detach()) for n in (base, *others)]
    vectors = torch.stack([nn.utils.parameters_to_vector(n.parameters()).detach() for n in (base, *others)])
    scores = torch.tensor(
        [(losses[0] - loss) / float((v - vectors[0]).norm()) for loss, v in zip(losses[1:], vectors[1:], strict=True)]
    )
    assert scores[0] > 0 > scores[2]
    assert scores[3] > 0, "the own model"
    positive = scores.clamp(min=0).double()
    expected = vectors[0] + (positive / positive.sum()) @ (vectors[1:] - vectors[0])
    *received, own = ({n: p.detach() for n, p in net.named_parameters()} for net in others)
    sent = {"models": trees.stack(received), "live": torch.ones(3, dtype=torch.bool)}
    client = {"model": own, "base": {n: p.detach() for n, p in base.named_parameters()}}
    same_vector = torch.cat([v.flatten() for v in method.personalize({}, sent, client, data).values()])
    torch.testing.assert_close(same_vector, expected)
    without = method.personalize({}, {**sent, "live": positive[:3] == 0}, client, data)
    torch.testing.assert_close(torch.cat([v.flatten() for v in without.values()]), vectors[4])


def test_fedfomo_selects_models_by_affinity() -> None:
    """The greedy selection follows affinities, and exploration is uniform. No client gets itself, an untrained model or
    one model twice.
    """
    method = build_method("fedfomo", models=2, epsilon=0.0)
    server = {**begin(method, FED, SEED, Loop()).server, "seen": torch.tensor([True, True, True, True, False])}
    server["affinity"] = torch.tensor([[9.0, 1, 3, 2, 8]]).expand(5, 5).double()
    picks, live = method.picks(server, torch.tensor([0, 2]))
    assert picks.tolist() == [[2, 3], [0, 3]]
    assert live.all()
    exploring, hits = build_method("fedfomo", models=1, epsilon=1.0, decay=0.0), torch.zeros(5)
    for r in range(400):
        picks, live = exploring.picks({**server, "round": torch.tensor(r)}, torch.tensor([0]))
        hits[picks[0, 0]] += 1
    assert hits[0] == hits[4] == 0
    assert (hits[1:4] > 90).all()
    untrained = method.picks({**server, "seen": torch.zeros(5, dtype=torch.bool)}, torch.arange(5))
    assert not untrained[1].any()


def test_cfl_splits_where_updates_oppose() -> None:
    """The updates of two groups oppose each other, so their mean is small and the single ones are large. The split
    finds the groups, and their models differ.
    """
    method = build_method("cfl", eps1=0.5, eps2=0.5, min_size=2, first_split=0)
    server = begin(method, FED, SEED, Loop()).server
    g = torch.Generator().manual_seed(0)
    pull = torch.randn(trees.to_matrix(server["models"]).shape[1], generator=g, dtype=torch.float64)
    pull = pull / pull.norm()
    sign = torch.tensor([1.0, -1, 1, -1, 1, -1][:5]).double()
    noise = 0.05 * torch.randn(5, len(pull), generator=g, dtype=torch.float64) / len(pull) ** 0.5
    deltas = sign[:, None] * torch.tensor([2.0, 3, 2, 3, 2])[:, None].double() / 2 * pull + noise
    shifted, start = {}, 0
    for name, value in server["models"].items():
        size = value[0].numel()
        shifted[name] = value + deltas[:, start : start + size].reshape(value.shape)
        start += size
    after = method.aggregate(server, torch.arange(5), {"model": shifted}, FED.sizes)
    assert after["labels"][[0, 2, 4]].unique().numel() == after["labels"][[1, 3]].unique().numel() == 1
    assert after["labels"].unique().numel() == 2
    for group in ([0, 2, 4], [1, 3]):
        expected = trees.to_matrix(server["models"])[0] + deltas[group].mean(0)
        torch.testing.assert_close(trees.to_matrix(after["models"])[group], expected.expand(len(group), -1))
    for blocked in ({"eps1": 0.0}, {"eps2": 10.0}, {"min_size": 5}, {"first_split": 1}):
        same_settings = {"eps1": 0.5, "eps2": 0.5, "min_size": 2, "first_split": 0, **blocked}
        server_after = build_method("cfl", **same_settings).aggregate(
            server, torch.arange(5), {"model": shifted}, FED.sizes
        )
        assert not server_after["labels"].any()
    weights = method.collaboration(after)[0]
    assert float(weights[0, 2]) == pytest.approx(1 / 3)
    assert float(weights[0, 1]) == 0.0


def test_cfl_absent_members_follow_their_cluster() -> None:
    """A cluster has one model: members that did not take part move with it. Members that were never there stay in the
    larger part.
    """
    report = last_report("cfl", eps1=0.0)
    rows = trees.to_matrix(report.state.server["models"])
    torch.testing.assert_close(rows, rows[:1].expand_as(rows))
    *_, partial = run(
        build_method("cfl", eps1=100.0, eps2=0.0, first_split=0),
        FED,
        Settings(rounds=4, seed=SEED, participation=0.6),
        Loop(),
    )
    labels, rows = partial.state.server["labels"], trees.to_matrix(partial.state.server["models"])
    assert labels.unique().numel() > 1
    for label in labels.unique():
        members = rows[labels == label]
        torch.testing.assert_close(members, members[:1].expand_as(members))


def complete_linkage(distance: torch.Tensor) -> set[frozenset[int]]:
    """Two parts: repeatedly joins the two clusters with the smallest maximal distance between members."""
    parts = [frozenset([i]) for i in range(len(distance))]
    while len(parts) > 2:
        a, b = min(combinations(parts, 2), key=lambda pair: max(distance[i, j] for i in pair[0] for j in pair[1]))
        parts = [part for part in parts if part not in (a, b)] + [a | b]
    return {*parts}


@pytest.mark.parametrize("seed", range(20))
def test_bisection_is_complete_linkage(seed: int) -> None:
    """Under the cosine distance, on updates of different lengths and without a clear border."""
    g = torch.Generator().manual_seed(seed)
    updates = torch.randn(6, 4, generator=g, dtype=torch.float64) * torch.rand(6, 1, generator=g, dtype=torch.float64)
    part = cfl._bisect(updates)
    distance = 1 - torch.cosine_similarity(updates[:, None], updates[None], dim=-1)
    made = {frozenset(torch.where(part == side)[0].tolist()) for side in (True, False)}
    assert made == complete_linkage(distance)


def test_batchnorm_never_gets_a_batch_of_one_row() -> None:
    """If training omits a last incomplete batch, the learning of W in FedALA omits it too."""
    for size in (3, 4):
        method = build_method("fedala", portion=80.0, training=Training(batch_size=size, epochs=1, drop_last=True))
        for i in range(FED.clients):
            data = evaluation_cohort(FED, 0, 0).client_data(i)
            sizes = [len(batch) for batch in method._batches(data)]
            assert {*sizes} == {size}
            assert len(sizes) == int(0.8 * int(data.size)) // size


def test_unsquared_penalty_has_a_unit_gradient() -> None:
    """∇ weight ‖w − a‖ is weight times the unit vector, and 0 at w = a. The gradients of several anchors add up."""
    g = torch.Generator().manual_seed(0)
    a, b, w = (
        {n: torch.randn(s, generator=g, dtype=torch.float64) for n, s in (("u", (3,)), ("v", (2, 2)))} for _ in range(3)
    )
    w = {n: v.requires_grad_() for n, v in w.items()}
    loss = penalties.add_norm_penalties(
        lambda model, rows, key: (torch.zeros((), dtype=torch.float64), {}), [(a, 0.3), (b, 0.5)]
    )
    grads = torch.autograd.grad(loss(w, torch.zeros(1), dropout_keys.key(0))[0], [*w.values()])
    for name, grad in zip(w, grads, strict=True):
        unit = [
            weight * (w[name] - x[name]) / penalties.norm(w[n] - x[n] for n in w) for x, weight in ((a, 0.3), (b, 0.5))
        ]
        torch.testing.assert_close(grad, sum(unit).detach())
    at = {n: v.clone().requires_grad_() for n, v in a.items()}
    alone = penalties.add_norm_penalties(
        lambda model, rows, key: (torch.zeros((), dtype=torch.float64), {}), [(a, 1.0)]
    )
    still = torch.autograd.grad(alone(at, torch.zeros(1), dropout_keys.key(0))[0], [*at.values()])
    assert not any(s.any() for s in still)


def test_panacea_reconstruction() -> None:
    """By a loop over pairs. The generator's gradient equals central differences, and a step along it improves."""
    method = build_method("panacea", "rows", generator_weight=1.0, embedding_size=6)
    server = method.init(admission(method, FED, SEED, Loop())[0])
    phi, fixed = server["phi"], {**server["fixed"], "edges": torch.tensor([[0, 1, 1, 3], [1, 0, 3, 1]])}
    z = method.codes(phi, fixed) @ phi["generator"]["weight"].T + phi["generator"]["bias"]
    linked, pairs = {*zip(*fixed["edges"].tolist(), strict=True)}, [*permutations(range(tiny.CLIENTS), 2)]
    rarity = (len(pairs) - len(linked)) / len(linked)
    terms = [rarity * F.logsigmoid(z[u] @ z[v]) if (u, v) in linked else F.logsigmoid(-z[u] @ z[v]) for u, v in pairs]
    torch.testing.assert_close(method.reconstruction(phi, fixed), -torch.stack(terms).mean())
    gradient = method.regularise(phi, fixed)
    g = torch.Generator().manual_seed(4)
    direction = trees.tree_map(lambda t: torch.randn(t.shape, generator=g, dtype=t.dtype), phi)
    ends = [
        method.reconstruction(trees.tree_map(lambda p, d, s=s: p + s * d, phi, direction), fixed) for s in (1e-5, -1e-5)
    ]
    along = trees.select(direction, gradient)  # the gradient excludes the hypernetwork, but the direction includes it
    slope = sum((a * b).sum() for a, b in zip(trees.tree_leaves(gradient), trees.tree_leaves(along), strict=True))
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-8)
    first = method.reconstruction(phi, fixed)
    for _ in range(200):
        step = method.regularise(phi, fixed)
        phi = {**phi, **trees.tree_map(lambda p, d: p - 0.1 * d, trees.select(phi, step), step)}
    assert float(method.reconstruction(phi, fixed)) < 0.8 * float(first)


def test_panaceas_server_also_descends_on_the_reconstruction() -> None:
    """Where training changes no model, this is all that the server learns."""
    plain = {"server_optimizer": "sgd", "server_momentum": 0.0, "server_decay": 0.0, "server_clip": 0.0}
    method = build_method("panacea", "rows", generator_weight=0.7, server_lr=0.3, **plain)
    server, everybody = method.init(admission(method, FED, SEED, Loop())[0]), torch.arange(tiny.CLIENTS)
    sent = trees.select(method.download(server, everybody)[1], method.task.params)
    after = trees.flatten_paths(method.aggregate(server, everybody, {"model": sent}, FED.sizes)["phi"])
    steps = trees.flatten_paths(method.regularise(server["phi"], server["fixed"]))
    for name, value in trees.flatten_paths(server["phi"]).items():
        torch.testing.assert_close(after[name], value - 0.3 * steps[name] if name in steps else value)
    assert any(step.any() for step in steps.values())
