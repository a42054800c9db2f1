"""Jobs of a cluster: each runs the command of a stage, with a copy of the parameters, without DVC and a network.

A task contains everything that a node has to know. The node checks inputs and code, runs the command and writes an
outcome. On the login node the outcome is checked and committed to DVC. submitit sends tasks to the nodes.
"""

import hashlib
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from submitit.helpers import Checkpointable, DelayedSubmission

from fedweave.errors import BadInput
from fedweave.files.atomic import read_json, write_json

from ..processes import PERMANENT_CODES, ChildProcesses, search_path, wait_measured
from . import error_lines
from .remote_stages import code_digest, remove

# Exit codes after the signals that a cluster sends to every process of a job before it kills them. The cluster may or
# may not queue the job again.
SIGNAL_CODES = {code for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT) for code in (-number, 128 + number)}
KILL_TIMEOUT = 90.0  # seconds that a cluster has to kill a job after its signal has ended the stage


class StageFailure(RuntimeError):
    """A stage of a job failed; jobs that wait for its outputs do not run."""


@dataclass(frozen=True)
class StageTask:
    """One stage for a node.

    Attributes:
        stage: its address in dvc.yaml.
        command: of the shell.
        inputs: path -> digest; None for a file that another task of the same submission writes.
        outputs: paths that the command writes.
        definition: digest of command and parameters.
        code: digest of the code at the time of submission.
        folder: where it runs, absolute, the same on all hosts.
        outcome: path of the file for its outcome.
        retries: how often a failure is tried again.
    """

    stage: str
    command: str
    inputs: dict[str, str | None]
    outputs: tuple[str, ...]
    definition: str
    code: str
    folder: str
    outcome: str
    retries: int = 1


@dataclass(frozen=True)
class Outcome:
    """The result of a task.

    Attributes:
        code: exit code, 0 for success.
        message: the line with the error, or empty.
        inputs, outputs: path -> digest, before and after the run.
        node: host.
        seconds, mib: duration and peak memory of its largest process.
        restarts: how often the cluster had queued it again.
    """

    code: int
    message: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    node: str
    seconds: float
    mib: float
    restarts: int


class StageJob(Checkpointable):
    """The callable of one array task; it continues after a requeue, from the last checkpoint of the training."""

    def __init__(self, tasks: Sequence[StageTask]) -> None:
        # Made here, as a signal may ask for a checkpoint before the call.
        self.tasks, self._children = tuple(tasks), ChildProcesses()

    def __reduce__(self) -> tuple[type, tuple[object]]:
        return StageJob, (self.tasks,)

    def __call__(self) -> None:
        """Run the tasks one after another, without those that have already succeeded.

        Raises:
            StageFailure: a task failed.
        """
        failed = []
        for task in self.tasks:
            outcome = read_outcome(task)
            if outcome is None or outcome.code:
                outcome = self._run_with_retries(task)
                write_json(Path(task.outcome), asdict(outcome))
            if outcome.code:
                failed.append(f"{task.stage}: {outcome.message}")
        if failed:
            raise StageFailure("; ".join(failed))

    def checkpoint(self) -> DelayedSubmission:
        """End the stage that runs; submitit queues the job again (its hook before a limit of time or a preemption)."""
        self._children.end()
        return DelayedSubmission(StageJob(self.tasks))

    def _run_with_retries(self, task: StageTask) -> Outcome:
        for _ in range(task.retries):
            if (outcome := self._run(task)).code in (0, *PERMANENT_CODES):
                return outcome
        return self._run(task)

    def _run(self, task: StageTask) -> Outcome:
        """Check the inputs of `task`, run its command and return the outcome; the command ends with this job."""
        start = time.monotonic()
        os.chdir(task.folder)
        base = Outcome(0, "", {}, {}, node_name(), 0.0, 0.0, int(os.environ.get("SLURM_RESTART_COUNT", 0)))
        try:
            inputs = check_inputs(task)
        except BadInput as error:
            return replace(base, code=2, message=str(error))
        code, message, mib = self._run_command(task)
        missing = [path for path in task.outputs if not Path(path).exists()]
        if not code and missing:
            code, message = 1, f"{missing[0]} was not written; look at the log"
        return replace(
            base,
            code=code,
            message=message,
            inputs=inputs,
            outputs={} if code else {path: digest(Path(path)) for path in task.outputs},
            seconds=round(time.monotonic() - start, 3),
            mib=round(mib, 1),
        )

    def _run_command(self, task: StageTask) -> tuple[int, str, float]:
        """Run the command of `task`; returns (exit code, line with the error, peak memory in MiB).

        A stage that was ended by the cluster's signal runs again if the job itself survives.
        """
        # The fork server's sockets would lie in a folder that hosts share.
        environment = {"PATH": search_path(), "FEDWEAVE_DIRECT": "1"}
        while True:
            for output in task.outputs:
                remove(Path(output))
            last_lines = deque[str](maxlen=20)
            with self._children.start(["/bin/sh", "-c", task.command], environment) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    print(line, end="", flush=True)
                    last_lines.append(line.strip())
                code, mib = wait_measured(process)
            if code not in SIGNAL_CODES:
                reason = error_lines.find_reason(last_lines, code)[1] or f"exit code {code}"
                return code, reason if code else "", mib
            time.sleep(KILL_TIMEOUT)


def node_name() -> str:
    """The name of this host on its cluster."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def read_outcome(task: StageTask) -> Outcome | None:
    """The outcome of `task`; None as long as there is none."""
    file = Path(task.outcome)
    if not file.is_file():
        return None
    return read_json(file, "delete it and submit again", lambda content: Outcome(**content))


def check_inputs(task: StageTask) -> dict[str, str]:
    """The digests of the inputs of `task`, after a comparison with those of the submission.

    Raises:
        BadInput: the code or an input has changed, or an input is missing on this node.
    """
    if code_digest() != task.code:
        raise BadInput(f"{task.stage}: the code changed after the submission; cancel it and submit again")
    digests = {}
    for path, expected in task.inputs.items():
        if not Path(path).exists():
            raise BadInput(f"{task.stage}: {path} is not there on {node_name()}; nodes must share the project's folder")
        digests[path] = digest(Path(path))
        if expected is not None and digests[path] != expected:
            raise BadInput(f"{task.stage}: {path} changed after the submission; cancel it and submit again")
    return digests


def digest(path: Path) -> str:
    """A hash of a file, or of the names and contents of all files of a folder."""
    hashed = hashlib.sha256()
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for file in files:
        with file.open("rb") as stream:
            file_digest = hashlib.file_digest(stream, "sha256").digest()
        hashed.update(str(file.relative_to(path)).encode() + b"\0" + file_digest)
    return hashed.hexdigest()[:32]
