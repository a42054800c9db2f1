"""Random graphs and unit vectors with which servers describe subgraphs."""

import pytest
import torch

from fedweave.errors import BadInput
from fedweave.families.embeddings import random_blocks, unit_vectors


@pytest.mark.parametrize("density", [0.0, 0.2, 1.0])
def test_blocks_have_their_share_of_edges(density: float) -> None:
    """Both directions of every edge, no edges between blocks, and features of mean 0 and variance 1."""
    graph = random_blocks(3, 4, 30, density, 7, torch.float64)
    source, target = graph["edges"][:2]
    is_loop = source == target
    assert int(is_loop.sum()) == 120
    edges = {*zip(source[~is_loop].tolist(), target[~is_loop].tolist(), strict=True)}
    assert all(a // 30 == b // 30 and (b, a) in edges for a, b in edges)
    possible = 4 * 30 * 29
    assert abs(len(edges) - density * possible) <= 2 * 4.5 * (density * (1 - density) * possible / 2) ** 0.5
    assert graph["x"].shape == (120, 7)
    assert abs(float(graph["x"].mean())) < 0.15
    assert float(graph["x"].var()) == pytest.approx(1, abs=0.2)


def test_unit_vectors_are_rows_of_the_identity() -> None:
    """They may start at any row. A vector that is too short for them is refused."""
    assert torch.equal(unit_vectors(2, 3, 6), torch.eye(6)[2:5])
    assert torch.equal(unit_vectors(0, 6, 6), torch.eye(6))
    with pytest.raises(BadInput, match=r"vectors of length 6 and none for client 7; let fewer join"):
        unit_vectors(4, 3, 6)
