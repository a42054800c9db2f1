"""Files of `torch.save` that others may have written: torch trusts the sizes in them, this reader does not.

Format: a zip archive of uncompressed members <folder>/data.pkl, which refers to the storages <folder>/data/<key>.
"""

import math
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedweave.readers.unpickler import GlobalName, Unpickler

MOST = 1 << 33  # elements of one tensor: an expanded one repeats its storage, and is copied sooner or later
_TYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
}


def read_tensors(path: Path) -> Any:
    """The tree of tensors and plain values in `path`, on the CPU.

    Raises:
        ValueError, UnpicklingError, BadZipFile, OSError, KeyError and others: the file is damaged, or holds more.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file")
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > path.stat().st_size:
            raise ValueError("its parts are larger than the file")
        folder = members[0].filename.split("/")[0] if members else ""
        if archive.read(f"{folder}/byteorder") != b"little":
            raise ValueError("its numbers are not little-endian")
        return _Archive(archive, folder).read()


class _Archive:
    """The storages of an open file, each read once: tensors may share one."""

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        self.archive, self.folder = archive, folder
        self.storages: dict[str, Tensor] = {}

    def read(self) -> Any:
        """The value of data.pkl."""
        raw = self.archive.read(f"{self.folder}/data.pkl")
        builders = {
            GlobalName("torch._utils", "_rebuild_tensor_v2"): _build_tensor,
            GlobalName("torch._utils", "_rebuild_parameter"): _build_parameter,
            GlobalName("collections", "OrderedDict"): _build_ordered_dict,
            GlobalName("torch", "Size"): _build_size,
            **{GlobalName("torch", name): _refuse for name in _TYPES},
        }
        return Unpickler(raw, builders, self.storage, steps=len(raw)).load()

    def storage(self, pid: Any) -> Tensor:
        """The storage of ("storage", type, key, place, elements) as a vector."""
        kind, name, key, _, count = pid
        if kind != "storage" or not isinstance(name, GlobalName) or name.name not in _TYPES or not isinstance(key, str):
            raise ValueError("it refers to what is no storage")
        if key not in self.storages:
            self.storages[key] = _build_vector(self.archive.read(f"{self.folder}/data/{key}"), _TYPES[name.name])
        stored = self.storages[key]
        if stored.dtype != _TYPES[name.name] or type(count) is not int or not 0 <= count <= len(stored):
            raise ValueError(f"storage {key} does not have {count!r} elements of type {name.name}")
        return stored


def _build_vector(raw: bytes, dtype: torch.dtype) -> Tensor:
    if len(raw) % dtype.itemsize:
        raise ValueError(f"{len(raw)} bytes are no elements of {dtype}")
    if not raw:
        return torch.empty(0, dtype=dtype)
    if dtype == torch.bool and max(raw) > 1:
        raise ValueError("a boolean is neither 0 nor 1")
    return torch.frombuffer(bytearray(raw), dtype=dtype)


def _build_tensor(args: tuple[Any, ...]) -> Tensor:
    """A view of a storage: (storage, offset, sizes, strides, requires_grad, hooks)."""
    storage, offset, sizes, strides, gradient, hooks = args[:6]
    if type(storage) is not Tensor or storage.ndim != 1 or len(args) > 6 or hooks:
        raise ValueError("it describes no tensor")
    numbers = (offset, *sizes, *strides)
    if not all(type(n) is int and 0 <= n < 1 << 48 for n in numbers) or len(sizes) != len(strides) or len(sizes) > 16:
        raise ValueError("a tensor has impossible sizes")
    last = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    count = math.prod(sizes)
    if count > MOST or (count and last >= len(storage)) or offset > len(storage):
        raise ValueError(f"a tensor of sizes {list(sizes)} does not fit its {len(storage)} elements")
    return torch.as_strided(storage, sizes, strides, offset).requires_grad_(gradient is True)


def _build_parameter(args: tuple[Any, ...]) -> torch.nn.Parameter:
    tensor, gradient, hooks = args
    if type(tensor) is not Tensor or hooks:
        raise ValueError("it describes no parameter")
    return torch.nn.Parameter(tensor.detach(), gradient is True)


def _build_ordered_dict(args: tuple[Any, ...]) -> dict[Any, Any]:
    if args:
        raise ValueError("an ordered dictionary has contents where none belong")
    return OrderedDict()


def _build_size(args: tuple[Any, ...]) -> torch.Size:
    (sizes,) = args
    if not isinstance(sizes, tuple) or not all(type(n) is int and 0 <= n < 1 << 48 for n in sizes):
        raise ValueError("a size is none")
    return torch.Size(sizes)


def _refuse(_: tuple[Any, ...]) -> Any:
    raise ValueError("it calls a class that may only be named")
