"""The description of the data in a folder of results: clients, classes, and how new rows become inputs."""

import json
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedweave import data
from fedweave.data import Dataset, Partition
from fedweave.data.partitions.splits import PARTS
from fedweave.errors import BadInput
from fedweave.files.atomic import check_writable, read, user_errors, write_atomic
from fedweave.own_data import features
from fedweave.own_data.argument_checks import check_folder
from fedweave.own_data.arrays import digest
from fedweave.own_data.column_encoding import Preprocessing
from fedweave.own_data.federation import Federation
from fedweave.results.runs import MARGINS
from fedweave.results.tables import FILES
from fedweave.runs import serving

ABOUT = "federation.json"
NEEDED = ("name", "kind", "shape", "stored", "classes", "layout", "scaling", "columns")  # in a complete description
# What fedweave writes into a folder of results. Other entries are the user's, and a later copy keeps them.
RESULTS = (
    "runs", "partitions", "tuned", "recommendation", "curves", "metrics", "ablations", "code", ".fedweave", MARGINS,
    "report*.html", "leaderboard.txt", *(f"{name}.csv" for name in FILES.values()),
)  # fmt: skip


class TemporaryFolder:
    """A folder that is removed with this object, or when Python ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="fedweave-"))
        # TemporaryDirectory of the library warns if it is not closed before its object is gone.
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@contextmanager
def results_folder(out: Any) -> Iterator[tuple[Path, TemporaryFolder | None]]:
    """Context of a call that writes results: (folder, temporary folder or None).

    The folder is `out`. Without `out` it is a temporary one, which is removed with the second object, or by an error.

    Raises:
        BadInput: `out` is not a path or cannot be written, before any work; or the disk is full.
    """
    if out is not None:
        check_folder(out, "out")
    with user_errors():
        temporary = TemporaryFolder() if out is None else None
        folder = temporary.path if temporary else Path(out)
        try:
            check_writable(folder)
            yield folder, temporary
        except BaseException:
            if temporary:
                temporary.remove()
            raise


def partition_folder(folder: Path, task: str) -> Path:
    """Where the data of a task are described."""
    return folder / "partitions" / task


def find_partitions(folder: Path) -> Path | None:
    """Where the data of all tasks are described; None where the stages of DVC wrote the results.

    Their data are in the project.
    """
    partitions = folder / "partitions"
    return partitions if partitions.is_dir() else None


def write_description(federation: Federation, folder: Path, description: str, figures: bool = True) -> None:
    """Describe a federation in `folder`, which may have runs on other data too.

    Args:
        description: from `check_description`.
        figures: whether figures of the data are written too.
    """
    target = partition_folder(folder, federation.name)
    write_atomic(target / ABOUT, description)
    if federation.partition.nodes is not None:
        serving.write_graphs(target / serving.GRAPHS, federation.partition)
    if figures:
        data.describe(target, federation.dataset, federation.partition)


def check_description(federation: Federation, folder: Path) -> str:
    """The text of the description of a federation, which fits the one that `folder` may have.

    Raises:
        BadInput: the folder holds runs of other data under this name.
    """
    majority = federation.majority()
    about = {
        "name": federation.name,
        "clients": [*federation.names],
        "partition": dict(federation.partition_block),
        "content": hash_content(federation.dataset, federation.partition),
        "majority": None if majority is None else majority.tolist(),
        **describe_inputs(federation.dataset, federation.partition, federation.normalize),
        "classes": [*federation.classes],
        "shape": [*federation.shape],
    }
    text = json.dumps({**about, "notes": notes(federation)}, indent=1, default=str) + "\n"
    before, now = read_description(folder, federation.name), json.loads(text)
    # An earlier version may have described less; the hash of the content covers what it left out.
    if before and {**now, **before, "notes": now["notes"]} != now:
        differing = [name for name in now if name != "notes" and name in before and before[name] != now[name]]
        raise BadInput(
            f"{partition_folder(folder, federation.name) / ABOUT}: holds results of other data of the name "
            f"{federation.name!r}; choose another folder (out=, on the command line --out or --output), or give the "
            f"data another name; what differs: {', '.join(differing) or 'entries of the file'}"
        )
    return text


def notes(federation: Federation) -> list[str]:
    """Warnings about the data, one line each."""
    return [*federation.notes, *federation.small_clients()]


def copy(source: Path, target: Path, part: str) -> None:
    """Copy results to `target` and replace its earlier results in one step, so that they are never mixed.

    Args:
        part: a folder that marks `target` as results of this kind.

    Raises:
        BadInput: `target` has other content, or is `source` itself, or it cannot be written.
    """
    with user_errors():
        check_writable(target.resolve().parent)
        _copy(source, target, part)


def _copy(source: Path, target: Path, part: str) -> None:
    source, destination = source.resolve(), target.resolve()
    if destination == source:
        return
    if source.is_relative_to(destination):
        raise BadInput(f"save: {target} holds the results that are to be copied; choose an empty folder")
    if destination.exists() and any(destination.iterdir()) and not (destination / part).is_dir():
        raise BadInput(f"save: {target} is not an empty folder; choose another one")
    with tempfile.TemporaryDirectory(prefix=f".{destination.name}-", dir=destination.parent) as staging:
        shutil.copytree(source, Path(staging, "new"), ignore=shutil.ignore_patterns(".fedweave", Path(staging).name))
        _copy_others(destination, Path(staging, "new"))
        _swap(Path(staging, "new"), destination, Path(staging, "old"))


def _copy_others(destination: Path, new: Path) -> None:
    """Copy files and folders of the user, which lie beside earlier results, to `new`."""
    others = destination.iterdir() if destination.exists() else ()
    for path in others:
        if (new / path.name).exists() or any(path.match(pattern) for pattern in RESULTS):
            continue
        if path.is_dir():
            shutil.copytree(path, new / path.name, symlinks=True)
        else:
            shutil.copy2(path, new / path.name, follow_symlinks=False)


def _swap(new: Path, destination: Path, old: Path) -> None:
    """Put `new` in the place of what is at `destination`, which moves to `old`, or back if that fails."""
    if destination.exists():
        destination.replace(old)
    try:
        new.replace(destination)
    except BaseException:
        if old.exists():
            old.replace(destination)
        raise


def read_description(folder: Path, task: str) -> dict[str, Any]:
    """The description of a task; empty where the stages of DVC wrote the results, as their data are in the project.

    Raises:
        BadInput: the file is damaged.
    """
    file = partition_folder(folder, task) / ABOUT
    return read(file, _parse_description, "remove it, and train again") if file.is_file() else {}


def _parse_description(file: Path) -> dict[str, Any]:
    about = dict(json.loads(file.read_text(encoding="utf-8")))
    if missing := [name for name in NEEDED if name not in about]:
        raise ValueError(f"no {', '.join(missing)}")
    return about


def describe_inputs(dataset: Dataset, partition: Partition, normalize: Any) -> dict[str, Any]:
    """How rows of a data set become inputs of models, as plain data: shapes, classes, and what they are scaled by."""
    scaling = data.fit_scaling(dataset, partition, normalize)
    units = (np.zeros(0), np.zeros(0)) if dataset.targets is None else data.fit_units(dataset, partition, normalize)
    classes = dataset.class_names or map(str, range(dataset.classes))
    numeric = {"offset": units[0].tolist(), "unit": units[1].tolist(), "channels": [*dataset.channels]}
    return {
        "kind": dataset.kind,
        "shape": [*dataset.x.shape[1:]],
        "stored": [*dataset.x.shape[1:]],
        "classes": [*classes],
        "targets": dataset.targets_are,
        "layout": dict(partition.layout),
        "scaling": {
            "subtracted": scaling.subtracted.tolist(),
            "divisor": scaling.divisor.tolist(),
            "rows": scaling.rows,
        },
        "columns": [*dataset.columns] or None,
        "pixels": features.describe_pixels(dataset, partition),
        **(numeric if dataset.targets is not None else {}),
        **({"categories": [*dataset.categories]} if dataset.categories else {}),
        **({"client_column": dataset.client_column} if dataset.client_column != "" else {}),
    }


def scaling(about: Mapping[str, Any]) -> data.Scaling:
    """The scaling that `describe_inputs` has described."""
    block = about["scaling"]
    subtracted, divisor = (np.asarray(block[name], dtype=np.float32) for name in ("subtracted", "divisor"))
    return data.Scaling(subtracted, divisor, bool(block["rows"]))


def columns(about: Mapping[str, Any]) -> Preprocessing | None:
    """How rows of a table became vectors, or None."""
    stored = about["columns"]
    return None if not stored or "role" in stored[0] else Preprocessing.from_data(stored)


def hash_content(dataset: Dataset, partition: Partition) -> str:
    """A hash of all features, labels and rows."""
    rows = (client_rows for part in PARTS for client_rows in getattr(partition, part))
    optional = (array for array in (dataset.y, dataset.targets, dataset.time, dataset.edges) if array is not None)
    return digest([dataset.x, *optional, *rows, *(partition.nodes or ()), *(partition.edges or ())])
