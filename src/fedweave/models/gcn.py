"""Two-layer graph convolutional network for subgraph clients (Kipf and Welling, arXiv:1609.02907)."""

import inspect
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedweave.errors import BadInput
from fedweave.models.base import ClientModel
from fedweave.models.registry import model
from fedweave.settings import Dropout, Size
from fedweave.tensors import dropout_keys
from fedweave.tensors.trees import column, is_mapped


def gcn_norm(edges: Tensor, nodes: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Edges [3, E + V] with their column order, and the entries [E + V] of D~^-1/2 (A + I) D~^-1/2.

    Every node has one self loop. `edges` [2, E] lists both directions of every edge (source row 0, target
    row 1); existing loops are not doubled.
    """
    return add_loops(edges[:, edges[0] != edges[1]], nodes, dtype)


def add_loops(edges: Tensor, nodes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`gcn_norm` of edges [2, E] without self loops. A GPU does not wait."""
    loops = torch.arange(nodes, device=edges.device).expand(2, -1)
    edges = torch.cat([edges, loops], dim=1)
    edges = add_column_order(edges[:, torch.argsort(edges[1], stable=True)])
    degree = torch.zeros(nodes, dtype=dtype, device=edges.device)
    scale = degree.index_add_(0, edges[1], degree.new_ones(edges.shape[1])).rsqrt()
    return edges, scale[edges[0]] * scale[edges[1]]


def add_column_order(places: Tensor) -> Tensor:
    """Cells [2, C] of a matrix, (column, row), sorted by row, with a third row: the order that sorts them by column."""
    return torch.cat([places, torch.argsort(places[0], stable=True)[None]])


class SparseMatrix(NamedTuple):
    """A sparse matrix [V, F] by its cells: `places` [3, C] by `add_column_order`, `values` [C].

    Cells of value 0 are padding. Bags of words are mostly zeros: on Cora one entry in eighty is not.
    """

    places: Tensor
    values: Tensor
    rows: int


def _multiply_sparse(h: Tensor, places: Tensor, values: Tensor, size: int) -> Tensor:
    # A bag of rows of h per row of the result: five times faster than a product in coordinate format.
    return F.embedding_bag(
        places[0], h.contiguous(), _row_starts(places[1], size), mode="sum", per_sample_weights=values
    )


def _row_starts(rows: Tensor, size: int) -> Tensor:
    """Where every row [size] begins in sorted `rows` [C]; on a CPU by `bincount`, for which a GPU would wait."""
    if rows.is_cuda:
        return torch.searchsorted(rows, torch.arange(size, device=rows.device))
    count = torch.bincount(rows, minlength=size)
    return count.cumsum(0) - count


class _SparseProduct(torch.autograd.Function):
    """Sparse [size, len(h)] times dense h, and its adjoint; under `vmap` one block diagonal product of all clients."""

    @staticmethod
    def forward(h: Tensor, places: Tensor, values: Tensor, size: int) -> Tensor:
        return _multiply_sparse(h, places, values, size)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
        del output
        ctx.save_for_backward(*inputs[:3])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        h, places, values = ctx.saved_tensors
        need_h, _, need_values, _ = ctx.needs_input_grad
        grad_h = _multiply_transposed(grad, places, values, len(h)) if need_h else None
        if not need_values:
            return grad_h, None, None, None
        return grad_h, None, (grad.index_select(0, places[1]) * h.index_select(0, places[0])).sum(-1), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        n, size = info.batch_size, inputs[3]
        h, places, values = (
            x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(inputs[:3], in_dims, strict=False)
        )
        number = torch.arange(n, device=places.device)
        offsets = torch.stack([number * h.shape[1], number * size, number * places.shape[-1]], 1)  # of every block
        blocks = (places + offsets[..., None]).movedim(0, 1).reshape(3, -1)
        return _SparseProduct.apply(h.flatten(0, 1), blocks, values.reshape(-1), n * size).unflatten(0, (n, size)), 0


# `apply` binds its arguments by the signature of `forward`, which it would otherwise compute in every call.
_SparseProduct.forward.__signature__ = inspect.signature(_SparseProduct.forward)  # type: ignore[attr-defined]


def _multiply_transposed(grad: Tensor, places: Tensor, values: Tensor, size: int) -> Tensor:
    """The transposed product: the same cells in the order of their columns."""
    order = places[2]
    if not is_mapped():
        return _multiply_sparse(grad, places[:2].flip(0)[:, order], values[order], size)
    return _SparseProduct.apply(
        grad, torch.stack([places[1][order], places[0][order], torch.argsort(order)]), values[order], size
    )


def select_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows [E, ...] of x [V, ...] at `index` [E]. A GPU sums the gradient in a fixed order, unlike `index_select`."""
    return sparse_select(x, index) if x.is_cuda else x.index_select(0, index)


def add_at(x: Tensor, index: Tensor, rows: Tensor, scale: float = 1.0) -> Tensor:
    """x [V, ...] plus `scale` times `rows` [E, ...] at `index` [E]. A GPU sums in a fixed order, unlike `scatter_add`.

    On a CPU, `scatter_add` of narrow rows is four times faster than `index_add`.
    """
    if x.is_cuda:
        return x + scale * sparse_sum(rows, index, len(x))
    return x.scatter_add(0, column(index, rows).expand_as(rows), scale * rows)


def sparse_select(x: Tensor, index: Tensor) -> Tensor:
    """`select_rows` as a product with a sparse matrix."""
    return _multiply_indicator(x, index, torch.arange(len(index), device=index.device), len(index))


def sparse_sum(rows: Tensor, index: Tensor, size: int) -> Tensor:
    """Sums [size, ...] of `rows` [E, ...] by `index` [E], as a product with a sparse matrix."""
    order = torch.argsort(index, stable=True)
    return _multiply_indicator(rows, order, index[order], size)


def _multiply_indicator(h: Tensor, columns: Tensor, rows: Tensor, size: int) -> Tensor:
    """The product of h [V, ...] and a matrix [size, V] with ones at `columns` and sorted `rows`."""
    places = add_column_order(torch.stack([columns, rows]))
    return _SparseProduct.apply(h.flatten(1), places, h.new_ones(len(rows)), size).unflatten(1, h.shape[1:])


def propagate(h: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
    """Sum of weighted source rows per target, [V, D] -> [V, D]; differentiable in `h` and `weight` [E].

    `edges` [3, E] run from row 0 to row 1, with the order of `add_column_order`; an edge of weight 0 is padding. No
    [E, D] message is stored.
    """
    return _SparseProduct.apply(h, edges, weight, len(h))


def project(x: Tensor | SparseMatrix, weight: Tensor) -> Tensor:
    """x W [V, D] of dense or sparse features, for W [F, D]."""
    return _SparseProduct.apply(weight, x.places, x.values, x.rows) if isinstance(x, SparseMatrix) else x @ weight


class GraphConv(nn.Module):
    """Propagation of x W plus b, with W [fan_in, fan_out] from Glorot's uniform law and b zero.

    A row of W belongs to a word: a sparse product reads and writes whole rows.
    """

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(fan_out, fan_in)).T.contiguous())
        self.bias = nn.Parameter(torch.zeros(fan_out))

    def forward(self, x: Tensor | SparseMatrix, edges: Tensor, weight: Tensor) -> Tensor:
        """[V, fan_in] -> [V, fan_out] on a normalised graph, see `gcn_norm`."""
        return propagate(project(x, self.weight), edges, weight) + self.bias


@model("gcn")
class GCN(ClientModel):
    """gcn1 -> ReLU -> dropout -> gcn2 -> ReLU -> dropout -> fc: the client of FedSheafHN.

    Input (x [V, F] or its `SparseMatrix`, edges [3, E], weight [E]) with the normalised graph of `gcn_norm`, output
    [V, C]. FedSheafHN generates gcn1 and gcn2, 200,064 parameters on Cora. The head stays with the client.
    """

    head = ("fc",)
    reads = "graph"

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        *,
        hidden: Annotated[Size, "width of both convolutions"] = 128,
        dropout: Annotated[Dropout, "dropout of both activations"] = 0.3,
        xavier: Annotated[bool, "draw weights and biases of the classifier by Xavier's law"] = False,
    ) -> None:
        super().__init__()
        if not 0.0 <= dropout < 1.0:
            raise BadInput(f"model.dropout: {dropout!r} is not in [0, 1); try 0.3")
        self.gcn1 = GraphConv(shape[-1], hidden)
        self.gcn2 = GraphConv(hidden, hidden)
        self.fc = nn.Linear(hidden, outputs)
        if xavier:
            nn.init.xavier_uniform_(self.fc.weight)
            nn.init.xavier_uniform_(self.fc.bias.data[None])
        self.dropout = dropout

    def embed(self, x: tuple[Tensor | SparseMatrix, Tensor, Tensor], *, key: Tensor | None = None) -> Tensor:
        """Node embeddings [V, D]: the second convolution before its ReLU."""
        nodes, edges, weight = x
        h = dropout_keys.dropout(F.relu(self.gcn1(nodes, edges, weight)), self.dropout, key, salt=1)
        return self.gcn2(h, edges, weight)

    def features(
        self, x: tuple[Tensor | SparseMatrix, Tensor, Tensor], *, key: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Input of the classifier [V, D]."""
        del mask
        return dropout_keys.dropout(F.relu(self.embed(x, key=key)), self.dropout, key, salt=2)
