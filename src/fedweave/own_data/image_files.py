"""Images of users: folders of files, and tables that name files or hold images."""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.errors import BadInput, describe_error, format_count, format_value
from fedweave.own_data.splits import part_name
from fedweave.own_data.user_files import NOTES

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
LEVELS = ("CLIENT", "CLASS", "FILE")  # of a folder of images
MOST_PIXELS = 4096  # largest height and width to which images are resized
DEEP_MODES = ("I", "I;16", "I;16B", "I;16L", "F")  # of grey images with more than 8 bits


def list_files(folder: Path | str) -> "pd.DataFrame":
    """A table of the files FOLDER/CLIENT/CLASS/FILE: file, client, label. A note says how many images are elsewhere.

    Raises:
        BadInput: there is no such folder, or no image in it.
    """
    import pandas as pd

    root = Path(folder)
    if not root.is_dir():
        raise BadInput(f"{root}: there is no such folder")
    names = _find_images(root, "/".join("*" * len(LEVELS)))
    elsewhere = ["/".join(name) for name in _find_images(root, "**/*") if len(name) != len(LEVELS)]
    if not names:
        found = f"; it has {elsewhere[0]}" if elsewhere else ""
        way = f"name them {'/'.join(LEVELS)} with the ending {', '.join(ENDINGS)}"
        raise BadInput(f"{root}: has no images of clients{found}; {way}")
    table = pd.DataFrame(
        {
            "file": ["/".join(name) for name in names],
            "client": [name[0] for name in names],
            "label": [name[1] for name in names],
        }
    )
    if elsewhere:
        count = format_count(len(elsewhere), "image")
        table.attrs[NOTES] = [f"left out: {count} of {root} not at {'/'.join(LEVELS)}, such as {elsewhere[0]}"]
    return table


def _find_images(root: Path, pattern: str) -> list[tuple[str, ...]]:
    """The parts of the paths of images below `root`, in their order; without hidden files, as macOS writes them."""
    images = (path for path in root.glob(pattern) if path.suffix.lower() in ENDINGS and path.is_file())
    return [path.relative_to(root).parts for path in sorted(images) if not path.name.startswith(".")]


def load(images: Iterable[Any], root: Path, size: tuple[int, int] | None) -> np.ndarray:
    """Bytes [M, C, H, W] of images: files below `root`, encoded files, PIL images or arrays [H, W] or [H, W, C].

    All are grey if each one is, else all are of three colours. They are turned as their EXIF data say, and what is
    transparent is white.

    Args:
        size: height and width to which all are resized; default: all must have the same size.

    Raises:
        BadInput: an image cannot be read, has another size, or has values that are not bytes.
    """
    _check_size(size)
    return _read_images(images, root, size, None, "the first image of {}; give size=(32, 32)")


def describe(column: str, size: tuple[int, int] | None) -> dict[str, Any]:
    """How images of files became features, as plain data; for `load_like`."""
    return {"name": column, "role": "image", "resize": size is not None}


def are_images(columns: Sequence[Mapping[str, Any]] | None) -> bool:
    """Whether `columns` of a data set hold what `describe` returns."""
    return bool(columns) and (columns or ())[0].get("role") == "image"


def load_like(rows: Any, columns: Sequence[Mapping[str, Any]] | None, shape: Sequence[int]) -> Any:
    """Images [M, C, H, W] of new rows, in the colours and the size of the training's; arrays as they are.

    Args:
        rows: a list of files (below the current folder, if they are relative), encoded files or PIL images, or a table
            with the column of the training's.
        columns: of the data set.
        shape: [C, H, W] of the training's images.

    Raises:
        BadInput: as `load`; no such column; or files, where arrays are read.
    """
    if are_images(columns) and hasattr(rows, "columns"):
        name = (columns or ())[0]["name"]
        if name not in rows:
            raise BadInput(f"table: no column {name!r} of images; it has {', '.join(map(str, rows.columns))}")
        rows = rows[name]
    kind = getattr(getattr(rows, "dtype", None), "kind", "")
    cells = rows.tolist() if kind in ("O", "U", "S", "T") else rows
    if not isinstance(cells, list | tuple) or not cells or not _is_file(cells[0]):
        return rows
    if not are_images(columns):
        raise BadInput(
            f"x: holds {format_value(cells[0])}, but this model reads arrays; give [M, {', '.join(map(str, shape))}]"
        )
    resize = (shape[1], shape[2]) if (columns or ())[0]["resize"] else None
    return _read_images(cells, Path(), resize, tuple(shape), "those of training of {}; give images of that size")


def _is_file(cell: Any) -> bool:
    """Whether a cell is an image in another form than an array."""
    from PIL import Image

    return isinstance(cell, str | bytes | Path | Mapping | Image.Image)


def _read_images(
    images: Iterable[Any], root: Path, size: tuple[int, int] | None, shape: tuple[int, ...] | None, expected: str
) -> np.ndarray:
    """Bytes [M, C, H, W]; all have the colours and the size of `shape`, or of the first image.

    Args:
        expected: end of the message about another size, with a place for the one of `shape`.
    """
    channels, arrays = shape[0] if shape else None, []
    for i, image in enumerate(images):
        values, label = _read_image(image, root, i, size, channels)
        shape = shape or values.shape
        if values.shape[1:] != shape[1:]:
            raise BadInput(f"{label}: is of {_pixels(values.shape)} pixels, {expected.format(_pixels(shape))}")
        arrays.append(values)
    colours = max(map(len, arrays))  # a grey file among others is a photo in colours that are grey
    return np.stack([np.broadcast_to(values, (colours, *values.shape[1:])) for values in arrays])


def _pixels(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape[1:]))


def _read_image(
    image: Any, root: Path, row: int, size: tuple[int, int] | None, channels: int | None
) -> tuple[np.ndarray, str]:
    """(bytes [C, H, W], the image's name in messages); grey or of three colours, as it is without `channels`."""
    from PIL import Image, ImageOps

    original, label = _open_image(image, root, row)
    original = ImageOps.exif_transpose(original)
    if original.has_transparency_data:
        white = Image.new("RGBA", original.size, "white")
        mode = "L" if original.mode == "LA" else "RGB"
        original = Image.alpha_composite(white, original.convert("RGBA")).convert(mode)
    if original.mode in DEEP_MODES:
        _as_bytes(original, label)  # a conversion by PIL would cut larger values off
    is_grey = original.mode in ("1", "L", *DEEP_MODES) if channels is None else channels == 1
    converted = original.convert("L" if is_grey else "RGB")
    if size is not None:
        converted = converted.resize((size[1], size[0]))
    values = np.asarray(converted)
    return values[None] if is_grey else values.transpose(2, 0, 1), label


def _check_size(size: Any) -> None:
    """Refuse a size that is not a height and a width."""
    numbers = [*size] if isinstance(size, list | tuple) else []
    if size is not None and (len(numbers) != 2 or not all(type(n) is int and 0 < n <= MOST_PIXELS for n in numbers)):
        raise BadInput(
            f"size: {format_value(size)} is not a height and width, whole numbers up to {MOST_PIXELS}; such as (32, 32)"
        )


def _as_bytes(image: Any, label: str) -> np.ndarray:
    """An array [H, W] or [H, W, C], or a grey image of more than 8 bits, as bytes."""
    values = np.asarray(image)
    if values.dtype.kind in "iuf" and ((values < 0) | (values > 255) | (values != values.round())).any():
        raise BadInput(
            f"{label}: has values from {values.min():g} to {values.max():g} that are not bytes; give whole numbers "
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
        reason = describe_error(error)
        raise BadInput(f"{label}: cannot be read as an image ({reason})") from error


def as_table(dataset: Any) -> "pd.DataFrame":
    """A data set of Hugging Face as a table; of several parts, with a column "split".

    Takes whatever has `to_pandas`, or `column_names` and columns by name, or a mapping of names of parts to these.
    Numbers of a `ClassLabel` become the names of the classes.
    """
    import pandas as pd

    if isinstance(dataset, Mapping) and dataset and not hasattr(dataset, "to_pandas"):
        parts = {part_name(str(name)): as_table(part) for name, part in dataset.items()}
        return pd.concat([table.assign(split=name) for name, table in parts.items()], ignore_index=True)
    if hasattr(dataset, "to_pandas"):
        table = dataset.to_pandas()
    elif hasattr(dataset, "column_names"):
        table = pd.DataFrame({name: dataset[name] for name in dataset.column_names})
    else:
        raise BadInput(f"dataset: {type(dataset).__name__} has neither to_pandas() nor column_names; give a Dataset")
    return _replace_class_numbers(table, getattr(dataset, "features", None) or {})


def _replace_class_numbers(table: "pd.DataFrame", features: Mapping[str, Any]) -> "pd.DataFrame":
    """`table` with names in place of the numbers of classes; -1 is a missing label, as is None."""
    for column, feature in features.items():
        names: Sequence[str] | None = getattr(feature, "names", None)
        if not names or column not in table:
            continue
        numbers = table[column].convert_dtypes()  # pandas makes fractions of whole numbers beside a missing one
        if numbers.dtype.kind in "iu" and numbers.min() >= -1:
            codes = numbers.fillna(-1).to_numpy(dtype=np.int64)
            table = table.assign(**{column: np.array([*names, None], dtype=object)[codes]})
    return table
