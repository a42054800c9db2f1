"""The champion in MLflow: an alias that moves with the life, and scores with the dates of their deliveries."""

from dataclasses import replace

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

import fedweave as fw
from fedweave.lifecycle import roles
from fedweave.lifecycle.roles import PROMOTED, RoleEvent
from fedweave.pipelines.mlflow_records import champions

pytestmark = [pytest.mark.xdist_group("tracking"), pytest.mark.timeout(600)]


def week(number: int) -> pd.DataFrame:
    """Rows of two sites; the name of one is none for MLflow."""
    x = np.random.default_rng(number).normal(size=60)
    site = np.where(np.arange(60) % 2, "north", "süd/1")
    return pd.DataFrame({"site": site, "a": x, "late": np.where(x > 0, "yes", "no")})


def test_the_alias_moves_with_the_champion_and_answers_all_along(store: str) -> None:
    """With the reason and the data as tags; a second call changes nothing; a loaded model stays as it is."""
    week(1).to_csv("week-1.csv", index=False)
    life = fw.Lifecycle.begin(
        "life",
        source="week-*.csv",
        client="site",
        label="late",
        methods="local",
        rounds=1,
        train={"lr": 0.5},
        model={"name": "linear"},
    )
    life.refresh()
    assert champions.record_life(life, store) == ""
    life.challenge()
    week(2).to_csv("week-2.csv", index=False)
    life.refresh()
    life.challenge()
    first = "MLflow: models:/life@champion is version 1, local of version 1"
    assert [champions.record_life(life, store) for _ in range(2)] == [first] * 2
    client = MlflowClient(store)
    run = str(client.get_model_version_by_alias("life", "champion").run_id)
    record = life.record[life.record["version"] == 1]
    (point,) = client.get_metric_history(run, "accuracy")
    assert (point.step, point.value) == (2, pytest.approx(record["score"].mean()))
    assert pd.Timestamp(point.timestamp, unit="ms", tz="UTC") == pd.Timestamp(life.deliveries.ledger.arrivals[1].when)
    assert {*client.get_run(run).data.metrics} >= {"calibration_error", "clients/north", "clients/s_d_1"}
    before = mlflow.pyfunc.load_model("models:/life@champion")
    now = life.roles  # as after a test that says "better"
    assert now.challenger is not None
    promoted = replace(now.challenger, since=2)
    event = RoleEvent("2030-01-01T00:00:00+00:00", 2, PROMOTED, "Better: +1 point.", promoted)
    roles.write_roles(life.folder, now.add(event, champion=promoted, challenger=None))
    assert champions.record_life(life, store) == "MLflow: models:/life@champion is version 2, local of version 2"
    version = client.get_model_version_by_alias("life", "champion")
    assert version.description == "Better: +1 point."
    assert version.tags == {
        "by": event.by,
        "data": promoted.data,
        "deliveries": "2",
        "event": PROMOTED,
        "method": "local",
        "warm_start": "version 1",
        "when": event.when,
    }
    rows = week(3)
    after = mlflow.pyfunc.load_model("models:/life@champion")
    own = rows[rows["site"] == "north"]
    expected = life.champion.predict_proba(own, "north").to_numpy()
    answers = [model.predict(own, {"client": "north"}) for model in (after, before)]
    assert np.allclose(fw.metrics.probabilities(answers[0]), expected, atol=1e-6)
    assert not np.allclose(*answers)
    life.rollback()
    assert champions.record_life(life, store) == first
    assert len(client.search_model_versions("name = 'life'")) == 2


def test_an_absent_server_is_one_line(
    store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The champion moves without MLflow, which catches up later."""
    week(1).to_csv("week-1.csv", index=False)
    life = fw.Lifecycle.begin("life", source="week-1.csv", client="site", label="late", methods="local")
    life.refresh()
    deployed = roles.Deployed(1, "local", 1, "", 0, life.settings.challenge)
    event = RoleEvent("", 1, roles.FIRST, "", deployed)
    roles.write_roles(life.folder, roles.Roles(deployed, None, (event,)))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    champions.try_record(life)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("not logged to MLflow: MLFLOW_TRACKING_URI: no server answers at http://127.0.0.1:9; ")
    assert line.endswith("fedweave challenge life")
