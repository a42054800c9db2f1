"""Checks of the states that users' methods return: tensors in dictionaries, of the same form in every round.

Each raises one line of `BadInput`.
"""

from collections.abc import Mapping

from torch import Tensor

from fedweave.errors import BadInput
from fedweave.tensors.trees import Tree


def check_tensors(hook: str, tree: object, path: tuple[str, ...] = ()) -> None:
    """Refuse what `hook` returned if a leaf of it is no tensor: states are stacked over clients, moved and saved.

    Raises:
        BadInput: naming the entry and its type.
    """
    if isinstance(tree, Mapping | tuple | list):
        for name, part in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            check_tensors(hook, part, (*path, str(name)))
    elif not isinstance(tree, Tensor):
        what = ".".join(path) + " is" if path else "returned"
        way_out = "give a tensor, such as torch.tensor(0.5)" if path else "return a dictionary of tensors"
        raise BadInput(f"{hook}: {what} a {type(tree).__name__}; {way_out}")


def check_update(name: str, update: object, expected: type, client: Tree) -> None:
    """Refuse what `client_update` of the method `name` returned for a client whose private state was `client`.

    Raises:
        BadInput: it is no `expected`, has a leaf that is no tensor, or a state of another form.
    """
    hook = f"{name}.client_update"
    if not isinstance(update, expected):
        fields = ", ".join(getattr(expected, "_fields", ()))
        raise BadInput(f"{hook}: returned a {type(update).__name__}; return {expected.__name__}({fields})")
    check_tensors(hook, update._asdict())  # type: ignore[attr-defined]
    old, new = _shapes(client), _shapes(update.client)  # type: ignore[attr-defined]
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            change = f"has the shape {new.get(key)}, and before {old.get(key)}"
            change = change if key in old and key in new else "is missing" if key in old else "is new"
            raise BadInput(f"{hook}: {key} of the client's state {change}; keep the names and shapes of {name}.join")


def _shapes(tree: Tree, path: str = "") -> dict[str, list[int]]:
    """Path -> shape of the tensors in `tree`."""
    if isinstance(tree, Tensor):
        return {path: [*tree.shape]}
    parts = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    return {
        key: shape
        for name, part in parts
        for key, shape in _shapes(part, f"{path}.{name}" if path else str(name)).items()
    }
