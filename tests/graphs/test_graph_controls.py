"""Weights of a control of the graph: stored graphs by seed and round, other numbers of clients, a removed source."""

import pytest
import torch
from tiny import numbers

from fedweave.errors import BadInput
from fedweave.graphs.controls import GraphControl, RecordedGraphs

pytestmark = pytest.mark.usefixtures("seeded")
IDS = torch.arange(4)


def random_graphs(*shape: int) -> torch.Tensor:
    """Graphs with rows of sum 1."""
    return numbers(*shape).softmax(-1)


def test_a_stored_graph_is_that_of_its_seed_and_round() -> None:
    """The latest one up to the round, or the first one. A graph without a seed is for all seeds."""
    first, second = (RecordedGraphs((2, 5), random_graphs(2, 1, 4, 4)) for _ in range(2))
    control = GraphControl("stored", {7: first, 8: second})
    for round, place in ((0, 0), (2, 0), (4, 0), (5, 1), (9, 1)):
        assert torch.equal(control.at(7, round).graph(4), first.weights[place])
        assert torch.equal(control.at(8, round).graph(4), second.weights[place])
    with pytest.raises(BadInput, match="no graphs of seed 9; it has those of 7, 8"):
        control.at(9, 0).graph(4)
    everywhere = GraphControl("stored", {None: first})
    assert torch.equal(everywhere.at(9, 5).graph(4), first.weights[1])


def test_a_stored_graph_is_adapted_to_other_numbers_of_clients() -> None:
    """Clients that joined later learn from themselves only. With fewer clients, the rest of a row has sum 1."""
    graph = random_graphs(1, 2, 4, 4)
    control = GraphControl("stored", {None: RecordedGraphs((0,), graph)})
    larger = control.graph(6)
    assert torch.equal(larger[:, :4, :4], graph[0])
    assert torch.equal(larger[:, 4:], torch.eye(6, dtype=larger.dtype)[4:].expand(2, -1, -1))
    assert not larger[:, :4, 4:].any()
    smaller = control.graph(3)
    torch.testing.assert_close(smaller, graph[0, :, :3, :3] / graph[0, :, :3, :3].sum(-1, keepdim=True))


def test_weights_move_from_sources_without_a_model() -> None:
    """They move to the others in proportion. A client whose sources all have no model learns from itself."""
    graph = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 1.0, 0.0], [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.0, 1.0]])
    control = GraphControl("stored", {None: RecordedGraphs((0,), graph.double()[None, None])})
    available = torch.tensor([True, True, False, True])
    weights = control.weights(torch.zeros(1, 4, 4, dtype=torch.float64), IDS, available)[0]
    expected = [[2 / 3, 1 / 3, 0, 0], [0, 1, 0, 0], [1 / 7, 2 / 7, 0, 4 / 7], [0, 0, 0, 1]]
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))


def test_a_source_is_removed_from_the_weights_of_another_control() -> None:
    """Without a base, it is removed from the learned weights. Each client loses the source that is named for it."""
    learned, sources = random_graphs(2, 4, 4), torch.tensor([1, 2, 3, 0])
    for base in (None, GraphControl("uniform")):
        rows = learned if base is None else base.weights(learned, IDS)
        weights = GraphControl("without", base=base, sources=sources).weights(learned, IDS)
        assert not weights[:, IDS, sources].any()
        rest = rows * (sources[:, None] != IDS)
        torch.testing.assert_close(weights, rest / rest.sum(-1, keepdim=True))


def test_a_matrix_is_the_mean_over_the_layers_of_a_stored_graph() -> None:
    graph = random_graphs(1, 3, 4, 4)
    control = GraphControl("stored", {None: RecordedGraphs((0,), graph)})
    torch.testing.assert_close(control.matrix(random_graphs(4, 4), IDS), graph[0].mean(0))


def test_shuffled_edges_differ_between_repetitions() -> None:
    """They are the same in every round of a repetition."""
    own = torch.tensor([[0, 1, 1, 2, 5, 6], [1, 0, 2, 1, 6, 5]])
    control = GraphControl("shuffled")
    repetitions = [control.at(seed, round).edges(own, 12, 3) for seed, round in ((0, 0), (0, 4), (1, 0), (2, 0))]
    assert torch.equal(repetitions[0], repetitions[1])
    assert len({str(edges.tolist()) for edges in repetitions}) == 3
