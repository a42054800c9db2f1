"""A life: new rows test the deployed models, then train the next ones, and the champion moves for a reason."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave.errors import BadInput
from fedweave.lifecycle import ROLES, record, roles
from fedweave.lifecycle.answer_log import AnswerLog
from fedweave.lifecycle.deliveries import PART
from fedweave.lifecycle.ledger import Arrival, Ledger
from fedweave.lifecycle.roles import BACK, BEGUN, FIRST, GIVEN_UP, PROMOTED, Deployed, RoleEvent, Roles
from fedweave.metrics import Margin
from fedweave.results.sequential import ChallengePlan

SITES = "ABCDEF"


def week(number: int, count: int = 120, sign: float = 1.0, sites: str = SITES) -> pd.DataFrame:
    """Rows whose label follows one column; a sign of -1 turns it round."""
    draws = np.random.default_rng(number)
    x = draws.normal(size=(count, 2))
    late = np.where(sign * x[:, 0] > 0, "yes", "no")
    site = [sites[i % len(sites)] for i in range(count)]
    return pd.DataFrame({"id": range(1000 * number, 1000 * number + count), "site": site, "a": x[:, 0], "late": late})


def begin(folder: Path, **more: Any) -> fw.Lifecycle:
    """A life that trains in a moment."""
    settings = {"methods": "fedavg", "rounds": 3, "train": {"lr": 0.5}, "model": {"name": "linear"}, **more}
    return fw.Lifecycle.begin(
        folder / "life",
        client="site",
        **{"source": str(folder / "week-*.csv"), "label": "late", "key": "id", **settings},
    )


def deliver(life: fw.Lifecycle, number: int, *tables: pd.DataFrame) -> list[RoleEvent]:
    """What happens in the night after a delivery of some rows."""
    pd.concat(tables).to_csv(life.folder.parent / f"week-{number}.csv", index=False)
    life.refresh()
    return life.challenge()


def test_a_life_scores_before_it_trains_and_moves_the_champion(tmp_path: Path) -> None:
    """The first weeks mislead: the models of the later ones are better on rows that neither has seen."""
    life = begin(tmp_path, patience=1, per_year=1)
    [first] = deliver(life, 1, week(1, sign=-1))
    assert str(first) == "delivery 1: fedavg of version 1 is the first champion. There was none."
    assert not len(life.record)  # no rows that it has not seen
    assert life.challenge() == []  # and none that a challenger could learn from
    [begun] = deliver(life, 2, week(2, count=600))
    assert begun.event == BEGUN
    scores = life.record.set_index("client")
    assert {*scores["role"]} == {"champion"}
    assert (scores["score"] < 20).all()  # what it learned is wrong now
    new = week(2, count=600)
    own = new[new["site"] == "B"]
    assert scores["score"]["B"] == pytest.approx(100 * (life.champion.predict(own, "B") == own["late"]).mean())
    week(3, sites="ABCDEFG").to_csv(tmp_path / "week-3.csv", index=False)
    life.refresh()
    before = (life.folder / ROLES).read_bytes()
    assert len(life.evaluate()) == 12  # the new site has no model yet
    assert not len(life.evaluate())
    for number in (4, -1, 1.5):
        with pytest.raises(BadInput, match=f"number: {number} is no delivery; they are 1 to 3"):
            life.drift(number)  # type: ignore[arg-type]
    assert life.drift(1).groups == life.drift().groups == ()  # the same columns; what they mean has changed
    corrected = week(1, sign=-1).query("site == 'D'").assign(a=lambda t: t["a"] + 4)  # these are no new rows
    shifted = week(4).assign(a=lambda t: t["a"] + 4 * (t["site"] == "C"))
    pd.concat([shifted, corrected]).to_csv(tmp_path / "week-4.csv", index=False)
    [promoted, *_] = life.challenge()
    assert (promoted.event, promoted.model.version) == (PROMOTED, 2)
    assert promoted.reason.startswith("Better: +")
    assert roles.read_roles(life.folder).champion == promoted.model
    (life.folder / ROLES).write_bytes(before)  # a kill before the roles were written
    assert life.challenge()[0].reason == promoted.reason
    life.refresh()
    life.evaluate()
    [line] = life.describe_drift()
    assert line.startswith("drift in delivery 4: C: a (higher); ")
    assert "; accuracy −" in line  # the labels do not follow the shifted column
    own = life.record[life.record["version"] == 2].pivot(index="client", columns="delivery", values="score")
    change, [group] = (own[4] - own[3]).dropna(), life.drift().groups
    assert (group.effect, group.other_effect) == pytest.approx((change["C"], change.drop("C").mean()))
    back = life.rollback()
    assert (back.event, back.model.version) == (BACK, 1)
    assert life.champion.run.folder.parents[1] == life.models(1)
    assert "champion: fedavg of version 1, scored\ndelivery 3: champion of version 1 has" in "\n".join(life.describe())
    federation = life.federation(3)
    assert federation.names == (*SITES, "G")
    assert sum(map(len, federation.partition.train)) == (life.deliveries.rows(3)[PART] == "train").sum()


@pytest.mark.parametrize(("kind", "classes"), [("bool", ("False", "True")), ("int", ("0", "1"))])
def test_labels_that_come_late_keep_their_names(kind: str, classes: tuple[str, ...], tmp_path: Path) -> None:
    """Truth values and whole numbers of which some are missing are the classes that they were, and no drift."""

    def write(number: int) -> None:
        table = week(number).assign(late=lambda t: (t["late"] == "yes").astype(kind), night=np.arange(120) % 4 == 0)
        if number == 2:
            table = table.astype({"late": "object", "night": "object"})
            table.loc[:11, "late"] = None
            table.loc[3, "night"] = None
        table.to_parquet(tmp_path / f"week-{number}.parquet")

    life = begin(tmp_path, source=str(tmp_path / "week-*.parquet"), rounds=1)
    write(1)
    life.refresh()
    life.challenge()
    log = AnswerLog(life.folder, life.settings.terms.key)
    for site, own in week(2).assign(night=False).groupby("site"):
        log.add(own, str(site), 1, life.champion.predict_proba(own, site))
    log.write()
    write(2)
    life.refresh()
    life.evaluate()
    assert (life.record["rows"].sum(), life.answered["rows"].sum()) == (108, 108)
    assert life.describe_drift() == []
    assert life.deliveries.rows(2)["night"].dtype == "float64"  # as models are trained on numbers in both versions
    trained = life.champion.trained
    assert life.federation(1).classes == life.federation(2).classes == life.federation(2, trained).classes == classes
    assert life.champion.predict(week(2)[:1].assign(night=False), "A").dtype == kind


def deployed(version: int, traffic: int = 100) -> Deployed:
    """Models of a version."""
    return Deployed(version, "fedavg", version, "", traffic, ChallengePlan(patience=4, per_year=4))


def test_a_wrong_value_in_the_file_of_roles_is_named_with_the_file(tmp_path: Path) -> None:
    """Not as a damaged file, as its own line says what is wrong."""
    roles.write_roles(tmp_path, Roles(champion=deployed(1)))
    text = (tmp_path / ROLES).read_text(encoding="utf-8")
    (tmp_path / ROLES).write_text(text.replace('"patience": 4', '"patience": 9'), encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        roles.read_roles(tmp_path)
    assert str(caught.value) == f"{tmp_path / ROLES}: patience: 9 is not between 1 and per_year, 4 deliveries"


def test_an_event_has_the_user_whose_command_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another user reads it; events of earlier versions have none."""
    monkeypatch.setenv("LOGNAME", "ann")
    events = (RoleEvent("", 1, FIRST, "", deployed(1)), RoleEvent("", 3, PROMOTED, "", deployed(2)))
    now = Roles(champion=deployed(2), events=events)
    monkeypatch.setenv("LOGNAME", "bob")
    roles.write_roles(tmp_path, roles.roll_back(now, "", 4))
    assert [one.by for one in roles.read_roles(tmp_path).events] == ["ann", "ann", "bob"]
    content = json.loads((tmp_path / ROLES).read_text(encoding="utf-8"))
    del content["events"][0]["by"]
    (tmp_path / ROLES).write_text(json.dumps(content), encoding="utf-8")
    assert [one.by for one in roles.read_roles(tmp_path).events] == ["", "ann", "bob"]


def test_roles_of_before_warm_starts_can_be_read(tmp_path: Path) -> None:
    """All models were trained from scratch then."""
    roles.write_roles(tmp_path, Roles(champion=deployed(1)))
    content = json.loads((tmp_path / ROLES).read_text(encoding="utf-8"))
    del content["champion"]["parent"]
    (tmp_path / ROLES).write_text(json.dumps(content), encoding="utf-8")
    champion = roles.read_roles(tmp_path).champion
    assert champion is not None
    assert champion.parent == 0


def test_the_digest_of_the_data_is_of_the_deliveries_up_to_a_version() -> None:
    """Those that come later do not change it."""
    arrivals = tuple(
        Arrival(i, "", digest, "", "", "", 1, 1, 0, 0, 1) for i, digest in enumerate(("aa", "bb", "cc"), 1)
    )
    data = roles.hash_data(Ledger(arrivals=arrivals), 2)
    assert data == roles.hash_data(Ledger(arrivals=arrivals[:2]), 2) == hashlib.sha256(b"aabb").hexdigest()[:12]


def scored(differences: list[float], spread: float = 1.0) -> pd.DataFrame:
    """A record of eight clients in deliveries from the third on, with these mean differences."""
    entries: list[dict[str, Any]] = []
    for number, mean in enumerate(differences, 3):
        for client in range(8):
            about = {"delivery": number, "client": str(client), "rows": 100, "score": 90.0}
            gain = mean + spread * (client - 3.5) / 3.5
            entries.append({**about, "role": "champion", "version": 1})
            entries.append(
                {**about, "role": "challenger", "version": 2, "against": 1, "difference": gain, "variance": 100.0}
            )
    return pd.DataFrame(entries, columns=[*record.COLUMNS])


@pytest.mark.parametrize(
    ("differences", "traffic", "event"),
    [
        ([5.0, 5.0], 100, PROMOTED),
        ([-5.0, -5.0], 100, GIVEN_UP),
        ([0.0, 0.0, 0.0], 100, GIVEN_UP),  # equivalent, at the same cost
        ([0.0, 0.0, 0.0], 50, PROMOTED),  # equivalent and cheaper
        ([2.0, -2.0, 2.0, -2.0], 50, GIVEN_UP),  # no patience left
        ([0.5], 50, ""),
    ],
)
def test_only_the_test_moves_the_champion(differences: list[float], traffic: int, event: str) -> None:
    """A challenger that is better, or equivalent and cheaper; else nothing moves, and the reason is kept."""
    now = Roles(deployed(1), deployed(2, traffic))
    spread, margin = (1.0, 2.5) if differences[0] in (0.0, 5.0, -5.0) else (10.0, 0.5)
    test = roles.judge(scored(differences, spread), now, Margin(points=margin))
    then = roles.decide(now, test, "accuracy", "2030-01-01", 6)
    assert [one.event for one in then.events] == [event] * bool(event)
    assert then.champion is not None
    assert then.champion.version == (2 if event == PROMOTED else 1)
    assert (then.challenger is None) == bool(event)


def test_only_differences_between_the_two_models_count() -> None:
    """Not those of another champion or challenger, nor of a client without a difference."""
    now, table = Roles(deployed(1), deployed(2)), scored([0.5, 0.6])
    tested = table[table["role"] == "challenger"]
    others = [tested.assign(difference=50.0, **{column: 7}) for column in ("against", "version")]
    unknown = tested.assign(client="8", difference=np.nan)
    whole = pd.concat([table, *others, unknown], ignore_index=True)
    assert roles.judge(whole, now, Margin(points=0.1)) == roles.judge(table, now, Margin(points=0.1))


@pytest.mark.parametrize("lower", ["champion", "challenger"])
def test_a_margin_is_a_share_of_the_lower_mean_so_far(lower: str) -> None:
    """Of both models, in all deliveries up to the look; scores of other models count for nothing."""
    now, table = Roles(deployed(1), deployed(2)), scored([0.5, 0.5], 10.0)
    table.loc[table["role"] == lower, "score"] = table["delivery"].map({3: 40.0, 4: 60.0})
    table = pd.concat([table, table.assign(version=9, score=1.0)], ignore_index=True)
    margins = [roles.judge(table[table["delivery"] <= number], now, Margin(share=0.1)).margin for number in (3, 4)]
    assert margins == pytest.approx([4.0, 5.0])


@pytest.mark.parametrize(("margin", "points"), [(2.0, 2.0), (None, 1.0)])
def test_the_margin_of_a_test_is_that_of_its_beginning(margin: float | None, points: float, tmp_path: Path) -> None:
    """A margin that is set while nights are scored holds for the next challenger. Once it judged by all nights so far,
    and 60 points promoted what is cheaper.
    """
    life = begin(tmp_path, margin=margin)
    for number in (1, 2):
        deliver(life, number, week(number))
    file = life.folder / "life.json"
    settings = json.loads(file.read_text())
    settings["training"]["margin"] = 60
    file.write_text(json.dumps(settings))
    life = fw.Lifecycle(life.folder)
    week(3).to_csv(tmp_path / "week-3.csv", index=False)
    life.refresh()
    life.evaluate()
    test = life.judge()
    assert test is not None
    assert (len(test.looks), test.margin) == (1, points)


def test_a_verdict_does_not_depend_on_when_it_is_asked_for() -> None:
    """A week of deliveries at once gives the verdict of the night on which it fell."""
    now, table = Roles(deployed(1), deployed(2)), scored([0.5, 5.0, 6.0])
    one_by_one = [roles.judge(table[table["delivery"] <= number], now, Margin(share=0.01)) for number in (3, 4, 5)]
    first = next(test for test in one_by_one if test.is_over)
    assert len(first.looks) == 2
    for rows in (table, table.sort_values("delivery", ascending=False, kind="stable")):
        assert roles.judge(rows, now, Margin(share=0.01)) == first


def test_rollback_goes_to_the_champion_before_and_gives_the_challenger_up() -> None:
    """Its test was against another champion; a second step back undoes the first."""
    events = (RoleEvent("", 1, FIRST, "", deployed(1)), RoleEvent("", 3, PROMOTED, "", deployed(2)))
    once = roles.roll_back(Roles(deployed(2), deployed(3), events), "", 4)
    assert once.champion == Deployed(1, "fedavg", 4, "", 100, ChallengePlan(4, 4))
    assert [one.event for one in once.events[2:]] == [GIVEN_UP, BACK]
    twice = roles.roll_back(once, "", 5)
    assert twice.champion is not None
    assert twice.champion.version == 2
    with pytest.raises(BadInput, match="there has been no other champion"):
        roles.roll_back(Roles(deployed(1), None, events[:1]), "", 4)


def test_a_metric_that_is_no_mean_of_rows_has_differences_of_clients() -> None:
    """Errors count downwards; an interval contains the score, also of few rows."""
    targets = np.random.default_rng(0).normal(size=40)
    good, bad = (record.RowAnswers("numbers", targets, targets + error) for error in (0.1, 0.4))
    assert record._compare(good, bad, "mae")["difference"] == pytest.approx(0.3)
    r2 = record._compare(good, bad, "r2")
    assert r2["difference"] == pytest.approx(good.score("r2") - bad.score("r2"))
    assert np.isnan(r2["variance"])
    noisy = record.RowAnswers("numbers", targets, targets + np.random.default_rng(1).normal(size=40))
    assert noisy.interval("mae")[0] < noisy.score("mae") < noisy.interval("mae")[1]
    right = record.RowAnswers("classes", np.zeros(5, dtype=np.int64), np.tile([0.9, 0.1], (5, 1)))
    assert right.interval("accuracy") == (pytest.approx(56.55, abs=0.01), 100.0)


def test_rows_of_a_class_that_a_model_does_not_know_are_left_out() -> None:
    """The others are scored; without any other, there is no score."""
    answers = pd.DataFrame({"no": [0.9, 0.2, 0.6], "yes": [0.1, 0.8, 0.4]})
    said = record.classify(answers, pd.Series(["yes", "maybe", "no"]))
    assert said is not None
    assert said.targets.tolist() == [1, 0]
    assert said.outputs.tolist() == [[0.9, 0.1], [0.6, 0.4]]
    assert record.classify(answers, pd.Series(["maybe"] * 3)) is None


def test_an_interval_is_of_the_draws_that_have_a_score() -> None:
    """Draws of one class have no area under the curve, which is 1 in all others; without any, there is none."""
    area = record.RowAnswers("classes", np.array([0, 0, 0, 0, 1, 1]), np.array([[0.9, 0.1]] * 4 + [[0.2, 0.8]] * 2))
    assert area.interval("roc_auc") == (area.score("roc_auc"),) * 2
    assert np.isnan(replace(area, targets=np.zeros(6, dtype=np.int64)).interval("roc_auc")).all()


def test_settings_stay_and_wrong_ones_are_named(tmp_path: Path) -> None:
    """The same call opens the life; another setting, or an edited file with a wrong one, is one line."""
    week(1).to_csv(tmp_path / "week-1.csv", index=False)
    with pytest.raises(BadInput, match="key: 'idx' is unknown"):
        begin(tmp_path, key="idx").refresh()
    for option in ("features", "exclude", "text"):
        with pytest.raises(BadInput, match=f"{option}: 'sites' is unknown; did you mean 'site'"):
            begin(tmp_path, columns={option: ["sites"]}).refresh()
    assert begin(tmp_path, columns={"exclude": "id"}).settings.training.columns == {"exclude": ["id"]}
    begin(tmp_path).refresh()  # a first call with a wrong name leaves nothing behind
    begin(tmp_path)
    with pytest.raises(BadInput, match=r"life.json: training.rounds is \d, not 4; leave the options out"):
        begin(tmp_path, rounds=4)
    with pytest.raises(BadInput, match="sauce: is not a setting"):
        fw.Lifecycle.begin(tmp_path / "other", sauce="a.csv")
    with pytest.raises(BadInput, match="is no life yet"):
        fw.Lifecycle(tmp_path / "other")
    file = tmp_path / "life" / "life.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**content, "training": {"rounds": "many"}}), encoding="utf-8")
    with pytest.raises(BadInput, match=r"life.json: training.rounds: 'many' is not a whole number"):
        fw.Lifecycle(tmp_path / "life")
    file.write_text(json.dumps({**content, "terms": {**content["terms"], "shares": [1, 1, 1]}}), encoding="utf-8")
    with pytest.raises(BadInput, match=r"life.json: shares: the shares .* add up to 3, not to 1"):
        fw.Lifecycle(tmp_path / "life")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("shares", [0.9, 0.9, 0.9], "shares: the shares .* add up to 2.7, not to 1"),
        ("shares", [-1, 1, 1], "shares.train: -1 must be a number between 0 and 1"),
        ("shares", [0.8, 0.2], "shares: .* must be three numbers, of train, val, test"),
        ("label", "site", "label: 'site' is also the column of the client or the key; name another column to predict"),
        ("key", ["id", "late"], "label: 'late' is also the column of the client or the key"),
        ("target", "clases", "target: 'clases' is unknown; did you mean 'classes'"),
        ("rounds", -5, "rounds: -5 is out of range; it must be at least 1"),
        ("rounds", 0, "rounds: 0 is out of range; it must be at least 1"),
        ("warm_rounds", -1, "warm_rounds: -1 is out of range; it must be at least 0"),
        ("margin", "a lot", "margin: 'a lot' is not a margin; write a number"),
        ("metric", "f7", "metric: 'f7' is unknown"),
        ("methods", ["Central"], "methods: 'central' is a control on pooled rows and can be no champion"),
        ("methods", ["fedavg", "nosuch"], "methods: 'nosuch' is unknown"),
        ("columns", {"features": ["a"], "exclude": ["id"]}, "columns: has both features and exclude"),
    ],
)
def test_wrong_settings_are_refused_before_a_life_begins(tmp_path: Path, name: str, value: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        begin(tmp_path, **{name: value})
    assert not (tmp_path / "life").exists()


def test_one_name_of_what_was_put_aside_is_accepted(tmp_path: Path) -> None:
    week(1).to_csv(tmp_path / "week-1.csv", index=False)
    life = begin(tmp_path)
    life.refresh()
    week(2).assign(a=lambda table: 1000 * table["a"]).to_csv(tmp_path / "week-2.csv", index=False)
    assert len(life.refresh()) == len(life.deliveries.quarantined) == 1
    life.refresh(accept=str(tmp_path / "week-2.csv"))
    assert (life.newest, life.deliveries.quarantined) == (2, ())


@pytest.mark.parametrize(
    ("metric", "scores", "said"),
    [
        ("accuracy", [90.0, 60.0, 75.0], "accuracy 75.00 over 3 clients, worst 60.00"),
        ("mae", [0.3, 0.9, 0.6], "mae 0.6000 over 3 clients, worst 0.9000"),
    ],
)
def test_a_line_has_the_mean_and_the_worst_score(metric: str, scores: list[float], said: str, tmp_path: Path) -> None:
    about = {"delivery": 2, "role": "champion", "version": 1, "metric": metric}
    table = pd.DataFrame([{**about, "client": str(i), "score": score} for i, score in enumerate(scores)])
    assert begin(tmp_path).describe_scores(table) == [f"delivery 2: champion of version 1 has {said}"]


def test_challengers_begin_patience_deliveries_apart(tmp_path: Path) -> None:
    """The plan counts the challengers that the roles have."""
    life = begin(tmp_path, patience=4, per_year=9)
    assert life.next_start(3) == 3
    begun = tuple(RoleEvent("", number, BEGUN, "", deployed(number)) for number in (3, 7))
    roles.write_roles(life.folder, Roles(deployed(1), None, begun))
    assert life.next_start(9) == 12  # not 11, which would be the third in nine deliveries


def test_coverage_is_the_share_of_rows_in_what_nine_of_ten_should_be_in(tmp_path: Path) -> None:
    """Sets of classes by their probabilities; intervals of numbers by the errors of the delivery before."""
    outputs = np.array([[0.5, 0.3, 0.2], [0.95, 0.03, 0.02], [0.6, 0.35, 0.05]])
    said = record.RowAnswers("classes", np.array([1, 1, 2]), outputs)
    assert said.coverage() == pytest.approx(1 / 3)  # 0.95 and 0.6 + 0.35 are before the targets of the last two
    equal = record.RowAnswers("numbers", np.zeros(4), np.array([-2.0, 2.0, 2.0, 2.0]))
    assert (equal.error, equal.coverage(2.0), equal.coverage(1.9)) == (2.0, 1.0, 0.0)
    life = begin(tmp_path, methods="local", rounds=5, metric="mae", train={"lr": 0.1})

    def deliver(number: int) -> pd.DataFrame:
        table = week(number, count=600)
        return table.assign(late=2 * table["a"] + np.random.default_rng(10 * number).normal(size=600))

    for number in (1, 2, 3):
        deliver(number).to_csv(tmp_path / f"week-{number}.csv", index=False)
        life.refresh()
        life.challenge() if number == 1 else life.evaluate()
    scores = life.record[life.record["role"] == "champion"].set_index(["delivery", "client"])
    assert scores.loc[2, "coverage"].isna().all()
    assert 0.85 < scores.loc[3, "coverage"].mean() < 0.95
    own = deliver(3).query("site == 'B'")
    far = abs(life.champion.predict(own, "B") - own["late"])
    assert scores.loc[(3, "B"), "coverage"] == pytest.approx((far <= scores.loc[(2, "B"), "error"]).mean())
    older = pd.read_csv(life.folder / record.FILE).drop(columns=["coverage", "error"])
    older.to_csv(life.folder / record.FILE, index=False)
    assert [*life.record] == [*record.COLUMNS]
