"""Sites that come and go, and sites that are forgotten."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave import exported_model
from fedweave.errors import BadInput
from fedweave.lifecycle import answer_log, forgetting, record, roles, sites
from fedweave.lifecycle.row_digests import ROW
from tests.lifecycle.test_life import begin, deliver, week


def test_a_new_site_has_a_model_the_same_night_and_one_that_leaves_is_archived(tmp_path: Path) -> None:
    """The models of the others do not change; a line says how good it is; it joins again when its rows have doubled."""
    rows = week(9).drop(columns="site")
    life = begin(tmp_path, methods="fedavg_ft", gone_after=2, patience=4, per_year=4, join_rounds=5)
    deliver(life, 1, week(1))
    others = life.champion.predict_proba(rows, "A")
    [begun, joined] = deliver(life, 2, week(2), week(20, count=40, sites="G"))
    assert begun.event == roles.BEGUN  # trained with G, and under test: the champion gets a model of G too
    assert joined.event == roles.JOINED
    assert joined.reason.startswith(f"G: accuracy {life.champion.joined['G'].scores['G']:.2f} on ")
    assert "after 40 rows; the other clients" in joined.reason
    assert life.champion.clients[-1] == "G"
    pd.testing.assert_frame_equal(life.champion.predict_proba(rows, "A"), others)
    assert life.challenge() == []
    assert deliver(life, 3, week(3, sites="ABCDE"), week(30, count=30, sites="G")) == []  # 70 rows are no twice 40
    scores = life.record[(life.record["role"] == "champion") & (life.record["delivery"] == 3)].set_index("client")
    new = week(30, count=30, sites="G")
    assert scores["score"]["G"] == pytest.approx(100 * np.mean(life.champion.predict(new, "G") == new["late"]))
    again, left = deliver(life, 4, week(4, sites="ABCDE"), week(40, count=30, sites="G"))
    assert "after 100 rows" in again.reason
    assert life.champion.since == {"G": 4}
    assert life.load(life.roles.champion, before=4).since == {"G": 2}
    trained = life.federation(1).partition.train
    assert (left.event, left.reason) == (
        roles.LEFT,
        "F has had no rows since delivery 2: its model is in archive/F-000002; it has "
        f"{len(trained[5]) / sum(map(len, trained)):.0%} of the rows of the champion's training.",
    )
    archived = exported_model.load(life.folder / "archive" / "F-000002")
    assert (archived.predict(rows) == life.champion.predict(rows, "F")).all()
    assert life.challenge() == []


def test_each_site_that_leaves_is_archived(tmp_path: Path) -> None:
    """Also one whose name is the end of the name of another one, and of the same last delivery."""
    life = begin(tmp_path, gone_after=1, patience=4, per_year=4)
    deliver(life, 1, week(1).replace({"site": {"A": "AB"}}))
    events = deliver(life, 2, week(2, sites="CDEF"))
    left = [one.reason.split(":")[0] for one in events if one.event == roles.LEFT]
    assert left == [f"{site} has had no rows since delivery 1" for site in ("AB", "B")]
    assert life.challenge() == []


@pytest.mark.parametrize(("method", "said"), [("fedaghn", ", and 20% of the weights of the others"), ("local", "")])
def test_the_influence_of_a_site(tmp_path: Path, method: str, said: str) -> None:
    """Rows and weights that the others have of it; one that joined has none."""
    life = begin(tmp_path, methods=method, rounds=1, join_rounds=1)
    deliver(life, 1, week(1, sites="ABCDE"))
    train = pd.Series([*"AABBBCCDDE"])
    known = sites.describe_influence(life.champion, "B", train)
    assert re.sub(r"\d\d% of the weights", "20% of the weights", known) == (
        f"it has 30% of the rows of the champion's training{said}"
    )
    if said:
        weights = life.champion.trained.graph().to_numpy()
        assert f"{np.delete(weights, 1, 0)[:, 1].mean():.0%} of the weights" in known  # rows of it have the sum 1
    deliver(life, 2, week(2, sites="ABCDEG"))
    assert "joined later" in sites.describe_influence(life.champion, "G", train)


def test_a_site_that_cannot_join_waits_and_the_night_goes_on(tmp_path: Path) -> None:
    """It is said once; the next training has it."""
    life = begin(tmp_path, patience=1, per_year=9)
    deliver(life, 1, week(1))
    for file in life.models(1).rglob("state-0.pt"):
        file.unlink()
    events = deliver(life, 2, week(2), week(20, count=40, sites="G"))
    assert [one.event for one in events] == [roles.BEGUN, roles.WAITING]
    assert events[1].reason.startswith("G: ")
    assert "the server's state is not stored" in events[1].reason
    assert life.challenge() == []
    assert "G" in life.load(life.roles.challenger).clients


def test_a_site_is_forgotten(tmp_path: Path) -> None:
    """No file has a row of it, no model that was trained with it is left, and the proof fails where one is."""
    life = begin(tmp_path, patience=4, per_year=4)
    for number in (1, 2):
        deliver(life, number, week(number), week(20 + number, count=41, sites="G"))
    before = life.deliveries.rows()
    with pytest.raises(BadInput, match="site: 'Q'"):
        life.forget("Q")
    proof = life.forget("G")
    assert proof.startswith("G: none of its 82 rows (digest ")
    assert proof.endswith(") is in a delivery, or among the 240 rows that the trainings of version 3 read.")
    assert life.forget("G") == proof
    assert str(life.deliveries.ledger.arrivals[-1]) == "delivery 3, forget: G is forgotten, with 82 rows"
    assert [one.event for one in life.roles.events[2:]] == [roles.GIVEN_UP, roles.FORGOTTEN]
    assert [place.name for place in (life.folder / "models").iterdir()] == ["000003"]
    assert not {*before.loc[before["site"] == "G", ROW]} & {*life.deliveries.rows()[ROW]}
    with pytest.raises(BadInput, match="there has been no other champion"):
        life.rollback()
    assert life.champion.clients == tuple("ABCDEF")
    arrived = len(life.deliveries.ledger.arrivals)
    deliver(life, 3, week(3), week(23, count=41, sites="G"))
    [arrival] = life.deliveries.ledger.arrivals[arrived:]
    assert (arrival.number, arrival.new) == (4, 120)
    assert {*life.record["client"]} == {*"ABCDEF"}
    assert life.federation(4).names == tuple("ABCDEF")
    rows = before[before["site"] == "G"]
    forgetting.store_rows(life.models(4), rows)
    with pytest.raises(BadInput, match=r"000004: was trained on rows of G"):
        life.forget("G")


def test_all_that_has_seen_a_site_is_erased_and_nothing_else(tmp_path: Path) -> None:
    """Trainings, sites that joined, archives, scores and answers from its first delivery until it was forgotten."""
    life = begin(tmp_path)
    for number, more in ((1, []), (2, [week(20, count=7, sites="G"), week(21, count=5, sites="H")])):
        pd.concat([week(number), *more]).to_csv(tmp_path / f"week-{number}.csv", index=False)
        life.refresh()
    forgetting.erase_rows(life.deliveries, "G")
    [first, second, empty] = life.deliveries.ledger.arrivals
    assert (first.new, second.new, second.labelled, empty.new) == (120, 125, 125, 0)
    assert second.joined == ("H",)
    models = ("000001", "000001/joined/000001", "000001/joined/000003", "000001/warm/joined/000003", "000003")
    kept = [*(f"models/{name}" for name in models), "archive/GG-000002"]
    erased = ["models/000001/joined/000002", "models/000001/warm/joined/000002", "models/000002", "archive/G-000002"]
    for name in (*kept, *erased):
        (life.folder / name).mkdir(parents=True, exist_ok=True)
    scores = [{"delivery": 2, "client": site, "score": 90.0} for site in "GH"]
    for name in (record.FILE, answer_log.SCORES):
        record.append(life.folder, scores, name)
    file = life.folder / answer_log.FOLDER / "2030-01-01.parquet"
    file.parent.mkdir()
    pd.DataFrame({"client": [*"GH"]}).to_parquet(file)
    forgetting.erase_models(life.folder, 3, "G")
    assert [(life.folder / name).exists() for name in (*kept, *erased)] == [True] * len(kept) + [False] * len(erased)
    for table in (life.record, life.answered, pd.read_parquet(file)):
        assert [*table["client"]] == ["H"]


def test_a_killed_forget_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each of its writes: what is left at the end is the same."""
    life = begin(tmp_path)
    deliver(life, 1, week(1), week(21, count=41, sites="G"))
    real, draws, kills = Path.replace, np.random.default_rng(3), 0

    def replace(path: Path, target: Path) -> Path:
        nonlocal kills
        moment = draws.integers(4) if kills < 12 else 2
        done = real(path, target) if moment else target
        if moment < 2:
            kills += 1
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(Path, "replace", replace)
    for _ in range(20):
        try:
            proof = fw.Lifecycle(life.folder).forget("G")
            break
        except KeyboardInterrupt:
            continue
    assert kills == 12
    assert "none of its 41 rows" in proof
    left = sorted(file.name for file in life.deliveries.place.glob("*.parquet"))
    assert left == ["000001-000002.parquet", "000002.parquet"]
    assert [place.name for place in (life.folder / "models").iterdir()] == ["000002"]
    assert [one.event for one in life.roles.events] == [roles.FIRST, roles.FORGOTTEN]
