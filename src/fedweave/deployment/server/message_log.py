"""The log of messages: one line for each, with client, round, tensors and bytes on the connection."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedweave.deployment.wire import tensors
from fedweave.deployment.wire.messages import Reply, Request
from fedweave.files.atomic import write_table

FILE, TABLE = "messages.jsonl", "connection.csv"


@dataclass(frozen=True)
class MessageLog:
    """The file messages.jsonl in the server's folder."""

    folder: Path

    def append(
        self,
        round: int,
        requests: Mapping[int, Request],
        replies: Mapping[int, Reply | str],
        clients: Mapping[int, int],
    ) -> None:
        """Append the messages of one exchange. Keys are nodes; `clients` gives the identities of their clients."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._truncate_partial_line()
        with (self.folder / FILE).open("a", encoding="utf-8") as file:
            for node, request in requests.items():
                file.write(json.dumps(_line(round, node, request, replies[node], clients.get(node))) + "\n")

    def _truncate_partial_line(self) -> None:
        """Cut off the part of a line that a killed server has left at the end of the file."""
        path = self.folder / FILE
        if not path.is_file():
            return
        with path.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if file.read(1) not in (b"", b"\n"):
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)

    def lines(self) -> list[dict]:
        """All messages so far. An incomplete line that a killed server has left is skipped."""
        path = self.folder / FILE
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        return [line for line in map(_parse_line, text[: text.rfind("\n") + 1].split("\n")) if line]

    def write_traffic(self) -> None:
        """Write connection.csv: bytes on the connection by round, down and up."""
        totals: dict[int, list[int]] = {}
        for line in self.lines():
            row = totals.setdefault(line["round"], [0, 0])
            row[0] += line["down"]
            row[1] += line["up"]
        rows = [(round, *row) for round, row in sorted(totals.items())]
        write_table(self.folder / TABLE, ("round", "bytes_down", "bytes_up"), rows)


def _parse_line(text: str) -> dict:
    try:
        return dict(json.loads(text)) if text else {}
    except ValueError:
        return {}


def _line(round: int, node: int, request: Request, reply: Reply | str, client: int | None) -> dict:
    line = {"round": round, "kind": request.kind, "node": str(node), "client": client}
    if isinstance(reply, str):
        return {**line, "error": reply, "down": 0, "up": 0}
    form, numbers = tensors.form_of(reply.upload), sorted(reply.config)
    down, up = reply.nbytes
    line |= ({"error": reply.refused} if reply.refused else {}) | ({"masked": True} if request.weight else {})
    return {**line, "numbers": numbers, "tensors": form, "content": tensors.nbytes(form), "down": down, "up": up}
