"""The flow with real training: a killed stage continues from its checkpoint."""

import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from servers import Project, newest_checkpoint, running, until

pytestmark = [pytest.mark.acceptance, pytest.mark.xdist_group("prefect"), pytest.mark.timeout(900)]

RUN = "digits-fedavg_ft"


def test_a_retry_continues_from_the_last_checkpoint(
    tmp_path: Path, prefect_api: str, partitioned_project: Project
) -> None:
    """It is killed once during training. No round is trained twice, and the result is that of an uninterrupted run to
    the bit.
    """
    project = partitioned_project.copy(tmp_path / "project")
    results = project.folder / "results" / "small" / "runs" / RUN
    log = tmp_path / "project-flows.log"
    arguments = ("--targets", f"train@{RUN}", "--retries", "1")
    with project.background("fedweave.pipelines.scheduling.flows", *arguments, PREFECT_API_URL=prefect_api) as flow:
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
