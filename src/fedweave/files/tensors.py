"""Files of `torch.save` that others may have written. PyTorch trusts the sizes in them, this reader does not.

Format: a zip archive of uncompressed members <folder>/data.pkl, which refers to the storages <folder>/data/<key>.
"""

import math
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedweave.files.unpickler import GlobalName, Unpickler

MAX_ELEMENTS = 1 << 33  # of one tensor: a short storage can be expanded to a large tensor, which is copied later
_DTYPES = {
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
        ValueError, UnpicklingError, BadZipFile, OSError, KeyError and others: the file is damaged, or holds other
            objects.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > path.stat().st_size:
            raise ValueError("its parts are larger than the file")
        folder = members[0].filename.split("/")[0] if members else ""
        if archive.read(f"{folder}/byteorder") != b"little":
            raise ValueError("its numbers are not little-endian")
        return _Archive(archive, folder).read()


class _Archive:
    """An open file. Each storage is read once, because tensors may share it."""

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
            **{GlobalName("torch", name): _refuse for name in _DTYPES},
        }
        return Unpickler(raw, builders, self.storage).load()

    def storage(self, pid: Any) -> Tensor:
        """The storage of ("storage", type, key, place, elements) as a vector."""
        kind, cls, key, _, count = pid
        if kind != "storage" or not isinstance(cls, GlobalName) or cls.name not in _DTYPES or not isinstance(key, str):
            raise ValueError("it refers to what is not a storage")
        dtype = _DTYPES[cls.name]
        if key not in self.storages:
            self.storages[key] = _build_vector(self.archive.read(f"{self.folder}/data/{key}"), dtype)
        stored = self.storages[key]
        if stored.dtype != dtype or type(count) is not int or not 0 <= count <= len(stored):
            raise ValueError(f"storage {key} does not have {count!r} elements of type {cls.name}")
        return stored


def _build_vector(raw: bytes, dtype: torch.dtype) -> Tensor:
    if len(raw) % dtype.itemsize:
        raise ValueError(f"{len(raw)} bytes are not elements of {dtype}")
    if not raw:
        return torch.empty(0, dtype=dtype)
    if dtype == torch.bool and max(raw) > 1:
        raise ValueError("a boolean is neither 0 nor 1")
    return torch.frombuffer(bytearray(raw), dtype=dtype)


def _build_tensor(args: tuple[Any, ...]) -> Tensor:
    """A view of a storage: (storage, offset, sizes, strides, requires_grad, hooks)."""
    storage, offset, sizes, strides, requires_grad, hooks = args[:6]
    if type(storage) is not Tensor or storage.ndim != 1 or len(args) > 6 or hooks:
        raise ValueError("it describes no tensor")
    numbers = (offset, *sizes, *strides)
    if not all(type(n) is int and 0 <= n < 1 << 48 for n in numbers) or len(sizes) != len(strides) or len(sizes) > 16:
        raise ValueError("a tensor has impossible sizes")
    last = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    count = math.prod(sizes)
    if count > MAX_ELEMENTS or (count and last >= len(storage)) or offset > len(storage):
        raise ValueError(f"a tensor of sizes {list(sizes)} does not fit its {len(storage)} elements")
    return torch.as_strided(storage, sizes, strides, offset).requires_grad_(requires_grad is True)


def _build_parameter(args: tuple[Any, ...]) -> torch.nn.Parameter:
    tensor, requires_grad, hooks = args
    if type(tensor) is not Tensor or hooks:
        raise ValueError("it describes no parameter")
    return torch.nn.Parameter(tensor.detach(), requires_grad is True)


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
