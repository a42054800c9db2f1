"""The file that the option `weights` of a model names: its digest is a part of the model block, and so of the run."""

from collections.abc import Mapping
from typing import Any

from fedweave.errors import BadInput, relocate
from fedweave.files import weights

DIGEST = "digest"  # entry of a model block beside `weights`: those of the file that it was written for


def add_digest(model: Mapping[str, Any]) -> dict[str, Any]:
    """The block `model` with the digest of the weights that it names, unless it has one.

    It stays as it is where there is no such file: `check` refuses that, and results can be read without it.
    """
    if not _path(model) or DIGEST in model:
        return dict(model)
    try:
        return {**model, DIGEST: weights.digest(_path(model), _architecture(model))}
    except BadInput:
        return dict(model)


def replace_digest(old: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The block `old` with `changes`, and with the digest of the weights that it names then."""
    return add_digest({**{name: value for name, value in old.items() if name != DIGEST}, **changes})


def check(model: Mapping[str, Any], where: str) -> None:
    """Refuse weights that are not there, or that are others than the block `model` was written for."""
    if not _path(model):
        return
    with relocate({"weights": f"{where}.weights" if where else "weights"}):
        actual = weights.digest(_path(model), _architecture(model))
        if model.get(DIGEST, actual) != actual:
            raise BadInput(
                f"weights: {_path(model)}",
                f"its digest is {actual}, but {model[DIGEST]} was trained or declared; bring that file back, or "
                "train again",
            )


def _path(model: Mapping[str, Any]) -> str:
    path = model.get("weights")
    return path if isinstance(path, str) else ""


def _architecture(model: Mapping[str, Any]) -> str:
    return str(model.get("arch", ""))
