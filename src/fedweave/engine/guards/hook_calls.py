"""What stands around every call of a method's hook: refusal of writes into what it was given, and of missing entries.

What a hook was given is used after the call: downloads are made from the state before a round, the next round starts
from the private states that an evaluation has read, and data belong to all clients. The check compares version
counters, which PyTorch increases at every write, so that it takes microseconds per call. It stands around the call for
all clients: in `torch.func.vmap`, a client's tensors have counters of their own, but a write reaches the stacked
tensor that they are parts of.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from torch import Tensor

from fedweave.engine.clients import Cohort
from fedweave.errors import BadInput
from fedweave.registry import error_line, users_file
from fedweave.tensors.trees import Tree

COPY = "write into a copy, x.clone(), or use an operation that returns a new tensor, such as x + y in place of x += y"
# Parts of PyTorch's own messages about writes that cannot be done: for one client of several at once, or in autograd.
IMPOSSIBLE = (
    "inplace arithmetic",
    "inplace operation",
    "in-place operation",
    "doesn't match the broadcast shape",
    "written-to tensor refers to a single memory location",
    "accessing `data`",
)
MOST_NAMES = 8  # of a dictionary in a message
_compares: ContextVar[bool] = ContextVar("compares", default=False)


class _Snapshot(NamedTuple):
    """What a hook was given.

    Attributes:
        names: of the entries of every container, from the outermost one on.
        leaves: everything that is not a container, in this order.
        versions: how often each leaf was written to.
        copies: of the leaves, if values are compared.
    """

    names: list[tuple[Any, ...]]
    leaves: list[Any]
    versions: list[int | None]
    copies: list[Any]


@contextmanager
def guard_call(method: object, hook: str, **given: Tree) -> Iterator[None]:
    """Refuse a call of `hook` in this block that writes into what it was `given`, by the names of its arguments.

    Raises:
        BadInput: a tensor was written to, a dictionary has other entries, or a user's method reads an entry or a row
            that is not there; it names the method, the hook and the entry.
    """
    name, before = f"{type(method).__name__}.{hook}", _snapshot(given)
    try:
        yield
    except KeyError as error:
        if users_file(type(method)) is None:
            raise
        raise BadInput(_describe_missing(type(method), name, error, given)) from error
    except IndexError as error:
        if users_file(type(method)) is None:
            raise
        raise BadInput(_describe_range(type(method), name, error)) from error
    except RuntimeError as error:
        if not any(words in str(error) for words in IMPOSSIBLE):
            raise
        reason = str(error).splitlines()[0].rstrip(".")
        raise BadInput(f"{name}, or a function that it calls, writes into a tensor: {reason}; {COPY}") from error
    if change := _find_change(before, given):
        raise BadInput(f"{name}, or a function that it calls, {change}")


def _describe_missing(cls: type, name: str, error: KeyError, given: dict[str, Tree]) -> str:
    """The entry that is not there, the line that reads it, and the entries that the hook `name` was given."""
    place = _describe_place(cls, error)
    trees = {argument: tree for argument, tree in given.items() if isinstance(tree, dict) and argument != "data"}
    entries = "; ".join(f"{argument}: {_list_names(tree)}" for argument, tree in trees.items())
    return (
        f"{name}, or a function that it calls{place}, reads the entry {error}, which is not there; it was given "
        f"{entries or 'no dictionary'}"
    )


def _describe_range(cls: type, name: str, error: IndexError) -> str:
    """The row that is not there, and the line that reads it."""
    reason = str(error).splitlines()[0].rstrip(".")
    return (
        f"{name}, or a function that it calls{_describe_place(cls, error)}, reads a row that is not there: {reason}; "
        "a table of clients needs a row for each client, and for those that join later too (add_rows or admit)"
    )


def _describe_place(cls: type, error: Exception) -> str:
    """The file and the line of the user who wrote `cls`; empty for an error from elsewhere."""
    line, file = error_line(cls, error), users_file(cls)
    return f" ({file.name}, line {line})" if file and line else ""


def _list_names(tree: dict[Any, Any]) -> str:
    names = [*map(str, tree)]
    return ", ".join([*names[:MOST_NAMES], *(["..."] if len(names) > MOST_NAMES else [])]) or "nothing"


def data_of(cohort: Cohort) -> Tree:
    """What the clients of `cohort` read, by the names of `ClientData`."""
    federation = cohort.federation
    arrays = {**federation.shared, **federation.own}
    return {"arrays": arrays, "train": federation.train, "val": federation.val, "test": federation.test}


@contextmanager
def compare_values() -> Iterator[None]:
    """In this block, `guard_call` also compares values, for writes without a counter: by NumPy, or to `x.data`.

    All that a hook is given is copied for it.
    """
    token = _compares.set(True)
    try:
        yield
    finally:
        _compares.reset(token)


def _snapshot(tree: Tree) -> _Snapshot:
    names, leaves = list[tuple[Any, ...]](), list[Any]()
    _collect(tree, names, leaves)
    versions = [getattr(leaf, "_version", None) for leaf in leaves]
    copies = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves] if _compares.get() else []
    return _Snapshot(names, leaves, versions, copies)


def _collect(tree: Tree, names: list[tuple[Any, ...]], leaves: list[Any]) -> None:
    """Append the names of all containers and all leaves of `tree`, which is a container."""
    parts = _parts(tree)
    names.append(tuple(parts))
    for part in parts.values():
        if isinstance(part, dict | tuple | list):
            _collect(part, names, leaves)
        else:
            leaves.append(part)


def _parts(tree: Tree) -> dict[Any, Any]:
    """The entries of a container by name, or by position where they have no names."""
    if isinstance(tree, dict):
        return tree
    return tree._asdict() if hasattr(tree, "_asdict") else dict(enumerate(tree))


def _find_change(before: _Snapshot, tree: Tree) -> str:
    """What differs between a snapshot and `tree` now, in words; empty if nothing does."""
    after = _snapshot(tree)
    if before.names != after.names:
        change = _changed_names(before.names, after.names, _paths(tree, containers=True))
        return f"{change} a dictionary that is used after the call; return a new dictionary with new tensors"
    for k, (old, new) in enumerate(zip(before.leaves, after.leaves, strict=True)):
        if old is not new:
            path = _paths(tree)[k]
            return f"replaces {path}, which is used after the call; return a new dictionary with new tensors"
        if before.versions[k] != after.versions[k] or (before.copies and not _is_equal(before.copies[k], new)):
            return f"writes into {_paths(tree)[k]}, which is used after the call; {COPY}"
    return ""


def _changed_names(before: list[tuple[Any, ...]], after: list[tuple[Any, ...]], paths: list[str]) -> str:
    """What happened to the first container with other entries, by the `paths` of those after the call."""
    if len(before) != len(after):  # so that the paths are those of other containers
        return "changes"
    for old, new, path in zip(before, after, paths, strict=True):
        if added := [name for name in new if name not in old]:
            return f"adds {path}{added[0]} to"
        if removed := [name for name in old if name not in new]:
            return f"removes {path}{removed[0]} from"
    return "changes"


def _paths(tree: Tree, path: str = "", *, containers: bool = False) -> list[str]:
    """Paths of the leaves of `tree` in the order of `_collect`, or of its containers, which end with a dot."""
    paths = [path] if containers else []
    for name, part in _parts(tree).items():
        if isinstance(part, dict | tuple | list):
            paths += _paths(part, f"{path}{name}.", containers=containers)
        elif not containers:
            paths.append(f"{path}{name}")
    return paths


def _is_equal(copy: Any, leaf: Any) -> bool:
    """Whether a tensor has the values of its copy, where NaN equals NaN."""
    return copy is leaf or bool(((copy == leaf) | ((copy != copy) & (leaf != leaf))).all())
