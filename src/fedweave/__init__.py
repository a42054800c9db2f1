"""fedweave: personalized federated learning methods, trained, tuned and compared on equal terms."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedweave import methods, models
    from fedweave.api.compare import compare, fit, load
    from fedweave.api.comparison import Comparison, MethodResult
    from fedweave.api.federation import Federation
    from fedweave.api.progress import Progress
    from fedweave.errors import BadInput, Diverged
    from fedweave.federation.protocol import Method
    from fedweave.federation.registry import method

__version__ = "0.1.0"

# Name -> its module; None for a module. Imported when it is asked for, so that `import fedweave` takes no time.
_PLACES: dict[str, str | None] = {
    "compare": "fedweave.api.compare",
    "fit": "fedweave.api.compare",
    "load": "fedweave.api.compare",
    "Comparison": "fedweave.api.comparison",
    "MethodResult": "fedweave.api.comparison",
    "Federation": "fedweave.api.federation",
    "Progress": "fedweave.api.progress",
    "BadInput": "fedweave.errors",
    "Diverged": "fedweave.errors",
    "Method": "fedweave.federation.protocol",
    "method": "fedweave.federation.registry",
    "methods": None,
    "models": None,
}

__all__ = [
    "BadInput",
    "Comparison",
    "Diverged",
    "Federation",
    "Method",
    "MethodResult",
    "Progress",
    "compare",
    "fit",
    "load",
    "method",
    "methods",
    "models",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = _PLACES[name]
    return import_module(f"fedweave.{name}") if place is None else getattr(import_module(place), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
