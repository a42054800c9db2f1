"""fedweave: personalized federated learning methods, trained, tuned and compared on equal terms."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedweave.data.partitions.registry import rule as partition
    from fedweave.data.registry import dataset
    from fedweave.federation.registry import method
    from fedweave.models.registry import model

__version__ = "0.1.0"

# Name -> (its module, its name there). Imported when it is asked for, so that `import fedweave` takes no time.
_DECORATORS = {
    "dataset": ("fedweave.data.registry", "dataset"),
    "method": ("fedweave.federation.registry", "method"),
    "model": ("fedweave.models.registry", "model"),
    "partition": ("fedweave.data.partitions.registry", "rule"),
}

__all__ = ["dataset", "method", "model", "partition"]


def __getattr__(name: str) -> Any:
    if name not in _DECORATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, there = _DECORATORS[name]
    return getattr(import_module(module), there)
