"""Checks for mistakes of users' methods that would give no error. Each raises one line of `BadInput`.

A check takes microseconds per round.
"""

import ctypes
import random
import sys
import threading
import traceback
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedweave.errors import BadInput, format_value, suggest

MT19937_BYTES = 625 * 4  # 624 words and the position of the next one
KEYED = (
    "take them from data.key with fedweave.tensors.dropout_keys.uniform (in a model: dropout_keys.dropout with its "
    "key), and those of the server's start from fedweave.tensors.seeding.use_seed(start.seed), so that seeds decide; a "
    "network of PyTorch draws wherever it is built: keep it as fedweave.families.architecture(Net, ...), and run that"
)


@contextmanager
def forbid_unkeyed_draws(name: str, when: str = "") -> Iterator[None]:
    """Refuse a method `name` that draws from the global generators of PyTorch, NumPy or Python inside this block.

    If the process has other threads, these may have drawn, so it is a warning only. A module that is imported in this
    block may draw too, as those of scikit-learn do. Then nothing is reported in this round; the next round shows it.

    Args:
        when: the part of the run that the block is, for the message.
    """
    before, modules = _generators(), len(sys.modules)
    message = f"draws random numbers without a key{when and f' ({when})'}; {KEYED}"
    try:
        yield
    except RuntimeError as error:
        if "randomness error mode" not in str(error):  # of torch.func.vmap
            raise
        raise BadInput(name, f"{message}") from error
    if _generators() == before or len(sys.modules) != modules:
        return
    if _is_only_thread():
        raise BadInput(name, f"{message}")
    warnings.warn(f"{name}, or another thread, {message}", stacklevel=3)


@contextmanager
def forbid_values() -> Iterator[None]:
    """Refuse code of a client that reads the value of a tensor, which stacked clients do not have one of."""
    try:
        yield
    except RuntimeError as error:
        if "data-dependent control flow" not in str(error) and "calling .item()" not in str(error):
            raise
        own = [
            f
            for f in traceback.extract_tb(error.__traceback__)
            if Path(torch.__file__).parent not in Path(f.filename).parents
        ]
        raise BadInput(
            f"{Path(own[-1].filename).name}, line {own[-1].lineno}: reads the value of a tensor, as `if` and .item() "
            "do, which many clients at once do not have; use torch.where, or train with executor: loop"
        ) from error


def _is_only_thread() -> bool:
    """Whether no other thread of this process can have drawn numbers; those of progress bars draw none."""
    packages = (type(thread).__module__.split(".")[0] for thread in threading.enumerate())
    return len([package for package in packages if package not in ("tqdm", "rich")]) == 1


def _generators() -> tuple[Any, ...]:
    """The states of the global generators.

    NumPy's state is read from its memory, because its own function takes 200 microseconds.
    """
    generator: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]
    is_default = isinstance(generator, np.random.MT19937)
    numpy_state = (
        ctypes.string_at(generator.ctypes.state_address, MT19937_BYTES) if is_default else repr(generator.state)
    )
    return torch.get_rng_state().numpy().tobytes(), numpy_state, random.getstate()


def check_names(hook: str, names: object, known: Collection[str], way: str) -> None:
    """Refuse `names` of parameters, returned by `hook` or given to it, that are not `known`; `way` says which are."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise BadInput(hook, f"{format_value(names)} is not a tuple of names; for example self.task.head")
    for name in names:
        if name not in known:
            problem = f"{format_value(name)} is not a parameter of the model"
            raise BadInput(hook, f"{problem}; {suggest(str(name), known)}{way}")


def trainable_names(name: str, names: Iterable[str], model: Mapping[str, Any]) -> tuple[str, ...]:
    """The `names` that the method `name` trains of `model`.

    Raises:
        BadInput: there are none, or one is none of the model's.
    """
    check_names(f"{name}: descend", names, model, "names of the client's model are in self.task.params")
    if not (chosen := tuple(names)):
        raise BadInput(
            f"{name}: descend",
            "there are no parameters to train; name some, such as self.task.head, and where the "
            "model has no layer but its head, take a deeper one",
        )
    return chosen


def planned_epochs(name: str, epochs: slice, plan: Any) -> Any:
    """The `epochs` of a client's `plan` that the method `name` trains for.

    Raises:
        BadInput: the plan does not have them.
    """
    if not isinstance(epochs, slice):
        raise BadInput(f"{name}: descend", f"epochs {format_value(epochs)} is not a slice; for example slice(0, 1)")
    available = len(plan)
    if epochs.stop is None or epochs.stop <= available:
        return plan[epochs]
    remedy = (
        f"return more from {name}.epochs (for enrol: {name}.enrolment_epochs)"
        if available
        else f"train in client_update, in enrol by {name}.enrolment_epochs, or by fedweave.families.tuning.fine_tune"
    )
    raise BadInput(
        f"{name}: descend", f"epochs {epochs.start or 0} to {epochs.stop}, but a round draws {available}; {remedy}"
    )
