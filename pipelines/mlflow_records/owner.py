"""Whose runs are whose: several projects may write to one server, or to one database, and name their studies alike."""

import getpass
import os
import re
import socket
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fedweave.errors import BadInput
from fedweave.pipelines import addresses
from fedweave.pipelines.paths import STATE

PROJECT = "project"  # tag of every run in a store that projects share
FILE = STATE / "project"  # the project's name in such stores: its folder's when it was made, and a random end
NAME = re.compile(r"[\w-]{1,60}")


def name_in_store(uri: str) -> str:
    """The name of this project in the store at `uri`; empty where the store is the project's own file.

    Raises:
        BadInput: the file that keeps the name is damaged.
    """
    return "" if addresses.is_own(uri) else name()


def name() -> str:
    """The name of this project wherever projects meet.

    Raises:
        BadInput: the file that keeps the name is damaged.
    """
    if not FILE.is_file():
        _write_name()
    text = FILE.read_text(encoding="utf-8", errors="replace").strip()
    if not NAME.fullmatch(text):
        raise BadInput(
            f"{FILE}: {text[:60]!r} is no project's name; put the tag `{PROJECT}` of its runs in MLflow there"
        )
    return text


def tags(name: str) -> Mapping[str, str]:
    """What tells the runs of the project `name` from those of others, and people whom to ask; none in its own store."""
    if not name:
        return {}
    return {PROJECT: name, "user": _user(), "host": socket.gethostname(), "folder": str(Path.cwd())}


def project_filter(name: str) -> str:
    """The filter for the runs of the project `name`; in its own store all are."""
    return f"tags.{PROJECT} = '{name}'" if name else ""


def _write_name() -> None:
    """Write the name at once and only once, whoever else does the same at this moment."""
    folder = re.sub(r"[^\w-]+", "-", Path.cwd().name, flags=re.ASCII).strip("-")[:40] or "project"
    FILE.parent.mkdir(parents=True, exist_ok=True)
    end = uuid.uuid4().hex[:8]
    draft = FILE.with_suffix(f".{end}")
    draft.write_text(f"{folder}-{end}\n", encoding="utf-8")
    with suppress(FileExistsError):
        os.link(draft, FILE)
    draft.unlink()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without a name
        return str(os.getuid())
