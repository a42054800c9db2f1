"""pfl-research as a contestant: its FedAvg and ours agree."""

import subprocess
import sys
from pathlib import Path

import pytest

import fedweave as fw
from fedweave.methods import METHODS
from tests import convex

# pfl-research and what it imports beyond our own environment; `make peers` installs it with its own.
PACKAGES = (
    "pfl==0.6.0",
    "multiprocess==0.70.17",
    "dill==0.4.1",
    "dp-accounting==0.6.0",
    "prv-accountant==0.2.0",
    "absl-py==2.5.1",
    "attrs==26.1.0",
    "dm-tree==0.1.10",
    "mpmath==1.4.1",
)


@pytest.mark.acceptance
@pytest.mark.timeout(600)
def test_fedavg_of_pfl_research_agrees_with_ours(tmp_path: Path) -> None:
    before = dict(METHODS)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), *PACKAGES]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("pfl-research cannot be installed here")
    for task in convex.TASKS:
        theirs = fw.contestants.program(
            f"python pfl_fedavg.py {convex.RATE}", folder=Path(__file__).parent, env={"PYTHONPATH": str(tmp_path)}
        )
        assert abs(convex.distance(task, theirs)) < convex.NEAR, task
    METHODS.clear()
    METHODS.update(before)
