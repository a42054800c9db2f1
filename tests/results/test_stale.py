"""The report on results that do not agree with params.yaml, or with a search."""

from pathlib import Path

import pytest
import yaml

from fedweave import report, results
from fedweave.pipelines import paths
from fedweave.pipelines.commands import studies
from fedweave.pipelines.stages import leaderboard, train
from fedweave.pipelines.stages import report as stage
from tests.fake_results import write_study
from tests.pipelines.test_tune import RUN, STUDY, prepare

OTHER = "toy-plain"


def write_params(**changes: object) -> None:
    runs = {RUN: STUDY["runs"][RUN], OTHER: {"task": "toy", "method": "fedavg"}}
    Path("params.yaml").write_text(studies.dump({**STUDY, "runs": runs, "tune": {"trials": 0}, **changes}))


@pytest.mark.usefixtures("undrawn")
def test_the_report_names_outdated_runs_and_runs_that_were_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run after a change of its block, all runs after a change of seeds, and none without a change."""
    prepare(tmp_path, monkeypatch)
    write_params()
    folder = paths.RESULTS / "toy"
    for key in (RUN, OTHER):
        file = paths.tuning_result("toy", "toy", key)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'{{"run": "{key}", "best": {{}}}}')
        train.main(key)
    results.write(folder)

    def page_of() -> tuple[list[str], str, str]:
        stage.main()
        return (
            leaderboard.stale_runs(results.load_study(folder)),
            (folder / "leaderboard.txt").read_text(),
            (folder / "report.html").read_text(),
        )

    stale, text, page = page_of()
    assert stale == []
    assert "other settings" not in text + page
    write_params(methods={"fedprox": {"mu": 0.5}})
    stale, text, page = page_of()
    assert stale == [RUN]
    assert f"trained with other settings than params.yaml has now: {RUN}; bring up to date with: dvc repro; " in text
    assert f"where that trains nothing: dvc repro -f -s train@{RUN} && dvc repro\n" in text
    assert f"Trained with other settings than params.yaml has now: {RUN}." in page
    assert "without results" not in text
    content = yaml.safe_load(Path("params.yaml").read_text())
    content["runs"]["toy-late"] = {"task": "toy", "method": "local"}
    Path("params.yaml").write_text(studies.dump(content))
    assert "without results, and left out: toy-late; run them with: dvc repro\n" in page_of()[1]
    write_params(seeds=[0, 1])
    assert leaderboard.stale_runs(results.load_study(folder)) == [RUN, OTHER]
    write_params()
    paths.tuning_result("toy", "toy", OTHER).write_text('{"best": {"train.lr": 0.01}}')
    assert leaderboard.stale_runs(results.load_study(folder)) == [OTHER]
    Path("params.yaml").write_text("study: other")
    assert leaderboard.stale_runs(results.load_study(folder)) == []


def test_many_outdated_runs_have_one_command_for_all() -> None:
    line = leaderboard._outdated_message([f"toy-{count}" for count in range(8)])
    assert "toy-5 and 2 more; bring" in line
    assert line.endswith("dvc repro -f -s train && dvc repro")


@pytest.mark.usefixtures("undrawn")
def test_the_report_names_the_runs_without_a_trial(tmp_path: Path) -> None:
    """It names them if other runs have trials."""
    methods = {"Local": -6.0, "FedAGHN": 0.0}
    folder = write_study(tmp_path / "results" / "toy", methods=methods, seeds=(0,), rounds=3, clients=4)
    tuned = folder / "tuned" / "blobs"
    for name in ("blobs-local", "blobs-fedaghn"):
        (tuned / f"{name}.json").write_text("{}")
    (tuned / "trials" / "blobs-local.json").unlink(missing_ok=True)
    assert "they keep their declared values: blobs-local.</p>" in " ".join(report.build(folder).read_text().split())
    for trials in (tuned / "trials").glob("*.json"):
        trials.unlink()
    assert "No trial" not in report.build(folder).read_text()
