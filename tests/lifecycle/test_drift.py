"""Drift: planted shifts are found with their column, direction and clients; without one, alarms are rare."""

import math
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import fisher_exact, ks_2samp

from benchmarks.drift import COLUMNS, alarm, draw
from fedweave.data.partitions.splits import PARTS
from fedweave.errors import BadInput
from fedweave.lifecycle.deliveries import PART
from fedweave.lifecycle.drift import DriftSettings, compare_categories, compare_numbers, find_drift
from fedweave.tensors.random_streams import stream
from tests.lifecycle.test_life import begin


@pytest.fixture(scope="module")
def before() -> pd.DataFrame:
    return draw(8, 300, stream(1))


@pytest.fixture
def after() -> pd.DataFrame:
    return draw(8, 60, stream(2))


def test_nothing_is_flagged_without_drift(before: pd.DataFrame, after: pd.DataFrame) -> None:
    drift = find_drift(before, after, "client", COLUMNS)
    assert drift.groups == ()
    assert drift.tests == 8 * len(COLUMNS)
    assert drift.describe() == ["No client drifts."]


def test_planted_drifts_are_found_and_grouped(before: pd.DataFrame, after: pd.DataFrame) -> None:
    """Two clients with one shift are one group; nothing else is flagged."""
    together = after["client"].isin(["c2", "c5"])
    after.loc[together, "x0"] += 1.5
    after.loc[together, "x4"] = "new"
    after.loc[after["client"] == "c6", "x1"] = np.nan
    after.loc[after["client"] == "c7", "x2"] -= 3
    spread = after["client"] == "c1"
    after.loc[spread, "x1"] = 1 + 6 * (after.loc[spread, "x1"] - 1)
    drift = find_drift(before, after, "client", COLUMNS)
    found = {group.clients: {shift.column: shift.direction for shift in group.shifts} for group in drift.groups}
    assert found == {
        ("c2", "c5"): {"x0": "higher", "x4": "more new"},
        ("c1",): {"x1": "changed"},
        ("c6",): {"x1": "more often missing"},
        ("c7",): {"x2": "lower"},
    }


def test_a_sentence_has_the_effect_on_the_score(before: pd.DataFrame, after: pd.DataFrame) -> None:
    after.loc[after["client"].isin(["c2", "c5"]), "x0"] += 9
    scores = {f"c{i}": (80.0, 74.0 if i in (2, 5) else 80.5) for i in range(7)} | {"c7": (math.nan, 1.0)}
    (group,) = find_drift(before, after, "client", COLUMNS, scores=scores).groups
    words = "c2 and c5: x0 (higher); 100 % of the rows moved; accuracy −6.00 points, of the other clients +0.50 points."
    assert group.describe("accuracy") == words
    (unknown,) = find_drift(before, after, "client", COLUMNS).groups
    assert unknown.describe() == "c2 and c5: x0 (higher); 100 % of the rows moved."


def test_labels_that_come_late_are_no_drift_and_shifted_ones_are(before: pd.DataFrame, after: pd.DataFrame) -> None:
    columns = COLUMNS[:4]
    late = after.assign(x4=after["x4"].where(stream(3).random(len(after)) < 0.5))
    assert find_drift(before, late, "client", columns, label="x4").groups == ()
    none = after.assign(x4=pd.Series(np.nan, after.index, dtype="object"))
    assert find_drift(before, none, "client", columns, label="x4").tests == 8 * 4
    shifted = after.assign(x4=after["x4"].where(after["client"] != "c3", "c"))
    ((one,),) = (group.shifts for group in find_drift(before, shifted, "client", columns, label="x4").groups)
    assert (one.client, one.column, one.direction) == ("c3", "x4", "more c")


def test_a_truth_value_that_is_missing_changes_no_other(before: pd.DataFrame, after: pd.DataFrame) -> None:
    """pandas has numbers in a column with one, and truth values in a column without."""
    known, new = (table.assign(x0=table["x0"] > table["x0"].median()) for table in (before, after))
    with_missing = new.assign(x0=new["x0"].astype("float64").where(new.index != 5))
    for pair in ((known, new), (known, with_missing), (with_missing, known)):
        assert find_drift(*pair, "client", ["x0"]).groups == ()
    with_missing.loc[with_missing["client"] == "c3", "x0"] = 1 - with_missing["x0"]
    assert [group.clients for group in find_drift(known, with_missing, "client", ["x0"]).groups] == [("c3",)]


def test_predictions_stand_for_images(before: pd.DataFrame, after: pd.DataFrame) -> None:
    """Classes and confidences are columns as others are."""
    known, new = (part.rename(columns={"x5": "predicted"})[["client", "predicted"]] for part in (before, after))
    assert find_drift(known, new, "client", ["predicted"]).groups == ()
    new.loc[new["client"] == "c4", "predicted"] = "b"
    assert find_drift(known, new, "client", ["predicted"]).groups[0].clients == ("c4",)


def test_clients_of_one_table_only_and_dates_are_not_tested(before: pd.DataFrame, after: pd.DataFrame) -> None:
    known = before.assign(day=pd.Timestamp("2024"), empty=np.nan, constant=1)
    new = after.assign(day=pd.Timestamp("2025"), empty=pd.Timestamp("2025"), constant=1)
    new["client"] = new["client"].replace("c0", "new site")
    drift = find_drift(known, new, "client", [*COLUMNS, "day", "empty", "constant"])
    assert drift.tests == 7 * len(COLUMNS)
    for tables in ((known.assign(x9=1.0), new), (known, new.assign(x9=1.0))):
        with pytest.raises(BadInput, match="columns: x9: is not in both tables"):
            find_drift(*tables, "client", ["x9"])


def test_a_small_shift_of_many_rows_is_no_drift() -> None:
    known, new = (pd.DataFrame({"client": "a", "x": stream(i).standard_normal(20_000) + 0.1 * i}) for i in (0, 1))
    assert find_drift(known, new, "client", ["x"]).groups == ()
    assert find_drift(known, new, "client", ["x"], settings=DriftSettings(least_shift=0.02)).groups
    with pytest.raises(BadInput, match="least_shift: 0 is not between 0 and 1"):
        DriftSettings(least_shift=0)


@pytest.mark.filterwarnings("ignore:ks_2samp")
@given(st.integers(0, 1000), st.integers(2, 80), st.integers(2, 80), st.integers(1, 40))
def test_sizes_and_p_values_are_those_of_the_tests(seed: int, first: int, second: int, values: int) -> None:
    """Also with ties and few rows; direction and size are computed apart from p."""
    generator = stream(seed)
    before, after = (generator.integers(0, values, count).astype(float) for count in (first, second))
    test = compare_numbers(before, after)
    assert (test is None) == (len({*before, *after}) == 1)
    if test is not None:
        exact = ks_2samp(before, after)
        assert test[1] == pytest.approx(exact.statistic)
        assert test[2] == pytest.approx(exact.pvalue, abs=1e-9)
        back = compare_numbers(after, before)
        assert back is not None
        assert back[1:] == pytest.approx(test[1:])


def test_few_rows_far_away_have_the_p_of_chance() -> None:
    """Two rows beyond ten others: 2 of 66 orders."""
    assert compare_numbers(np.arange(10.0), np.array([20.0, 21.0])) == ("higher", 1.0, pytest.approx(2 / 66))


def test_most_rows_may_have_the_same_value() -> None:
    """Of counts, of which four in five are 0, the others go, or come."""
    before, after = np.repeat([0.0, 3.0], [80, 20]), np.zeros(100)
    p = pytest.approx(ks_2samp(before, after).pvalue)
    assert compare_numbers(before, after) == ("lower", pytest.approx(0.2), p)
    assert compare_numbers(after, before) == ("higher", pytest.approx(0.2), p)


@pytest.mark.parametrize(("count", "method"), [(300, "exact"), (301, "asymp")])
def test_many_pairs_of_rows_have_the_p_of_the_limit(count: int, method: Literal["exact", "asymp"]) -> None:
    """As the exact one would take long; 1,000 times 300 is the last pair of tables that has it."""
    before, after = stream(1).standard_normal(1000), stream(2).standard_normal(count) + 0.2
    test = compare_numbers(before, after)
    assert test is not None
    assert test[2] == pytest.approx(ks_2samp(before, after, method=method).pvalue, rel=1e-6)


def test_a_category_that_comes_has_the_p_of_fishers_test() -> None:
    """Of three, it alone is far from chance: two sides, three tests."""
    before, after = np.repeat([*"abc"], [40, 40, 5]), np.repeat([*"abc"], [10, 10, 20])
    one_sided = fisher_exact([[20, 20], [5, 80]], "greater").pvalue
    moved = 20 / 40 - 5 / 85
    assert compare_categories(before, after) == ("more c", pytest.approx(moved), pytest.approx(6 * one_sided))


def test_two_categories_have_the_p_of_fishers_test() -> None:
    before, after = np.array(["a"] * 90 + ["b"] * 10), np.array(["a"] * 10 + ["b"] * 15)
    table = [[10, 90], [15, 10]]
    one_sided = fisher_exact(table, "less").pvalue
    assert compare_categories(before, after) == ("more b", pytest.approx(0.5), pytest.approx(4 * one_sided))
    assert compare_categories(before[:5], after[:5]) is None


def test_deliveries_without_drift_rarely_raise_an_alarm() -> None:
    """Of 20, six or more have a chance of 1 in 3,000 at a level of 5 %. The table is `python -m benchmarks.drift`."""
    settings = DriftSettings(0.05, 1e-9)
    assert sum(bool(alarm(4, 20, 0.0, settings, i).groups) for i in range(20)) < 6


def test_texts_drift_by_what_the_champion_predicts(tmp_path: Path) -> None:
    """No two texts are equal; with one site's new texts, the predicted class changes."""

    def week(number: int, loud: str = "") -> pd.DataFrame:
        draws = stream(number)
        site = np.array([*"ABCDEF"])[np.arange(1800) % 6]
        share = np.where(site == loud, 0.95, 0.5)
        late = draws.random(1800) < share
        words = [f"{'slow' if one else 'fast'} w{number}x{i}" for i, one in enumerate(late)]
        return pd.DataFrame(
            {"id": 10_000 * number + np.arange(1800), "site": site, "note": words, "late": np.where(late, "yes", "no")}
        )

    life = begin(tmp_path, columns={"text": {"note": ["slow", "fast"]}}, methods="fedavg", rounds=5)
    for number, loud in ((1, ""), (2, ""), (3, "C")):
        table = week(number, loud)
        if number == 3:
            table["late"] = None  # labels come later
        table.to_csv(tmp_path / f"week-{number}.csv", index=False)
        life.refresh()
        life.refresh([entry.name for entry in life.deliveries.quarantined])
        life.challenge() if number == 1 else life.evaluate()
    assert life.drifts[2] == []
    [sentence] = life.drifts[3]
    assert sentence.startswith("C: prediction (more yes); ")
    drift = life.drift(3)
    assert (life.drift(2).tests, drift.tests) == (12, 6)  # predictions and labels, which come later
    known, new = life.deliveries.rows(1), life.deliveries.rows(3)
    tables = known[known[PART] == PARTS[2]], new[new["number"] == 3]  # it was trained on the others
    shares = [(life.champion.predict(table[table["site"] == "C"], "C") == "yes").mean() for table in tables]
    [shift] = drift.groups[0].shifts
    assert shift.size == pytest.approx(shares[1] - shares[0])
