"""Start the run of an app on this machine, and follow it to its end, even if its server is killed."""

import json
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from fedweave.comparison.progress import format_duration
from fedweave.deployment.flower.processes import CONNECTION, Host, find_reason
from fedweave.deployment.wire import roster, status
from fedweave.errors import BadInput, format_count

QUERY_INTERVAL = 10.0  # seconds between two queries for the state of a run whose server has written no status yet


def launch(host: Host, app: Path, folder: Path, **config: Any) -> str:
    """Start the run of an exported app; returns its identity in the SuperLink.

    Its server writes to `folder`, and reads the roster of this host.

    Raises:
        BadInput: Flower has refused it, or names no run.
    """
    roster_file = host.certificate.with_name(roster.FILE)
    values = {"folder": str(folder.resolve()), "roster": str(roster_file.resolve()), **config}
    run_config = " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
    output = host.run_flwr("run", str(app.resolve()), CONNECTION, "--run-config", run_config)
    if not (match := re.search(r"started run (\d+)", output)):
        raise BadInput(app, f"flwr run has named no run: {find_reason(output)}")
    return match[1]


def _has_finished(host: Host, folder: Path, run_id: str) -> bool:
    """Whether a run has finished, by the status that its server writes.

    Raises:
        BadInput: it has failed, or what it needs has ended.
    """
    superlink, current = host.processes["superlink"], status.read(folder, run_id)
    # The server may have written its last status just before it ended.
    is_lost = bool(current) and not is_alive(int(current["pid"]))
    current = status.read(folder, run_id) if is_lost else current
    if current.get("state") == "finished":
        return True
    if current.get("state") == "failed":
        raise BadInput(folder, f"the federation has failed: {current['line']}")
    if superlink.poll() is not None:
        raise BadInput(f"the SuperLink has ended; see {_log(host)}, and run it again")
    if is_lost:
        raise BadInput(folder, f"the server of the federation was killed; see {_log(host)}, and run it again")
    return False


def _check_superlink(host: Host, folder: Path, run_id: str) -> None:
    """Ask the SuperLink for the state of a run whose server has not written a status."""
    state, details = run_state(host, run_id)
    if state.startswith("finished") and not status.read(folder, run_id):
        raise BadInput(folder, f"the run has ended ({state}: {details or 'no reason given'}); see {_log(host)}")


def _log(host: Host) -> Path:
    return host.folder / "superlink.log"


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it runs."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def run_state(host: Host, run_id: str) -> tuple[str, str]:
    """(state, details) of a run in the SuperLink, such as ("finished:failed", "..."); empty where it is not known."""
    try:
        output = host.run_flwr("list", CONNECTION, "--format", "json")
        runs = json.loads(output[output.index("{") :])["runs"]
    except (ValueError, KeyError):  # also BadInput: the SuperLink is busy, and is asked again
        return "", ""
    matches = [run for run in runs if run["run-id"] == run_id]
    return (str(matches[0]["status"]), str(matches[0]["status-details"])) if matches else ("", "")


def follow(folder: Path, host: Host, run_id: str, rounds: int = 0) -> dict[str, Any]:
    """Show a bar until the federation has finished; where the output is no terminal, some lines in its place.

    Args:
        folder: of its server.
        run_id: of its run in the SuperLink.
        rounds: how many there will be, for the bar until the server knows them; 0: unknown.

    Raises:
        BadInput: it has failed, or its server or the SuperLink has ended.
    """
    from tqdm import tqdm

    has_bar, lines, queried = sys.stderr.isatty(), _Lines(time.monotonic()), time.monotonic()
    bar = tqdm(total=rounds or None, unit=" rounds", disable=not has_bar, dynamic_ncols=True)
    try:
        while True:
            finished = _has_finished(host, folder, run_id)
            if current := status.read(folder, run_id):
                bar.total = current["rounds"] or bar.total
                bar.update(current["round"] - bar.n)
                if line := lines.next_line(current["round"], current["rounds"], not has_bar):
                    bar.write(line, file=sys.stderr)
            elif time.monotonic() > queried + QUERY_INTERVAL:
                _check_superlink(host, folder, run_id)
                queried = time.monotonic()
            if finished:
                return current
            time.sleep(0.3)
    finally:
        bar.close()


@dataclass
class _Lines:
    """Lines about the time that a federation takes: in the first rounds and each quarter how long it will be, then how
    long it was.

    Attributes:
        start: of the clock, in seconds.
        first: time and number of the first round that was seen to end; the start of the nodes comes before it.
        due: the round from which the next line is due.
        ended: whether the last line was given.
    """

    start: float
    first: tuple[float, int] | None = None
    due: float = 0.0
    ended: bool = False

    def next_line(self, done: int, rounds: int, estimates: bool) -> str:
        """The line after `done` of `rounds` rounds; empty where none is due.

        Args:
            estimates: whether estimates are due, too; a bar shows them itself.
        """
        now = time.monotonic()
        if rounds and done == rounds:
            if self.ended:  # the server still writes its results
                return ""
            self.ended = True
            return f"{format_count(rounds, 'round')} in {format_duration(now - self.start)}"
        if self.first is None and done:
            self.first = now, done
        if not estimates or self.first is None or done <= max(self.first[1], self.due):
            return ""
        self.due = done + rounds / 4
        left = (now - self.first[0]) / (done - self.first[1]) * (rounds - done)
        return f"round {done} of {rounds}: {format_duration(left)} to go"
