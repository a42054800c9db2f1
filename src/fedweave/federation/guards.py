"""What users' own methods get wrong without an error: each is one `BadInput` line, for microseconds a round."""

import ctypes
import random
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedweave.errors import BadInput, format_value, suggest
from fedweave.tensors.trees import Tree

MT19937_BYTES = 625 * 4  # 624 words and the place of the next one
KEYED = (
    "take them from data.key with fedweave.tensors.dropout_keys.uniform (in a model: dropout_keys.dropout with its "
    "key), and those of the server's start from fedweave.tensors.seeding.use_seed(start.seed), so that seeds decide"
)


@contextmanager
def forbid_changes(server: Tree, name: str) -> Iterator[None]:
    """Refuse a step of the method `name` that writes into the state `server` that it was given.

    The state before a round is in use after it: downloads are made once, and a run can go on from it.
    """
    before = _snapshot(server, [], [])
    yield
    after = _snapshot(server, [], [])
    if before[1] != after[1] or not all(map(is_, before[0], after[0])):
        raise BadInput(
            f"{name}.aggregate: changed the state that it was given; return a new dictionary with new tensors"
        )


def _snapshot(tree: Tree, leaves: list[Any], notes: list[Any]) -> tuple[list[Any], list[Any]]:
    """The leaves of `tree`, and (names of every part, how often every leaf was written to)."""
    if isinstance(tree, dict):
        notes.append(tuple(tree))
        for part in tree.values():
            _snapshot(part, leaves, notes)
    elif isinstance(tree, tuple | list):
        notes.append(len(tree))
        for part in tree:
            _snapshot(part, leaves, notes)
    else:
        leaves.append(tree)
        notes.append(getattr(tree, "_version", None))
    return leaves, notes


@contextmanager
def forbid_unkeyed_draws(name: str) -> Iterator[None]:
    """Refuse a method `name` that draws from the global generators of PyTorch, NumPy or Python inside this block.

    Where the process has other threads, these may have drawn, so that it is a warning. A module that is imported in
    this block may draw too, as scikit-learn's do: then nothing is said, and the next round tells.
    """
    before, modules = _generators(), len(sys.modules)
    try:
        yield
    except RuntimeError as error:
        if "randomness error mode" not in str(error):  # of torch.func.vmap
            raise
        raise BadInput(f"{name}: draws random numbers without a key; {KEYED}") from error
    if _generators() == before or len(sys.modules) != modules:
        return
    if _is_only_thread():
        raise BadInput(f"{name}: draws random numbers without a key; {KEYED}")
    warnings.warn(f"{name}, or another thread, draws random numbers without a key; {KEYED}", stacklevel=3)


def _is_only_thread() -> bool:
    """Whether no other thread of this process can have drawn numbers; those of progress bars draw none."""
    others = (type(thread).__module__.split(".")[0] for thread in threading.enumerate())
    return len([package for package in others if package not in ("tqdm", "rich")]) == 1


def _generators() -> tuple[Any, ...]:
    """The states of the global generators. NumPy's is read where it lies: asked for, it takes 200 microseconds."""
    bits: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]
    known = isinstance(bits, np.random.MT19937)
    numbers = ctypes.string_at(bits.ctypes.state_address, MT19937_BYTES) if known else repr(bits.state)
    return torch.get_rng_state().numpy().tobytes(), numbers, random.getstate()


def check_local_names(hook: str, kept: object, names: frozenset[str]) -> None:
    """Refuse names that stay with a client, those that `hook` returned, unless they are `names` of its model.

    Raises:
        BadInput: naming the hook, the name and the nearest one of the model.
    """
    if isinstance(kept, str) or not isinstance(kept, Iterable):
        raise BadInput(f"{hook}: {format_value(kept)} is no tuple of names; return such as self.task.head")
    for one in kept:
        if one not in names:
            raise BadInput(
                f"{hook}: {format_value(one)} is no parameter of the model, so that nothing would stay with the "
                f"client; {suggest(str(one), names)}return such as self.task.head, or "
                "self.task.layers['NAME'] for a layer"
            )


def trainable_names(name: str, names: Iterable[str], model: Mapping[str, Any]) -> tuple[str, ...]:
    """The `names` that the method `name` trains of `model`.

    Raises:
        BadInput: there are none, or one is none of the model's.
    """
    if isinstance(names, str):
        raise BadInput(
            f"{name}: descend: names {format_value(names)} is no tuple of names; give such as self.task.head"
        )
    chosen = tuple(names)
    if not chosen:
        raise BadInput(
            f"{name}: descend: there are no parameters to train; name some, such as self.task.head, and where the "
            "model has no layer but its head, take a deeper one"
        )
    for one in chosen:
        if one not in model:
            raise BadInput(
                f"{name}: descend: the model has no parameter {format_value(one)}; {suggest(str(one), model)}"
                "names of the client's model are in self.task.params"
            )
    return chosen


def planned_epochs(name: str, epochs: slice, plan: Any) -> Any:
    """The `epochs` of a client's `plan` that the method `name` trains for.

    Raises:
        BadInput: the plan does not have them.
    """
    drawn = len(plan)
    if epochs.stop is None or epochs.stop <= drawn:
        return plan[epochs]
    out = (
        f"return more from {name}.epochs (for enrol: {name}.enrolment_epochs)"
        if drawn
        else f"train in client_update, in enrol by {name}.enrolment_epochs, or by fedweave.families.tuning.fine_tune"
    )
    raise BadInput(f"{name}: descend: epochs {epochs.start or 0} to {epochs.stop}, but a round draws {drawn}; {out}")


def check_graph(name: str, weights: object, layers: int, clients: int) -> None:
    """Refuse a collaboration graph of the method `name` that is not [layers, clients, clients].

    Raises:
        BadInput: naming its shape and the right one.
    """
    right = [layers, clients, clients]
    if isinstance(weights, Tensor) and [*weights.shape] == right:
        return
    given = [*weights.shape] if isinstance(weights, Tensor) else f"a {type(weights).__name__}"
    counted = f"{layers} layer{'s' * (layers > 1)} and {clients} client{'s' * (clients > 1)}"
    raise BadInput(f"{name}.collaboration: {given}, but the model has {counted}; return a tensor {right}")
