"""The methods, one file each: a class in this folder with the decorator `@method("name")` is listed in `METHODS`."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from fedweave.engine.registry import METHODS

for file in iter_modules(__path__):
    import_module(f"{__name__}.{file.name}")

__all__ = ["METHODS"]


def __getattr__(name: str) -> Any:
    """A method's class by its own name, such as `Ditto`."""
    cls = next((cls for cls in METHODS.values() if cls.__name__ == name), None)
    if cls is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return cls
