"""The artifacts of a flow run, and what they say of results that are not those of params.yaml."""

from pathlib import Path

import pytest

from fedweave import results
from tests.fake_results import write_study

pytestmark = [pytest.mark.acceptance, pytest.mark.xdist_group("prefect"), pytest.mark.timeout(600)]
FAILURE = "1 of 9 stages failed, 2 did not run"
PARAMS = """
study: toy
seeds: [0, 1]
datasets: [digits]
tasks:
  blobs:
    dataset: digits
    setting: dirichlet
    partition: {name: dirichlet, clients: 4, seed: 1, beta: 0.5}
    model: {name: mlp, hidden: 8}
    train: {rounds: 3, lr: 0.1}
runs:
  blobs-local: {task: blobs, method: local}
  blobs-ditto: {task: blobs, method: ditto}
methods: {local: {}, ditto: {}}
"""


@pytest.mark.usefixtures("reporting")
def test_the_leaderboard_of_a_failed_flow_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That stages failed, and that a run of params.yaml has no results. After another flow it is as usual."""
    from prefect.artifacts import Artifact

    from fedweave.pipelines.scheduling.artifacts import publish

    monkeypatch.chdir(tmp_path)
    folder = write_study(tmp_path / "results" / "toy", methods={"Local": -6.0, "FedAGHN": 0.0}, rounds=3, clients=4)
    results.write(folder)
    publish("toy")
    usual = str(Artifact.get("leaderboard").description)
    assert usual.startswith("toy: verdict: ")
    Path("params.yaml").write_text(PARAMS, encoding="utf-8")
    publish("toy", FAILURE)
    for key in ("leaderboard", "figures"):
        description = str(Artifact.get(key).description)
        assert f"{FAILURE}: what they had to change here is missing or of an earlier run; " in description
        assert "without results, and left out: blobs-ditto; run them with: dvc repro; " in description
    Path("params.yaml").unlink()
    publish("toy")
    assert Artifact.get("leaderboard").description == usual
