"""The table of data sets, to which a decorator adds a loader."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, get_args

from fedweave.data.base import Dataset, Kind
from fedweave.errors import BadInput, choose, format_value
from fedweave.registry import check_name, register

Loader = Callable[[Path], Dataset]
L = TypeVar("L", bound=Loader)

DATASETS: dict[str, Loader] = {}
KINDS: dict[str, Kind] = {}  # kinds that loaders declare, so that they are known before a download


def dataset(name: str, kind: Kind | None = None) -> Callable[[L], L]:
    """Enter the decorated function as the loader of the data set `name`.

    A loader takes the folder of downloaded files and returns a `Dataset`.

    Args:
        kind: of that `Dataset`; a model that does not fit it is then refused before anything is downloaded.

    Raises:
        BadInput: on decorating what is not a function, an unknown kind, or a second loader for the same name.
    """
    check_name("dataset", name)
    if kind is not None:
        choose(kind, get_args(Kind), f"dataset {name!r}: kind")

    def enter(loader: L) -> L:
        if isinstance(loader, type) or not callable(loader):
            problem = f"{format_value(loader)} is not a loader; write a function of a folder that returns a Dataset"
            raise BadInput(f"dataset {name!r}: {problem}")
        register(DATASETS, "dataset", name, loader)
        KINDS.pop(name, None)  # the name may be defined again, as in a notebook
        KINDS.update({} if kind is None else {name: kind})
        return loader

    return enter
