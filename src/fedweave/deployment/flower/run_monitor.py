"""Start the run of an app on this machine, and follow it to its end, also where its server is killed."""

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from fedweave.deployment import roster, status
from fedweave.deployment.flower.processes import CONNECTION, Host
from fedweave.errors import BadInput

LOOK = 10.0  # seconds between two questions for the state of a run whose server has not said anything yet


def launch(host: Host, app: Path, folder: Path, **config: Any) -> str:
    """Start the run of an exported app; returns its number in the SuperLink.

    Its server writes to `folder`, and knows the nodes of this federation.
    """
    (folder / status.STATUS).unlink(missing_ok=True)
    known = host.certificate.with_name(roster.FILE)
    values = {"folder": str(folder.resolve()), "roster": str(known.resolve()), **config}
    words = " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
    said = host.run_flwr("run", str(app.resolve()), CONNECTION, "--run-config", words)
    number = re.search(r"started run (\d+)", said)
    return number[1] if number else ""


@dataclass
class _RunMonitor:
    """A run that is followed.

    Attributes:
        host, folder, number: as in `follow`.
        look: when the SuperLink is asked next.
    """

    host: Host
    folder: Path
    number: str
    look: float

    def has_finished(self, now: dict[str, Any]) -> bool:
        """Whether it has finished.

        Raises:
            BadInput: it has failed, or what it needs has ended.
        """
        if now.get("state") == "finished":
            return True
        if now.get("state") == "failed":
            raise BadInput(f"{self.folder}: the federation has failed: {now['line']}")
        if self.host.running["superlink"].poll() is not None:
            raise BadInput(f"the SuperLink has ended; see {self.log}")
        if now and not is_alive(int(now["pid"])):
            last = status.read(self.folder)  # it may have said so just before it ended
            if last.get("state") in ("finished", "failed"):
                return self.has_finished(last)
            raise BadInput(f"{self.folder}: the server of the federation was killed; see {self.log}, and run it again")
        if not now:
            self._check_superlink()
        return False

    def _check_superlink(self) -> None:
        """Ask the SuperLink for the state of a run whose server has not written a status."""
        if time.monotonic() < self.look:
            return
        self.look = time.monotonic() + LOOK
        state, details = run_state(self.host, self.number)
        if state.startswith("finished") and not status.read(self.folder):
            raise BadInput(
                f"{self.folder}: the run has ended ({state}: {details or 'no reason given'}); see {self.log}"
            )

    @property
    def log(self) -> Path:
        return self.host.folder / "superlink.log"


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it runs."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def run_state(host: Host, number: str) -> tuple[str, str]:
    """(state, details) of a run in the SuperLink, such as ("finished:failed", "..."); empty where it is not known."""
    try:
        said = host.run_flwr("list", CONNECTION, "--format", "json")
        runs = json.loads(said[said.index("{") :])["runs"]
    except (ValueError, KeyError):  # also BadInput: the SuperLink is busy, and is asked again
        return "", ""
    mine = [run for run in runs if run["run-id"] == number]
    return (str(mine[0]["status"]), str(mine[0]["status-details"])) if mine else ("", "")


def follow(folder: Path, host: Host, number: str, progress: bool = True, rounds: int = 0) -> dict[str, Any]:
    """Show a bar until the federation has finished.

    Args:
        folder: of its server.
        number: of its run in the SuperLink.
        rounds: how many there will be, for the time in which its server does not know it yet; 0: unknown.

    Raises:
        BadInput: it has failed, or its server or the SuperLink has ended.
    """
    from tqdm import tqdm

    run = _RunMonitor(host, folder, number, time.monotonic() + LOOK)
    bar = tqdm(total=rounds or None, unit=" rounds", disable=not progress, dynamic_ncols=True)
    try:
        while not run.has_finished(now := status.read(folder)):
            if now:
                bar.total = now["rounds"] or bar.total
                bar.update(now["round"] - bar.n)
            time.sleep(0.3)
        bar.total = now["rounds"]
        bar.update(now["round"] - bar.n)
        return now
    finally:
        bar.close()
