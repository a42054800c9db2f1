"""Checks of the weights between clients, and of the vectors of clients, that users' methods return.

Each raises one line of `BadInput`.
"""

from torch import Tensor

from fedweave.engine.guards.draws_and_names import describe
from fedweave.errors import BadInput, format_count
from fedweave.tensors.trees import Params

TOLERANCE = 1e-3  # rounding of a sum over thousands of sources


def check_weights(name: str, weights: object, layers: int, clients: int, models: Params) -> None:
    """Refuse mixture weights of the method `name` that do not fit the `models` of the sources [N, ...].

    Args:
        clients: learners, P.

    Raises:
        BadInput: naming the shape or the type, and the right one; or there is nothing to mix.
    """
    if not models:
        raise BadInput(f"{name}.private", "every parameter stays with the client, and the server has nothing to mix")
    model = next(iter(models.values()))
    expected = f"[{layers}, {clients}, {len(model)}] of {model.dtype}"
    if (given := describe(weights)) != expected:
        raise BadInput(
            f"{name}.weights",
            f"{given}; return a tensor {expected}: layers, learners (ids), sources, in the type of server['models']",
        )


def check_first_weights(name: str, weights: Tensor) -> None:
    """Refuse weights of the method `name` that are not finite although no client has trained yet.

    Raises:
        BadInput: naming the usual reason.
    """
    if not weights.isfinite().all():
        raise BadInput(
            f"{name}.weights",
            "not finite before the first upload, when server['seen'] is false for all clients, as a "
            "softmax over no source is; admit the sources server['seen'] | ~server['seen'].any()",
        )
    check_mixtures(name, weights)


def check_mixtures(name: str, weights: Tensor) -> None:
    """Refuse `weights` [L, P, N] of the method `name` whose rows are not mixtures: at least 0, with sum 1.

    Rows that are not finite are left out, because training may have diverged. Reads values, so that a GPU has to wait.

    Raises:
        BadInput: naming the layer, the row, and the weight or the sum.
    """
    sums, lowest = weights.sum(-1), weights.amin(-1)
    wrong = (((sums - 1.0).abs() > TOLERANCE) | (lowest < -TOLERANCE)) & weights.isfinite().all(-1)
    if not wrong.any():
        return
    layer, row = wrong.nonzero()[0].tolist()
    negative, total = float(lowest[layer, row]), float(sums[layer, row])
    value = f"has the weight {negative:.4g}" if negative < -TOLERANCE else f"has the sum {total:.4g}"
    raise BadInput(
        f"{name}.weights",
        f"row {row} of layer {layer} {value}; a row is a mixture of sources, its weights at least 0 "
        "and with sum 1: divide it by its sum, or take a softmax over the last axis",
    )


def check_graph(name: str, weights: object, layers: int, clients: int) -> None:
    """Refuse a collaboration graph of the method `name` that is not [layers, clients, clients].

    Raises:
        BadInput: naming its shape and the right one.
    """
    expected = [layers, clients, clients]
    if isinstance(weights, Tensor) and [*weights.shape] == expected:
        return
    given = [*weights.shape] if isinstance(weights, Tensor) else f"a {type(weights).__name__}"
    counts = f"{format_count(layers, 'layer')} and {format_count(clients, 'client')}"
    raise BadInput(f"{name}.collaboration", f"{given}, but the model has {counts}; return a tensor {expected}")


def check_portrait(name: str, vectors: object, clients: int) -> None:
    """Refuse a portrait of the method `name` that is not a vector for each of the `clients`.

    Raises:
        BadInput: naming its shape and the right one.
    """
    if isinstance(vectors, Tensor) and vectors.ndim == 2 and len(vectors) == clients and vectors.is_floating_point():
        return
    raise BadInput(
        f"{name}.portrait",
        f"{describe(vectors)}; return a tensor [{clients}, D] of floats: one vector for each of "
        f"{format_count(clients, 'client')}",
    )
