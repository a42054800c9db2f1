"""The readers of files that others may have written, each with a few valid files and a way to damage them."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedweave.errors import BadInput
from tests.fuzz import mutations
from tests.fuzz.contents import (
    amazon,
    arrays,
    audited,
    checkpoints,
    contents,
    evaluations,
    partitions,
    pickles,
    studies,
    tables,
    tar,
    zips,
)
from tests.fuzz.mutations import Mutation

AGAIN = "write it again"


MANY = 1_000_000  # elements of a tensor that is copied: an expanded one has more of them than its file


@dataclass(frozen=True)
class Target:
    """`read` takes a path. It returns, or raises one of `refusals` with one line.

    Files of the corpus need not be valid.
    """

    corpus: Callable[[], list[bytes]]
    read: Callable[[Path], object]
    mutate: Mutation = mutations.damage
    suffix: str = ""
    refusals: tuple[type[Exception], ...] = (BadInput,)


def touch(value: Any) -> None:
    """Read every byte of every array in `value`, each object once."""
    seen, left = set(), [value]
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, dict):
            left += node.values()
        elif isinstance(node, list | tuple):
            left += node
        elif isinstance(node, np.ndarray):
            left += list(node.flat) if node.dtype == object else [node.tobytes()]
        elif hasattr(node, "untyped_storage") and node.numel() < MANY:
            node.clone()


def read_pickle(path: Path) -> None:
    from fedweave.data.sources.pickles import read_arrays

    touch(read_arrays(path))


def read_npy(path: Path) -> None:
    from fedweave.files.arrays import map_npy
    from fedweave.files.atomic import read

    touch(read(path, map_npy, AGAIN))


def read_partition(path: Path) -> None:
    from fedweave import data

    touch(vars(data.load_partition(path)))


def read_amazon(path: Path) -> None:
    from fedweave.data.sources.citation import _read_amazon
    from fedweave.files.atomic import read

    touch(vars(read(path, partial(_read_amazon, "toy"), AGAIN)))


def read_table(path: Path) -> None:
    from fedweave.data.sources.traffic import read_hdf5

    touch(tuple(read_hdf5(path)))


def read_evaluations(path: Path) -> None:
    from fedweave.results.runs import read_scores

    read_scores(path)


def read_checkpoint(path: Path) -> None:
    from fedweave.files.atomic import load_tensors, read

    touch(read(path, load_tensors, AGAIN))


def unpack(path: Path, member: str) -> None:
    """The member is written, or the source is reported as bad and no file remains."""
    from fedweave.data.sources.transfer import SourceError, extract

    target = path.parent / "out"
    try:
        extract(path, {member: target})
        target.unlink()
    except SourceError:
        assert not target.exists()
        raise
    finally:
        assert not [*path.parent.glob(".out*")]


def read_study(path: Path) -> None:
    from fedweave.study import spec
    from fedweave.study.config import read_yaml

    spec.parse(read_yaml(path))


# Libraries read these, and two of them unpickle; they get only files with pinned digests.
PINNED = {"cora", "citeseer", "pubmed", "cifar10", "cifar100", "fashion-mnist"}


def read_dataset(path: Path) -> None:
    """The first byte selects a data set. The rest is the content of each of its files. Digests are ignored."""
    from unittest.mock import patch

    from fedweave import data
    from fedweave.data.sources.origins import CATALOGUE

    raw, names = (
        path.read_bytes() or b"\0",
        sorted(name for name, forms in CATALOGUE.items() if forms and name not in PINNED),
    )
    name = names[raw[0] % len(names)]
    with TemporaryDirectory(dir=path.parent) as folder, patch.object(data, "require_files"):
        for file in CATALOGUE[name][0].files[:12]:
            (Path(folder) / file.path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / file.path).write_bytes(raw[1:])
        touch(vars(data.load(name, folder)))


def _source_error() -> type[Exception]:
    from fedweave.data.sources.transfer import SourceError

    return SourceError


TARGETS: dict[str, Target] = {
    "pickle": Target(pickles, read_pickle, mutations.program),
    "pickle-patches": Target(audited, read_pickle, mutations.patches),
    "npy": Target(arrays, read_npy, mutations.npy_header),
    "npz": Target(partitions, read_partition, mutations.members(mutations.npy_header)),
    "amazon": Target(amazon, read_amazon, mutations.members(mutations.npy_header)),
    "hdf5": Target(tables, read_table),
    "parquet": Target(evaluations, read_evaluations),
    "checkpoint": Target(checkpoints, read_checkpoint, mutations.members(mutations.damage)),
    "tar": Target(
        tar, partial(unpack, member="m"), mutations.compressed(mutations.damage), ".tar.gz", (_source_error(),)
    ),
    "zip": Target(zips, partial(unpack, member="m"), mutations.members(mutations.damage), ".zip", (_source_error(),)),
    "gz": Target(
        lambda: [gzip.compress(b"x" * 50)], partial(unpack, member="m.gz"), suffix=".gz", refusals=(_source_error(),)
    ),
    "yaml": Target(studies, read_study),
    "data-set": Target(contents, read_dataset),
}
