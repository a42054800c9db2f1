"""Children read damaged files. A crash, a hang, a wrong exception or too much memory is a finding."""

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from tests.fuzz.child import HEAD

CORPUS = Path(__file__).resolve().parent / "corpus"  # inputs that were findings: <target>-<anything>
ROOT = Path(__file__).resolve().parents[2]
LONGEST = 30.0  # seconds for one input, on a busy machine
START = 600.0  # seconds for the imports before the first input, if other programs run first
SHARED = Path("/dev/shm")


@dataclass(frozen=True)
class Outcome:
    """The result of a child: inputs read and refused, seconds, and the error."""

    target: str
    seed: int
    count: int
    refused: int
    seconds: float
    finding: str = ""
    raw: bytes = b""

    def save(self, folder: Path) -> Path:
        """Write the input of a finding. Returns its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.target}-{hashlib.sha256(self.raw).hexdigest()[:12]}"
        path.write_bytes(self.raw)
        return path


def attack(target: str, seed: int, seconds: float, count: int = 10**9, path: Path = ROOT) -> Outcome:
    """Let a child read up to `count` damaged files in up to `seconds`. It looks for modules in `path` first."""
    place = SHARED if os.access(SHARED, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        start = time.monotonic()
        code, output = _watched([target, str(seed), str(count), str(seconds), folder], path)
        journal = Path(folder) / "journal"
        content = journal.read_bytes() if journal.exists() else bytes(HEAD.size)
    read, refused, size = HEAD.unpack_from(content)
    outcome = Outcome(target, seed, read, refused, time.monotonic() - start)
    if code == 0:
        return outcome
    reason = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return replace(outcome, finding=f"{reason}\n{output}", raw=content[HEAD.size : HEAD.size + size])


def _watched(arguments: list[str], path: Path) -> tuple[int, str]:
    """Exit code and error output of a child. A child that reads one input for too long is aborted with its stack."""
    folder = Path(arguments[-1])
    command = [sys.executable, "-m", "tests.fuzz.child", *arguments, str(CORPUS)]
    modules = os.pathsep.join(map(str, (path, ROOT / "src", ROOT)))
    env = {**os.environ, "PYTHONPATH": modules, "OMP_NUM_THREADS": "1"}
    with (folder / "output").open("w+b") as output:
        child = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=output)
        last, since = -1, time.monotonic()
        while child.poll() is None:
            time.sleep(0.05)
            now = _begun(folder / "journal")
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > (LONGEST if last > 0 else START):
                child.send_signal(signal.SIGABRT)
                child.wait()
        output.seek(0)
        return child.returncode, output.read().decode(errors="replace")[-4000:]


def _begun(journal: Path) -> int:
    """The number of inputs that the child has begun; -1 before the first."""
    content = _head(journal)
    return HEAD.unpack(content)[0] if len(content) == HEAD.size else -1


def _head(journal: Path) -> bytes:
    if not journal.exists():
        return b""
    with journal.open("rb") as file:
        return file.read(HEAD.size)
