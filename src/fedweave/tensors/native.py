"""The kernel that runs programs of array operations: built once for a processor and compiler, and called.

Building takes some seconds. The library stays in the user's cache folder, or where that cannot be written in the folder
of `FEDWEAVE_KERNEL`; where neither can be written, each process builds its own. Its name depends on the source,
the compiler, its options and the features of the processor, so machines of different kinds can share a folder.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedweave.errors import BadInput
from fedweave.files import stored
from fedweave.files.atomic import write_atomic
from fedweave.tensors.array_programs import ArrayProgram
from fedweave.tensors.instructions import SOURCE

NAMES = {torch.float32: "float", torch.float64: "double"}
NATIVE = "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"
# No option that lets the compiler reorder sums or ignore values that are not finite.
OPTIONS = ("-std=c++17", "-O3", NATIVE, "-fno-math-errno", "-fno-trapping-math", "-fwrapv", "-shared", "-fPIC")
BUFFER = np.dtype([("base", np.int64), ("client_stride", np.int64), ("step_stride", np.int64)])
# A tensor, and how far its part for the next client and for the next step is, in numbers.
Input = tuple[Tensor, int, int]


def find_compiler() -> str | None:
    """The C++ compiler of this machine."""
    return next((path for name in (os.environ.get("CXX", ""), "g++", "clang++") if (path := shutil.which(name))), None)


@cache
def load(real: torch.dtype) -> ctypes.CDLL | None:
    """The kernel for numbers in `real`; None where there is no compiler, or where it fails, with one warning."""
    compiler = find_compiler()
    if compiler is None or real not in NAMES:
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="fedweave-kernel-") as scratch:
            return ctypes.CDLL(str(_build(compiler, NAMES[real], Path(scratch))))
    except (OSError, subprocess.SubprocessError) as error:
        output = (getattr(error, "stderr", None) or "").strip() or str(error)
        warnings.warn(f"the kernel is not built with {compiler}: {output.splitlines()[0]}", stacklevel=2)
        return None


def _build(compiler: str, real: str, scratch: Path) -> Path:
    """The library: the one that was stored, or a new one, which is in the folder `scratch` if it cannot be stored."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    parts = (SOURCE.read_text(encoding="utf-8"), version, *OPTIONS, real, *_processor())
    name = f"kernel-{real}-{_digest(chr(0).join(parts).encode())}"
    folders = [stored.folder(), *map(Path, filter(None, [os.environ.get("FEDWEAVE_KERNEL")]))]
    if found := next((file for place in folders for file in place.glob(f"{name}-*.so") if _is_whole(file)), None):
        return found
    library = scratch / "kernel.so"
    command = [compiler, *OPTIONS, f"-DREAL={real}", "-x", "c++", str(SOURCE), "-o", str(library)]
    subprocess.run(command, capture_output=True, text=True, check=True)
    content = library.read_bytes()
    for place in folders:
        file = place / f"{name}-{_digest(content)}.so"
        with suppress(BadInput):  # it cannot be written
            write_atomic(file, content, mode=0o755)
            return file
    return library


def _is_whole(file: Path) -> bool:
    """Whether a library has the content of its name: a process that loads a part of one may be ended by the system."""
    with suppress(OSError):
        return file.stem.endswith(_digest(file.read_bytes()))
    return False


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _processor() -> Iterable[str]:
    """What the compiler may use of this processor: its architecture, model and features."""
    yield platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    names = ("model name", "cpu family", "model", "flags", "Features", "CPU part")
    yield from sorted({line for line in lines if line.partition(":")[0].strip() in names})


def run(
    program: ArrayProgram,
    real: torch.dtype,
    inputs: Sequence[Input],
    outputs: Sequence[Input],
    shape: tuple[int, int],
    rows: int | None = None,
) -> None:
    """Run `program` for all clients and steps.

    Args:
        real: the type of its numbers, for which the kernel has been loaded.
        inputs, outputs: contiguous tensors; the program writes to the outputs, and to the inputs in `program.written`.
        shape: (clients, steps).
        rows: position of the input of row numbers, one step behind the other; a step of nothing but negative ones is
            left out.

    Raises:
        IndexError: as PyTorch's operations, where an index has no position.
    """
    library = load(real)
    assert library is not None
    arena = torch.empty(program.arena, dtype=torch.uint8)
    buffers = np.zeros(program.buffers, BUFFER)
    buffers[0] = (-(-arena.data_ptr() // 64) * 64, 0, 0)
    for number, constant in program.constants.items():
        buffers[number] = (constant.data_ptr(), 0, 0)
    for number, (tensor, client, step) in zip((*program.inputs, *program.outputs), (*inputs, *outputs), strict=True):
        buffers[number] = (tensor.data_ptr(), client * tensor.itemsize, step * tensor.itemsize)
    current = np.zeros(program.buffers, np.int64)
    width = 0 if rows is None else inputs[rows][2]
    in_range = library.run(
        *(ctypes.c_void_p(program.code.ctypes.data), ctypes.c_int64(len(program.code))),
        *(ctypes.c_void_p(buffers.ctypes.data), ctypes.c_void_p(current.ctypes.data)),
        *map(ctypes.c_int64, (program.buffers, *shape, -1 if rows is None else program.inputs[rows], width)),
    )
    if not in_range:
        raise IndexError("index out of range in the kernel")
