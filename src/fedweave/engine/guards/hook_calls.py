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
from typing import Any

from torch import Tensor

from fedweave.engine.clients import Cohort
from fedweave.errors import BadInput, first_line
from fedweave.registry import error_line, users_file
from fedweave.tensors.trees import Tree, named_leaves

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

Snapshot = dict[str, tuple[Any, int | None, Any]]
"""Path -> a leaf, how often it was written to, and its copy if values are compared."""


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
    except (KeyError, IndexError) as error:
        if users_file(type(method)) is None:
            raise
        what = _describe_missing(error, given) if isinstance(error, KeyError) else _describe_range(error)
        place = _describe_place(type(method), error)
        raise BadInput(f"{name}, or a function that it calls{place}, reads {what}") from error
    except RuntimeError as error:
        if not any(words in str(error) for words in IMPOSSIBLE):
            raise
        reason = first_line(error).rstrip(".")
        raise BadInput(f"{name}, or a function that it calls, writes into a tensor: {reason}; {COPY}") from error
    if change := _find_change(before, given):
        raise BadInput(f"{name}, or a function that it calls, {change}")


def _describe_missing(error: KeyError, given: dict[str, Tree]) -> str:
    """The entry that is not there, and the entries that the hook was given."""
    trees = {argument: tree for argument, tree in given.items() if isinstance(tree, dict) and argument != "data"}
    entries = "; ".join(f"{argument}: {_list_names(tree)}" for argument, tree in trees.items())
    return f"the entry {error}, which is not there; it was given {entries or 'no dictionary'}"


def _describe_range(error: IndexError) -> str:
    """The row that is not there."""
    reason = first_line(error).rstrip(".")
    return (
        f"a row that is not there: {reason}; a table of clients needs a row for each client, and for those that join "
        "later too (add_rows or admit)"
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


def _snapshot(tree: Tree) -> Snapshot:
    copies = _compares.get()
    return {
        path: (
            leaf,
            getattr(leaf, "_version", None),
            leaf.detach().clone() if copies and isinstance(leaf, Tensor) else leaf,
        )
        for path, leaf in named_leaves(tree)
    }


def _find_change(before: Snapshot, tree: Tree) -> str:
    """What differs between a snapshot and `tree` now, in words; empty if nothing does."""
    after = dict(named_leaves(tree))
    if others := [path for path in (*after, *before) if (path in after) != (path in before)]:
        change = f"adds {others[0]} to" if others[0] in after else f"removes {others[0]} from"
        return f"{change} a dictionary that is used after the call; return a new dictionary with new tensors"
    for path, (old, version, copy) in before.items():
        if old is not after[path]:
            return f"replaces {path}, which is used after the call; return a new dictionary with new tensors"
        if getattr(old, "_version", None) != version or (copy is not old and not _is_equal(copy, old)):
            return f"writes into {path}, which is used after the call; {COPY}"
    return ""


def _is_equal(copy: Any, leaf: Any) -> bool:
    """Whether a tensor has the values of its copy, where NaN equals NaN."""
    return bool(((copy == leaf) | ((copy != copy) & (leaf != leaf))).all())
