"""The page of a life: what it says, and that it needs no network."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

import fedweave as fw
from fedweave.lifecycle import page, record, roles
from fedweave.lifecycle.deliveries import Deliveries
from fedweave.lifecycle.ledger import Arrival, Ledger, Quarantined
from fedweave.lifecycle.roles import BEGUN, FIRST, PROMOTED, RoleEvent, Roles
from tests.lifecycle.test_life import begin, deployed


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A life of six deliveries whose champion moved after the fourth; one name is as bad as names get."""
    life = begin(tmp_path)
    entries: list[dict[str, Any]] = []
    for number in (2, 3, 4, 5, 6):
        for client, score in (("A", 90.0), ("B & <b>C</b>", 70.0), ("D", 80.0)):
            about = {"delivery": number, "date": "2030-01-01", "method": "fedavg", "client": client, "rows": 10}
            about |= {"metric": "accuracy", "score": score, "low": score - 9, "high": score + 5, "calibration": 0.1}
            entries.append({**about, "role": "champion", "version": 1 if number < 5 else 3})
            if number == 4:
                entries.append({**about, "role": "challenger", "version": 3, "against": 1, "difference": 1.0})
    record.append(life.folder, entries)
    record.write_drifts(life.folder, {5: [], 6: ["D: a (higher); 50 % of the rows moved."]})
    events = (
        RoleEvent("2030-01-01", 1, FIRST, "There was none.", deployed(1)),
        RoleEvent("2030-01-03", 3, BEGUN, "", deployed(3)),
        RoleEvent("2030-01-04", 4, PROMOTED, "Better: +1.00 point.", replace(deployed(3), since=4)),
    )
    roles.write_roles(life.folder, Roles(replace(deployed(3), since=4), None, events))
    arrivals = tuple(Arrival(i, "", "", f"week-{i}.csv", "", "2030-01-01", 30, 30, 0, 0, 30) for i in range(1, 7))
    aside = Quarantined("week-7.csv", "x", "2030-01-07", "column 'a' is missing", "")
    monkeypatch.setattr(Deliveries, "ledger", Ledger(arrivals=arrivals))
    monkeypatch.setattr(Deliveries, "quarantined", (aside,))
    monkeypatch.setattr(Deliveries, "rows", lambda self, until=None: pd.DataFrame({"site": ["A"] * 180}))
    return life


def test_the_page_says_what_happened(life: fw.Lifecycle) -> None:
    """Scores with their intervals, the reason of the last move, drift, the quarantine; in one file."""
    text = page.build(life).read_text(encoding="utf-8")
    plain = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", text))
    half = t.ppf(0.975, 2) * 10 / np.sqrt(3)
    assert f"accuracy 80.00 % over 3 clients in delivery 6 (95 % interval {80 - half:.2f} to 100.00)." in plain
    assert "fedavg of version 3, since delivery 4. Better: +1.00 point." in plain
    assert "D: a (higher); 50 % of the rows moved." in plain
    assert "1 delivery has none." in plain
    assert "quarantined, week-7.csv: column &#39;a&#39; is missing" in plain
    assert "<b>C</b>" not in text
    assert plain.index("B &amp; &lt;b&gt;C&lt;/b&gt;") < plain.index("D", plain.index("B &amp; &lt;b&gt;C&lt;/b&gt;"))
    assert not re.findall(r"(?:src|href)=\"(?!#)", text)
    context = page.context(life)
    assert [row["client"] for row in context["clients"]] == ["B & <b>C</b>", "D", "A"]
    assert all(drawing.startswith("<svg") for drawing in (*context["mean"], *context["panels"]))


def test_a_new_champion_is_as_good_as_it_was_as_a_challenger(life: fw.Lifecycle) -> None:
    """Until a delivery comes, the scores of the champion before it say nothing about it."""
    entries = life.record
    entries = entries[entries["delivery"] <= 4].copy()
    entries.loc[entries["role"] == "challenger", "score"] += 5.0
    entries.to_csv(life.folder / record.FILE, index=False)
    assert "accuracy 85.00 % over 3 clients in delivery 4" in dict(page.context(life)["answers"])["How good is it?"]


def test_a_life_without_scores_has_a_page(tmp_path: Path) -> None:
    """It says that nothing has been tested."""
    text = page.build(begin(tmp_path)).read_text(encoding="utf-8")
    assert "No delivery has tested the models yet." in text
    assert "There is no champion yet: fedweave challenge trains it." in text
