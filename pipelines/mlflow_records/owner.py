"""The name of this project in a shared store: projects that write to one server or database may have equal studies."""

import re
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path

from fedweave.files.atomic import write_new
from fedweave.processes.user import user_name

from .. import addresses
from ..paths import STATE

PROJECT = "project"  # tag of every run in a store that projects share
FILE = STATE / "project"  # the project's name: the name of its folder when the file was made, and a random suffix


def name_in_store(uri: str) -> str:
    """The name of this project in the store at `uri`; empty where the store is the project's own file."""
    return "" if addresses.is_own(uri) else name()


def name() -> str:
    """The name of this project on every shared server; it is made once."""
    if not FILE.is_file():
        _write_name()
    return FILE.read_text(encoding="utf-8").strip()


def tags(name: str) -> Mapping[str, str]:
    """Tags that distinguish the runs of the project `name`, and name user, host and folder; none in its own store."""
    if not name:
        return {}
    return {PROJECT: name, "user": user_name(), "host": socket.gethostname(), "folder": str(Path.cwd())}


def project_filter(name: str) -> str:
    """MLflow's filter for the runs of the project `name`; empty in the project's own store."""
    return f"tags.{PROJECT} = '{name}'" if name else ""


def _write_name() -> None:
    folder = re.sub(r"[^\w-]+", "-", Path.cwd().name, flags=re.ASCII).strip("-")[:40] or "project"
    write_new(FILE, f"{folder}-{uuid.uuid4().hex[:8]}\n".encode())
