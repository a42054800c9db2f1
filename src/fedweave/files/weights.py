"""Files with the weights of a network: where they are in a folder, their digest, and their tensors by name.

A path is a file of safetensors or of torch.save, a folder of Hugging Face (`model.safetensors`, in one part or in
several with an index), or a folder of torch.hub (`checkpoints/<architecture>-<digits>.pth`). One that begins with
"package:" is below the folder of an installed package, whose code does not run.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedweave.errors import BadInput, first_line, format_value
from fedweave.files.atomic import digest_file

if TYPE_CHECKING:
    from torch import Tensor

DIGITS = 16  # of a digest
PACKAGE = "package:"  # begins paths inside of installed packages
SAFE, PICKLED = ".safetensors", (".pt", ".pth", ".bin", ".ckpt")
INDEX = "model.safetensors.index.json"
NAMES = ("model.safetensors", "pytorch_model.bin")  # of Hugging Face
FORMATS = f"{SAFE}, {', '.join(PICKLED)}, or a folder with one of them"
NO_FILE = f"a folder without weights; it needs model.safetensors, or one file of {', '.join((SAFE, *PICKLED))}"
BELOW = ("", "checkpoints", "hub/checkpoints")  # where a folder of torch.hub has its files
WRAPPERS = ("state_dict", "model_state_dict", "model")  # keys under which trainers store a state


def find_files(path: str | Path, architecture: str = "") -> list[Path]:
    """The files with the weights at `path`.

    Args:
        architecture: name of a network, of which a folder of torch.hub has a file among others.

    Raises:
        BadInput: there is no such file, or there are several.
    """
    place, where = locate(path), f"weights: {path}"
    if place.is_file():
        if place.suffix not in (SAFE, *PICKLED):
            raise BadInput(where, f"a file of another format; use {FORMATS}")
        return [place]
    if not place.is_dir():
        raise BadInput(where, f"not found at {place.absolute()}; write its path from the current folder")
    if (place / INDEX).is_file():
        return [place / INDEX, *(place / name for name in sorted({*_read_index(place / INDEX).values()}))]
    for name in NAMES:
        if (place / name).is_file():
            return [place / name]
    files = [file for below in BELOW for file in sorted((place / below).glob("*")) if file.suffix in (SAFE, *PICKLED)]
    own = [file for file in files if architecture and file.name.startswith((f"{architecture}-", f"{architecture}."))]
    found = own if own else files
    if len(found) != 1:
        names = ", ".join(file.name for file in files[:8])
        raise BadInput(where, f"holds {len(found)} files of weights ({names}); name one" if found else NO_FILE)
    return found


def locate(path: str | Path) -> Path:
    """`path`, or the place of "package:NAME/REST" in an installed package.

    Raises:
        BadInput: the package is not installed.
    """
    if not str(path).startswith(PACKAGE):
        return Path(path)
    name, _, rest = str(path).removeprefix(PACKAGE).partition("/")
    spec = find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        install = f"pip install {name.replace('_', '-')}"
        raise BadInput(f"weights: {path}", f"the package {name} is not installed; run: {install}")
    return Path(next(iter(spec.submodule_search_locations)), rest)


def digest(path: str | Path, architecture: str = "") -> str:
    """A hash of the files with the weights at `path`, and of config.json beside them; arguments as `find_files`."""
    content = hashlib.sha256()
    files = find_files(path, architecture)
    for file in [*files, *(config for config in [files[0].with_name("config.json")] if config.is_file())]:
        status = file.stat()
        content.update(_file_digest(file, status.st_mtime_ns, status.st_size).encode())
    return content.hexdigest()[:DIGITS]


@lru_cache(maxsize=32)
def _file_digest(file: Path, _time: int, _size: int) -> str:
    """A hash of a file; its time and size are part of the key of the cache."""
    return digest_file(file)


def read(path: str | Path, architecture: str = "") -> dict[str, "Tensor"]:
    """Name -> tensor of the weights at `path`, on the CPU; arguments as `find_files`.

    No code in the file is run. A state under a key such as "state_dict" is taken from there.

    Raises:
        BadInput: there is no such file, or it is damaged, or holds something else.
    """
    tensors: dict[str, Tensor] = {}
    for file in find_files(path, architecture):
        if file.name != INDEX:
            tensors |= _read_file(file, f"weights: {path}")
    return tensors


def _read_file(file: Path, where: str) -> dict[str, "Tensor"]:
    import torch
    from safetensors.torch import load_file

    try:
        content: Any = load_file(file) if file.suffix == SAFE else torch.load(file, "cpu", weights_only=True)
    except Exception as error:  # each format has many exceptions for damaged files
        reason = first_line(error)
        way = "save the state with torch.save(model.state_dict(), file) or safetensors.torch.save_file"
        raise BadInput(where, f"{file.name} cannot be read as weights alone ({reason}); {way}") from error
    for key in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    names = [name for name, value in content.items() if isinstance(value, torch.Tensor)] if _is_state(content) else []
    if not names:
        raise BadInput(where, f"{file.name} holds no tensors by name, but {format_value(type(content).__name__)}")
    return {name: content[name].detach() for name in names}


def _is_state(content: object) -> bool:
    return isinstance(content, Mapping) and all(isinstance(name, str) for name in content)


def _read_index(file: Path) -> dict[str, str]:
    """Name of a tensor -> name of the file that holds it, beside the index."""
    try:
        parts = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
        if all(Path(part).name == part for part in parts.values()):
            return dict(parts)
        raise ValueError("a part is in another folder")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise BadInput(f"weights: {file}", f"no index of weights ({error}); download the folder again") from error
