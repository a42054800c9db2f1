"""Baselines for subgraphs: FED-PUB's masks and similarities, FedSage+'s generators and completed graphs."""

import itertools
from dataclasses import replace
from functools import partial

import pytest
import tiny
import torch
from naive import NODES, SEED, adjacency, build_method, last_report
from torch import Tensor
from torch.nn import functional as F

from fedweave.client.solvers import SGD
from fedweave.engine.engine import run, run_round
from fedweave.engine.executors import Batched, Loop
from fedweave.engine.protocol import init_parameters
from fedweave.engine.records import Settings
from fedweave.engine.schedule import Training, evaluation_cohort
from fedweave.engine.start import begin
from fedweave.families import generated_neighbours
from fedweave.models.gcn import GCN, add_column_order
from fedweave.models.sage import GraphSAGE, NeighbourGenerator, Slot
from fedweave.tensors import dropout_keys, trees


def test_fed_pub_regularisers() -> None:
    """Gradients are λ1 sign(m) and λ2 (w − θ̄) / ‖w − θ̄‖ per tensor from round 1 on. With `detached` there are none.
    Small masks prune.
    """
    federation = tiny.nodes_federation()
    for round, detached in ((0, False), (1, False), (1, True)):
        method = build_method("fedpub", "nodes", lam1=0.2, lam2=0.7, detached=detached)
        data = evaluation_cohort(federation, SEED, round).client_data(0)
        g = torch.Generator().manual_seed(1)
        anchor = method.task.init(3)
        model = {
            **{n: v + 0.1 * torch.randn(v.shape, generator=g, dtype=v.dtype) for n, v in anchor.items()},
            **{f"mask/{n}": torch.randn(anchor[n].shape, generator=g, dtype=torch.float64) for n in method.matrices},
        }
        model = {n: v.requires_grad_() for n, v in model.items()}
        full = method._loss(anchor, data)(model, data.train[:4], dropout_keys.key(0))[0]
        plain = build_method("fedpub", "nodes", detached=True)._loss(anchor, data)(
            model, data.train[:4], dropout_keys.key(0)
        )[0]
        grads = torch.autograd.grad(full - plain, [*model.values()], allow_unused=True) if full.requires_grad else []
        for (name, value), grad in zip(model.items(), grads, strict=True):
            gap = None if name.startswith("mask/") else value - anchor[name]
            expected = 0.2 * value.sign() if gap is None else 0.7 * gap / gap.norm() * (round > 0)
            expected = torch.zeros_like(value) if detached else expected.detach()
            torch.testing.assert_close(
                torch.zeros_like(value) if grad is None else grad, expected, atol=1e-9, rtol=1e-7
            )
    pruned = method._prune({"gcn1.weight": torch.ones(2)}, {"mask/gcn1.weight": torch.tensor([0.1, 0.3])})
    assert pruned["gcn1.weight"].tolist() == pytest.approx([0.0, 0.3])


def test_fed_pub_masks_do_not_decay() -> None:
    """Weight decay changes the weights after one step, but not the masks."""
    after = {}
    for decay in (0.0, 0.3):
        plain = build_method("fedpub", "nodes", detached=True)
        method = replace(plain, solver=SGD(lr=0.1, weight_decay=decay), training=Training(batch_size=0, epochs=1))
        state = begin(method, NODES, SEED, Loop())
        after[decay] = run_round(method, state, NODES, Settings(rounds=1, seed=SEED), Loop())[0]
    for name, mask in after[0.0].clients["masks"].items():
        assert not torch.equal(mask, torch.ones_like(mask))
        torch.testing.assert_close(after[0.3].clients["masks"][name], mask, rtol=0, atol=0)
    assert not torch.equal(after[0.3].server["models"]["gcn1.weight"], after[0.0].server["models"]["gcn1.weight"])


def test_fed_pub_similarity() -> None:
    """Rows are softmaxes of τ cos between embeddings of known clients. Embeddings are proxy means of masked models."""
    method = build_method("fedpub", "nodes", tau=4.0)
    report = last_report("fedpub", "nodes", tau=4.0)
    server, e = report.state.server, report.state.server["fixed"]["embeddings"]
    expected = torch.softmax(4.0 * F.cosine_similarity(e[:, None], e[None], dim=-1), -1)
    torch.testing.assert_close(method.weights(server, torch.arange(5))[0], expected)
    proxy = server["fixed"]["proxy"]
    assert (proxy["edges"][0] // 10 == proxy["edges"][1] // 10).all()
    mine = method.task.call(
        trees.at(report.models["post"], 2), (proxy["x"], proxy["edges"], proxy["weight"]), "embed"
    ).mean(0)
    torch.testing.assert_close(e[2], mine)


def test_fed_pub_initial_classifier() -> None:
    """With `xavier`, weights and biases of the classifier fill the range of Xavier's law; nothing else changes."""
    plain, drawn = (
        begin(build_method("fedpub", "nodes", xavier=xavier), NODES, SEED, Loop()).server["models"]
        for xavier in (False, True)
    )
    outputs, width = plain["fc.weight"][0].shape
    for name, value in drawn.items():
        if name not in ("fc.weight", "fc.bias"):
            torch.testing.assert_close(value, plain[name], rtol=0, atol=0)
            continue
        bound = (6 / (outputs + (width if name == "fc.weight" else 1))) ** 0.5
        assert width**-0.5 < value.abs().max() <= bound  # PyTorch's values are at most the first
        torch.testing.assert_close(value, value[:1].expand_as(value), rtol=0, atol=0)


def test_the_classifier_of_a_gcn_by_xaviers_law() -> None:
    """`model: {xavier: true}` draws the same convolutions, and a classifier in the range of Xavier's law."""
    shape, width, classes = (50,), 64, 7
    models = []
    for xavier in (False, True):
        torch.manual_seed(0)
        models.append(GCN(shape, classes, hidden=width, xavier=xavier))
    plain, drawn = models
    for layer in ("gcn1", "gcn2"):
        assert torch.equal(getattr(plain, layer).weight, getattr(drawn, layer).weight)
    for net, weight_bound, bias_bound in ((plain, width**-0.5, width**-0.5), (drawn, (6 / 71) ** 0.5, (6 / 8) ** 0.5)):
        assert 0.95 * weight_bound < net.fc.weight.abs().max() <= weight_bound
        assert 0.3 * bias_bound < net.fc.bias.abs().max() <= bias_bound


def test_impaired_subgraph() -> None:
    """Half the validation nodes are removed with their edges. Loops over nodes give the same counts and names of
    missing neighbours.
    """
    for i in range(tiny.CLIENTS):
        data, dense = evaluation_cohort(NODES, SEED, 0).client_data(i), adjacency(i)
        hidden, visible, missing, lost = generated_neighbours.impair(data, 0.5, 3, dropout_keys.key(7, i))
        rows = data.val[data.val >= 0]
        assert int(hidden.sum()) == len(rows) // 2 == int(hidden[rows].sum())
        left = torch.zeros_like(dense)
        left[data.arrays["edges"][1][visible], data.arrays["edges"][0][visible]] = True
        assert torch.equal(left, dense & ~hidden & ~hidden[:, None])
        for v in (~hidden).nonzero()[:, 0].tolist():
            hidden_neighbours = (dense[v] & hidden).nonzero()[:, 0].tolist()
            named = lost[v][: min(3, len(hidden_neighbours))].tolist()
            assert int(missing[v]) == len(hidden_neighbours)
            assert {*named} <= {*hidden_neighbours}
            assert len({*named}) == len(named)


def test_bank_has_neighbours() -> None:
    """Every row of the bank has features of neighbours of one node. Draws differ between clients."""
    for i in range(tiny.CLIENTS):
        data, dense = evaluation_cohort(NODES, SEED, 0).client_data(i), adjacency(i)
        for features in generated_neighbours.draw_bank(data, 12, 4, data.key):
            who = [int((data.arrays["x"] == f).all(1).nonzero()[0]) for f in features]
            assert dense[:, who].all(1).any()


def slots(made_: Tensor, live: Tensor, all_nodes: bool) -> list[Slot]:
    """Generated neighbours [V, S, D] by slot, with all nodes (as for mapped clients) or only those that have one."""
    nodes = [torch.arange(len(live)) if all_nodes else live[:, s].nonzero()[:, 0] for s in range(live.shape[1])]
    return [Slot(who, made_[who, s], live[who, s]) for s, who in enumerate(nodes)]


@pytest.mark.parametrize("all_nodes", [False, True])
def test_greedy_loss(all_nodes: bool) -> None:
    """Nearest true neighbour for each generated one and each choice of them, by loops, and the gradient by finite
    differences.
    """
    g = torch.Generator().manual_seed(2)
    made_ = torch.randn(6, 3, 4, generator=g, dtype=torch.float64).requires_grad_()
    stock, places = torch.randn(9, 4, generator=g, dtype=torch.float64), torch.randint(9, (6, 2, 3), generator=g)
    live, missing = torch.rand(6, 3, generator=g) < 0.6, torch.tensor([0, 1, 2, 3, 5, 3])
    expected = torch.zeros(6, 2, dtype=torch.float64)
    for b, m, s in itertools.product(range(6), range(2), range(3)):
        if live[b, s] and missing[b]:
            true = stock[places[b, m, : min(3, int(missing[b]))]]
            expected[b, m] += (made_[b, s].detach() - true).square().mean(1).min()
    features = generated_neighbours.Features.of(stock.unflatten(0, (3, 3)))
    cost = lambda made_: generated_neighbours.greedy_costs(slots(made_, live, all_nodes), features, places, missing)  # noqa: E731
    torch.testing.assert_close(cost(made_).detach(), expected)
    assert torch.autograd.gradcheck(cost, made_)
    assert not torch.autograd.grad(cost(made_).sum(), made_)[0][~live].any()


def test_products_with_rows_are_the_same_mapped() -> None:
    """Products of generated neighbours with rows of a stock, and their gradient, for mapped clients and in sequence."""
    g = torch.Generator().manual_seed(3)
    made_, stock = (torch.randn(3, n, 4, generator=g, dtype=torch.float64) for n in (5, 7))
    places = torch.randint(7, (3, 5, 2), generator=g)
    total = lambda made_, stock, places: generated_neighbours._dot_products(made_, stock, places).sin().sum()  # noqa: E731
    together = torch.func.vmap(torch.func.grad(total))(made_, stock, places)
    for i in range(3):
        alone = made_[i].clone().requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(total(alone, stock[i], places[i]), alone)[0], together[i])


@pytest.mark.parametrize("all_nodes", [False, True])
def test_sage_with_generated_neighbours_is_sage_on_the_completed_graph(all_nodes: bool) -> None:
    """Slots of generated neighbours equal explicit new nodes with edges in both directions, by dense matrices."""
    g = torch.Generator().manual_seed(0)
    net = GraphSAGE(7, 5, 3).double()
    x, dense = NODES.own["x"][0][:12], adjacency(0)
    edges = add_column_order(dense.nonzero().T.flip(0))
    made_, live = torch.randn(12, 2, 7, generator=g, dtype=torch.float64), torch.rand(12, 2, generator=g) < 0.5
    actual = net(x, edges, torch.ones(edges.shape[1], dtype=torch.float64), slots=slots(made_, live, all_nodes))
    where = live.nonzero()
    a = torch.zeros(12 + len(where), 12 + len(where), dtype=torch.float64)
    a[:12, :12] = dense.double()
    for k, (v, _) in enumerate(where.tolist()):
        a[v, 12 + k] = a[12 + k, v] = 1.0
    h = torch.cat([x, made_[live]])
    for conv, last in ((net.conv1, False), (net.conv2, True)):
        mean = a @ h / a.sum(1, keepdim=True).clamp(min=1)
        near, own = conv.weight.chunk(2, 1)
        h = mean @ near + conv.bias + h @ own
        h = h if last else F.relu(h)
    torch.testing.assert_close(actual, h[:12])


def test_neighbours_are_generated_only_for_nodes_that_lack_some() -> None:
    """Their number is the predicted degree and at most S. Their values are those of generation for all nodes (under
    `vmap`).
    """
    torch.manual_seed(0)
    net = NeighbourGenerator(7, 6, 3, (5, 8)).double()
    code, degree = (
        torch.randn(9, 6, dtype=torch.float64),
        torch.tensor([0.0, 0.9, 1.0, 1.9, 2.5, 7.0, 0.0, 3.0, 1.0], dtype=torch.float64),
    )
    few = net._generate_slots(code, degree, dropout_keys.key(1))
    every = torch.func.vmap(net._generate_slots)(code[None], degree[None], dropout_keys.key(1)[None])
    assert [slot.nodes.tolist() for slot in few] == [[2, 3, 4, 5, 7, 8], [4, 5, 7], [5, 7]]
    for short, full in zip(few, every, strict=True):
        assert short.live.all()
        assert torch.equal(full.live[0].nonzero()[:, 0], short.nodes)
        torch.testing.assert_close(full.features[0][short.nodes], short.features)
    assert not net._generate_slots(code, torch.zeros(9))


def test_fedsage_without_generators_is_fedavg_of_sage() -> None:
    """With inactive neighbours and no generator rounds: one full-batch step of every client, unweighted mean."""
    method = build_method(
        "fedsage",
        "nodes",
        generator_rounds=0,
        inert=True,
        dropout=0.0,
        solver=tiny.SGD(lr=0.1),
        training=Training(batch_size=0, epochs=1),
    )
    start = begin(method, NODES, SEED, Loop()).server["classifier"]
    after, _, _ = run_round(method, begin(method, NODES, SEED, Loop()), NODES, Settings(rounds=1, seed=SEED), Loop())
    steps = []
    for i in range(tiny.CLIENTS):
        net = method.build("classifier").double()
        net.load_state_dict(start)
        dense, rows = adjacency(i), NODES.train[i][NODES.train[i] >= 0]
        edges = add_column_order(dense.nonzero().T.flip(0))
        logits = net(NODES.own["x"][i][: len(dense)], edges, torch.ones(edges.shape[1], dtype=torch.float64))
        F.cross_entropy(logits[rows], NODES.own["y"][i][rows]).backward()
        steps.append({n: p.detach() - 0.1 * p.grad for n, p in net.named_parameters()})
    for name, value in after.server["classifier"].items():
        torch.testing.assert_close(value, torch.stack([s[name] for s in steps]).mean(0))


def test_fedsage_phases() -> None:
    """Generators learn first, with separate classifiers. Then generators are fixed, there is one classifier, and graphs
    are completed.
    """
    method = build_method("fedsage", "nodes", generator_rounds=3)
    reports = list(run(method, NODES, Settings(rounds=5, seed=SEED), Loop()))
    state = lambda r: reports[r].state.clients  # noqa: E731
    spread = [
        float(torch.cat([v.flatten(1) for v in state(r)["classifier"].values()], 1).std(0).max()) for r in range(5)
    ]
    assert spread[1] > 1e-3
    for a, b in zip(state(2)["generator"].values(), state(4)["generator"].values(), strict=True):
        assert torch.equal(a, b)
    assert any(
        not torch.equal(a, b)
        for a, b in zip(state(0)["generator"].values(), state(2)["generator"].values(), strict=True)
    )
    for r in (2, 3, 4):  # from the end of the last round of generators on
        pre, mean = reports[r].models["pre"], reports[r].state.server["classifier"]
        assert all(torch.equal(value, mean[name].expand_as(value)) for name, value in pre["classifier"].items())
        assert pre["mend"].all()
    assert not reports[1].models["pre"]["mend"].any()
    assert reports[0].bytes_up == 0 < reports[2].bytes_up
    assert reports[0].bytes_down > reports[1].bytes_down > reports[3].bytes_down
    longer = list(
        run(
            build_method("fedsage", "nodes", generator_rounds=30),
            NODES,
            Settings(rounds=30, seed=SEED, every=30),
            Batched(),
        )
    )
    late = trees.at(begin(method, NODES, SEED, Loop()).clients, 0)
    assert not method.added_neighbours(late, evaluation_cohort(NODES, SEED, 0).client_data(0)), (
        "whoever has no generator mends nothing"
    )
    assert longer[-1].loss < 0.7 * longer[0].loss


def errors(slots_: tuple[Slot, ...], node: int, true: Tensor) -> Tensor:
    """The mean squared error of every neighbour generated for `node` to the nearest `true` one."""
    made_ = [slot.features[slot.nodes == node][0] for slot in slots_ if (slot.nodes[slot.live] == node).any()]
    return sum(((f - true).square().mean(1).min() for f in made_), torch.zeros(())) if len(true) else torch.zeros(())


def test_generator_losses() -> None:
    """Number and features of hidden neighbours, labels, and neighbours of all other clients, by loops over nodes."""
    method, clients = build_method("fedsage", "nodes", dropout=0.0), evaluation_cohort(NODES, SEED, 0)
    data, ids = clients.client_data(1), torch.tensor([7, 3, 9, 4, 8])
    bank = torch.stack([generated_neighbours.draw_bank(clients.client_data(j), 4, 3, ids[j]) for j in range(5)])
    model = {
        f"{name}/{n}": p
        for name in generated_neighbours.NETWORKS
        for n, p in init_parameters(partial(method.build, name), 1, torch.float64).items()
    }
    model["generator/degree.bias"] = torch.full((1,), 3.5, dtype=torch.float64)
    state, key, rows = {"key": dropout_keys.key(5)}, dropout_keys.key(9), data.train[data.train >= 0]
    losses = method.generator_losses({"bank": bank, "ids": ids}, {"id": ids[1]}, state, data)(model, rows, key, None)
    graph = generated_neighbours.impair(data, 0.5, 3, dropout_keys.fold(state["key"], 1))
    parts = [generated_neighbours.select_network(model, name) for name in generated_neighbours.NETWORKS]
    degree, made_ = method.generate(parts[1], data, graph.edges, dropout_keys.fold(key, 3), dropout_keys.fold(key, 4))
    logits = method.classify(parts[0], data, graph.edges, made_, dropout_keys.fold(key, 5))
    places = generated_neighbours.draw_neighbours(key, ids, bank, len(data.arrays["x"]))
    assert torch.equal(places // 12, torch.arange(5)[:, None].expand_as(places)), "each from its client's part"
    assert torch.equal(places % 3, torch.arange(3).expand_as(places)), "neighbours of one node"
    assert len(places[:, 0, 0].unique()) > 1
    assert len({int(places[v, 0, 0]) - int(places[v, 1, 0]) for v in rows}) > 1, "clients draw apart"
    for v, loss in zip(rows.tolist(), losses, strict=True):
        count = int(graph.missing[v])
        expected = F.cross_entropy(logits[v], data.arrays["y"][v])
        expected = expected + F.smooth_l1_loss(degree[v], graph.missing[v].double())
        expected = expected + errors(made_, v, data.arrays["x"][graph.hidden_neighbours[v, : min(3, count)]]) / 3
        for j in (0, 2, 3, 4):
            expected = expected + errors(made_, v, bank.flatten(0, 2)[places[v, j, :count]]) / 3
        torch.testing.assert_close(loss, expected / 5)
    assert len(made_) == 3
    assert graph.missing[rows].any()


def test_no_bank_uses_isolated_nodes() -> None:
    """A large bank uses all other nodes, and so every node that is a neighbour."""
    data = evaluation_cohort(NODES, SEED, 0).client_data(0)
    edges = data.arrays["edges"]
    few = edges[:, ((edges[0] >= 6) & (edges[1] >= 6)) | (edges[0] == edges[1])]
    alone = replace(data, arrays={**data.arrays, "edges": few})
    bank = generated_neighbours.draw_bank(alone, 60, 2, data.key).flatten(0, 1)
    who = {int((data.arrays["x"] == features).all(1).nonzero()[0]) for features in bank}
    linked = {*few[0][few[0] != few[1]].tolist()}
    assert who == linked
    assert 2 < len(linked) <= 6
