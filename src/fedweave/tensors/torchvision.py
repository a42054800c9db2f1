"""Lets `import torchvision` work where its wheel was built for a GPU and torch for the CPU.

The compiled operators of such a wheel cannot load, and its Python part then registers fake kernels for
operators that nobody has declared (pytorch/vision#9085). Declaring the schemas is enough for datasets,
transforms and models; the operators themselves stay unusable. Code that imports torchvision, or torchmetrics, which
imports it, calls `declare_operators` before.
"""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def _is_gpu_build(version_file: Path) -> bool:
    """True if `version.py` names a GPU build; read as text, since importing it is what fails."""
    label = re.compile(r"^__version__ = .*\+(cu|rocm|xpu)", re.MULTILINE)
    return label.search(version_file.read_text("utf-8")) is not None


@cache
def declare_operators() -> torch.library.Library | None:
    """Declare torchvision's two missing operators unless its build matches torch's; idempotent.

    Returns the library that owns the declarations: they live as long as it does, so it is kept in the cache.
    """
    if torch.version.cuda or getattr(torch.version, "hip", None):
        return None
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None or not _is_gpu_build(Path(spec.origin).parent / "version.py"):
        return None
    library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    return library
