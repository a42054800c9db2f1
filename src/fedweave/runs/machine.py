"""The machine of a training, on which the last bits of its numbers depend."""

import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedweave.engine.executors import describe
from fedweave.runs.build import PreparedRun


def describe_machine(prepared: PreparedRun) -> dict[str, Any]:
    """The hardware, the versions of libraries and the executor of the training. The number of threads depends on how
    many seeds are trained, too, and is not part of it.
    """
    return {
        "device": prepared.device,
        "processor": _processor(prepared.device),
        "executor": describe(prepared.executor),
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
    }


def _processor(device: str) -> str:
    """Name of the GPU, or of the CPU with its vector instructions. Equal processors give equal bits."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
    return f"{name or platform.processor()}, {torch.backends.cpu.get_cpu_capability()}"
