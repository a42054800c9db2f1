"""Neural sheaf diffusion on the collaboration graph: the encoder of SHN and FedSheafHN.

A cellular sheaf gives every client v a stalk R^S and every edge e at v a restriction map F_{v,e}. Two
neighbours agree on e when F_{v,e} x_v = F_{u,e} x_u; the sheaf Laplacian delta^T delta measures how much they
disagree. Source: Bodnar et al., arXiv:2202.04579, and its code
github.com/twitter-research/neural-sheaf-diffusion.

Shapes: N clients, E directed edges (both directions of every edge), S stalk dimension, F channels. The
Laplacian is stored as E blocks S x S and applied by one batched product and one scatter-add.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedweave.errors import BadInput, choose
from fedweave.families.networks.maps import MAPS, inverse_root
from fedweave.models.gcn import add_at, select_rows
from fedweave.tensors import dropout_keys

Maps = Literal["householder", "cayley", "exp", "diagonal", "general"]
Activation = Literal["tanh", "elu"]
Lift = Literal["elu", "none"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "elu": F.elu}
LIFTS: dict[str, Callable[[Tensor], Tensor]] = {"elu": F.elu, "none": lambda x: x}


def _multiply(block: Tensor, x: Tensor) -> Tensor:
    """Blocks ([.., 1] scalar, [.., S] diagonal or [.., S, S] dense) times x [.., S, F]."""
    return block @ x if block.ndim == 3 else block[..., None] * x


class Sheaf(NamedTuple):
    """A sheaf on a graph and the normalisation of its Laplacian Delta = D^{-1/2} delta^T delta D^{-1/2}.

    Attributes:
        edges: [2, E] v -> u, both directions.
        maps: F_{v,e} of every directed edge, [E, S, S], or [E, S] if diagonal.
        transport: F_{v,e}^T F_{u,e}, in the shape of `maps`.
        degree: diagonal blocks of delta^T delta, [N, 1] for orthogonal maps, [N, S] diagonal, [N, S, S] general.
        root: D^{-1/2} in the shape of `degree`.
    """

    edges: Tensor
    maps: Tensor
    transport: Tensor
    degree: Tensor
    root: Tensor

    def laplacian(self, x: Tensor) -> Tensor:
        """Delta x for x [N, S, F]."""
        y = _multiply(self.root, x)
        received = _multiply(self.transport, select_rows(y, self.edges[1]))
        return _multiply(self.root, add_at(_multiply(self.degree, y), self.edges[0], received, -1.0))

    def energy(self, x: Tensor) -> Tensor:
        """Half the sum over edges of ||F_{v,e} y_v - F_{u,e} y_u||^2, with y = D^{-1/2} x, x [N, S, F]."""
        return 0.5 * (x * self.laplacian(x)).sum()


def reverse_of(edges: Tensor, nodes: int) -> Tensor:
    """Position of u -> v for every edge v -> u of [2, E].

    Raises:
        BadInput: an edge is a self loop or exists in one direction only; checked on a CPU, because a GPU would wait.
    """
    forward, backward = edges[0] * nodes + edges[1], edges[1] * nodes + edges[0]
    first, second = torch.argsort(forward), torch.argsort(backward)
    if edges.device.type == "cpu":
        sources, targets = edges.tolist()
        _check_edges(sources, targets, nodes)
    return torch.empty_like(first).scatter(0, second, first)


def _check_edges(sources: list[int], targets: list[int], nodes: int) -> None:
    # In NumPy: pairs as Python's objects take milliseconds, and so many of them start its collection of garbage.
    start, end = np.array(sources, dtype=np.int64), np.array(targets, dtype=np.int64)
    if (start != end).all() and np.array_equal(np.sort(start * nodes + end), np.sort(end * nodes + start)):
        return
    counts = Counter(zip(sources, targets, strict=True))
    v, u = next((v, u) for v, u in counts if v == u or counts[v, u] > counts[u, v])
    fault = "is a self loop" if v == u else "has no edge back"
    raise BadInput(f"edges: {v} -> {u} {fault}; make the graph with collaboration.relation_graph")


def build_sheaf(
    edges: Tensor,
    reverse: Tensor,
    maps: Tensor,
    nodes: int,
    *,
    weight: Tensor | None = None,
    orthogonal: bool = False,
    augmented: bool = True,
) -> Sheaf:
    """The sheaf of restriction maps [E, S, S] or [E, S] on edges [2, E] without self loops.

    `weight` [E, 1], equal in both directions, scales the maps; `orthogonal` promises that unscaled maps are.
    The normalisation is D = blocks of delta^T delta, plus I if `augmented`. Without I isolated clients get 0.
    """
    if weight is not None:
        maps = maps * (weight if maps.ndim == 2 else weight[..., None])
    transposed = maps.mT if maps.ndim == 3 else maps
    transport = _product(transposed, maps.index_select(0, reverse))
    scale = maps.new_ones(len(maps), 1) if weight is None else weight
    squares = scale.square() if orthogonal else _product(transposed, maps)
    degree = add_at(squares.new_zeros(nodes, *squares.shape[1:]), edges[0], squares)
    return Sheaf(edges, maps, transport, degree, _inverse_degree_root(degree, augmented))


def _product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b if a.ndim == 3 else a * b


def _inverse_degree_root(degree: Tensor, augmented: bool) -> Tensor:
    if degree.ndim == 3:
        eye = torch.eye(degree.shape[-1], dtype=degree.dtype, device=degree.device)
        return inverse_root(degree + eye if augmented else degree)
    shifted = degree + 1.0 if augmented else degree
    return torch.where(shifted > 0, shifted, torch.inf).rsqrt()


class SheafLearner(nn.Module):
    """Restriction maps from both ends of an edge, F_{v,e} = map(act(Phi [x_v || x_u])), Phi without bias.

    With `edge_weights` the maps of e are scaled by sigmoid(l [x_v || x_u]) sigmoid(l [x_u || x_v]).
    """

    def __init__(
        self, features: int, stalk: int, maps: Maps, act: Activation, edge_weights: bool, augmented: bool
    ) -> None:
        super().__init__()
        # O(1) = {1, -1} has no parameters to learn, so one-dimensional stalks have scalar maps.
        self.kind = MAPS["diagonal" if stalk == 1 else maps]
        self.phi = nn.Linear(2 * features, self.kind.size(stalk), bias=False)
        self.gate = nn.Linear(2 * features, 1, bias=False) if edge_weights else None
        self.stalk, self.act, self.augmented = stalk, ACTIVATIONS[act], augmented

    def forward(self, x: Tensor, edges: Tensor, reverse: Tensor) -> Sheaf:
        """Sheaf of node vectors x [N, S F] on edges [2, E]."""
        maps = self.kind.build(self.act(_edge_linear(self.phi, x, edges)), self.stalk)
        weight = None
        if self.gate is not None:
            one_way = torch.sigmoid(_edge_linear(self.gate, x, edges))
            weight = one_way * one_way.index_select(0, reverse)
        orthogonal = self.kind.orthogonal
        return build_sheaf(edges, reverse, maps, len(x), weight=weight, orthogonal=orthogonal, augmented=self.augmented)


def _edge_linear(linear: nn.Linear, x: Tensor, edges: Tensor) -> Tensor:
    """`linear` of [x_v || x_u] for every edge, computed once per node: [N, D] -> [E, n]."""
    own, other = linear.weight.chunk(2, dim=1)
    return select_rows(F.linear(x, own), edges[0]) + select_rows(F.linear(x, other), edges[1])


class SheafLayer(nn.Module):
    """x <- (1 + tanh eps) x - ELU(Delta (I (x) W_1) x W_2); at first W_1 = I, W_2 orthogonal, eps = 0."""

    def __init__(self, stalk: int, channels: int, *, eps: bool) -> None:
        super().__init__()
        # Not torch.eye: on the device "meta" it imports PyTorch's compiler, which takes seconds in every process.
        self.left = nn.Parameter(torch.zeros(stalk, stalk).fill_diagonal_(1.0))
        self.right = nn.Parameter(nn.init.orthogonal_(torch.empty(channels, channels)))
        self.eps = nn.Parameter(torch.zeros(stalk, 1)) if eps else None

    def forward(self, x: Tensor, dropped: Tensor, sheaf: Sheaf) -> Tensor:
        """One diffusion step of x [N, S, F]; `dropped` is x after dropout."""
        h = F.elu(sheaf.laplacian(torch.einsum("st,ntf->nsf", self.left, dropped) @ self.right))
        return (x if self.eps is None else (1.0 + torch.tanh(self.eps)) * x) - h


class SheafDiffusion(nn.Module):
    """Embeddings [N, f_in] -> [N, f_out]: a lift, `depth` layers of sheaf diffusion, a linear map.

    The lift is a linear map to N stalks of `stalk` x `channels`, then ELU unless `lift_act` is none. Every layer learns
    its own sheaf, or with `shared_maps` all use the one learned from the lifted features (FedSheafHN). SHN's setting is
    the default; FedSheafHN: stalk 1, channels 20, depth 4, shared_maps, dropout 0.3.
    """

    def __init__(
        self,
        f_in: int,
        f_out: int,
        *,
        stalk: int = 3,
        channels: int = 32,
        depth: int = 3,
        maps: Maps = "householder",
        act: Activation = "tanh",
        lift_act: Lift = "elu",
        augmented: bool = True,
        use_eps: bool = True,
        edge_weights: bool = False,
        shared_maps: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        choose(maps, MAPS, "maps")
        choose(act, ACTIVATIONS, "act")
        self.lift_act = LIFTS[choose(lift_act, LIFTS, "lift_act")]
        if min(stalk, channels, depth) < 1:
            raise BadInput(f"sheaf: stalk {stalk}, channels {channels} and depth {depth} must be at least 1")
        width = stalk * channels
        self.lift, self.out = nn.Linear(f_in, width), nn.Linear(width, f_out)
        self.learners = nn.ModuleList(
            SheafLearner(width, stalk, maps, act, edge_weights, augmented) for _ in range(1 if shared_maps else depth)
        )
        self.layers = nn.ModuleList(SheafLayer(stalk, channels, eps=use_eps) for _ in range(depth))
        self.stalk, self.dropout = stalk, dropout

    def steps(self, x: Tensor, edges: Tensor, *, key: Tensor | None = None) -> Iterator[tuple[Sheaf, Tensor]]:
        """Yield the sheaf of every layer, and the features [N, S, F] after the layer."""
        reverse = reverse_of(edges, len(x))
        lifted = self.lift_act(self.lift(x))
        h = dropout_keys.dropout(lifted, self.dropout, key, salt=0).unflatten(1, (self.stalk, -1))
        sheaf = None
        for depth, layer in enumerate(self.layers):
            if sheaf is None or len(self.learners) > 1:
                inputs = h if depth == 0 else dropout_keys.dropout(h, self.dropout, key, salt=2 * depth)
                sheaf = self.learners[depth](inputs.flatten(1), edges, reverse)
            h = layer(h, dropout_keys.dropout(h, self.dropout, key, salt=2 * depth + 1), sheaf)
            yield sheaf, h

    def forward(self, x: Tensor, edges: Tensor, *, key: Tensor | None = None) -> Tensor:
        """Embeddings x [N, f_in] on edges [2, E] (both directions, no self loops) -> [N, f_out]."""
        *_, (_, h) = self.steps(x, edges, key=key)
        return self.out(h.flatten(1))

    def energies(self, x: Tensor, edges: Tensor) -> Tensor:
        """Dirichlet energy [L] of the features after every layer, in the sheaf of that layer."""
        return torch.stack([sheaf.energy(h) for sheaf, h in self.steps(x, edges)])
