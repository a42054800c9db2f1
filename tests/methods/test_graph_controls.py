"""Controls of the collaboration graph: the same words for every method with a graph, and the methods that they reduce
to.
"""

from dataclasses import fields, replace

import numpy as np
import pytest
import tiny
import torch
from naive import FED, build_method
from scipy.stats import spearmanr

from fedweave.engine.engine import run
from fedweave.engine.executors import Loop
from fedweave.engine.graph_truth import group_graph, jensen_shannon, similarity_graph, target_shares
from fedweave.engine.protocol import Server
from fedweave.engine.records import Report, Settings
from fedweave.engine.schedule import evaluation_cohort
from fedweave.errors import BadInput
from fedweave.families.weaving import Weaving
from fedweave.graphs import quality
from fedweave.graphs.controls import GraphControl, RecordedGraphs
from fedweave.graphs.setting import parse
from fedweave.graphs.weights import edges_of
from fedweave.methods import METHODS
from fedweave.tensors import trees
from fedweave.tensors.trees import Tree
from fedweave.testing import contract

SETTINGS = Settings(rounds=3, seed=2)
WEAVING = [name for name, cls in METHODS.items() if issubclass(cls, Weaving)]
MIXED = [name for name in WEAVING if name not in ("shn", "ghn", "panacea", "fedsheafhn", "fedpac")]
"""Methods whose models are mixtures; the others mix vectors or heads."""


def kind(name: str) -> str:
    """The simplest toy that a method supports."""
    return "rows" if tiny.suits(name, "rows") else "nodes"


def reports(
    name: str, control: GraphControl | None, settings: Settings = SETTINGS, **overrides: object
) -> list[Report]:
    """A run on the toy in which all clients have the same number of rows, so that means by size are plain means."""
    where = kind(name)
    task, federation = (make() for make in tiny.TASKS[where])
    if where == "rows":
        federation = replace(federation, train=federation.train[:, :6])
    method = replace(tiny.method(name, task, where, **overrides), control=control)
    return [*run(method, federation, settings, Loop())]


def final(name: str, control: GraphControl | None, **overrides: object) -> torch.Tensor:
    """All models after local training of the last round."""
    return trees.to_matrix(reports(name, control, **overrides)[-1].models["post"])


@pytest.mark.parametrize("name", WEAVING)
def test_every_control_has_an_effect_in_every_method_with_a_graph(name: str) -> None:
    """Participation is partial. The reported graph is that of the control."""
    settings = replace(SETTINGS, participation=0.6, every=3)
    block = torch.block_diag(torch.full((2, 2), 0.5), torch.full((3, 3), 1 / 3)).double()
    stored = GraphControl("stored", {None: RecordedGraphs((0,), block[None, None])})
    graphs = {}
    for word, control in {"self": GraphControl("self"), "shuffled": GraphControl("shuffled"), "given": stored}.items():
        *_, report = reports(name, control, settings)
        assert torch.isfinite(report.scores[report.method.point]["test"]).all()
        assert len(report.method.collaboration(report.state.server)) == len(report.method.task.layers)
        graphs[word] = report.method.collaboration(report.state.server)[-1:]  # FedPAC's graph is only that of its head
    assert torch.equal(graphs["self"] > 0, torch.eye(tiny.CLIENTS, dtype=torch.bool).expand_as(graphs["self"]))
    linked = graphs["given"] > 0
    assert not linked[..., :2, 2:].any()
    assert not linked[..., 2:, :2].any()


ROWS = tiny.seeded_numbers(3, 1, tiny.CLIENTS, tiny.CLIENTS).softmax(-1)
OF_ROUND_AND_SEED = {
    "shuffled": GraphControl("shuffled"),
    "stored": GraphControl("stored", {contract.SOME.seed: RecordedGraphs((0, 1, 2), ROWS)}),
}


@pytest.mark.parametrize("word", OF_ROUND_AND_SEED)
def test_a_resumed_run_goes_on_with_the_graph_of_its_round_and_seed(word: str) -> None:
    method, federation = replace(build_method("heurfedamp"), control=OF_ROUND_AND_SEED[word]), FED
    contract.resumed_equals_uninterrupted(method, federation, contract.run_rounds(method, federation))


SELF = [
    name for name in MIXED if name not in ("fedamp", "heurfedamp", "pfedgraph", "sfl", "fedpub", "fedgta", "fedaux")
]


@pytest.mark.parametrize("name", SELF)
def test_weight_on_oneself_only_is_local_training(name: str) -> None:
    """A method without further terms in the local loss becomes Local."""
    torch.testing.assert_close(final(name, GraphControl("self")), final("local", None), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", SELF)
def test_uniform_weights_are_fedavg_with_fine_tuning(name: str) -> None:
    """With clients of equal size and no further terms, all get the plain mean."""
    overrides = {"retain": 0} if name == "heurpfedla" else {}
    average = final("fedavg_ft", None)
    torch.testing.assert_close(final(name, GraphControl("uniform"), **overrides), average, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "name", ["fedaghn", "heurfedamp", "pfedla", "heurpfedla", "fedpub", "cfl", "shn", "ghn", "panacea"]
)
def test_a_replay_of_all_graphs_is_the_run(name: str) -> None:
    """The recorded graphs of a run give the same models in a run that learns no graph."""
    first = reports(name, None)
    seen = {report.round: report.method.collaboration(report.state.server) for report in first}
    graphs = {round: graph.double() for round, graph in seen.items() if graph is not None}  # a warm-up has none
    control = GraphControl("stored", {SETTINGS.seed: RecordedGraphs(tuple(graphs), torch.stack([*graphs.values()]))})
    replayed = final(name, control)
    torch.testing.assert_close(replayed, trees.to_matrix(first[-1].models["post"]), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("learned_graph", [False, True])
def test_the_common_model_of_sfl_uses_the_control(learned_graph: bool) -> None:
    """It is the mean of the controlled mixtures of all clients, for any participants."""
    method, state = (
        getattr(reports("sfl", None, learned_graph=learned_graph)[-1], name) for name in ("method", "state")
    )
    block = torch.block_diag(torch.full((2, 2), 0.5), torch.eye(3)).double()
    block[2:, 0] = 1.0
    skewed = GraphControl("stored", {None: RecordedGraphs((0,), (block / block.sum(-1, keepdim=True))[None, None])})
    for control in (None, skewed, GraphControl("self"), GraphControl("shuffled")):
        mine = replace(method, control=control)
        _, everyone = mine.download(state.server, torch.arange(tiny.CLIENTS))
        shared, _ = mine.download(state.server, torch.tensor([3]))
        mean = trees.tree_map(lambda t: t.mean(0), everyone["mixture"])
        torch.testing.assert_close(shared["common"], mean)


def test_a_controlled_download_is_made_once() -> None:
    """The next round sends the models that an evaluation has sent, with and without a control."""
    made = []

    class Counting(METHODS["heurfedamp"]):
        def download(self, server: Server, ids: torch.Tensor) -> tuple[Tree, Tree]:
            made.append(int(server["round"]))
            return super().download(server, ids)

    plain = build_method("heurfedamp")
    for control in (None, GraphControl("uniform")):
        made.clear()
        method = Counting(**{f.name: getattr(plain, f.name) for f in fields(plain)} | {"control": control})
        assert len([*run(method, FED, SETTINGS, Loop())]) == 3
        assert made == [0, 1, 2, 3]


def test_shuffled_rows_keep_their_weights() -> None:
    """Row sums, self weights and the set of weights do not change. Rows, layers and rounds are shuffled differently."""
    n, g = 12, torch.Generator().manual_seed(0)
    learned = torch.rand(3, n, n, generator=g, dtype=torch.float64)
    control, ids = GraphControl("shuffled"), torch.arange(n)
    shuffled = control.at(5, 1).weights(learned, ids)
    torch.testing.assert_close(shuffled.sum(-1), learned.sum(-1))
    assert torch.equal(shuffled.diagonal(dim1=1, dim2=2), learned.diagonal(dim1=1, dim2=2))
    assert torch.equal(shuffled.sort(-1).values, learned.sort(-1).values)
    assert not torch.equal(shuffled, learned)
    assert torch.equal(shuffled, control.at(5, 1).weights(learned, ids))
    assert not torch.equal(shuffled, control.at(5, 2).weights(learned, ids))
    assert not torch.equal(shuffled, control.at(6, 1).weights(learned, ids))
    alike = learned[:1, :1].expand(2, n, n).clone()
    moved = control.weights(alike, ids)
    assert not torch.equal(moved[0], moved[1])
    assert not torch.equal(moved[0, 0, 2:], moved[0, 1, 2:])
    rows = torch.tensor([7, 2])
    assert torch.equal(control.at(5, 1).weights(learned[:, rows], rows), shuffled[:, rows])
    participants = torch.arange(n) < 8
    partly = control.weights(learned, ids, participants)
    assert torch.equal(partly[..., 8:], learned[..., 8:])


@pytest.mark.parametrize("name", ["fedaghn", "pfedla", "direct_matrix"])
def test_shuffled_weights_stay_among_clients_with_a_model(name: str) -> None:
    """Until newcomers upload, rows have the weights that they have without the control."""
    method, settings = build_method(name), replace(SETTINGS, newcomers=2, join_round=2, participation=0.2)
    *_, report = run(method, FED, settings, Loop())
    learned, shuffled = (
        replace(method, control=control).collaboration(report.state.server)
        for control in (None, GraphControl("shuffled"))
    )
    assert report.state.server["fixed"]["without_upload"].any()
    torch.testing.assert_close(learned.sort(-1).values, shuffled.sort(-1).values)


def test_shuffled_edges_permute_the_clients_of_a_graph() -> None:
    """The number of edges and the degrees do not change."""
    own = edges_of(torch.rand(9, 9, generator=torch.Generator().manual_seed(1)) < 0.2)
    moved = GraphControl("shuffled").edges(own, 9, 3)
    assert moved.shape == own.shape
    assert not torch.equal(moved, own)
    assert torch.equal(
        torch.bincount(own[0], minlength=9).sort().values, torch.bincount(moved[0], minlength=9).sort().values
    )


def test_oracles_follow_groups_and_labels() -> None:
    """Equal weights within groups. Without groups, clients with similar label histograms get more weight, in rows of
    sum 1.
    """
    federation, task = tiny.rows_federation(), tiny.rows_task()
    groups = group_graph(federation.group.numpy())
    assert torch.equal(groups > 0, federation.group[:, None] == federation.group)
    shares = target_shares(task, federation)
    rows = [federation.shared["y"][r[r >= 0]] for r in federation.train]
    np.testing.assert_allclose(shares, [np.bincount(y, minlength=tiny.CLASSES) / len(y) for y in rows])
    divergence = jensen_shannon(shares)
    p, q = shares[0], shares[1]
    middle = (p + q) / 2
    by_hand = sum(0.5 * np.sum(a[a > 0] * np.log(a[a > 0] / middle[a > 0])) for a in (p, q))
    np.testing.assert_allclose([divergence[0, 1], divergence[0, 0]], [by_hand, 0.0], atol=1e-12)
    weights = similarity_graph(divergence)
    torch.testing.assert_close(weights.sum(1), torch.ones(tiny.CLIENTS, dtype=torch.float64))
    assert (weights.diagonal() > 1 / tiny.CLIENTS).all()
    numbers = target_shares(tiny.series_task(), tiny.series_federation())
    np.testing.assert_allclose(numbers.sum(1), 1.0)


def test_each_word_of_the_setting_has_one_meaning() -> None:
    """An unknown word is refused in one line."""
    assert parse("given:g.csv", ("learned",), "graph") == ("given", "g.csv")
    for word in ("unifrom", "given", "replayed:", "oracle:x"):
        with pytest.raises(BadInput, match="graph"):
            parse(word, ("learned",), "graph")


@pytest.mark.parametrize("name", ["heurfedamp", "pfedla", "fedaghn"])
def test_the_value_of_an_edge_is_the_loss_without_it(name: str) -> None:
    """The gain of a source is the validation loss of the mixture without it, minus the loss with it."""
    task, federation = tiny.rows_task(), tiny.rows_federation()
    method = tiny.method(name, task, "rows")
    *_, report = run(method, federation, replace(SETTINGS, edges=2), Loop())
    graph = report.method.collaboration(report.state.server)
    models = {**report.state.server, **report.state.server.get("fixed", {})}["models"]
    assert len(report.edges) == 2 * tiny.CLIENTS
    for edge in (report.edges[0], report.edges[-1]):
        rest = graph[:, edge.learner : edge.learner + 1].clone()
        losses = []
        for weights in (rest, rest.index_fill(2, torch.tensor([edge.source]), 0.0)):
            mixture = method.mix_models(weights / weights.sum(-1, keepdim=True), models)
            data = evaluation_cohort(federation, 0, 0).client_data(edge.learner)
            rows = data.val[data.val >= 0]
            losses.append(task.mean_loss(method.predict(trees.at(mixture, 0), data, rows), data, rows))
        assert edge.gain == pytest.approx(float(losses[1] - losses[0]), abs=1e-10)
        assert edge.weight == pytest.approx(float(graph[:, edge.learner, edge.source].mean()))
        assert edge.source != edge.learner


def test_edges_of_clients_without_validation_rows_have_no_value() -> None:
    """There is no loss without rows. The values of all others do not change."""
    method, federation = tiny.method("heurfedamp", tiny.rows_task(), "rows"), tiny.rows_federation()
    without_val = replace(federation, val=torch.where(torch.arange(tiny.CLIENTS)[:, None] == 3, -1, federation.val))
    everybody, others = (
        [*run(method, f, replace(SETTINGS, edges=2), Loop())][-1].edges for f in (federation, without_val)
    )
    assert others == tuple(edge for edge in everybody if edge.learner != 3)


def test_measures_find_a_planted_graph() -> None:
    """They do not find noise or equal rows. Layers are averaged."""
    group, g = np.repeat([0, 1, 2], 4), np.random.default_rng(0)
    same = group[:, None] == group
    shares = np.eye(3)[group] * 0.7 + 0.1
    divergence = jensen_shannon(shares)
    planted = np.where(same, 0.3, 0.0) + 0.001 * g.random((12, 12))
    measures = quality.quality(planted[None], group, divergence)
    assert measures["group_auc"] == measures["group_precision"] == 1.0
    assert measures["group_mass"] > 0.98
    assert measures["similarity_correlation"] > 0.6
    noise = g.random((40, 12, 12))
    lost = quality.quality(noise, group, divergence)
    assert lost["group_auc"] == pytest.approx(0.5, abs=0.05)
    assert lost["group_mass"] == pytest.approx(3 / 11, abs=0.02)
    assert lost["similarity_correlation"] == pytest.approx(0.0, abs=0.05)
    flat = quality.quality(np.full((1, 12, 12), 1 / 12), group, divergence)
    assert flat["group_precision"] == pytest.approx(3 / 11)
    assert "similarity_correlation" not in flat
    row = np.array([0.5, 0.4, 0.3, 0.2])
    by_hand = quality.group_precision(np.tile(row, (4, 1)), np.array([0, 1, 0, 1]))
    assert by_hand == pytest.approx(np.mean([1 / 2, 1 / 3, 1 / 1, 1 / 2]))


def test_a_layer_without_a_value_is_not_in_the_mean() -> None:
    """A layer that every client keeps has no weight on others. Its order of sources is that of chance, and it has
    collapsed to self.
    """
    g, group = np.random.default_rng(0), np.repeat([0, 1, 2], 4)
    mixed, divergence = g.random((2, 12, 12)), jensen_shannon(np.eye(3)[group] * 0.7 + 0.1)
    among, alone, both = (
        quality.quality(layers, group, divergence)
        for layers in (mixed, np.eye(12)[None], np.concatenate([mixed, np.eye(12)[None]]))
    )
    kept = {"group_auc": 0.5, "group_precision": 3 / 11}
    kept |= {"effective_sources": 1.0, "distance_to_uniform": 11 / 12, "distance_to_self": 0.0}
    assert alone == pytest.approx(kept)
    assert both == pytest.approx(among | {name: (2 * among[name] + value) / 3 for name, value in kept.items()})


def test_a_layer_that_all_clients_share_does_not_count() -> None:
    """The mean is over the layers whose rows differ, as FedPAC's heads; with none of them, over all layers."""
    g, group = np.random.default_rng(0), np.repeat([0, 1, 2], 4)
    mixed, divergence = g.random((1, 12, 12)), jensen_shannon(np.eye(3)[group] * 0.7 + 0.1)
    shared = np.broadcast_to(g.random((2, 1, 12)), (2, 12, 12))
    alone = quality.quality(mixed, group, divergence)
    assert quality.quality(np.concatenate([shared, mixed, shared]), group, divergence) == alone
    assert quality.quality(shared, group, None)["row_variation"] == pytest.approx(0, abs=1e-12)


def test_similarity_correlation_is_spearmans() -> None:
    """SciPy's value, averaged over rows, with ties. Rows without differences are omitted."""
    g = np.random.default_rng(1)
    weights, divergence = g.integers(0, 4, (9, 9)) / 4, g.integers(0, 3, (9, 9)) / 3
    weights[4] = 0.25
    rows = [
        spearmanr(np.delete(w, i), -np.delete(d, i)).statistic
        for i, (w, d) in enumerate(zip(weights, divergence, strict=True))
        if i != 4
    ]
    assert quality.similarity_correlation(weights, divergence) == pytest.approx(np.mean(rows), rel=1e-12)
