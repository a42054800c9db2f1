"""The checks of models and data sets that users call."""

import inspect
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedweave.client import model_check
from fedweave.client.task import RowClassification
from fedweave.data.base import Dataset
from fedweave.data.facts import check_finite
from fedweave.errors import BadInput
from fedweave.models.base import ClientModel, check_parameters, find_norms, has_running_moments, make_constants
from fedweave.testing.federations import CLASSES


def check_model(build: Callable[..., ClientModel], shape: tuple[int, ...] = (1, 8, 8), outputs: int = CLASSES) -> None:
    """Check that a client model can be trained by every executor: its head, and what `fedweave.compare` checks.

    Args:
        build: the class, or a function of (shape, outputs).
        shape: of one input, without the batch.
        outputs: number of outputs per row.

    Raises:
        AssertionError: naming what is broken.
    """
    torch.manual_seed(0)
    model, x = build(shape, outputs), torch.randn(8, *shape, dtype=torch.float64)
    name = type(model).__name__
    assert isinstance(model, ClientModel), f"{name}: derive it from fedweave.models.ClientModel"
    make_constants(model)
    _check_head(model, name)
    _check_normalisation(model, name)
    task, given = RowClassification(partial(_build_trainable, build, shape, outputs), torch.float64), x.clone()
    with suppress(Exception):  # the checks below say what it is
        task.call(task.init(0), x)
    assert torch.equal(x, given), f"{name}: writes into its inputs; make new tensors"
    try:
        check_parameters(model, name)
        model_check.check_model(task, x, outputs, name)
    except BadInput as error:
        raise AssertionError(str(error)) from error


def _check_head(model: ClientModel, name: str) -> None:
    modules: dict[str, nn.Module] = dict(model.named_children())
    head = getattr(model, "head", ())
    assert head, f"{name}: head must be the names of its last modules, a tuple"
    unknown = [part for part in model.head if part not in modules]
    assert not unknown, f"{name}: head names {unknown[0]!r}, which is not a module of it; it has {', '.join(modules)}"


def _check_normalisation(model: ClientModel, name: str) -> None:
    """Refuse PyTorch's batch normalisation, and a `has_batch_norm` that the layers contradict.

    The former follows `training`, which fedweave does not set, and counts padded rows.
    """
    for path, module in model.named_modules():
        is_own = type(module).__module__.startswith("torch.") and isinstance(module, nn.modules.batchnorm._BatchNorm)
        assert not is_own, (
            f"{name}: {path} is a {type(module).__name__} of PyTorch; use BatchNorm of fedweave.models.base, and "
            "call it with key=key, mask=mask"
        )
    if "batch_norm" in inspect.signature(type(model).__init__).parameters:  # the option says so
        return
    norms = [path for path, module in model.named_modules() if has_running_moments(module)]
    assert model.has_batch_norm or not norms, (
        f"{name}: {norms[0]} is a BatchNorm layer; set has_batch_norm = True in the class, as FedBN and "
        "train.bn_buffers need it"
    )
    assert find_norms(model) or not model.has_batch_norm, (
        f"{name}: has_batch_norm is True, but no layer is batch normalisation; leave it out"
    )


def _build_trainable(build: Callable[..., ClientModel], shape: tuple[int, ...], outputs: int) -> ClientModel:
    """A model as runs make it, with its frozen parameters as constants."""
    model = build(shape, outputs)
    make_constants(model)
    return model


def check_dataset(loader: Callable[[Path], Dataset], root: Path | str | None = None) -> None:
    """Check that a loader gives a data set that can be partitioned, and the same one in every call.

    Args:
        loader: a function of the folder of downloaded files.
        root: this folder; by default an empty one.

    Raises:
        AssertionError: naming what is broken.
    """
    with tempfile.TemporaryDirectory() as empty:
        folder = Path(root or empty)
        try:
            first, second = loader(folder), loader(folder)
        except BadInput as error:  # its line says what is wrong
            raise AssertionError(f"{_loader_name(loader)}: {error}") from error
        except Exception as error:  # whatever the code of a user raises
            raise AssertionError(f"{_loader_name(loader)}: {type(error).__name__}: {error}") from error
    assert isinstance(first, Dataset), (
        f"{_loader_name(loader)}: returned an object of type {type(first).__name__}; return a fedweave.data.Dataset"
    )
    try:  # first, as a value that is not a number differs from itself
        check_finite(first.x, f"dataset {first.name}", "replace or drop these values")
    except BadInput as error:
        raise AssertionError(str(error)) from error
    for field in fields(Dataset):
        same = _is_equal(getattr(first, field.name), getattr(second, field.name))
        assert same, f"{first.name}: {field.name} differs when it is loaded again; fix the seed"
    if first.y is not None:
        counts = np.bincount(first.y, minlength=first.classes)
        assert (counts > 0).all(), f"{first.name}: no row has class {int(np.argmin(counts))}; correct classes or y"


def _is_equal(first: Any, second: Any) -> bool:
    if hasattr(first, "equals"):  # a table
        return bool(first.equals(second))
    arrays = isinstance(first, np.ndarray) or isinstance(second, np.ndarray)
    return bool(np.array_equal(first, second) if arrays else first == second)


def _loader_name(loader: Callable[..., Any]) -> str:
    return str(getattr(loader, "__name__", loader))
