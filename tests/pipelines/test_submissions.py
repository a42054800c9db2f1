"""Submissions at the same time, and jobs whose processes end by themselves."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fedweave.errors import BadInput
from fedweave.pipelines.scheduling import resources, slurm, submissions

CHILD = "import signal; signal.pause()"
# A controller as submitit starts it; its child ends when the controller ends.
CONTROLLER = f"""
import subprocess, sys
from fedweave.processes.signals import die_with_parent
subprocess.run([sys.executable, "-c", {CHILD!r}], preexec_fn=lambda: die_with_parent({int(signal.SIGKILL)}))
"""


def test_a_study_is_submitted_by_one_command_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second command would remove the files of the first one's jobs. Another study may be submitted."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("study: paper/toy\n")
    refused: list[str] = []

    def submit_again(_targets: object) -> list[object]:
        for study in ("paper/toy", "other"):
            Path("params.yaml").write_text(f"study: {study}\n")
            monkeypatch.setattr(submissions, "stale_stages", lambda _targets: [])
            try:
                assert submissions.submit(resources.Cluster()) is None
            except BadInput as error:
                refused.append(str(error))
        return []

    monkeypatch.setattr(submissions, "stale_stages", submit_again)
    assert submissions.submit(resources.Cluster()) is None
    assert refused == [
        "paper/toy: another command is submitting it; wait until it has ended, then: fedweave cluster status paper/toy"
    ]
    assert submissions.submit(resources.Cluster()) is None


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("print('Running'); print('ERROR: failed to reproduce'); sys.exit(1)", "failed to reproduce; a stage before"),
        ("print('nothing to say'); sys.exit(1)", "nothing to say; a stage before"),
        ("sys.exit(7)", "exit code 7; a stage before"),
    ],
)
def test_the_reason_of_a_stage_that_fails_on_this_host_is_complete(
    script: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\nimport sys\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(BadInput) as caught:
        submissions._reproduce(["tune@toy"])
    assert str(caught.value).startswith(words)


@pytest.fixture
def controller() -> Iterator[psutil.Process]:
    """A controller with a child, under the name that identifies controllers."""
    with subprocess.Popen([sys.executable, "-c", CONTROLLER, "submitit.local._local"]) as process:
        yield psutil.Process(process.pid)
        process.kill()


def test_a_job_whose_processes_end_by_themselves_is_cancelled(
    controller: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage ends with the process that started it, often before it can be killed itself."""
    while not controller.children():
        pass
    (child,) = controller.children()
    kill = psutil.Process.kill

    def kill_and_wait(process: psutil.Process) -> None:
        kill(process)
        if process == controller:
            process.wait(10)
            psutil.wait_procs([child], 10)

    monkeypatch.setattr(psutil.Process, "kill", kill_and_wait)
    slurm.cancel("local", [str(controller.pid)])
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    slurm.cancel("local", [str(controller.pid)])
