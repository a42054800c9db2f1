"""Weights from a file in a network: by name, and each with its shape, or one line that says what differs."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedweave.errors import BadInput
from fedweave.files import weights
from fedweave.models.base import is_below

UNUSED = "num_batches_tracked"  # of batch normalisation with a constant momentum
DIGESTS = "_weight_digests"  # the attribute of a module with the digests of the files that it was loaded from
DEPTH = 2  # parts of a name that may be a prefix


def load_weights(
    module: nn.Module,
    path: str | Path,
    *,
    without: str | Sequence[str] = (),
    head: str = "",
    architecture: str = "",
    name: str = "model",
) -> nn.Module:
    """Give `module` the weights at `path`; returns the module.

    Names may have a prefix in the file or in the module, such as "module." or "backbone.". The digest of the file
    becomes a part of the identity of the model, so that a run with a changed file is another run.

    Args:
        module: the network, whose other values stay as they are.
        path: a file or folder, see `fedweave.files.weights`; it is read without running code.
        without: names of layers, such as "fc", that keep their own values and need none in the file.
        head: a layer that keeps its own values if the file has none of its shapes, as for other classes.
        architecture: name of the network in a folder of torch.hub.
        name: of the model in messages.

    Raises:
        BadInput: the file cannot be read; or names are missing or unexpected, or have another shape. One line.
    """
    left_out = tuple([without] if isinstance(without, str) else without)
    own = {key: value for key, value in module.state_dict().items() if not key.endswith(UNUSED)}
    wanted = {key: value for key, value in own.items() if not is_below(key, left_out)}
    given = {key: value for key, value in weights.read(path, architecture).items() if not key.endswith(UNUSED)}
    given = _align(given, own)
    if any(key not in given or given[key].shape != own[key].shape for key in own if head and is_below(key, [head])):
        left_out = (*left_out, head)
        wanted = {key: value for key, value in own.items() if not is_below(key, left_out)}
    given = {key: value for key, value in given.items() if not is_below(key, left_out)}
    if problems := [*_differences(given, wanted)]:
        raise BadInput(f"{name}: weights: {path}", f"do not fit: {'; '.join(problems)}")
    with torch.no_grad():
        for key, value in wanted.items():
            value.copy_(given[key])
    used = (*module.__dict__.get(DIGESTS, ()), weights.digest(path, architecture), *left_out)
    module.__dict__[DIGESTS] = used
    return module


def digests(module: nn.Module) -> tuple[str, ...]:
    """The digests of all files from which `module` or a part of it was loaded."""
    return tuple(text for part in module.modules() for text in part.__dict__.get(DIGESTS, ()))


def _align(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`given` with names of the module: the prefix goes that leaves the most names in common, or one is added."""
    best, most = dict(given), len(given.keys() & own.keys())
    for prefix in _prefixes(given):
        renamed = {key.removeprefix(prefix): value for key, value in given.items() if key.startswith(prefix)}
        if (count := len(renamed.keys() & own.keys())) > most:
            others = {key: value for key, value in given.items() if not key.startswith(prefix)}
            best, most = {**others, **renamed}, count
    for prefix in _prefixes(own):
        if (count := sum(f"{prefix}{key}" in own for key in given)) > most:
            best, most = {f"{prefix}{key}": value for key, value in given.items()}, count
    return best


def _prefixes(names: Iterable[str]) -> list[str]:
    """The beginnings of dotted names, with the dot."""
    parts = [name.split(".")[:-1] for name in names]
    return sorted({".".join(words[:depth]) + "." for words in parts for depth in range(1, min(DEPTH, len(words)) + 1)})


def _differences(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Iterable[str]:
    """What keeps weights from being loaded: one text for each kind, with the first name."""
    missing = [key for key in wanted if key not in given]
    unexpected = [key for key in given if key not in wanted]
    other = [key for key in wanted if key in given and given[key].shape != wanted[key].shape]
    if missing:
        yield f"{len(missing)} missing, as {_near(missing[0], unexpected or [*given], 'the file')}"
    if unexpected:
        yield f"{len(unexpected)} unexpected, as {_near(unexpected[0], missing or [*wanted], 'the model')}"
    if other:
        key = other[0]
        shapes = f"{[*given[key].shape]} in the file, {[*wanted[key].shape]} in the model"
        layer = key.rpartition(".")[0]
        yield f"{len(other)} of another shape, as {key} ({shapes}; without={layer!r} leaves that layer as it is)"


def _near(key: str, names: Sequence[str], place: str) -> str:
    near = difflib.get_close_matches(key, names, 1, 0.5)
    return f"{key} (nearest in {place}: {near[0]})" if near else key
