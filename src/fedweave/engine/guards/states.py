"""Checks of the states that users' methods return: tensors in dictionaries, of the same form in every round.

Each raises one line of `BadInput`.
"""

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from fedweave.errors import BadInput, format_count
from fedweave.tensors.trees import Tree


def check_tensors(hook: str, tree: object, path: tuple[str, ...] = ()) -> None:
    """Refuse what `hook` returned if a leaf of it is not a tensor: states are stacked over clients, moved and saved.

    Raises:
        BadInput: naming the entry and its type.
    """
    if isinstance(tree, Mapping | tuple | list):
        for name, part in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            check_tensors(hook, part, (*path, str(name)))
    elif not isinstance(tree, Tensor):
        what = ".".join(path) + " is" if path else "returned"
        remedy = "give a tensor, such as torch.tensor(0.5)" if path else "return a dictionary of tensors"
        raise BadInput(hook, f"{what} a {type(tree).__name__}; {remedy}")


def check_update(name: str, update: object, expected: type, client: Tree) -> None:
    """Refuse what `client_update` of the method `name` returned for a client whose private state was `client`.

    Raises:
        BadInput: it is not an `expected`, has a leaf that is not a tensor, or a state of another form.
    """
    hook = f"{name}.client_update"
    if not isinstance(update, expected):
        fields = ", ".join(getattr(expected, "_fields", ()))
        raise BadInput(hook, f"returned a {type(update).__name__}; return {expected.__name__}({fields})")
    check_tensors(hook, update._asdict())  # type: ignore[attr-defined]
    _check_form(f"{hook}: {{}} of the client's state", client, update.client, f"{name}.join")  # type: ignore[attr-defined]


def check_shared(name: str, shapes: Mapping[str, object]) -> None:
    """Refuse a method `name` whose clients keep the whole model, so that no parameter is left in `shapes`.

    Raises:
        BadInput: naming the way out.
    """
    if not shapes:
        raise BadInput(
            f"{name}.private",
            "every parameter stays with the client, and the server has nothing to generate; keep "
            "fewer names, or take a model that has a layer below its head",
        )


def check_server(name: str, before: Tree, after: object, resized: Collection[str] = ()) -> None:
    """Refuse a state of the server that `aggregate` of the method `name` returned if the one `before` has another form.

    A run can continue from any state, and newcomers add rows to its tables, which needs one form in all rounds.

    Args:
        resized: entries that may change their shape.

    Raises:
        BadInput: an entry is not a tensor, is missing, is new, or has another shape.
    """
    check_tensors(f"{name}.aggregate", after)
    _check_form(f"{name}.aggregate: {{}} of the server's state", before, after, f"{name}.init", resized)


def _check_form(entry: str, before: Tree, after: Tree, origin: str, resized: Collection[str] = ()) -> None:
    """Refuse a state of other names or shapes than `before`.

    Args:
        entry: begin of the message, with a place for the name.
        origin: the hook that made the first state.
        resized: names of entries that may have another shape.
    """
    old, new = _shapes(before), _shapes(after)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key) and not (key in resized and key in old and key in new):
            change = f"has the shape {new.get(key)}, and before {old.get(key)}"
            change = change if key in old and key in new else "is missing" if key in old else "is new"
            raise BadInput(f"{entry.format(key)} {change}; keep the names and shapes of {origin}")


def check_downloads(name: str, downloads: object, clients: int) -> None:
    """Refuse what `download` of the method `name` returned for a number of `clients` if it is not a pair of trees.

    Raises:
        BadInput: naming the type, or the entry of the second tree that has no row for each client.
    """
    hook = f"{name}.download"
    check_pair(hook, downloads, "(what all clients receive, what each receives alone [P, ...])")
    check_tensors(hook, downloads[0])  # type: ignore[index]
    check_tensors(hook, downloads[1])  # type: ignore[index]
    for path, shape in _shapes(downloads[1]).items():  # type: ignore[index]
        check_rows(hook, path, shape, clients)


def check_rows(hook: str, entry: str, shape: Sequence[int], clients: int) -> None:
    """Refuse an `entry` of what `hook` returned without a row for each of the `clients` that it was asked for.

    Raises:
        BadInput: naming the entry and its shape.
    """
    if [*shape[:1]] != [clients]:
        raise BadInput(
            hook,
            f"{entry} is {[*shape]} for {format_count(clients, 'client')}; return a row for each client of "
            f"ids, [{clients}, ...]",
        )


def check_pair(hook: str, value: object, meaning: str) -> None:
    """Refuse what `hook` returned if it is not a pair of dictionaries with this `meaning`.

    Raises:
        BadInput: naming the type.
    """
    if not (isinstance(value, tuple) and len(value) == 2):
        raise BadInput(hook, f"returned a {type(value).__name__}; return two dictionaries, {meaning}")


def check_generated(name: str, models: object, clients: int, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse what `generate` of the method `name` returned if these are not models of a number of `clients`.

    Args:
        shapes: of the parameters of one model.

    Raises:
        BadInput: naming the entry that is missing, that has no row for each client, or that has another shape.
    """
    hook = f"{name}.generate"
    check_tensors(hook, models)
    if not isinstance(models, Mapping):
        raise BadInput(hook, f"returned a {type(models).__name__}; return a dictionary of tensors")
    for entry, shape in shapes.items():
        if entry not in models:
            raise BadInput(hook, f"lacks {entry}; return every parameter of self.generated_shapes")
        check_rows(hook, entry, models[entry].shape, clients)
        if models[entry].shape[1:] != shape:
            raise BadInput(hook, f"{entry} is {[*models[entry].shape]}, and should be {[clients, *shape]}")


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
