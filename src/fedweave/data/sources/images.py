"""Images: Fashion-MNIST, EMNIST digits, CIFAR-10, CIFAR-100, Tiny-ImageNet.

Pixels stay uint8 [M, c, h, w]; official training rows come first. torchvision reads every format it knows;
where it unpickles files, their md5 sums are pinned.
"""

import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedweave.data.base import Dataset
from fedweave.data.registry import dataset
from fedweave.data.sources.origins import CIFAR10_SUMS, CIFAR100_SUMS
from fedweave.data.sources.pickles import read_arrays
from fedweave.errors import BadInput
from fedweave.files.arrays import read_npz
from fedweave.files.atomic import read

CIFAR10_COPY = "CIFAR-10 from a lossy AVIF copy (41.8 dB)"
CIFAR100_COPY = "CIFAR-100 from a lossless WebP copy (within a class, images in another order)"


def torchvision_datasets() -> Any:
    """The module torchvision.datasets, also where its wheel does not match torch's."""
    from fedweave.tensors.torchvision import declare_operators

    declare_operators()
    import torchvision

    return torchvision.datasets


@dataset("fashion-mnist", "images")
def fashion_mnist(root: Path) -> Dataset:
    """60,000 + 10,000 images [1, 28, 28] of 10 kinds of clothing. Source: Xiao et al. (2017)."""
    reader = torchvision_datasets().FashionMNIST
    return _build_dataset("fashion-mnist", 10, [_grey_arrays(reader(root, train=train)) for train in (True, False)])


@dataset("emnist", "images")
def emnist(root: Path) -> Dataset:
    """280,000 images [1, 28, 28] of the ten digits, transposed as published. Source: Cohen et al. (2017)."""
    reader = torchvision_datasets().EMNIST
    return _build_dataset(
        "emnist", 10, [_grey_arrays(reader(root, split="digits", train=train)) for train in (True, False)]
    )


def _grey_arrays(images: Any) -> tuple[np.ndarray, np.ndarray]:
    return images.data.numpy()[:, None], images.targets.numpy()


@dataset("cifar10", "images")
def cifar10(root: Path) -> Dataset:
    """50,000 + 10,000 images [3, 32, 32] in 10 classes. Source: Krizhevsky (2009)."""
    folder = root / "CIFAR10"
    if all((folder / "cifar-10-batches-py" / name).is_file() for name in CIFAR10_SUMS):
        reader = torchvision_datasets().CIFAR10
        return _build_dataset("cifar10", 10, [_colour_arrays(reader(folder, train=train)) for train in (True, False)])
    labels = _read_labels(folder / "labels.npz", ("train_labels", "test_labels"))
    parts = [(read_sheets(folder / part, 40, 50), labels[f"{part}_labels"]) for part in ("train", "test")]
    return _build_dataset("cifar10", 10, parts, note=CIFAR10_COPY)


@dataset("cifar100", "images")
def cifar100(root: Path) -> Dataset:
    """50,000 + 10,000 images [3, 32, 32] in 100 classes of 20 superclasses. Source: Krizhevsky (2009)."""
    folder = root / "CIFAR100"
    inner = folder / "cifar-100-python"
    if all((inner / name).is_file() for name in CIFAR100_SUMS):
        reader = torchvision_datasets().CIFAR100
        parts = [_colour_arrays(reader(folder, train=train)) for train in (True, False)]
        coarse = [read_arrays(inner / part)["coarse_labels"] for part in ("train", "test")]
        return _build_dataset("cifar100", 100, parts, coarse)
    keys = [f"{part}_{kind}" for part in ("train", "test") for kind in ("fine", "coarse")]
    labels = _read_labels(folder / "labels.npz", keys)
    parts = [(read_sheets(folder / part, 500, 1), labels[f"{part}_fine"]) for part in ("train", "test")]
    return _build_dataset(
        "cifar100", 100, parts, [labels[f"{part}_coarse"] for part in ("train", "test")], CIFAR100_COPY
    )


def _colour_arrays(images: Any) -> tuple[np.ndarray, np.ndarray]:
    return images.data.transpose(0, 3, 1, 2), np.asarray(images.targets)


def _read_labels(path: Path, keys: Sequence[str]) -> dict[str, np.ndarray]:
    """The labels `keys`, each [M], of a .npz file; raises BadInput where it is damaged or lacks one."""
    stored = read(path, partial(read_npz, names=keys), "run the download stage again")
    for key in keys:
        if stored[key].ndim != 1 or stored[key].dtype.kind not in "iu":
            raise BadInput(f"{path}: holds no labels {key}; run the download stage again")
    return stored


def read_sheets(folder: Path, rows: int, columns: int) -> np.ndarray:
    """All sheets of a folder in name order, `rows` x `columns` images each: [M, 3, 32, 32] uint8."""
    paths = sorted([*folder.glob("*.webp"), *folder.glob("*.avif")])
    if not paths:
        raise BadInput(f"{folder}: holds no .webp or .avif sheets; run the download stage again")
    return np.concatenate([read_sheet(path, rows, columns) for path in paths])


def read_sheet(path: Path, rows: int, columns: int) -> np.ndarray:
    """The images of one sheet, row by row: [rows * columns, 3, 32, 32] uint8.

    Raises:
        BadInput: the file is damaged or has another size, or Pillow cannot read its format.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            if image.size != (columns * 32, rows * 32):  # before decoding, which could need any amount of memory
                raise ValueError(f"it has {image.size[0]} x {image.size[1]} pixels")
            pixels = np.asarray(image.convert("RGB"))
        grid = pixels.reshape(rows, 32, columns, 32, 3)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: not a sheet of {rows} x {columns} images ({error}); download it again") from error
    return grid.transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32)


@dataset("tiny-imagenet", "images")
def tiny_imagenet(root: Path) -> Dataset:
    """100,000 + 10,000 (validation) images [3, 64, 64] in 200 classes, read from the official archive.

    Source: Stanford CS231n. The unlabelled test images are left out.
    """
    with zipfile.ZipFile(root / "TinyImageNet" / "tiny-imagenet-200.zip") as archive:
        base = "tiny-imagenet-200"
        words = sorted(archive.read(f"{base}/wnids.txt").decode("ascii").split())
        label = {word: i for i, word in enumerate(words)}
        train = sorted(n for n in archive.namelist() if n.startswith(f"{base}/train/") and n.endswith(".JPEG"))
        lines = archive.read(f"{base}/val/val_annotations.txt").decode("ascii").splitlines()
        validation = {f"{base}/val/images/{line.split()[0]}": line.split()[1] for line in lines}
        parts = [
            (_read_pictures(archive, train), np.array([label[name.split("/")[2]] for name in train])),
            (_read_pictures(archive, list(validation)), np.array([label[word] for word in validation.values()])),
        ]
    return _build_dataset("tiny-imagenet", len(words), parts)


def _read_pictures(archive: zipfile.ZipFile, names: list[str]) -> np.ndarray:
    pixels = np.empty((len(names), 3, 64, 64), dtype=np.uint8)
    for i, name in enumerate(names):
        with archive.open(name) as file:
            pixels[i] = read_picture(file, 64)
    return pixels


def read_picture(file: IO[bytes] | Path, size: int) -> np.ndarray:
    """One image in RGB, resized to a square if it is not one of `size`: [3, size, size] uint8."""
    from PIL import Image

    with Image.open(file) as image:
        colour = image.convert("RGB")
        square = colour if colour.size == (size, size) else colour.resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(square).transpose(2, 0, 1)


def _build_dataset(
    name: str, classes: int, parts: list[tuple[np.ndarray, np.ndarray]], coarse: list[Any] | None = None, note: str = ""
) -> Dataset:
    """One Dataset of the official training and test parts."""
    x = np.ascontiguousarray(np.concatenate([pixels for pixels, _ in parts]))
    y = np.concatenate([labels for _, labels in parts]).astype(np.int64)
    official = np.repeat(np.arange(len(parts)), [len(labels) for _, labels in parts])
    parents = None if coarse is None else np.concatenate([np.asarray(c) for c in coarse]).astype(np.int64)
    return Dataset(name, "images", x, y, classes=classes, official=official, coarse=parents, note=note)
