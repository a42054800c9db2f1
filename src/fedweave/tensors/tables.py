"""Tables of all clients whose rows are stored in memory-mapped files: tensors [N, ...] with a row per client.

A table is an immutable value, as every tensor of a state. All rows that were never written are one default row in
memory. A written row has a slot in a file, and an index says which slot. New rows are written to slots that no table
refers to, so older versions of a table (the state before a round, the one of a checkpoint) can still be read. A
checkpoint holds index, default row and name of the files.

A `Table` is a tensor: any function of PyTorch accepts it. Those in `HANDLED` read and write only the rows that they
need, or all rows block by block: selection of rows, `index_copy`, `cat` along clients, `flatten(1)`, `sum`, `equal`,
and `tensordot` with weights. Any other function gets the whole table as a tensor in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from fedweave.tensors.row_files import TableVersion

BLOCK = 2**26  # bytes of the rows that are in memory at once


class Table(Tensor):
    """A tensor [N, ...] with a row per client; see the docstring of the module.

    Attributes:
        version: the slots of its written rows.
        default: value [...] of all other rows, on the device of the table.
    """

    version: TableVersion
    default: Tensor

    @staticmethod
    def __new__(cls, version: TableVersion, default: Tensor) -> "Table":
        """The table of `version` and `default`."""
        shape = (len(version.slots), *default.shape)
        table: Table = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=default.dtype, device=default.device)
        table.version, table.default = version, default
        return table

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run functions in `HANDLED` on the rows that they need, all others on the whole table in memory."""
        handler = HANDLED.get(func)
        if handler is not None:
            result = handler(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """`func` on whole tensors in memory."""
        args, kwargs = tree_map_only(Table, lambda table: table.to_tensor(), (args, kwargs or {}))
        return func(*args, **kwargs)

    def __repr__(self) -> str:  # type: ignore[override]
        written = int((self.version.slots >= 0).sum())
        return f"Table({[*self.shape]}, {self.dtype}, {written} rows in {self.version.rows.path})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.to_tensor().__reduce_ex__(protocol)

    def rows_at(self, ids: Tensor) -> Tensor:
        """Rows `ids` [P] in memory, [P, ...]."""
        slots = self.version.slots[ids.cpu()]
        if bool((slots >= 0).all()):
            values = self.version.rows.read(slots).to(self.default.device)
            return values.reshape(len(slots), *self.default.shape)
        values = self.default.expand(len(slots), *self.default.shape).clone()
        written = (slots >= 0).nonzero()[:, 0]
        rows = self.version.rows.read(slots[written]).to(values.device)
        values.view(len(slots), -1)[written.to(values.device)] = rows
        return values

    def read_row(self, i: int) -> Tensor:
        """Row `i` in memory. `find_stored` finds its place in the files, if it is there."""
        row, slot = self.rows_at(torch.tensor([i]))[0], self.version.slots[i : i + 1]
        if int(slot) >= 0:
            row.stored = Table(TableVersion(self.version.rows, slot), self.default), row._version  # type: ignore[attr-defined]
        return row

    def with_rows(self, ids: Tensor, values: Tensor) -> "Table":
        """The table with `values` [P, ...] in place of its rows `ids` [P]."""
        slots, rows = self.version.slots.clone(), self.version.rows
        if isinstance(values, Table) and values.version.rows is rows and bool((values.version.slots >= 0).all()):
            slots[ids.cpu()] = values.version.slots
        else:
            slots[ids.cpu()] = rows.write(values.reshape(len(values), -1))
        return Table(TableVersion(rows, slots), self.default)

    def append_rows(self, values: Tensor) -> "Table":
        """The table with `values` [M, ...] after its rows."""
        slots = torch.cat([self.version.slots, torch.full((len(values),), -1)])
        longer = Table(TableVersion(self.version.rows, slots), self.default)
        new = (values != self.default).reshape(len(values), -1).any(1).nonzero()[:, 0]
        return longer.with_rows(new.cpu() + len(self), values[new]) if len(new) else longer

    def to_tensor(self) -> Tensor:
        """All rows in memory."""
        return self.rows_at(torch.arange(len(self.version.slots)))

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(ids [B], their rows [B, D]) of all written rows, in the order of clients and in blocks of `BLOCK` bytes."""
        written = (self.version.slots >= 0).nonzero()[:, 0]
        size = max(1, BLOCK // max(1, self.default.nbytes))
        for ids in written.split(size) if len(written) else ():
            yield ids.to(self.default.device), self.rows_at(ids).flatten(1)

    def mix_rows(self, weights: Tensor) -> Tensor:
        """Σ_j weights[..., j] · row j: weights [..., N] give [..., *]; differentiable in the weights."""
        flat: Tensor = _Mixture.apply(weights.reshape(-1, len(self.version.slots)), [self])
        return flat.reshape(*weights.shape[:-1], *self.default.shape)

    def products(self, x: Tensor, origin: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See the function `products`."""
        clients, start = len(self.version.slots), self.default.new_zeros(()) if origin is None else origin.flatten()
        default = self.default.flatten() - start
        result, squares = (x @ default)[:, None].repeat(1, clients), default.square().sum().repeat(clients)
        for ids, rows in self.blocks():
            rows -= start
            result[:, ids], squares[ids] = x @ rows.T, rows.square().sum(1)
        return result, squares


def find_stored(row: Tensor) -> Table | None:
    """The table [1, ...] of `row`, if it is of `Table.read_row` and nobody has written into it."""
    stored, writes = getattr(row, "stored", (None, 0))
    return stored if row._version == writes else None


def join_rows(rows: Sequence[Tensor]) -> Tensor:
    """The table of clients' `rows`, tables [1, ...] or tensors [...]; in memory if they are not all in one file.

    Raises:
        RuntimeError: rows of several shapes.
    """
    stored = [row for row in rows if isinstance(row, Table)]
    file, shape = stored[0].version.rows, stored[0].shape
    if len(stored) == len(rows) and all(row.version.rows is file and row.shape == shape for row in stored):
        slots = torch.cat([row.version.slots for row in stored])
        return Table(TableVersion(file, slots), stored[0].default.new_zeros(()).expand(shape[1:]))
    return torch.stack([row[0] if isinstance(row, Table) else row for row in rows])


class _Mixture(torch.autograd.Function):
    """Weights [P, N] and a table (in a list, as it has no gradient) -> mixtures [P, D]."""

    @staticmethod
    def forward(weights: Tensor, tables: list[Table]) -> Tensor:
        table = tables[0]
        unwritten = (table.version.slots < 0).to(weights.device)
        mixture = weights[:, unwritten].sum(1, keepdim=True) * table.default.flatten()
        for ids, rows in table.blocks():
            mixture += weights[:, ids] @ rows
        return mixture

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        del output
        ctx.table = inputs[1][0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.table.products(gradient)[0], None


def products(x: Tensor, table: Tensor, origin: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Scalar products [P, N] of the rows of `x` [P, D] with those of `table` [N, ...], and their squared lengths [N].

    The lengths are those of the table's rows; `origin` [...] is subtracted from these rows first.
    """
    if isinstance(table, Table):
        return table.products(x, origin)
    rows = (table if origin is None else table - origin).flatten(1)
    return x @ rows.T, rows.square().sum(1)


def add_products(total: Tensor, x: Tensor, table: Tensor) -> None:
    """Add to `total` [P, N] the scalar products of the rows of `x` [P, D] with those of `table` [N, ...]."""
    if isinstance(table, Table):
        total += table.products(x)[0]
    else:
        total.addmm_(x, table.flatten(1).T)


def _item(table: Tensor, index: Any) -> Any:
    if not isinstance(table, Table):
        return NotImplemented
    all_rows = torch.arange(len(table.version.slots))
    if isinstance(index, int):
        return table.rows_at(all_rows[index][None])[0]
    if isinstance(index, slice):
        return table.rows_at(all_rows[index])
    if type(index) is Tensor and index.ndim == 0 and index.dtype == torch.int64:
        return table.rows_at(all_rows[int(index)][None])[0]
    if type(index) is Tensor and index.ndim == 1 and index.dtype in (torch.int64, torch.bool):
        return table.rows_at(all_rows[index.cpu()])
    return NotImplemented


def _index_select(table: Tensor, dim: int, index: Tensor) -> Any:
    return table.rows_at(index) if isinstance(table, Table) and dim == 0 else NotImplemented


def _index_copy(table: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    return table.with_rows(index, source) if isinstance(table, Table) and dim == 0 else NotImplemented


def _flatten(table: Tensor, start_dim: int = 0, end_dim: int = -1) -> Any:
    if not isinstance(table, Table) or start_dim != 1 or end_dim not in (-1, table.default.ndim):
        return NotImplemented
    return Table(table.version, table.default.reshape(-1))


def _tensordot(a: Tensor, b: Tensor, dims: Any = 2, out: Any = None) -> Any:
    if isinstance(a, Table) or not isinstance(b, Table) or type(dims) is not int or dims != 1 or out is not None:
        return NotImplemented
    return b.mix_rows(a)


def _sum(table: Tensor, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(table, Table) or not table.numel() or args or kwargs:
        return NotImplemented
    slots, rows = table.version.slots, table.version.rows
    sums = [rows.view(slot).sum() for slot in slots[slots >= 0].tolist()]  # of the rows in their files
    unwritten = len(slots) - len(sums)
    sums += [unwritten * table.default.sum().cpu()] if unwritten else []
    return torch.stack(sums).sum().to(table.default.device)


def _equal(one: Tensor, other: Tensor) -> Any:
    if not (isinstance(one, Table) and isinstance(other, Table)) or one.version.rows is not other.version.rows:
        return NotImplemented
    if one.shape != other.shape:
        return False
    differ = (one.version.slots != other.version.slots) | (one.version.slots < 0)
    return all(torch.equal(one[int(i)], other[int(i)]) for i in differ.nonzero()[:, 0])


def _cat(tensors: Sequence[Tensor], dim: int = 0, **out: Any) -> Any:
    first, *others = tensors
    if not isinstance(first, Table) or dim != 0 or out or not others:
        return NotImplemented
    for other in others:
        first = first.append_rows(other.to_tensor() if isinstance(other, Table) else other)
    return first


def _to(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    like = next((arg for arg in args if isinstance(arg, Table)), None)
    if like is not None:
        args = tuple(like.default if arg is like else arg for arg in args)
    if not isinstance(tensor, Table):
        return tensor.to(*args, **kwargs)
    moved = tensor.default.to(*args, **kwargs)
    same = moved.dtype == tensor.default.dtype and not kwargs.get("copy")
    if not same:
        return NotImplemented
    return tensor if moved.device == tensor.default.device else Table(tensor.version, moved)


def _new(name: str) -> Callable[..., Any]:
    def create(table: Tensor, *args: Any, **kwargs: Any) -> Any:
        return getattr(table.default, name)(*args, **kwargs) if isinstance(table, Table) else NotImplemented

    return create


HANDLED: dict[Any, Callable[..., Any]] = {
    Tensor.__getitem__: _item,
    Tensor.index_select: _index_select,
    torch.index_select: _index_select,
    Tensor.index_copy: _index_copy,
    torch.index_copy: _index_copy,
    Tensor.flatten: _flatten,
    torch.flatten: _flatten,
    torch.tensordot: _tensordot,
    torch.cat: _cat,
    torch.equal: _equal,
    Tensor.sum: _sum,
    torch.sum: _sum,
    Tensor.to: _to,
    Tensor.cpu: lambda table: table.to_tensor().cpu(),
    Tensor.numpy: lambda table, **options: table.to_tensor().numpy(**options),
    Tensor.tolist: lambda table: table.to_tensor().tolist(),
    Tensor.detach: lambda table: table,
    **{getattr(Tensor, name): _new(name) for name in ("new_zeros", "new_ones", "new_empty", "new_full")},
}
