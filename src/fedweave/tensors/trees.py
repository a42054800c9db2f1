"""Trees: nested dictionaries of tensors. A stacked tree has a leading client axis, [N, ...] or [P, ...]."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedweave.tensors.storage import current_storage
from fedweave.tensors.tables import Table, join_rows

Tree = Any
Params = dict[str, Tensor]
T = TypeVar("T")
# Bytes of one client's tensor from which on a second copy of all clients' tensors costs more than one call each
LARGE = 2**20


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """`function` of every leaf of dictionaries, tuples and lists, and of its counterparts in `others`.

    It is four times faster than the function of pytree.

    Raises:
        ValueError: the trees have different structures.
    """
    if isinstance(tree, dict):
        if any(other.keys() != tree.keys() for other in others):
            raise ValueError(
                f"trees with different leaves: {', '.join(map(str, tree))} here, {[*map(list, others)]} there"
            )
        return {name: tree_map(function, value, *(other[name] for other in others)) for name, value in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [tree_map(function, *values) for values in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return function(tree, *others)


def is_mapped() -> bool:
    """Whether the caller runs inside a `torch.func` transform (the `batched` executor)."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def choose(condition: Tensor, one: Tree, other: Tree) -> Tree:
    """`one` where the 0-d `condition` holds, else `other`; outside of `vmap` the tree itself, without a copy."""
    if is_mapped():
        return tree_map(lambda a, b: torch.where(condition, a, b), one, other)
    return one if condition else other


def to_cpu(tree: Tree) -> Tree:
    """The tree on the CPU; entries that are no tensors stay as they are."""
    return tree_map(lambda t: t.cpu() if isinstance(t, Tensor) else t, tree)


def take(tree: Tree, ids: Tensor) -> Tree:
    """Rows `ids` [P] of a stacked tree; the tree itself if `ids` are all rows in order."""
    return tree if _is_all_rows(tree, ids) else tree_map(lambda t: t[ids.to(t.device)], tree)


def at(tree: Tree, i: int) -> Tree:
    """Client `i` of a stacked tree, without the client axis (a view)."""
    return tree_map(lambda t: t[i], tree)


def read_at(tree: Tree, i: int) -> Tree:
    """`at`; a row of a file knows its place there, so that it is not written again if nobody changes it."""
    return tree_map(lambda t: t.read_row(i) if isinstance(t, Table) else t[i], tree)


def put(tree: Tree, ids: Tensor, rows: Tree) -> Tree:
    """The stacked `tree` with `rows` in place of its rows `ids`; all other rows keep their bits."""
    is_whole = _is_all_rows(tree, ids)

    def put_leaf(t: Tensor, r: Tensor) -> Tensor:
        if is_whole and isinstance(r, Table):
            return r.to(t)
        if is_whole and not isinstance(t, Table):
            return r.to(t).contiguous()
        return t.index_copy(0, ids.to(t.device), r.to(t.dtype))

    return tree_map(put_leaf, tree, rows)


def _is_all_rows(tree: Tree, ids: Tensor) -> bool:
    """Whether `ids` are all rows of the stacked `tree` in order, so that taking or putting them needs no copy."""
    count = next((len(leaf) for leaf in tree_leaves(tree)), None)
    return len(ids) == count and torch.equal(ids, torch.arange(count, device=ids.device))


def stack(trees: Sequence[Tree]) -> Tree:
    """One stacked tree from equal single-client trees.

    A leaf that no client changed is not copied; a leaf that clients return twice is copied once.
    """
    stacks: dict[tuple[int, ...], Tensor] = {}

    def stack_leaves(*leaves: Tensor) -> Tensor:
        key = tuple(map(id, leaves))
        if key not in stacks:
            stacks[key] = _stack(leaves)
        return stacks[key]

    return tree_map(stack_leaves, *trees)


def _stack(leaves: Sequence[Tensor]) -> Tensor:
    if any(isinstance(leaf, Table) for leaf in leaves):
        return join_rows(leaves)
    return leaves[0]._base if _is_view_of_stack(leaves) else torch.stack(leaves)  # type: ignore


def collect_for_stack(trees: Iterable[Tree], count: int) -> list[Tree]:
    """`count` single-client trees for `stack`, each freed before the next is made.

    Large leaves are written straight into the memory of the stack.
    """
    stacks: dict[int, Tensor] = {}

    def move_tree(i: int, tree: Tree) -> Tree:
        copies: dict[int, Tensor] = {}
        counter = itertools.count()

        def move_leaf(leaf: Tensor) -> Tensor:
            position = next(counter)
            if isinstance(leaf, Table):
                return leaf
            if id(leaf) not in copies and leaf._base is None and leaf.nbytes >= LARGE:
                rows = stacks.setdefault(position, leaf.new_empty((count, *leaf.shape)))
                copies[id(leaf)] = (
                    rows[i].copy_(leaf) if (rows.shape[1:], rows.dtype) == (leaf.shape, leaf.dtype) else leaf
                )
            return copies.get(id(leaf), leaf)

        return tree_map(move_leaf, tree)

    return [*map(move_tree, range(count), trees)]


def _is_view_of_stack(leaves: Sequence[Tensor]) -> bool:
    """Whether `leaves` are the rows of one tensor, in order, as `at` gives them."""
    base = leaves[0]._base
    if base is None or base.shape != (len(leaves), *leaves[0].shape) or not base.is_contiguous():
        return False
    size = base[0].numel() * base.element_size()
    first = base.data_ptr()
    return all(
        leaf._base is base and leaf.is_contiguous() and leaf.data_ptr() == first + i * size
        for i, leaf in enumerate(leaves)
    )


def concat(trees: Sequence[Tree]) -> Tree:
    """Join stacked trees along the client axis."""
    return trees[0] if len(trees) == 1 else tree_map(lambda *leaves: torch.cat(leaves), *trees)


def broadcast(tree: Tree, n: int) -> Tree:
    """`n` equal copies of a single-client tree, materialised."""
    return tree_map(lambda t: t.expand(n, *t.shape).clone(), tree)


def equal(one: Tree, other: Tree) -> bool:
    """Whether two trees have the same leaves, and equal numbers in all of them."""
    if isinstance(one, dict):
        same = isinstance(other, dict) and one.keys() == other.keys()
        return same and all(equal(value, other[name]) for name, value in one.items())
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(equal, one, other))
    return one is other or (one.dtype == other.dtype and torch.equal(one, other))


def build_table(tree: Tree, clients: int) -> Tree:
    """`clients` equal rows of a single-client tree, stored in files inside `storage.use_storage`."""
    storage = current_storage()
    return broadcast(tree, clients) if storage is None else tree_map(lambda t: storage.create_table(t, clients), tree)


def grow(old: Tree, fresh: Tree) -> Tree:
    """`fresh` with `old` in the leading corner of every leaf: tables that gain rows or columns keep their values."""

    def fill_corner(a: Tensor, b: Tensor) -> Tensor:
        if isinstance(a, Table) and a.shape[1:] == b.shape[1:]:
            return a.append_rows(b[len(a) :])
        b = b.to(a, copy=True)
        b[tuple(slice(size) for size in a.shape)] = a
        return b

    return tree_map(fill_corner, old, fresh)


def column(values: Tensor, like: Tensor) -> Tensor:
    """`values` [P] in the shape [P, 1, ...] that broadcasts to the rows of `like` [P, ...]."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def norms(part: Tree) -> Tensor:
    """Euclidean norm of every row of a stacked tree, all leaves together: [P]."""

    def leaf_norms(leaf: Tensor) -> Tensor:
        if isinstance(leaf, Table):
            return leaf.products(leaf.default.new_zeros(0, leaf.default.numel()))[1].sqrt()
        return torch.linalg.vector_norm(leaf.flatten(1) if leaf.ndim > 1 else leaf[:, None], dim=1)

    return torch.linalg.vector_norm(torch.stack([*map(leaf_norms, tree_leaves(part))]), dim=0)


def sub(a: Tree, b: Tree) -> Tree:
    """a − b, leaf by leaf."""
    return tree_map(torch.sub, a, b)


def mix_rows(tree: Tree, weights: Tensor) -> Tree:
    """Σ_j weights[..., j] · row j of a stacked tree; weights [..., N] give leaves [..., *] of the tree's own dtype.

    Whole numbers and truth values have no mean: such a leaf is that of the row with the largest weight.
    """

    def mix_leaf(leaf: Tensor) -> Tensor:
        if leaf.dtype.is_floating_point:
            return torch.tensordot(weights.to(leaf), leaf, dims=1)
        return leaf[weights.argmax(-1).to(leaf.device)]

    return tree_map(mix_leaf, tree)


def weighted_mean(tree: Tree, weights: Tensor) -> Tree:
    """Mean over the client axis with `weights` [P], which need not sum to 1; integers as in `mix_rows`."""
    shares = weights.double()
    return mix_rows(tree, shares / shares.sum())


def select(params: Mapping[str, T], names: Iterable[str]) -> dict[str, T]:
    """The sub-tree with `names`, in the order of `params`."""
    selected = frozenset(names)
    return {name: value for name, value in params.items() if name in selected}


def omit(params: Mapping[str, T], names: Iterable[str]) -> dict[str, T]:
    """The sub-tree without `names`, in the order of `params`."""
    unwanted = frozenset(names)
    return {name: value for name, value in params.items() if name not in unwanted}


def to_matrix(params: Params) -> Tensor:
    """A stacked parameter dictionary as one matrix [N, P], columns in dictionary order."""
    return torch.cat([value.flatten(1) for value in params.values()], dim=1)


def flatten_paths(tree: Tree, prefix: str = "") -> Params:
    """A nested dictionary as one level, keys joined by '/'."""
    out: Params = {}
    for key, value in tree.items():
        out.update(flatten_paths(value, f"{prefix}{key}/") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return out


def named_leaves(tree: Tree, path: str = "") -> list[tuple[str, Any]]:
    """(path, leaf) of dictionaries, tuples and lists, such as ("model.fc.bias", its tensor); "" for a leaf alone."""
    if isinstance(tree, dict):
        parts: Iterable[tuple[Any, Any]] = tree.items()
    elif isinstance(tree, tuple | list):
        parts = zip(tree._fields, tree, strict=True) if hasattr(tree, "_fields") else enumerate(tree)
    else:
        return [(path, tree)]
    leaves: list[tuple[str, Any]] = []
    for name, part in parts:
        place = f"{path}.{name}" if path else str(name)
        if isinstance(part, Tensor):  # the usual case, without a call
            leaves.append((place, part))
        else:
            leaves += named_leaves(part, place)
    return leaves


def unflatten_paths(params: Params) -> Tree:
    """The inverse of `flatten_paths`."""
    tree: Tree = {}
    for key, value in params.items():
        *path, leaf = key.split("/")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = value
    return tree


def nbytes(tree: Tree, scalar: Callable[[Tensor], int] | None = None) -> int:
    """Bytes of a transfer: 4 per float in any precision of the simulation, 8 per integer, 1 per boolean."""
    size = scalar or (lambda t: 4 if t.is_floating_point() else t.element_size())
    return sum(leaf.numel() * size(leaf) for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
