"""GCFL+: distances and cuts compared with brute force, and a run with splits compared with a plain loop."""

import itertools
from functools import cache

import pytest
import tiny
import torch
from naive import FED, SEED, assert_same_model, batches, build_method, last_report, model_copies, models, network, sgd
from torch import Tensor, nn

from fedweave.engine.engine import run
from fedweave.engine.executors import Loop
from fedweave.engine.records import Settings
from fedweave.engine.start import begin
from fedweave.methods.gcfl_plus import minimum_cut, warping_distances
from fedweave.tensors import trees


def warping_distance(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """The distance of two sequences by its recursion."""

    @cache
    def cost(i: int, j: int) -> float:
        if i < 0 or j < 0:
            return 0.0 if i == j == -1 else float("inf")
        return (a[i] - b[j]) ** 2 + min(cost(i - 1, j), cost(i, j - 1), cost(i - 1, j - 1))

    return cost(len(a) - 1, len(b) - 1) ** 0.5


def minimum_bipartition(weights: Tensor) -> frozenset[frozenset[int]]:
    """The bipartition with the least weight between its parts, by enumeration."""
    n = len(weights)
    parts = [set(part) for size in range(1, n) for part in itertools.combinations(range(n), size)]
    best = min(parts, key=lambda part: float(sum(weights[i, j] for i in part for j in range(n) if j not in part)))
    return frozenset([frozenset(best), frozenset(range(n)) - frozenset(best)])


def sides(cut: Tensor) -> frozenset[frozenset[int]]:
    """A cut as two sets."""
    return frozenset(frozenset((cut == side).nonzero().flatten().tolist()) for side in (True, False))


def test_distances_and_cuts_equal_brute_force() -> None:
    """The sequences are random, with one and more steps."""
    g = torch.Generator().manual_seed(0)
    for length in (1, 2, 6):
        x = torch.rand(5, length, generator=g, dtype=torch.float64)
        distance = warping_distances(x)
        for i, j in itertools.product(range(5), range(5)):
            expected = warping_distance(tuple(x[i].tolist()), tuple(x[j].tolist()))
            assert float(distance[i, j]) == pytest.approx(expected, abs=1e-12)
        weights = distance.max() - distance
        assert sides(minimum_cut(weights)) == minimum_bipartition(weights)
    assert float(warping_distances(torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]])).max()) == 0.0


@pytest.mark.parametrize("standardize", [False, True])
def test_clusters_equal_those_of_a_plain_loop(standardize: bool) -> None:
    """Five rounds on the toy: after each of two splits the sequences start again. Means are by training rows."""
    nets = [net for _, net in model_copies(network(build_method("gcfl_plus")))]
    clusters, norms = [[0, 1, 2, 3, 4]], [[] for _ in nets]
    sizes = FED.sizes.double()
    for r in range(5):
        moves = []
        for i, net in enumerate(nets):
            before = nn.utils.parameters_to_vector(net.parameters()).detach()
            sgd(net, batches(i, r, 0, 2))
            moves.append(nn.utils.parameters_to_vector(net.parameters()).detach() - before)
            nn.utils.vector_to_parameters(before, net.parameters())
            norms[i].append(float(moves[-1].norm()))
        split = [
            split_cluster(cluster, norms, standardize)
            if len(cluster) > 2 and r >= 1 and len(norms[0]) >= 2
            else [cluster]
            for cluster in clusters
        ]
        norms = [[] for _ in nets] if sum(map(len, split)) > len(clusters) else norms
        clusters = [part for parts in split for part in parts]
        for cluster in clusters:
            mean = sum(sizes[i] * moves[i] for i in cluster) / sizes[cluster].sum()
            for i in cluster:
                moved = nn.utils.parameters_to_vector(nets[i].parameters()).detach() + mean
                nn.utils.vector_to_parameters(moved, nets[i].parameters())
    report = last_report("gcfl_plus", rounds=5, standardize=standardize)
    for i, net in enumerate(nets):
        assert_same_model(net, trees.at(report.state.server["models"], i))
    labels = report.state.server["labels"]
    assert {frozenset((labels == label).nonzero().flatten().tolist()) for label in labels.unique()} == {
        frozenset(cluster) for cluster in clusters
    }
    assert len(clusters) > 1
    assert report.bytes_down == report.bytes_up


def split_cluster(cluster: list[int], norms: list[list[float]], standardize: bool) -> list[list[int]]:
    """The two parts of a cluster by its members' last two norms."""
    rows = torch.tensor([norms[i][-2:] for i in cluster], dtype=torch.float64)
    rows = rows / rows.std(1, keepdim=True, correction=0) if standardize else rows
    distance = torch.tensor([[warping_distance(tuple(a), tuple(b)) for b in rows.tolist()] for a in rows.tolist()])
    return [sorted(cluster[i] for i in side) for side in minimum_bipartition(distance.max() - distance)]


def test_without_splits_it_is_fedavg() -> None:
    """No mean has a negative norm, and no sequence is ever long enough."""
    average = models(last_report("fedavg_ft"))
    for settings in ({"eps1": 0.0}, {"sequence": 9}):
        # FedAvg's shares are single precision numbers.
        torch.testing.assert_close(models(last_report("gcfl_plus", **settings)), average, rtol=1e-6, atol=1e-7)
    assert (models(last_report("gcfl_plus", rounds=5)) - models(last_report("fedavg_ft", rounds=5))).abs().max() > 1e-3


def test_a_cluster_waits_for_complete_sequences() -> None:
    """Under partial participation, members with two updates split. The others stay with the larger part."""
    settings = Settings(rounds=6, seed=2, participation=0.6)
    seen = torch.zeros(tiny.CLIENTS, dtype=torch.int64)
    for report in run(build_method("gcfl_plus", first_split=0), FED, settings, Loop()):
        server = report.state.server
        if (server["labels"] == 0).all():
            assert int(server["length"][server["seen"]].min()) < 2
        seen = torch.maximum(seen, server["labels"])
    assert seen.any()


def test_every_member_needs_a_complete_sequence() -> None:
    """This is about the members that split, and not about all clients."""
    method = build_method("gcfl_plus", sequence=2)
    server = begin(method, FED, SEED, Loop()).server
    norms = torch.tensor([[1.0, 1.0], [1.0, 1.1], [5.0, 1.0], [5.0, 1.1], [0.0, 9.0]], dtype=torch.float64)
    server = {**server, "norms": norms, "length": torch.tensor([2, 3, 2, 2, 1])}
    assert method.part(server, torch.arange(5)) is None
    assert sides(method.part(server, torch.arange(4))) == {frozenset({0, 1}), frozenset({2, 3})}


@pytest.mark.parametrize(("standardize", "part"), [(True, {0, 1}), (False, {0, 2})])
def test_standardized_norms_have_no_scale(standardize: bool, part: set[int]) -> None:
    """Clients 0 and 1 have the same course, and clients 0 and 2 the same size."""
    method = build_method("gcfl_plus", standardize=standardize)
    norms = torch.tensor([[1.0, 2.0], [10.0, 20.0], [2.0, 1.0], [20.0, 10.0]], dtype=torch.float64)
    server = {"norms": norms, "length": torch.full((4,), 2)}
    assert sides(method.part(server, torch.arange(4))) == {frozenset(part), frozenset({0, 1, 2, 3} - part)}
