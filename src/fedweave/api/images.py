"""Images of users: folders of files, and tables that name files or hold images."""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.errors import BadInput, format_value

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
MOST_PIXELS = 4096  # largest height and width to which images are resized
DEEP_MODES = ("I", "I;16", "I;16B", "I;16L", "F")  # of grey images with more than 8 bits
PARTS = {"validation": "val", "valid": "val", "dev": "val"}  # other names of a part


def list_files(folder: Path | str) -> "pd.DataFrame":
    """A table of the files FOLDER/CLIENT/CLASS/FILE: file, client, label.

    Raises:
        BadInput: there is no such folder, or no image in it.
    """
    import pandas as pd

    root = Path(folder)
    if not root.is_dir():
        raise BadInput(f"{root}: there is no such folder")
    files = sorted(path for path in root.glob("*/*/*") if path.suffix.lower() in ENDINGS and path.is_file())
    if not files:
        raise BadInput(f"{root}: has no images; name them CLIENT/CLASS/FILE with the ending {', '.join(ENDINGS)}")
    names = [path.relative_to(root).parts for path in files]
    return pd.DataFrame({"file": ["/".join(name) for name in names], "client": [name[0] for name in names],
                         "label": [name[1] for name in names]})  # fmt: skip


def load(images: Iterable[Any], root: Path, size: tuple[int, int] | None) -> np.ndarray:
    """Bytes [M, C, H, W] of images: files below `root`, encoded files, PIL images or arrays [H, W] or [H, W, C].

    All are grey if the first one is, else all are of three colours.

    Args:
        size: height and width to which all are resized; default: all must have the same size.

    Raises:
        BadInput: an image cannot be read, has another size, or has values that are no bytes.
    """
    _check_size(size)
    arrays: list[np.ndarray] = []
    mode = ""
    for i, image in enumerate(images):
        original, label = _open_image(image, root, i)
        if original.mode in DEEP_MODES:
            _as_bytes(original, label)  # a conversion by PIL would cut larger values off
        mode = mode or ("L" if original.mode in ("1", "L", *DEEP_MODES) else "RGB")
        converted = original.convert(mode)
        if size is not None:
            converted = converted.resize((size[1], size[0]))
        values = np.asarray(converted)
        values = values[None] if mode == "L" else values.transpose(2, 0, 1)
        if arrays and values.shape != arrays[0].shape:
            shapes = [" x ".join(map(str, one.shape[1:])) for one in (values, arrays[0])]
            raise BadInput(f"{label}: is of {shapes[0]} pixels, the first image of {shapes[1]}; give size=(32, 32)")
        arrays.append(values)
    return np.stack(arrays)


def _check_size(size: Any) -> None:
    """Refuse a size that is not a height and a width."""
    numbers = [*size] if isinstance(size, list | tuple) else []
    if size is not None and (len(numbers) != 2 or not all(type(n) is int and 0 < n <= MOST_PIXELS for n in numbers)):
        raise BadInput(
            f"size: {format_value(size)} is no height and width, whole numbers up to {MOST_PIXELS}; such as (32, 32)"
        )


def _as_bytes(image: Any, label: str) -> np.ndarray:
    """An array [H, W] or [H, W, C], or a grey image of more than 8 bits, as bytes.

    Raises:
        BadInput: it has values that a conversion to bytes would change: fractions, or numbers below 0 or above 255.
    """
    values = np.asarray(image)
    if values.dtype.kind in "iuf" and ((values < 0) | (values > 255) | (values != values.round())).any():
        raise BadInput(
            f"{label}: has values from {values.min():g} to {values.max():g} that are no bytes; give whole numbers "
            "from 0 to 255, or arrays of numbers with from_arrays"
        )
    return values.astype(np.uint8)


def _open_image(image: Any, root: Path, row: int) -> tuple[Any, str]:
    """(the image as an object of PIL, its name in messages)."""
    from PIL import Image

    label = f"image in row {row}"
    try:
        if isinstance(image, Mapping):  # how Hugging Face's data sets store images
            image = image["bytes"] if image.get("bytes") is not None else image["path"]
        if isinstance(image, str | Path):
            label, path = str(root / image), root / image
            with Image.open(path) as file:
                file.load()
                return file, label
        if isinstance(image, bytes):
            return Image.open(io.BytesIO(image)), label
        return image if isinstance(image, Image.Image) else Image.fromarray(_as_bytes(image, label)), label
    except BadInput:
        raise
    # Decoders raise errors of many types for damaged files and for images that are too large.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadInput(f"{label}: cannot be read as an image ({reason})") from error


def as_table(dataset: Any) -> "pd.DataFrame":
    """A data set of Hugging Face as a table; of several parts, with a column "split".

    Takes whatever has `to_pandas`, or `column_names` and columns by name, or a mapping of names of parts to these.
    Numbers of a `ClassLabel` become the names of the classes.

    Raises:
        BadInput: it is none of these.
    """
    import pandas as pd

    if isinstance(dataset, Mapping) and dataset and not hasattr(dataset, "to_pandas"):
        parts = {PARTS.get(str(name), str(name)): as_table(part) for name, part in dataset.items()}
        return pd.concat([table.assign(split=name) for name, table in parts.items()], ignore_index=True)
    if hasattr(dataset, "to_pandas"):
        table = dataset.to_pandas()
    elif hasattr(dataset, "column_names"):
        table = pd.DataFrame({name: dataset[name] for name in dataset.column_names})
    else:
        raise BadInput(f"dataset: {type(dataset).__name__} has neither to_pandas() nor column_names; give a Dataset")
    return _replace_class_numbers(table, getattr(dataset, "features", None) or {})


def _replace_class_numbers(table: "pd.DataFrame", features: Mapping[str, Any]) -> "pd.DataFrame":
    """`table` with names in place of the numbers of classes."""
    for column, feature in features.items():
        names: Sequence[str] | None = getattr(feature, "names", None)
        if names and column in table and table[column].dtype.kind in "iu" and table[column].min() >= 0:
            table = table.assign(**{column: np.array(names, dtype=object)[table[column].to_numpy()]})
    return table
