"""A folder of results: where a call writes them, and the description of the federation in it."""

import json
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from fedweave import data
from fedweave.errors import BadInput, Busy
from fedweave.files.atomic import check_writable, hold_lock, user_errors, write_atomic
from fedweave.own_data.argument_checks import check_folder
from fedweave.own_data.federation import Federation
from fedweave.prediction.input_description import (
    ABOUT,
    describe_inputs,
    hash_content,
    partition_folder,
    read_description,
)
from fedweave.runs import serving
from fedweave.study.spec import STATE


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
        Busy: another process writes results to `out`.
    """
    if out is not None:
        check_folder(out, "out")
    with user_errors():
        temporary = TemporaryFolder() if out is None else None
        folder = temporary.path if temporary else Path(out)
        try:
            check_writable(folder)
            way = "wait until it has ended, or choose another folder (out=, on the command line --out or --output)"
            busy = Busy(f"{folder}: another process writes results there; {way}")
            with nullcontext() if temporary else hold_lock(folder / STATE / "lock", busy):
                yield folder, temporary
        except BaseException:
            if temporary:
                temporary.remove()
            raise


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
