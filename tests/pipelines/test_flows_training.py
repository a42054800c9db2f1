"""The flow with real training: a killed stage continues from its checkpoint."""

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch
from servers import Project, newest_checkpoint, prefect_server, process, running, until

pytestmark = [pytest.mark.acceptance, pytest.mark.xdist_group("prefect"), pytest.mark.timeout(900)]

RUN = "digits-fedavg_ft"
IMPATIENT = """
from fedweave.pipelines.commands.main import main
from fedweave.pipelines.scheduling import server_watch
server_watch.LOSS_TIMEOUT = 8.0
main()
"""


def test_a_retry_continues_from_the_last_checkpoint(
    tmp_path: Path, prefect_api: str, partitioned_project: Project
) -> None:
    """It is killed once during training. No round is trained twice, and the result is that of an uninterrupted run to
    the bit.
    """
    project = partitioned_project.copy(tmp_path / "project")
    results = project.folder / "results" / "small" / "runs" / RUN
    log = tmp_path / "project-main.log"
    arguments = ("--targets", f"train@{RUN}", "--retries", "1")
    with project.background(
        "fedweave.pipelines.commands.main", "flow", *arguments, PREFECT_API_URL=prefect_api
    ) as flow:
        assert until(lambda: "round 20/60" in log.read_text(), 300), log.read_text()
        assert until(lambda: newest_checkpoint(project.folder) >= 20)
        (training,) = running("launching/launcher.py train", project.folder)
        os.kill(training, signal.SIGKILL)
        assert flow.wait(300) == 0, log.read_text()
    output = log.read_text()
    assert "Retry 1/1" in output
    assert [output.count(f"round {number}/60") for number in (20, 40, 60)] == [1, 1, 1]
    first = tmp_path / "kept"
    shutil.copytree(results, first)
    project.python("dvc", "repro", "-s", "-f", f"train@{RUN}")
    assert (results / "evaluations.parquet").read_bytes() == (first / "evaluations.parquet").read_bytes()
    models = [torch.load(folder / "models-0.pt", weights_only=True) for folder in (results, first)]
    torch.testing.assert_close(*models, rtol=0, atol=0, equal_nan=True)


def test_a_flow_whose_server_is_killed_ends_in_one_line_and_goes_on(
    tmp_path: Path, partitioned_project: Project
) -> None:
    """It leaves no process. The same command continues from the checkpoint, on a server of its own."""
    project, log = partitioned_project.copy(tmp_path / "project"), tmp_path / "flow.log"
    command = [sys.executable, "-c", IMPATIENT, "flow", "--targets", f"train@{RUN}"]
    with (
        prefect_server(tmp_path / "home") as api,
        process(command, project.folder, {**project.env, "PREFECT_API_URL": api}, log) as flow,
    ):
        assert until(lambda: newest_checkpoint(project.folder) >= 20, 300), log.read_text()
        for server in running("prefect server start", tmp_path / "home"):
            os.kill(server, signal.SIGKILL)
        assert flow.wait(60) == 1
    absent, end = [line for line in log.read_text().splitlines() if "|" not in line]
    assert absent.startswith(f"Prefect's server at {api} does not answer (Connection refused); the flow waits for up")
    assert end.startswith(f"error: Prefect's server at {api} has not answered for ")
    assert end.endswith("start the server again, then run the same command again: it goes on where it stopped")
    assert "Traceback" not in log.read_text()
    assert not running("launching/launcher.py train", project.folder)
    log.rename(tmp_path / "first.log")
    with process(command, project.folder, project.env, log) as flow:
        assert until(lambda: "Flow run 'small' - Finished in state Completed()" in log.read_text(), 300)
        assert flow.wait(30) == 0, log.read_text()  # Prefect has sent its last logs before its server ends
    assert "round 20/60" not in log.read_text()
    assert (project.folder / "results" / "small" / "runs" / RUN / "run.json").is_file()
    assert not running("prefect server start", project.folder)
