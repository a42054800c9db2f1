"""The file by which others follow a federation while its server runs."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedweave.files.atomic import write_json

STATUS = "status.json"


@dataclass
class Status:
    """The file status.json, by which others follow the federation.

    Attributes:
        folder: of the server.
        run: identity of the run in the SuperLink; empty if there is none.
        rounds: of the whole run; 0 while the number is not known.
        round: number of rounds that are over.
    """

    folder: Path
    run: str = ""
    rounds: int = 0
    round: int = 0

    def report_round(self, round: int, line: str) -> None:
        """Report that `round` rounds are over; `line` is that of `RunRecorder.progress_line`."""
        self.round = round
        self.say(line)
        self.write("running", line)

    def say(self, line: str) -> None:
        """Print a line, which `flwr log` shows."""
        print(line, flush=True)

    def write(self, state: str, line: str) -> None:
        """Write the file."""
        content = {
            "run": self.run,
            "state": state,
            "round": self.round,
            "rounds": self.rounds,
            "line": line,
            "pid": os.getpid(),
        }
        write_json(self.folder / STATUS, content, indent=None)


def read(folder: Path, run: str | None = None) -> dict[str, Any]:
    """How far a federation is; empty before its server has started.

    Args:
        run: identity of the run in the SuperLink; what the server of another run wrote is ignored. None: any run.
    """
    path = folder / STATUS
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return dict(content) if run is None or content.get("run") == run else {}
