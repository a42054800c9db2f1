"""Splits by rules: parts never overlap, keep the order of time with a gap, and do not divide recordings."""

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedweave as fw

PARTS = ("train", "val", "test")


def draw_rows(count: int = 300, clients: int = 4, seed: int = 0) -> dict[str, Any]:
    """Rows of clients of different sizes, with a time, a session and a class."""
    draws = np.random.default_rng(seed)
    owner = draws.choice(clients, size=count, p=np.arange(1, clients + 1) / np.arange(1, clients + 1).sum())
    session = [f"{i}-{n}" for i, n in zip(owner, draws.integers(6, size=count), strict=True)]
    return {
        "x": draws.normal(size=(count, 3)),
        "y": draws.integers(2, size=count),
        "client": owner,
        "time": draws.integers(40, size=count),
        "recording": np.array(session),
    }


def make_federation(rule: str, seed: int = 0, **options: Any) -> tuple[fw.Federation, dict[str, Any]]:
    """A federation that is split by `rule`, and its rows."""
    data = draw_rows(seed=seed)
    used = {"chronological": ("time",), "grouped": ("recording",)}.get(rule, ())
    columns = {key: data[key] for key in ("client", *used)}
    return fw.Federation.from_arrays(data["x"], data["y"], split=rule, seed=seed, **columns, **options), data


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rule", ["random", "stratified", "chronological", "grouped"])
def test_parts_are_a_partition(rule: str, seed: int) -> None:
    """Every row of a client is in exactly one part, and the parts have their shares."""
    federation, data = make_federation(rule, seed, shares={"train": 0.5, "val": 0.2, "test": 0.3})
    for i, name in enumerate(federation.names):
        parts = [getattr(federation.partition, part)[i] for part in PARTS]
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.flatnonzero(data["client"] == int(name)))
        column = {"grouped": "recording", "chronological": "time"}.get(rule)  # rows of one value are in one part
        slack = 1 if column is None else np.unique(data[column][np.concatenate(parts)], return_counts=True)[1].max()
        sizes = np.array([len(part) for part in parts])
        assert (np.abs(sizes - np.array([0.5, 0.2, 0.3]) * sizes.sum()) <= slack).all()


def test_a_stratified_split_has_the_mix_of_classes() -> None:
    """Each part has its share of a rare class. A random split has it only on average."""
    y = np.array([0] * 180 + [1] * 20)
    x, client = np.arange(400.0).reshape(200, 2), ["a", "b"] * 100
    counts = {}
    for rule in ("random", "stratified"):
        federation = fw.Federation.from_arrays(x, y, client=client, split=rule, seed=3)
        counts[rule] = [y[rows].sum() for rows in federation.partition.test]
    assert counts["stratified"] == [2, 2]
    assert counts["random"] != [2, 2]


@pytest.mark.parametrize("gap", [0, 1, 3])
@pytest.mark.parametrize("distinct", [True, False])
def test_a_split_by_time_has_a_gap(gap: int, distinct: bool) -> None:
    """Rows of one time are in one part, and `gap` rows between two parts in none: more where that divides a time."""
    data = draw_rows()
    time = np.random.default_rng(1).permutation(len(data["time"])) if distinct else data["time"]
    federation = fw.Federation.from_arrays(data["x"], data["y"], client=data["client"], time=time, gap=gap)
    for i, name in enumerate(federation.names):
        rows = np.flatnonzero(data["client"] == int(name))
        parts = [time[getattr(federation.partition, part)[i]] for part in PARTS]
        assert all(map(len, parts))
        for early, late in pairwise(parts):
            left_out = ((time[rows] > early.max()) & (time[rows] < late.min())).sum()
            assert early.max() < late.min()
            assert left_out == gap if distinct or not gap else left_out >= gap


@pytest.mark.parametrize("rule", ["random", "stratified", "chronological", "grouped"])
def test_a_share_of_0_is_no_validation_part(rule: str) -> None:
    """This also holds where rows of one time or one recording stay together."""
    federation, data = make_federation(rule, shares={"train": 0.8, "val": 0, "test": 0.2})
    for i, name in enumerate(federation.names):
        train, val, test = (len(getattr(federation.partition, part)[i]) for part in PARTS)
        assert (val, train + test) == (0, (data["client"] == int(name)).sum())
        assert 0 < test < train


def test_a_split_by_time_divides_each_recording() -> None:
    data = draw_rows(2000)
    federation = fw.Federation.from_arrays(
        data["x"], data["y"], client=data["client"], time=data["time"], recording=data["recording"], gap=1
    )
    for one in np.unique(data["recording"]):
        mine = np.flatnonzero(data["recording"] == one)
        times = [data["time"][np.intersect1d(mine, np.concatenate(getattr(federation.partition, p)))] for p in PARTS]
        assert all(map(len, times))
        assert times[0].max() <= times[1].min()
        assert times[1].max() <= times[2].min()


@pytest.mark.parametrize("seed", range(5))
def test_recordings_are_not_divided(seed: int) -> None:
    """No recording has rows in two parts, and every client has rows in every part."""
    federation, data = make_federation("grouped", seed)
    seen = [{*data["recording"][np.concatenate(getattr(federation.partition, part))]} for part in PARTS]
    assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]
    assert not seen[1] & seen[2]
    assert all(len(rows) for part in PARTS for rows in getattr(federation.partition, part))


@pytest.mark.parametrize("rule", ["random", "stratified", "chronological", "grouped"])
def test_val_is_a_share_of_the_training_rows(rule: str) -> None:
    """This holds for the default shares and for shares without "val". A share of 0.25 gives the default split."""
    default, quarter, half, given = (
        make_federation(rule, **options)[0].partition
        for options in ({}, {"val": 0.25}, {"val": 0.5}, {"val": 0.5, "shares": {"train": 0.8, "test": 0.2}})
    )
    for part in PARTS:
        for i in range(4):
            np.testing.assert_array_equal(getattr(quarter, part)[i], getattr(default, part)[i])
            np.testing.assert_array_equal(getattr(half, part)[i], getattr(given, part)[i])
    assert sum(map(len, half.val)) > 1.5 * sum(map(len, default.val))


def test_times_may_be_texts() -> None:
    """Texts are read as times and not sorted by letters. Numbers as texts are numbers."""
    days = pd.date_range("2023-12-25", periods=30)
    x, y = np.arange(60.0).reshape(30, 2), np.arange(30) % 2
    for texts in (days.strftime("%m/%d/%Y").tolist(), [str(i) for i in range(30)], days.tolist(), days.date.tolist()):
        federation = fw.Federation.from_arrays(x, y, client=["a"] * 30, time=texts)
        assert repr(federation) == "Federation 'own-data': 1 client, 30 rows of 2 values, 2 classes"
        assert [rows[0].tolist() for rows in (federation.partition.train, federation.partition.test)] == [
            [*range(18)],
            [*range(24, 30)],
        ]


DATA = draw_rows()
ARRAYS = {"x": DATA["x"], "y": DATA["y"], "client": DATA["client"]}
REFUSED: dict[str, dict[str, Any]] = {
    "split: 'chronologic' is neither a rule nor a column": {"split": "chronologic"},
    "split: 'chronological' needs the time": {"split": "chronological"},
    "split: 'grouped' needs the recording": {"split": "grouped"},
    "time: split is 'random', which does not use it": {"split": "random", "time": DATA["time"]},
    "recording: split is 'stratified'": {"split": "stratified", "recording": DATA["recording"]},
    "gap: split is 'stratified'": {"gap": 2},
    "gap: -1 must be a number of rows": {"gap": -1, "time": DATA["time"]},
    "shares: {'train': 1.0}, but split is": {
        "shares": {"train": 1.0},
        "split": {"train": 0.6, "val": 0.2, "test": 0.2},
    },
    "time: the parts are given by split": {"split": ["train"] * 300, "time": DATA["time"]},
    "too few for train, val and test and two gaps of 200": {"gap": 200, "time": DATA["time"]},
    "time: cannot be read as times": {"time": ["2024-01-01"] * 299 + ["soon"]},
    "time: is missing in 1 row, first in row 299": {"time": [1.0] * 299 + [np.nan]},
    "recording: 'x' has rows of the clients": {"recording": ["x"] * 300},
    "has 1 recording, too few": {"recording": DATA["client"]},
    "val: 2.0 must be a share of the training rows, above 0 and below 1": {"val": 2.0},
    "val: 0 must be a share of the training rows, above 0 and below 1": {"val": 0},
    "val: 0.2, but shares is {'train': 0.6, 'val': 0.2, 'test': 0.2}; leave 'val' out of one of them": {
        "val": 0.2,
        "shares": {"train": 0.6, "val": 0.2, "test": 0.2},
    },
    "val: 0.2, but split is": {"val": 0.2, "split": {"train": 0.6, "val": 0.2, "test": 0.2}},
    "shares: the shares {'train': 0.9, 'test': 0.2} add up to 1.1": {"shares": {"train": 0.9, "test": 0.2}},
    "split: {'train': 1.0} must give a share to train, val and test": {"split": {"train": 1.0}},
    "too few for train, val and test, in 2 of 4 clients ('p', 'q'); leave these rows out, such as by min_rows=3": {
        "client": ["p", "q", "q", *["a"] * 197, *["b"] * 100]
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_rules_are_refused(message: str) -> None:
    """One line names the option and the way out."""
    with pytest.raises(fw.BadInput, match=re.escape(message)):
        fw.Federation.from_arrays(**{**ARRAYS, **REFUSED[message]})
