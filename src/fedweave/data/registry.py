"""The table of data sets; a loader enters it by a decorator at its definition."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fedweave.data.base import Dataset
from fedweave.errors import BadInput
from fedweave.registry import check_name, register

Loader = Callable[[Path], Dataset]
L = TypeVar("L", bound=Loader)

DATASETS: dict[str, Loader] = {}


def dataset(name: str) -> Callable[[L], L]:
    """Enter the decorated function as the loader of the data set `name`.

    A loader takes the folder of downloaded files and returns a `Dataset`.

    Raises:
        BadInput: on decorating what is no function, or a second loader for the same name.
    """
    check_name("dataset", name)

    def enter(loader: L) -> L:
        if isinstance(loader, type) or not callable(loader):
            raise BadInput(
                f"dataset {name!r}: {loader!r} is no loader; write a function of a folder that returns a Dataset"
            )
        register(DATASETS, "dataset", name, loader)
        return loader

    return enter
