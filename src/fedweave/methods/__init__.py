"""The methods, one file each: a class in this folder with the decorator `@method("name")` is listed in `METHODS`."""

from importlib import import_module
from pkgutil import iter_modules

from fedweave.federation.registry import METHODS

for file in iter_modules(__path__):
    import_module(f"{__name__}.{file.name}")

__all__ = ["METHODS"]
