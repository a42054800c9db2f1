"""fedweave: personalized federated learning methods, trained, tuned and compared on equal terms."""

import gc
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedweave import _renamed

if TYPE_CHECKING:
    from fedweave import contestants, data, families, methods, models, settings, testing
    from fedweave.comparison.compare import compare, fit, load
    from fedweave.comparison.comparison import Comparison
    from fedweave.comparison.method_result import MethodResult
    from fedweave.comparison.progress import Progress
    from fedweave.data.partitions.registry import rule as partition
    from fedweave.data.registry import dataset
    from fedweave.engine.protocol import Method
    from fedweave.engine.registry import method
    from fedweave.errors import BadInput, Diverged
    from fedweave.lifecycle.life import Lifecycle
    from fedweave.metrics import Metric, metric
    from fedweave.models.registry import model
    from fedweave.own_data.federation import Federation
    from fedweave.recommendation.recommend import recommend
    from fedweave.recommendation.result import Recommendation

__version__ = "0.1.0"

# A wheel has fedweave.pipelines in this folder. In a checkout it lies at the top, where a link or an import hook would
# be a second mapping, which not every system and no tool follows.
_CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
if os.path.isfile(os.path.join(_CHECKOUT, "pipelines", "ui.py")):  # noqa: PTH113, PTH118
    __path__.append(_CHECKOUT)

_renamed.install()

# Name -> its module, and its name in that module where it differs. A name is imported when it is first used, so that
# `import fedweave` takes no time.
_SOURCES: dict[str, tuple[str, ...]] = {
    "compare": ("fedweave.comparison.compare",),
    "fit": ("fedweave.comparison.compare",),
    "load": ("fedweave.comparison.compare",),
    "Comparison": ("fedweave.comparison.comparison",),
    "MethodResult": ("fedweave.comparison.method_result",),
    "Lifecycle": ("fedweave.lifecycle.life",),
    "Federation": ("fedweave.own_data.federation",),
    "Recommendation": ("fedweave.recommendation.result",),
    "recommend": ("fedweave.recommendation.recommend",),
    "Progress": ("fedweave.comparison.progress",),
    "BadInput": ("fedweave.errors",),
    "Diverged": ("fedweave.errors",),
    "Method": ("fedweave.engine.protocol",),
    "Metric": ("fedweave.metrics",),
    "dataset": ("fedweave.data.registry",),
    "method": ("fedweave.engine.registry",),
    "metric": ("fedweave.metrics",),
    "model": ("fedweave.models.registry",),
    "partition": ("fedweave.data.partitions.registry", "rule"),
}
_MODULES = ("contestants", "data", "families", "methods", "models", "settings", "testing")

__all__ = [
    "BadInput",
    "Comparison",
    "Diverged",
    "Federation",
    "Lifecycle",
    "Method",
    "MethodResult",
    "Metric",
    "Progress",
    "Recommendation",
    "compare",
    "contestants",
    "data",
    "dataset",
    "families",
    "fit",
    "load",
    "method",
    "methods",
    "metric",
    "model",
    "models",
    "partition",
    "recommend",
    "settings",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return _import(f"fedweave.{name}")
    if name not in _SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, *attribute = _SOURCES[name]
    return getattr(_import(module), *(attribute or [name]))


def _import(module: str) -> Any:
    """The module, imported without searches for garbage: there is none, and they take a fifth of the time."""
    searches = gc.isenabled()
    gc.disable()
    try:
        return import_module(module)
    finally:
        if searches:
            gc.enable()


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
