"""Two-layer graph convolutional network for subgraph clients (Kipf and Welling, arXiv:1609.02907)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedweave import keys
from fedweave.errors import BadInput
from fedweave.models.base import ClientModel


def gcn_norm(edges: Tensor, nodes: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Edges [2, E + V] with one self loop per node, and the entries [E + V] of D~^-1/2 (A + I) D~^-1/2.

    `edges` [2, E] lists both directions of every edge (source row 0, target row 1); loops already there are
    not doubled. The result is sorted by target, the order in which `propagate` is fastest.
    """
    loops = torch.arange(nodes, device=edges.device).expand(2, -1)
    edges = torch.cat([edges[:, edges[0] != edges[1]], loops], dim=1)
    edges = edges[:, torch.argsort(edges[1], stable=True)]
    scale = torch.bincount(edges[1], minlength=nodes).to(dtype).rsqrt()
    return edges, scale[edges[0]] * scale[edges[1]]


class _Propagate(torch.autograd.Function):
    """Sparse-dense product and its adjoint; mapped over clients it is one block diagonal product."""

    @staticmethod
    def forward(h: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
        size = (len(h), len(h))
        matrix = torch.sparse_coo_tensor(edges.flip(0), weight, size, check_invariants=False)
        return torch.sparse.mm(matrix, h)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        del output
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        h, edges, weight = ctx.saved_tensors
        need_h, _, need_weight = ctx.needs_input_grad
        grad_h = _Propagate.apply(grad, edges.flip(0), weight) if need_h else None
        if not need_weight:
            return grad_h, None, None
        return grad_h, None, (grad.index_select(0, edges[1]) * h.index_select(0, edges[0])).sum(-1)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        n = info.batch_size
        h, edges, weight = (x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in zip(inputs, in_dims, strict=True))
        offset = torch.arange(n, device=edges.device)[:, None, None] * h.shape[1]
        blocks = (edges + offset).movedim(0, 1).reshape(2, -1)
        return _Propagate.apply(h.flatten(0, 1), blocks, weight.reshape(-1)).view_as(h), 0


def propagate(h: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
    """Sum of weighted source rows per target, [V, D] -> [V, D]; differentiable in `h` and `weight` [E].

    `edges` [2, E] run from row 0 to row 1; an edge of weight 0 is padding. No [E, D] message is ever stored.
    """
    return _Propagate.apply(h, edges, weight)


class GraphConv(nn.Module):
    """Propagation of W x plus b, with W [fan_out, fan_in] from Glorot's uniform law and b zero."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(fan_out, fan_in)))
        self.bias = nn.Parameter(torch.zeros(fan_out))

    def forward(self, x: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
        """[V, fan_in] -> [V, fan_out] on a normalised graph, see `gcn_norm`."""
        return propagate(F.linear(x, self.weight), edges, weight) + self.bias


class GCN(ClientModel):
    """gcn1 -> ReLU -> dropout -> gcn2 -> ReLU -> dropout -> fc: the client of FedSheafHN.

    Input (x [V, F], edges [2, E], weight [E]) with the normalised graph of `gcn_norm`, output [V, C]. Without
    the head, gcn1 and gcn2 hold the generated parameters: 200,064 on Cora.
    """

    head = ("fc",)

    def __init__(self, shape: tuple[int, ...], outputs: int, *, hidden: int = 128, dropout: float = 0.3) -> None:
        super().__init__()
        if not 0.0 <= dropout < 1.0:
            raise BadInput(f"model.dropout: {dropout!r} is not in [0, 1); try 0.3")
        self.gcn1 = GraphConv(shape[-1], hidden)
        self.gcn2 = GraphConv(hidden, hidden)
        self.fc = nn.Linear(hidden, outputs)
        self.dropout = dropout

    def embed(self, x: tuple[Tensor, Tensor, Tensor], *, key: Tensor | None = None) -> Tensor:
        """Node embeddings [V, D]: the second convolution before its ReLU."""
        nodes, edges, weight = x
        h = keys.dropout(F.relu(self.gcn1(nodes, edges, weight)), self.dropout, key, salt=1)
        return self.gcn2(h, edges, weight)

    def features(self, x: tuple[Tensor, Tensor, Tensor], *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Input of the classifier [V, D]."""
        del mask
        return keys.dropout(F.relu(self.embed(x, key=key)), self.dropout, key, salt=2)
