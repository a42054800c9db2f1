"""The data of one client as a file on its node, and as the federation of one that the node trains on."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedweave.data.partitions.splits import PARTS
from fedweave.deployment.wire.spec import AppSpec
from fedweave.engine.clients import Clients
from fedweave.engine.schedule import evaluation_cohort
from fedweave.errors import BadInput, format_count
from fedweave.files import atomic
from fedweave.files.atomic import load_tensors, save_tensors

VERSION = 1
REMEDY = "write it with: python -m fedweave.deployment rows, or: fedweave federate export --data"
MODE = 0o600  # of a file: its owner alone can read it
FILE = re.compile(r"client-(0|[1-9]\d*)\.pt")
ROWS = ("x", "y", "targets")  # arrays whose first axis is rows of the data set


@dataclass(frozen=True)
class ClientFile:
    """The data of one client, as its node stores them.

    Attributes:
        client: identity of the client.
        arrays: name -> the client's rows, or numbers of the client itself.
        parts: "train", "val" and "test" -> rows of `arrays`, without padding.
    """

    client: int
    arrays: dict[str, Tensor]
    parts: dict[str, Tensor]

    def save(self, path: Path) -> None:
        """Write the file, which its owner alone can read."""
        content = {"version": VERSION, "client": self.client, "arrays": self.arrays, "parts": self.parts}
        save_tensors(path, content, MODE)


def path_of(folder: Path, client: int) -> Path:
    """The file of `client` in a folder of such files."""
    return folder / f"client-{client}.pt"


def client_of(path: Path) -> int | None:
    """The client whose file has the name of `path`; None for another name."""
    match = FILE.fullmatch(path.name)
    return int(match[1]) if match else None


def find_files(folder: Path, count: int) -> list[Path]:
    """The clients' files in `folder`, by ascending identity; each of the first `count` clients must have one."""
    for client in range(count):
        if not path_of(folder, client).is_file():
            raise BadInput(
                f"{path_of(folder, client)}",
                f"not found, but the federation has {format_count(count, 'client')}; {REMEDY}",
            )
    files = {client_of(path): path for path in folder.iterdir()}
    return [files[client] for client in sorted(client for client in files if client is not None)]


def read(path: Path) -> ClientFile:
    """Read a client's file.

    Raises:
        BadInput: it is missing, damaged, or of another version.
    """

    def parse(file: Path) -> ClientFile:
        content = load_tensors(file)
        if (version := int(content.pop("version"))) != VERSION:
            raise BadInput(f"version {version}, but this fedweave reads {VERSION}; write it again")
        return ClientFile(**content)

    return atomic.read(path, parse, REMEDY)


def extract_client(federation: Clients, position: int) -> ClientFile:
    """The rows of the client at `position` and of nobody else."""
    data = evaluation_cohort(federation, 0, 0).client_data(position)
    parts = {name: getattr(data, name)[getattr(data, name) >= 0] for name in PARTS}
    arrays = dict(data.arrays)
    if "time" in federation.shared:
        arrays["x"], parts = _select_sensors(arrays["x"], parts)
    elif federation.shared:
        own_rows = torch.cat([*parts.values()]).unique()
        shared = [name for name in ROWS if name in federation.shared]
        arrays |= {name: federation.shared[name][own_rows] for name in shared}
        parts = {name: torch.searchsorted(own_rows, rows) for name, rows in parts.items()}
    arrays = {name: value.clone() for name, value in arrays.items()}
    return ClientFile(int(federation.ids[position]), arrays, {name: rows.clone() for name, rows in parts.items()})


def _select_sensors(series: Tensor, parts: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The series [S, T] of the sensors that a client has, and its rows sensor · T + start among these."""
    steps = series.shape[1]
    sensors = torch.cat([rows // steps for rows in parts.values()]).unique()
    moved = {name: torch.searchsorted(sensors, rows // steps) * steps + rows % steps for name, rows in parts.items()}
    return series[sensors], moved


def build_federation(file: ClientFile, spec: AppSpec) -> Clients:
    """The node's federation, which has one client.

    Raises:
        BadInput: the data have no training row, or other shapes than the specification names.
    """
    if not len(file.parts["train"]):
        raise BadInput(f"client {file.client}: it has no training row, so that it has nothing to learn from")
    _check_shapes(file, spec)
    widths = spec.data["widths"]
    rows: dict[str, Any] = {
        name: F.pad(rows, (0, max(0, widths[name] - len(rows))), value=-1)[None] for name, rows in file.parts.items()
    }
    shared_names = () if spec.data["kind"] == "graph" else (*ROWS, "time")  # all arrays of a graph are its client's own
    own = {name: value[None] for name, value in file.arrays.items() if name not in shared_names}
    shared = {name: value for name, value in file.arrays.items() if name not in own}
    return Clients(shared, own, **rows, ids=torch.tensor([file.client]))


def _check_shapes(file: ClientFile, spec: AppSpec) -> None:
    facts, x = spec.data, file.arrays.get("x")
    if x is None:
        return
    shape = [*x.shape[1:]]
    if facts["kind"] != "series" and shape != facts["shape"]:
        raise BadInput(f"client {file.client}: rows of shape {shape}, but the federation's have {facts['shape']}")
    y = file.arrays.get("y")
    if facts["kind"] == "images" and y is not None and len(y) and int(y.max()) >= facts["classes"]:
        raise BadInput(f"client {file.client}: class {int(y.max())}, but the federation has {facts['classes']} classes")
