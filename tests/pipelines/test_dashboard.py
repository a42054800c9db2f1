"""Optuna's dashboard shows the searches of the study, both running ones and those whose journal is elsewhere."""

import json
import re
import shutil
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial

from fedweave.errors import BadInput
from fedweave.pipelines import paths
from fedweave.pipelines import search_dashboard as dashboard
from fedweave.pipelines.addresses import LOOPBACK
from fedweave.pipelines.stages import tune
from fedweave.study import validate
from tests.pipelines.test_tune import DECLARED, RUN, STUDY, prepare
from tests.servers import answers, free_port, process, until


def run_search(folder: Path, monkeypatch: pytest.MonkeyPatch, trials: int) -> None:
    """Make a project with a finished search of `trials` trials of one round."""
    if not (folder / "params.yaml").is_file():
        prepare(folder, monkeypatch)
    content = {
        **STUDY,
        "runs": {RUN: STUDY["runs"][RUN]},
        "tune": {**STUDY["tune"], "trials": trials, "share": 0.01, "seeds": [1000]},
    }
    Path("params.yaml").write_text(yaml.safe_dump(content))
    tune.main("toy")


def test_the_replica_is_updated_without_duplicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_search(tmp_path, monkeypatch, 2)
    replica = dashboard.SearchReplica(validate.load())
    assert replica.update() == replica.update() == 1
    (study,) = replica.storage.get_all_studies()
    assert replica.storage.get_study_name_from_id(study._study_id) == RUN
    assert replica.storage.get_all_trials(study._study_id)[0].params == DECLARED
    run_search(tmp_path, monkeypatch, 4)
    replica.update()
    made = replica.storage.get_all_trials(study._study_id)
    assert len(made) == 4
    scores = [trial.value for trial in made if trial.state == TrialState.COMPLETE]
    (study,) = replica.storage.get_all_studies()
    assert study.study_name == f"{RUN}: " + " → ".join(dict.fromkeys(f"{s:.4g}" for s in (scores[0], max(scores))))


def test_importances_are_shown_from_ten_trials_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer trials, importances are not requested. All other requests are sent."""
    run_search(tmp_path, monkeypatch, 2)
    replica, requests = dashboard.SearchReplica(validate.load()), []
    replica.update()
    page = replica.wrap(lambda environ, start: requests.append(environ["PATH_INFO"]) or [b""])
    (study,) = replica.storage.get_all_studies()
    importances = f"/api/studies/{study._study_id}/param_importances"
    assert json.loads(b"".join(page({"PATH_INFO": importances}, lambda *_: None))) == {"param_importances": [[]]}
    page({"PATH_INFO": "/api/studies"}, lambda *_: None)
    assert requests == ["/api/studies"]
    for number in range(10):
        trial = create_trial(value=float(number), params={"mu": 0.1}, distributions={"mu": FloatDistribution(0, 1)})
        replica.storage.create_new_trial(study._study_id, trial)
    page({"PATH_INFO": importances}, lambda *_: None)
    assert requests == ["/api/studies", importances]


def test_what_would_change_the_copy_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the button that deletes a search, of which the browser would say that it worked."""
    run_search(tmp_path, monkeypatch, 2)
    replica, answers, requests = dashboard.SearchReplica(validate.load()), [], []
    replica.update()
    page = replica.wrap(lambda environ, start: requests.append(environ) or [b""])
    for method in ("DELETE", "POST", "PUT"):
        request = {"PATH_INFO": "/api/studies/0", "REQUEST_METHOD": method}
        assert "params.yaml" in json.loads(b"".join(page(request, lambda status, _: answers.append(status))))["reason"]
    assert answers == ["403 Forbidden"] * 3
    assert not requests


def test_without_a_journal_the_search_is_read_from_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_search(tmp_path, monkeypatch, 3)
    study = validate.load()
    live, _ = dashboard.SearchReplica(study)._ended_trials(RUN)
    shutil.rmtree(paths.STATE)
    trials, maximize = dashboard.SearchReplica(study)._ended_trials(RUN)
    assert maximize
    assert [(t.params, t.values, t.intermediate_values) for t in trials] == [
        (t.params, t.values, t.intermediate_values) for t in live
    ]
    assert {t.state for t in trials} <= {TrialState.COMPLETE, TrialState.PRUNED}


@pytest.mark.parametrize("space", [{"low": 0.24, "high": 0.26}, {"choices": [0.25]}], ids=["range", "choices"])
def test_trials_outside_of_a_narrower_space_are_left_out(
    space: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """params.yaml was edited after the search. Its file is not damaged."""
    run_search(tmp_path, monkeypatch, 3)
    content = yaml.safe_load(Path("params.yaml").read_text())
    content["tune"]["spaces"]["fedprox"]["mu"] = space
    Path("params.yaml").write_text(yaml.safe_dump(content))
    trials, _ = dashboard.SearchReplica(validate.load())._ended_trials(RUN)
    assert [trial.params for trial in trials] == [DECLARED]


def test_the_replica_continues_while_a_stage_writes_its_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file may be missing or half written at one update and whole at the next. The same reason is printed once."""
    errors = [BadInput("damaged"), BadInput("damaged"), FileNotFoundError("no journal"), SystemExit()]

    class Replica(dashboard.SearchReplica):
        def __init__(self) -> None:
            """Without a study."""

        def update(self) -> int:
            raise errors.pop(0)

    monkeypatch.setattr(dashboard, "UPDATE_INTERVAL", 0.0)
    with pytest.raises(SystemExit):
        dashboard._update_forever(Replica())
    assert errors == []
    assert capsys.readouterr().err.splitlines() == ["not up to date: damaged", "not up to date: no journal"]


@pytest.mark.acceptance
def test_the_dashboard_serves_the_searches_on_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_search(tmp_path, monkeypatch, 2)
    port = free_port()
    address = f"http://{LOOPBACK}:{port}/api/studies"
    command = [sys.executable, "-m", "fedweave.pipelines.commands.main", "dashboard", "--port", str(port)]
    with process(command, tmp_path, {}, tmp_path / "log"):
        assert until(lambda: answers(address), 120), (tmp_path / "log").read_text()
        with urlopen(address, timeout=5) as answer:
            (shown,) = [study["study_name"] for study in json.load(answer)["study_summaries"]]
        assert re.fullmatch(rf"{RUN}: [\d.]+( → [\d.]+)?", shown)
        with pytest.raises(BadInput, match=f"--port {port + 1}"):
            dashboard.main(port)


def test_without_a_search_the_dashboard_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path, monkeypatch)
    with pytest.raises(BadInput, match="dvc repro tune"):
        dashboard.main()
