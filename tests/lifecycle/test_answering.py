"""Answers of the champion: while it moves, in a log, and scored when labels come."""

import json
import math
import socket
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fastapi.testclient import TestClient

import fedweave as fw
from fedweave.errors import BadInput
from fedweave.lifecycle import ROLES, roles
from fedweave.lifecycle.answer_log import FOLDER, AnswerLog
from fedweave.lifecycle.answering import ServedChampion
from fedweave.lifecycle.deliveries import Deliveries, Terms
from fedweave.lifecycle.ledger import Ledger
from fedweave.pipelines.champion_server import make_app, serve
from tests.lifecycle.test_life import begin, deliver, week


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> fw.Lifecycle:
    """A life with a champion of version 1 and a challenger of version 2, which say the opposite."""
    folder = tmp_path_factory.mktemp("answering")
    life = begin(folder, patience=1, per_year=1)
    for number in (1, 2):
        deliver(life, number, week(number, count=120 * 4 ** (number - 1), sign=2 * number - 3))
    return life


@pytest.fixture
def life(trained: fw.Lifecycle) -> Any:
    """The same; what a test changes in it is undone."""
    before = (trained.folder / ROLES).read_bytes()
    yield trained
    (trained.folder / ROLES).write_bytes(before)


def ask(client: TestClient, rows: pd.DataFrame) -> Any:
    """The answer to rows without their label."""
    return client.post("/predict", json={"rows": json.loads(rows.drop(columns="late").to_json(orient="records"))})


def promote(life: fw.Lifecycle) -> None:
    """Make the challenger the champion, in one step."""
    now = life.roles
    assert now.challenger
    roles.write_roles(life.folder, replace(now, champion=now.challenger, challenger=None))


def test_each_answer_is_of_one_champion_while_it_moves(life: fw.Lifecycle) -> None:
    """Three threads ask all along: none waits in vain, none gets a mixture, and the last answers are of the new one."""
    new, first, second = week(3), life.roles.champion, life.roles.challenger
    assert first
    assert second
    expected = {
        one.version: np.concatenate([life.load(one).predict(own, site) for site, own in new.groupby("site")]).tolist()
        for one in (first, second)
    }
    sorted_rows = new.sort_values("site", kind="stable")
    with TestClient(make_app(ServedChampion(fw.Lifecycle(life.folder)))) as client:
        answers = list[Any]()

        def keep_asking() -> None:
            while len([one for one in answers if one["version"] == 2]) < 3 and len(answers) < 500:
                answers.append(ask(client, sorted_rows).json())

        threads = [threading.Thread(target=keep_asking) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(answers) < 3:
            pass
        promote(life)
        for thread in threads:
            thread.join(60)
        assert client.get("/health").json() == {"status": "ok", "method": "fedavg", "version": 2, "data": second.data}
    assert {one["version"] for one in answers} == {1, 2}
    assert all(one["predictions"] == expected[one["version"]] for one in answers)
    assert expected[1] != expected[2]
    assert answers[0]["probabilities"][0].keys() == {"no", "yes"}
    assert answers[0]["logged"] == 0  # there is no log


def test_while_a_champion_is_being_loaded_the_one_before_answers(life: fw.Lifecycle) -> None:
    """The request that found the new one loads it; the others do not wait for that."""
    is_loading, others_have_answers = threading.Event(), threading.Event()

    class Slow(fw.Lifecycle):
        def load(self, deployed: roles.Deployed, before: float = math.inf) -> Any:
            if deployed.version == 2:
                is_loading.set()
                others_have_answers.wait(5)
            return super().load(deployed, before)

    served = ServedChampion(Slow(life.folder))
    promote(life)
    first = threading.Thread(target=served.champion)
    first.start()
    assert is_loading.wait(60)
    meanwhile, _ = served.champion()
    others_have_answers.set()
    first.join(60)
    assert (meanwhile.version, served.champion()[0].version) == (1, 2)


def test_without_a_champion_nothing_is_served(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no champion yet; train one: fedweave challenge"):
        ServedChampion(begin(tmp_path))


def test_a_row_without_its_client_is_refused(life: fw.Lifecycle) -> None:
    """The answers to the others would stand in the wrong rows."""
    rows = week(3).drop(columns="late")
    rows.loc[1, "site"] = None
    with pytest.raises(BadInput, match="client nan: has no model of version 1 yet"):
        ServedChampion(life).answer(rows)


def test_an_answer_says_which_values_may_be_misread(life: fw.Lifecycle) -> None:
    """Every answer does, not only the first: a number in another unit, and an infinite one, which counts as missing."""
    with TestClient(make_app(ServedChampion(fw.Lifecycle(life.folder)))) as client:

        def list_warnings(number: str) -> list[str]:
            request = f'{{"rows": [{{"site": "A", "a": {number}}}]}}'
            answer = client.post("/predict", content=request, headers={"content-type": "application/json"})
            lines: list[str] = answer.json()["warnings"]
            return lines

        assert list_warnings("0.5") == []
        for _ in range(2):
            (line,) = list_warnings("4000.0")
            assert line.startswith("client 'A': table: column 'a' is far from training")
        infinite = "client 'A': table: column 'a' is infinite in 1 of 1 rows, and counts as missing there"
        assert list_warnings("1e999") == [infinite]


def test_a_champion_that_cannot_be_loaded_does_not_answer(life: fw.Lifecycle, tmp_path: Path) -> None:
    """The one before does, and the health check says why; so do damaged roles. Rows that do not fit are one line."""
    with TestClient(make_app(ServedChampion(fw.Lifecycle(life.folder)))) as client:
        life.models(2).rename(tmp_path / "away")
        promote(life)
        assert ask(client, week(3)).json()["version"] == 1
        health = client.get("/health")
        assert health.status_code == 503
        assert "000002" in health.json()["status"]
        (tmp_path / "away").rename(life.models(2))
        assert ask(client, week(3)).json()["version"] == 2
        assert client.get("/health").status_code == 200
        (life.folder / ROLES).write_text("{", encoding="utf-8")
        assert ask(client, week(3)).json()["version"] == 2
        assert ROLES in client.get("/health").json()["status"]
        unknown = ask(client, week(3).assign(site="Z"))
        assert (unknown.status_code, unknown.json()["detail"]) == (422, "client 'Z': has no model of version 2 yet")
        assert "no column 'a'" in ask(client, week(3).drop(columns="a")).json()["detail"]
        assert client.post("/predict", json={"rows": []}).status_code == 422
        rows = [{"site": "A", "a": 1, "b": 1}, {"site": "A", "b": 1}]
        for wrong, said in ((rows, "row 1: 'a'"), ([{**rows[0], "site": ["A"]}], "row 0: 'site'")):
            answer = client.post("/predict", json={"rows": wrong})
            assert (answer.status_code, answer.json()["detail"][:10]) == (422, said[:10])


def test_a_port_that_cannot_be_used_is_one_line(life: fw.Lifecycle, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing else is printed, such as an error of the HTTP server."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        for port, reason in ((65536, "port must be 0-65535"), (other.getsockname()[1], "Address already in use")):
            with pytest.raises(BadInput, match=rf"--port: {port} of .* cannot be used \(.*{reason}\.?\); choose"):
                serve(ServedChampion(life), "127.0.0.1", port)
    assert capfd.readouterr() == ("", "")


def test_what_was_really_answered_is_scored_when_labels_come(tmp_path: Path) -> None:
    """By the key, with the version that answered; the last answer of a row counts, one after its label does not."""
    first, second = week(1), week(2)
    life = begin(tmp_path)
    deliver(life, 1, first)
    log = AnswerLog(life.folder, life.settings.terms.key)
    with TestClient(make_app(ServedChampion(fw.Lifecycle(life.folder), log))) as client:
        assert ask(client, second.assign(a=-second["a"])).json()["logged"] == 120  # wrong, and asked again
        assert ask(client, second[:90].assign(id=lambda t: t["id"].astype(str))).json()["logged"] == 90
        assert ask(client, second.drop(columns="id")).json()["logged"] == 0
        assert ask(client, first).json()["logged"] == 120  # of rows that it was trained on
    assert len([*(life.folder / FOLDER).iterdir()]) == 1
    second.assign(late=second["late"].where(second.index < 60)).to_csv(tmp_path / "week-2.csv", index=False)
    life.refresh()
    life.evaluate()
    second.to_csv(tmp_path / "week-3.csv", index=False)  # the labels that were late
    life.refresh()
    life.evaluate()
    life.evaluate()
    own, told = life.record, life.answered
    assert told.groupby("delivery")["rows"].sum().to_dict() == {2: 60, 3: 60}
    assert {*told["version"]} == {1}
    columns = ["client", "rows", "score", "low", "high", "calibration", "coverage"]
    same = [table.loc[table["delivery"] == 2, columns].reset_index(drop=True) for table in (own, told)]
    pd.testing.assert_frame_equal(*same)
    late = told[told["delivery"] == 3]
    assert 30 < late["score"].mean() < 70  # the first answers to a half of them were wrong
    assert "delivery 3: answers of version 1 have accuracy" in "\n".join(life.describe())


@pytest.mark.parametrize("taken_back", [0, 30])
def test_numbers_are_answered_and_scored(taken_back: int, tmp_path: Path) -> None:
    """Their answers have no probabilities. Labels that a later delivery takes back count for nothing."""
    life = begin(tmp_path, methods="local", rounds=1, train={"lr": 0.1}, metric="mae")
    first, second = (week(number).assign(late=lambda t: 2 * t["a"] + 0.5) for number in (1, 2))
    deliver(life, 1, first)
    with TestClient(make_app(ServedChampion(life, AnswerLog(life.folder, ["id"])))) as client:
        answer = ask(client, week(2)).json()
    expected = life.champion.predict(week(2)[:1], "A")
    assert answer["predictions"][0] == pytest.approx(float(expected[0]))
    assert answer["probabilities"] is None
    second.to_csv(tmp_path / "week-2.csv", index=False)
    life.refresh()
    if taken_back:
        kept = second["late"].where(second.index >= taken_back)
        second.assign(late=kept).to_csv(tmp_path / "week-3.csv", index=False)
        life.refresh()
    life.evaluate()
    assert life.answered["rows"].sum() == 120 - taken_back
    assert life.answered["score"].notna().all()
    if not taken_back:
        assert life.answered["score"].tolist() == pytest.approx(life.record["score"].tolist())


def test_days_become_one_file_and_old_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kill left twice counts once; a full disk costs answers and no request; without a key there is no log."""
    with pytest.raises(BadInput, match="have no key"):
        AnswerLog(tmp_path, [])
    log, place = AnswerLog(tmp_path, ["id"], days=30), tmp_path / FOLDER
    rows, said = pd.DataFrame({"id": [1, 2]}), pd.DataFrame({"no": [0.2, 0.9], "yes": [0.8, 0.1]})
    for _ in range(2):
        log.add(rows, "A", 1, said)
        log.write()
    first, second = sorted(place.iterdir())
    yesterday, oldest, gone = (f"{datetime.now(UTC) - pd.Timedelta(days=days):%Y-%m-%d}" for days in (1, 30, 31))
    (place / f"{oldest}-000000.parquet").write_bytes(first.read_bytes())
    first.rename(place / f"{gone}-000000.parquet")
    for _ in range(2):
        log.write()
        assert {*place.iterdir()} == {place / f"{oldest}.parquet", second}
    (place / f"{oldest}.parquet").unlink()
    for name in ("", "-1", "-2"):
        (place / f"{yesterday}{name}.parquet").write_bytes(second.read_bytes())
    log.write()
    assert sorted(file.name for file in place.iterdir()) == [f"{yesterday}.parquet", second.name]
    assert len(pd.read_parquet(place / f"{yesterday}.parquet")) == 2

    def fail(*_arguments: Any, **_options: Any) -> None:
        raise OSError(28, "No space left on device", "disk")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", fail)
    assert log.add(rows, "A", 1, said) == 2
    log.write()
    assert "No space left" in log.problem
    monkeypatch.undo()
    log.write()
    assert log.problem == ""


def test_answers_to_a_site_that_is_forgotten_meanwhile_are_not_written(tmp_path: Path) -> None:
    """They waited in the memory of a server while another process forgot the site."""
    log, said = AnswerLog(tmp_path, ["id"]), pd.DataFrame({"yes": [0.5]})
    for site in ("A", "G"):
        assert log.add(pd.DataFrame({"id": [7]}), site, 1, said) == 1
    (tmp_path / "deliveries").mkdir()
    Deliveries(tmp_path, Terms("site", "late", ("id",))).write(Ledger(forgotten={"G": 2}))
    log.write()
    assert not log.problem
    [file] = (tmp_path / FOLDER).iterdir()
    assert [*pd.read_parquet(file)["client"]] == ["A"]
