"""The contract of what users' hooks return: tensors in dictionaries, each of the form that is expected.

Every check raises one line of `BadInput`, which names the hook, the entry and what is right.
"""

from collections.abc import Collection, Mapping

from torch import Tensor

from fedweave.errors import BadInput
from fedweave.tensors.trees import Params, Tree, named_leaves

TOLERANCE = 1e-3  # rounding of a sum over thousands of sources


def describe(value: object) -> str:
    """Shape and type of a tensor, or the type of what is none."""
    return f"{[*value.shape]} of {value.dtype}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def shapes(tree: Tree) -> dict[str, list[int]]:
    """Path -> shape of the tensors in `tree`."""
    return {path: [*leaf.shape] for path, leaf in named_leaves(tree)}


def descriptions(tree: Tree) -> dict[str, str]:
    """Path -> shape and type of the tensors in `tree`."""
    return {path: describe(leaf) for path, leaf in named_leaves(tree)}


def check_type(hook: str, value: object, kind: type, way: str) -> None:
    """Refuse what `hook` returned if it is not a `kind`; `way` says what to return."""
    if not isinstance(value, kind):
        raise BadInput(hook, f"returned a {type(value).__name__}; return {way}")


def check_pair(hook: str, value: object, meaning: str) -> None:
    """Refuse what `hook` returned if it is not a pair of dictionaries with this `meaning`."""
    if not (isinstance(value, tuple) and len(value) == 2):
        raise BadInput(hook, f"returned a {type(value).__name__}; return two dictionaries, {meaning}")


def check_tensors(hook: str, tree: object) -> None:
    """Refuse what `hook` returned if a leaf of it is not a tensor: states are stacked over clients, moved and saved."""
    for path, leaf in named_leaves(tree):
        if not isinstance(leaf, Tensor):
            remedy = "give a tensor, such as torch.tensor(0.5)" if path else "return a dictionary of tensors"
            raise BadInput(hook, f"{f'{path} is' if path else 'returned'} a {type(leaf).__name__}; {remedy}")


def check_form(
    hook: str, given: Mapping[str, object], expected: Mapping[str, object], way: str, resized: Collection[str] = ()
) -> None:
    """Refuse what `hook` returned if an entry is missing, is new, or is not as expected.

    Args:
        given, expected: path of each entry -> its shape, or its description.
        way: what to return.
        resized: entries that may be of another shape.
    """
    for path in {**expected, **given}:
        if path not in given or path not in expected:
            raise BadInput(hook, f"{path} is {'new' if path in given else 'missing'}; {way}")
        if given[path] != expected[path] and path not in resized:
            raise BadInput(hook, f"{path} is {given[path]}, and should be {expected[path]}; {way}")


def check_tensor(hook: str, value: object, fits: bool, right: str) -> None:
    """Refuse what `hook` returned if it does not fit; `right` says which tensor does."""
    if not fits:
        raise BadInput(hook, f"{describe(value)}; return a tensor {right}")


def check_weights(name: str, weights: object, layers: int, clients: int, models: Params) -> None:
    """Refuse mixture weights of the method `name` for so many learners that do not fit the `models` [N, ...]."""
    model = next(iter(models.values()))
    right = f"[{layers}, {clients}, {len(model)}] of {model.dtype}"
    meaning = "layers, learners (ids), sources, in the type of server['models']"
    check_tensor(f"{name}.weights", weights, describe(weights) == right, f"{right}: {meaning}")


def read_numbers(hook: str, numbers: Mapping[str, object]) -> dict[str, float]:
    """The `numbers` that `hook` returned, each a tensor of one number, or a number of Python."""
    check_type(hook, numbers, Mapping, "numbers by name, {} for none")
    for name, value in numbers.items():
        if not (value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, int | float)):
            raise BadInput(hook, f"{name} is {describe(value)}; return one number, such as its mean")
    return {name: float(value) for name, value in numbers.items()}  # type: ignore[arg-type]


def check_mixtures(name: str, weights: Tensor, first: bool = False) -> None:
    """Refuse `weights` [L, P, N] of the method `name` whose rows are not mixtures: at least 0, with sum 1.

    Rows that are not finite are left out, because training may have diverged; not if they are the `first` ones, before
    any client has trained. Reads values, so that a GPU has to wait.
    """
    hook = f"{name}.weights"
    if first and not weights.isfinite().all():
        raise BadInput(
            hook,
            "not finite before the first upload, when server['seen'] is false for all clients, as a "
            "softmax over no source is; admit the sources server['seen'] | ~server['seen'].any()",
        )
    sums, lowest = weights.sum(-1), weights.amin(-1)
    wrong = (((sums - 1.0).abs() > TOLERANCE) | (lowest < -TOLERANCE)) & weights.isfinite().all(-1)
    if not wrong.any():
        return
    layer, row = wrong.nonzero()[0].tolist()
    negative, total = float(lowest[layer, row]), float(sums[layer, row])
    value = f"has the weight {negative:.4g}" if negative < -TOLERANCE else f"has the sum {total:.4g}"
    raise BadInput(
        hook,
        f"row {row} of layer {layer} {value}; a row is a mixture of sources, its weights at least 0 "
        "and with sum 1: divide it by its sum, or take a softmax over the last axis",
    )
