"""The methods, one file each: a class in this folder with the decorator `@method("name")` is listed in `METHODS`."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from fedweave.engine.registry import METHODS, find_name

for file in iter_modules(__path__):
    import_module(f"{__name__}.{file.name}")


def __getattr__(name: str) -> Any:
    """A method's class by its own name, such as `Ditto`, or by that of its paper, such as `SCAFFOLD`."""
    cls = next((cls for cls in METHODS.values() if cls.__name__ == name), METHODS.get(find_name(name)))
    if cls is None or name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; see dir({__name__})")
    return cls


def __dir__() -> list[str]:
    return sorted({"METHODS", *(cls.__name__ for cls in METHODS.values())})
