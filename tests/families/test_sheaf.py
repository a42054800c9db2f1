"""Sheaf Laplacians against dense coboundaries, and the invariants of diffusion."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from tiny import seeded_numbers as numbers
from torch import Tensor

from fedweave.errors import BadInput
from fedweave.families.networks.maps import MAPS
from fedweave.families.networks.sheaf import Sheaf, SheafDiffusion, build_sheaf, reverse_of
from fedweave.graphs import weights
from fedweave.tensors import dropout_keys

N, CHANNELS = 7, 4
PRINTED = {"lift_act": "none", "augmented": False, "use_eps": False}  # Definition A.4 of SHN


# Client 6 is isolated.
EDGES = weights.relation_graph(torch.tensor([[0, 0, 1, 2, 3, 4, 1], [1, 2, 2, 3, 4, 5, 5]]), N)


REVERSE = reverse_of(EDGES, N)


SHUFFLED = EDGES[:, torch.randperm(EDGES.shape[1], generator=torch.Generator().manual_seed(5))]


def sheaf_of(maps: str, stalk: int, weighted: bool = False, edges: Tensor = EDGES, **options: bool) -> Sheaf:
    kind, reverse, e = MAPS[maps], reverse_of(edges, N), edges.shape[1]
    built = kind.build(torch.tanh(numbers(e, kind.size(stalk))), stalk)
    one_way = torch.sigmoid(numbers(e, 1, seed=1))
    weight = one_way * one_way[reverse] if weighted else None
    return build_sheaf(edges, reverse, built, N, weight=weight, orthogonal=kind.orthogonal, **options)


def dense(sheaf: Sheaf) -> Tensor:
    """Delta as a matrix [N S, N S], stalk by stalk."""
    n, s = len(sheaf.degree), sheaf.maps.shape[-1]
    return sheaf.laplacian(torch.eye(n * s, dtype=sheaf.maps.dtype).view(n, s, n * s)).flatten(0, 1)


def unscaled(sheaf: Sheaf) -> Tensor:
    """delta^T delta as a matrix [N S, N S]: Delta with D = I."""
    return dense(sheaf._replace(root=torch.ones(1, 1, dtype=sheaf.maps.dtype)))


def coboundary(sheaf: Sheaf) -> Tensor:
    """delta [|E| S, N S], one block row per undirected edge, by hand."""
    maps = sheaf.maps if sheaf.maps.ndim == 3 else torch.diag_embed(sheaf.maps)
    s, rows = maps.shape[-1], []
    place = {(int(v), int(u)): i for i, (v, u) in enumerate(sheaf.edges.T)}
    for (v, u), i in place.items():
        if v < u:
            row = torch.zeros(s, N, s, dtype=maps.dtype)
            row[:, v], row[:, u] = maps[i], -maps[place[u, v]]
            rows.append(row.flatten(1))
    return torch.cat(rows)


def network(seed: int = 0, f_in: int = 3, f_out: int = 2, **options: object) -> SheafDiffusion:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = SheafDiffusion(f_in, f_out, **{"stalk": 2, "channels": CHANNELS, "depth": 2, **options}).double()
        with torch.no_grad():
            for p in module.parameters():
                p.add_(0.2 * torch.randn_like(p))
    return module


@pytest.mark.parametrize("edges", [EDGES, SHUFFLED])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("maps", MAPS)
def test_sparse_laplacian_equals_the_dense_one(maps: str, weighted: bool, edges: Tensor) -> None:
    """L = delta^T delta, and both normalisations by its diagonal blocks."""
    s = 3
    sheaf = sheaf_of(maps, s, weighted, edges)
    delta = coboundary(sheaf)
    product = delta.T @ delta
    torch.testing.assert_close(unscaled(sheaf), product)
    blocks = torch.stack([product.view(N, s, N, s)[v, :, v] for v in range(N)])
    for augmented in (True, False):
        diagonal = blocks + torch.eye(s) if augmented else blocks
        values, vectors = torch.linalg.eigh(diagonal)
        inverse = torch.where(values > 1e-9, values, torch.inf).rsqrt()
        root = torch.block_diag(*(vectors * inverse[:, None]) @ vectors.mT)
        normalised = sheaf_of(maps, s, weighted, edges, augmented=augmented)
        torch.testing.assert_close(dense(normalised), root @ product @ root)


@pytest.mark.parametrize("augmented", [True, False])
@pytest.mark.parametrize("maps", MAPS)
def test_laplacian_is_symmetric_with_spectrum_in_0_2(maps: str, augmented: bool) -> None:
    matrix = dense(sheaf_of(maps, 3, augmented=augmented))
    torch.testing.assert_close(matrix, matrix.T)
    spectrum = torch.linalg.eigvalsh(matrix)
    assert -1e-10 <= spectrum.min()
    assert spectrum.max() <= 2.0 + 1e-10
    assert spectrum.max() > 0.5


def test_augmented_blocks_of_orthogonal_maps() -> None:
    """Delta_vv = deg / (deg + 1) and Delta_vu = -F_v^T F_u / sqrt((deg_v + 1)(deg_u + 1))."""
    sheaf = sheaf_of("householder", 2)
    matrix, degree = dense(sheaf).view(N, 2, N, 2), torch.bincount(EDGES[0], minlength=N).double()
    for v in range(N):
        torch.testing.assert_close(matrix[v, :, v], degree[v] / (degree[v] + 1) * torch.eye(2).double())
    for i, (v, u) in enumerate(EDGES.T):
        block = -sheaf.maps[i].T @ sheaf.maps[REVERSE[i]] / ((degree[v] + 1) * (degree[u] + 1)).sqrt()
        torch.testing.assert_close(matrix[v, :, u], block)


def test_unit_maps_of_one_dimension_give_the_graph_laplacian() -> None:
    ones = torch.ones(EDGES.shape[1], 1, dtype=torch.float64)
    adjacency = torch.zeros(N, N, dtype=torch.float64).index_put((EDGES[0], EDGES[1]), ones[0])
    laplacian = adjacency.sum(1).diag() - adjacency
    sheaf = build_sheaf(EDGES, REVERSE, ones, N)
    torch.testing.assert_close(unscaled(sheaf), laplacian)
    scale = (adjacency.sum(1) + 1).rsqrt()
    torch.testing.assert_close(dense(sheaf), scale[:, None] * laplacian * scale)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("maps", MAPS)
def test_energy_sums_disagreement_over_edges(maps: str, weighted: bool) -> None:
    sheaf, x = sheaf_of(maps, 3, weighted), numbers(N, 3, CHANNELS, seed=2)
    root = sheaf.root if sheaf.root.ndim == 3 else torch.diag_embed(sheaf.root.expand(N, 3))
    disagreement = coboundary(sheaf) @ (root @ x).flatten(0, 1)
    torch.testing.assert_close(sheaf.energy(x), 0.5 * disagreement.square().sum())


def test_linear_diffusion_decreases_the_energy() -> None:
    sheaf, x = sheaf_of("cayley", 3), numbers(N, 3, CHANNELS, seed=2)
    before = sheaf.energy(x)
    for _ in range(5):
        x = x - sheaf.laplacian(x)
        after = sheaf.energy(x)
        assert after < before
        before = after


@pytest.mark.parametrize("augmented", [True, False])
@pytest.mark.parametrize("maps", MAPS)
def test_isolated_client_keeps_its_features(maps: str, augmented: bool) -> None:
    module = network(maps=maps, augmented=augmented, use_eps=False)
    x = numbers(N, 3)
    lifted = torch.nn.functional.elu(module.lift(x))
    *_, (_, h) = module.steps(x, EDGES)
    torch.testing.assert_close(h[6].flatten(), lifted[6], rtol=0, atol=0)
    assert (h[0].flatten() - lifted[0]).abs().max() > 1e-3


@pytest.mark.parametrize("maps", MAPS)
def test_order_of_clients_and_of_edges_is_irrelevant(maps: str) -> None:
    module, x = network(maps=maps, edge_weights=True), numbers(N, 3)
    permutation = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    expected = module(x, EDGES)
    torch.testing.assert_close(module(x, SHUFFLED), expected)
    # Client v moves to position place[v].
    place = torch.empty_like(permutation).scatter(0, permutation, torch.arange(N))
    torch.testing.assert_close(module(x[permutation], place[EDGES]), expected[permutation])


@pytest.mark.parametrize(
    "options", [{"maps": m} for m in MAPS] + [{"stalk": 1, "shared_maps": True, "edge_weights": True}, PRINTED]
)
def test_gradient_against_finite_differences(options: dict) -> None:
    module, x = network(**options), numbers(N, 3).requires_grad_()
    names, values = zip(*module.named_parameters(), strict=True)

    def run(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x, EDGES))

    assert torch.autograd.gradcheck(run, (x, *values), fast_mode=True)


@pytest.mark.parametrize("maps", MAPS)
def test_without_edges_no_client_depends_on_another(maps: str) -> None:
    module, x = network(maps=maps), numbers(N, 3)

    def cross(edges: Tensor) -> Tensor:
        jacobian = torch.autograd.functional.jacobian(lambda x: module(x, edges), x).movedim(2, 1).abs().sum((2, 3))
        return jacobian.fill_diagonal_(0.0)

    assert torch.equal(cross(weights.knn_graph(x, 0)), torch.zeros(N, N).double())
    assert (cross(EDGES)[EDGES[0], EDGES[1]] > 0).all()
    # Two layers reach two hops (0 - 2 - 3). Degrees of learned lengths add one hop per layer (3 - 4).
    assert cross(EDGES)[0, 3] > 0
    assert (cross(EDGES)[0, 4] == 0) == MAPS[maps].orthogonal


@pytest.mark.parametrize("printed", [False, True])
def test_layer_equals_its_equation(printed: bool) -> None:
    """(1 + tanh eps) x - ELU(Delta (I (x) W_1) x W_2) with dense matrices; as printed, x is linear and has no eps, and
    D^{-1/2} (delta^T delta) D^{-1/2} has the degrees.
    """
    module, x = network(depth=1, stalk=3, **(PRINTED if printed else {})), numbers(N, 3)
    layer, lifted = module.layers[0], module.lift(x)
    h = (lifted if printed else torch.nn.functional.elu(lifted)).view(N, 3, CHANNELS)
    ((sheaf, after),) = module.steps(x, EDGES)
    delta = coboundary(sheaf)
    scale = (torch.bincount(EDGES[0], minlength=N).double() + (0 if printed else 1)).repeat_interleave(3)
    root = torch.where(scale > 0, scale, torch.inf).rsqrt()
    laplacian = root[:, None] * (delta.T @ delta) * root
    product = laplacian @ torch.kron(torch.eye(N).double(), layer.left) @ h.flatten(0, 1) @ layer.right
    keep = torch.ones(3 * N, 1).double() if printed else (1 + torch.tanh(layer.eps)).repeat(N, 1)
    expected = keep * h.flatten(0, 1) - torch.nn.functional.elu(product)
    torch.testing.assert_close(after.flatten(0, 1), expected)


@pytest.mark.parametrize("lift_act", ["elu", "none"])
def test_the_lift_has_elu_by_default(lift_act: str) -> None:
    """Bit for bit."""
    module, x = network(**({} if lift_act == "elu" else {"lift_act": lift_act})), numbers(N, 3)
    lifted = module.lift(x)
    h = (torch.nn.functional.elu(lifted) if lift_act == "elu" else lifted).view(N, 2, CHANNELS)
    for learner, layer in zip(module.learners, module.layers, strict=True):
        assert learner.augmented
        h = layer(h, h, learner(h.flatten(1), EDGES, REVERSE))
    assert torch.equal(module(x, EDGES), module.out(h.flatten(1)))


def test_maps_read_both_ends_in_order() -> None:
    module, x = network(depth=1), numbers(N, 3)
    h, learner = torch.nn.functional.elu(module.lift(x)), module.learners[0]
    ((sheaf, _),) = module.steps(x, EDGES)
    v, u = EDGES
    values = torch.tanh(learner.phi(torch.cat([h[v], h[u]], dim=1)))
    torch.testing.assert_close(sheaf.maps, MAPS["householder"].build(values, 2))


def test_maps_are_the_identity_at_the_start() -> None:
    module = SheafDiffusion(3, 2, stalk=3, channels=CHANNELS)
    layer = module.layers[0]
    assert torch.equal(layer.left, torch.eye(3))
    assert torch.equal(layer.eps, torch.zeros(3, 1))
    torch.testing.assert_close(layer.right @ layer.right.T, torch.eye(CHANNELS))


def test_shared_maps_have_one_set_of_parameters() -> None:
    module, x = network(shared_maps=True, depth=4, stalk=1), numbers(N, 3)
    sheaves = [sheaf for sheaf, _ in module.steps(x, EDGES)]
    assert len(module.learners) == 1
    assert all(sheaf is sheaves[0] for sheaf in sheaves)
    own = [sheaf.maps for sheaf, _ in network(depth=2).steps(x, EDGES)]
    assert not torch.equal(*own)


def test_dropout_depends_on_the_key() -> None:
    module, x = network(dropout=0.5), numbers(N, 3)
    first, again, other = (module(x, EDGES, key=dropout_keys.key(i)) for i in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(module(x, EDGES), network(dropout=0.0)(x, EDGES))


def test_every_dropout_has_its_own_pattern() -> None:
    """After the lift, before W_1 of each layer, and before the maps of every layer but the first."""
    module, x, key = network(dropout=0.5), numbers(N, 3), dropout_keys.key(1)

    def drop(h: Tensor, salt: int) -> Tensor:
        return dropout_keys.dropout(h, 0.5, key, salt=salt)

    h = drop(torch.nn.functional.elu(module.lift(x)), 0).view(N, 2, CHANNELS)
    first = module.layers[0](h, drop(h, 1), module.learners[0](h.flatten(1), EDGES, REVERSE))
    seen = drop(first, 2).flatten(1)
    second = module.layers[1](first, drop(first, 3), module.learners[1](seen, EDGES, REVERSE))
    torch.testing.assert_close(module(x, EDGES, key=key), module.out(second.flatten(1)))


def test_energies_follow_the_layers() -> None:
    module, x = network(depth=3), numbers(N, 3)
    energies = module.energies(x, EDGES)
    steps = list(module.steps(x, EDGES))
    assert energies.shape == (3,)
    torch.testing.assert_close(energies[1], steps[1][0].energy(steps[1][1]))


FRESH = {
    "no-weights": {},
    "lift": {"lift_act": "none"},
    "degree": {"augmented": False},
    "definition": PRINTED,
    "edge-weights": {"edge_weights": True},
    "definition-weights": {**PRINTED, "edge_weights": True},
}
GROWTH = Path(__file__).parents[2] / "docs/reproduction/shn/table2.growth.csv"


def fresh(seed: int, depth: int, mixes: bool = True, **options: object) -> tuple[float, Tensor]:
    """A new diffusion of 100 random vectors along three nearest neighbours: (the norm after the last layer over that
    after the first, the output).
    """
    x = numbers(100, 26, seed=seed)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        module = SheafDiffusion(26, 26, depth=depth, **options).double()
        for layer in () if mixes else module.layers:
            torch.nn.init.eye_(layer.right)
        first, *_, last = (h for _, h in module.steps(x, weights.knn_graph(x, 3)))
        return float(last.norm() / first.norm()), module.out(last.flatten(1))


@pytest.mark.parametrize("key", FRESH)
def test_growth_of_a_fresh_diffusion_is_that_of_the_page(key: str) -> None:
    """Five draws. Without edge weights every layer adds to the norm, and with D in place of D + I they do not help."""
    row = pd.read_csv(GROWTH, index_col="key").loc[key]
    growth = [fresh(seed, 64, **FRESH[key])[0] for seed in range(5)]
    assert [row["growth, least"], row["growth, most"]] == pytest.approx([min(growth), max(growth)], rel=0.05)
    pairs = [(fresh(seed, 3)[1], fresh(seed, 3, **FRESH[key])[1]) for seed in range(5)]
    moved = [100 * float((one - other).norm() / one.norm()) for one, other in pairs]
    assert [row["moves, least %"], row["moves, most %"]] == pytest.approx([min(moved), max(moved)], abs=0.51)


def test_separate_channels_do_not_grow() -> None:
    """Growth comes from W_2: with the identity in its place, features shrink."""
    assert max(fresh(seed, 64, mixes=False)[0] for seed in range(3)) < 1.0


def test_self_loops_and_one_way_edges_are_refused() -> None:
    module, x = network(), numbers(N, 3)
    with pytest.raises(BadInput, match="edges: 2 -> 2 is a self loop; make the graph with"):
        module(x, torch.cat([EDGES, torch.tensor([[2], [2]])], 1))
    with pytest.raises(BadInput, match="edges: 1 -> 0 has no edge back; make the graph with"):
        module(x, EDGES[:, 1:])
    with pytest.raises(BadInput, match=f"edges: 0 -> {N - 1} has no edge back; make the graph with"):
        module(x, torch.tensor([[0], [N - 1]]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maps": "euler"}, "maps: 'euler' is unknown"),
        ({"act": "relu"}, "act: 'relu' is unknown"),
        ({"lift_act": "relu"}, "lift_act: 'relu' is unknown"),
        ({"depth": 0}, "depth 0 must be at least 1"),
    ],
)
def test_bad_options_are_refused(options: dict, words: str) -> None:
    """Methods of plug-ins give the network numbers that no declared setting has checked."""
    with pytest.raises(BadInput, match=words):
        network(**options)
