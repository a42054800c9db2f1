"""A night of a life in Prefect: three steps as flow runs, with tables of what arrived, the scores and the roles."""

import json
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId

import fedweave as fw
from fedweave.pipelines.scheduling import notifications
from fedweave.pipelines.scheduling.life_flow import night
from tests.servers import ROOT, python

pytestmark = [pytest.mark.acceptance, pytest.mark.xdist_group("prefect"), pytest.mark.timeout(600)]

ROWS = "id,site,a,late\n" + "".join(f"{i},{'AB'[i % 2]},{i % 7},{'yes' if i % 7 > 3 else 'no'}\n" for i in range(60))


def begin() -> None:
    """Begin a life in the current folder, with the files of its weeks."""
    fw.Lifecycle.begin(
        "life",
        source="week-*.csv",
        client="site",
        label="late",
        key="id",
        methods="local",
        rounds=1,
        train={"lr": 0.1},
        model={"name": "linear"},
    )


def test_a_night_reports_drift_once(reporting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The night that evaluates the delivery, and no later one."""
    monkeypatch.chdir(tmp_path)
    Path("week-1.csv").write_text(ROWS, encoding="utf-8")
    begin()
    told = list[tuple[str, int, list[str]]]()
    monkeypatch.setattr(notifications, "report_drift", lambda *words: told.append(words))
    night("life")
    lines = [f"{100 + i},{'AB'[i % 2]},{i % 7 + 20 * (i % 2)},yes\n" for i in range(60)]
    Path("week-2.csv").write_text("id,site,a,late\n" + "".join(lines), encoding="utf-8")
    fw.Lifecycle("life").refresh(accept=["week-2.csv"])
    night("life")
    night("life")
    [(life, number, sentences)] = told
    assert (life, number) == ("life", 2)
    assert any("B: a (higher)" in sentence for sentence in sentences)
    assert Path("life", "lifecycle.html").is_file()


def test_a_night_shows_what_it_did(reporting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two deliveries is damaged: the state of the step says so, and the steps after it go on."""
    monkeypatch.chdir(tmp_path)
    Path("week-1.csv").write_text(ROWS, encoding="utf-8")
    Path("week-2.csv").write_text(ROWS[:-5], encoding="utf-8")
    begin()
    state = night("life", return_state=True)
    assert state.is_completed(), state.message
    with get_client(sync_client=True) as client:
        parent = FlowRunFilterParentFlowRunId(any_=[state.state_details.flow_run_id])
        own = FlowRunFilter(parent_flow_run_id=parent)
        runs = {run.name: run for run in client.read_flow_runs(flow_run_filter=own)}
        tables = {one.key: json.loads(str(one.data)) for one in client.read_artifacts(flow_run_filter=own)}
    assert [runs[f"{step} of life"].state_name for step in ("refresh", "evaluate", "challenge")] == [
        "Quarantined",
        "Completed",
        "Completed",
    ]
    assert [row["delivery"] for row in tables["life-deliveries"]] == ["quarantined", 1]
    assert tables["life-deliveries"][0]["why"].startswith("ends within a line")
    assert tables["life-scores"] == []
    assert "is the first champion" in tables["life-roles"][0]["what"]


@pytest.mark.timeout(1200)
def test_a_year_finds_what_was_planted_and_nothing_else(tmp_path: Path) -> None:
    """`make nightly`, elsewhere."""
    done = python(str(ROOT / "tools" / "nightly.py"), folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("found: all that was planted, and nothing else\n")
    assert "Prefect: 12 flow runs, 9 tables" in done.stdout
    assert "up to date" in done.stdout
