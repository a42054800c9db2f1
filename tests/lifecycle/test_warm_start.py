"""A challenger that goes on from the champion, whose rows are prepared as those of the champion were."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave import exported_model, results
from fedweave.data.partitions.splits import PARTS
from fedweave.lifecycle import roles, warm_start
from fedweave.lifecycle.deliveries import PART
from fedweave.lifecycle.roles import BEGUN, JOINED
from tests.lifecycle.test_life import begin, week


def deliver(life: fw.Lifecycle, number: int, table: pd.DataFrame) -> list[roles.RoleEvent]:
    """What happens in the night after a delivery."""
    table.to_csv(life.folder.parent / f"week-{number}.csv", index=False)
    life.refresh()
    life.refresh([entry.name for entry in life.deliveries.quarantined])
    return life.challenge()


@pytest.mark.parametrize("label", ["yes and no", "numbers"])
def test_the_state_meets_the_inputs_that_it_knows(tmp_path: Path, label: str) -> None:
    """Without any learning, those that went on say what the champion says, although the rows have another scale."""

    def rows(number: int, sites: str = "BCDEFG") -> pd.DataFrame:
        table = week(number, sites=sites)
        table["a"] *= 5 if number > 1 else 1
        table["kind"] = [f"{number * (i % 3)}" for i in range(len(table))]
        return table if label == "yes and no" else table.assign(late=table["a"] * 2.5 + number)

    more = {"columns": {"exclude": "id"}, "model": {"name": "mlp", "hidden": 4}}
    life = begin(tmp_path, train={"lr": 1e-9}, warm_rounds=1, **more)
    deliver(life, 1, rows(1))
    deliver(life, 2, rows(2, "ABCDEFG"))  # A comes before the others
    went_on, scratch = (fw.load(life.models(2, parent))["fedavg"] for parent in (1, 0))
    assert (went_on.clients, scratch.clients) == ((*"BCDEFG", "A"), (*"ABCDEFG",))
    assert went_on.run.info["spec"]["train"]["rounds"] == 4
    stored, partition = life.deliveries.rows(2), life.federation(2, life.champion.trained).partition
    for part in PARTS:  # rows keep them
        for site, places in zip(went_on.clients, getattr(partition, part), strict=True):
            assert sorted(places) == [*np.flatnonzero((stored[PART] == part) & (stored["site"] == site))]
    new = rows(2).drop(columns="site")

    def says(result: fw.MethodResult) -> np.ndarray:
        ask = result.predict_proba if label == "yes and no" else result.predict
        return np.asarray(ask(new, "B", refit=False))

    known = says(life.champion.trained)
    assert np.allclose(says(went_on), known, rtol=1e-4, atol=1e-5)
    assert not np.allclose(says(scratch), known, rtol=1e-2)
    assert went_on.deployed_run().folder.is_relative_to(life.models(2, 1) / "refit")
    exported = exported_model.load(went_on.export(tmp_path / "exported", "B")).predict(new)
    said = went_on.predict(new, "B")
    assert np.allclose(exported, said, rtol=1e-4) if label == "numbers" else (exported == said).all()


def test_validation_chooses_and_sites_join_what_went_on(tmp_path: Path) -> None:
    """Two rounds from scratch are too few. Its bytes are those of both trainings; the next one goes on from it."""
    life = begin(tmp_path, rounds=2, train={"lr": 0.1}, warm_rounds=3, patience=1, per_year=9)
    deliver(life, 1, week(1))
    [begun] = deliver(life, 2, week(2))
    assert (begun.event, begun.model.parent) == (BEGUN, 1)
    start = "Deliveries after 2 test it against version 1. On validation rows, accuracy: 3 rounds "
    assert begun.reason.startswith(start)
    assert " on from version 1 " in begun.reason
    own = fw.load(life.models(2, 1))["fedavg"].rounds
    assert sorted(own["round"]) == [3, 4, 5]
    first = life.roles.champion
    assert first is not None
    assert begun.model.traffic == first.traffic + own[["bytes_up", "bytes_down"]].to_numpy().sum()
    roles.write_roles(life.folder, replace(life.roles, champion=begun.model, challenger=None))
    again, joined = deliver(life, 3, pd.concat([week(3), week(30, count=60, sites="0")]))
    assert (again.event, again.model.parent) == (BEGUN, 2)
    assert (joined.event, joined.model.version, life.champion.clients[-1]) == (JOINED, 2, "0")
    assert life.load(again.model).clients == (*"ABCDEF", "0")


def test_what_cannot_go_on_is_trained_from_scratch(tmp_path: Path) -> None:
    """A class that is new; a setting without such rounds."""
    life = begin(tmp_path, rounds=1, patience=1, per_year=9)
    deliver(life, 1, week(1))
    [begun, *_] = deliver(life, 2, week(2).assign(late=lambda table: table["late"].where(table["a"] < 1, "very")))
    assert begun.model.parent == 0
    assert begun.reason.endswith("It is trained from scratch, as version 1 cannot go on: class 'very' is new.")
    life = begin(tmp_path / "without", rounds=1, patience=1, per_year=9, warm_rounds=0)
    (tmp_path / "without").mkdir(exist_ok=True)
    deliver(life, 1, week(1))
    [begun] = deliver(life, 2, week(2))
    assert begun.reason == "Deliveries after 2 test it against version 1."


def test_a_client_without_a_score_is_left_out_of_both_means() -> None:
    """Clients have other numbers in the two trainings. C has validation rows of one class, and so no such area."""
    draws = np.random.default_rng(0)
    x, y, site = draws.normal(size=(180, 2)), np.arange(180) // 3 % 2, np.arange(180) % 3
    federation = fw.Federation.from_arrays(x, np.where(site == 2, 0, y), client=np.array(["A", "B", "C"])[site])
    scratch = fw.fit("local", federation, metric="roc_auc", rounds=2, progress=False)
    numbers = {"client": scratch.run.evaluations["client"].map({0: 0, 1: 2, 2: 1})}
    names = {**scratch.run.info, "client_names": ["A", "C", "B"]}
    run = replace(scratch.run, info=names, evaluations=scratch.run.evaluations.assign(**numbers))
    is_warm, reason = warm_start.choose(scratch, replace(scratch, run=run), 1)
    assert not is_warm
    mean = results.validation_means({"": scratch.run})[""]
    assert reason.count(results.format_score(mean, np.nan, "roc_auc")) == 2, reason
