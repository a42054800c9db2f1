"""Which client the key of a node belongs to: the file roster.json on the server's host.

The server's owner decides this when registering a key. What a node says of itself must agree with it.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedweave.errors import BadInput
from fedweave.files.atomic import hold_lock, read_json, write_json

FILE, VERSION = "roster.json", 1
DEFAULT_PATH = Path("~/.fedweave/roster.json")
REMEDY = "register the keys of the nodes: python -m fedweave.deployment register KEY.pub --client N"


class RosterEntry(NamedTuple):
    """The key of a client.

    Attributes:
        client: identity.
        key: fingerprint of the public key, as `ssh-keygen -l` shows it.
        node: number that the SuperLink gave this key.
    """

    client: int
    key: str
    node: int


@dataclass(frozen=True)
class Roster:
    """The file `path`; a client has one key, and a key one client."""

    path: Path

    def entries(self) -> tuple[RosterEntry, ...]:
        """All rows by client; none where there is no file.

        Raises:
            BadInput: the file is damaged.
        """

        def parse(content: Mapping[str, Any]) -> list[RosterEntry]:
            if content["version"] != VERSION:
                raise ValueError(f"version {content['version']}")
            return [RosterEntry(int(row["client"]), str(row["key"]), int(row["node"])) for row in content["nodes"]]

        if not self.path.exists():
            return ()
        return tuple(sorted(read_json(self.path, f"delete it, and {REMEDY}", parse)))

    def clients(self) -> dict[int, int]:
        """Node -> the client that its key belongs to.

        Raises:
            BadInput: there is no such file, or it is damaged.
        """
        if not self.path.is_file():
            raise BadInput(self.path, f"not found, so that no node is known; {REMEDY}")
        return {entry.node: entry.client for entry in self.entries()}

    @contextmanager
    def edit(self) -> Iterator[dict[int, RosterEntry]]:
        """Client -> its row, for the caller to change; written at the end, while no other process changes the file."""
        with hold_lock(self.path.with_name(f".{self.path.name}.lock")):
            rows = {entry.client: entry for entry in self.entries()}
            yield rows
            self._write(sorted(rows.values()))

    def _write(self, entries: Sequence[RosterEntry]) -> None:
        content = {"version": VERSION, "nodes": [{**entry._asdict(), "node": str(entry.node)} for entry in entries]}
        write_json(self.path, content)


def fingerprint(public: Path) -> str:
    """The fingerprint of the public key in the file `public`."""
    try:
        kind, text, *_ = public.read_text(encoding="ascii").split()
        content = base64.b64decode(text, validate=True)
    except (OSError, ValueError, binascii.Error) as error:
        raise BadInput(
            public, f"no public key ({type(error).__name__}); a node's is NAME.pub, made by: keys"
        ) from error
    if kind.encode() not in content[:64]:
        raise BadInput(public, f"no public key of the kind {kind}; a node's is NAME.pub, made by: keys")
    return "SHA256:" + base64.b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def refusal_reason(owners: Mapping[int, int] | None, node: int, client: int) -> str:
    """Why the node may not be `client`; empty if it may, or if the transport has no keys."""
    if owners is None or owners.get(node) == client:
        return ""
    if node not in owners:
        return "its key is in no row of the roster; register it to let it in"
    return f"it says that it is client {client}, but its key is that of client {owners[node]}"
