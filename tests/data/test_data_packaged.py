"""Data sets inside packages: clients and groups, a split without shared samples, and the message if the package is
missing.
"""

from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedweave import data
from fedweave.data.base import Dataset, Partition, symmetrise_edges
from fedweave.data.partitions.splits import PARTS
from fedweave.data.sources import flights, packaged
from fedweave.data.sources.income import DIVISIONS
from fedweave.data.sources.packaged import PACKAGED
from fedweave.data.sources.shoulder import STEP, WINDOW, read_contents
from fedweave.errors import BadInput
from fedweave.report.optional_files import label_counts
from fedweave.tensors.random_streams import stream

SPLIT = {"train": 0.2, "val": 0.2, "test": 0.6}


@pytest.fixture(scope="module")
def shoulder() -> Dataset:
    return data.load("shoulder", "unused")


@pytest.fixture(scope="module")
def income() -> Dataset:
    return data.load("us-income", "unused")


def samples(dataset: Dataset, rows: np.ndarray) -> set[tuple[int, int]]:
    """All samples, as (recording, sample), in the windows `rows`."""
    first = np.searchsorted(dataset.recording, dataset.recording)  # the row with which each row's recording begins
    starts = (np.arange(len(dataset.x)) - first) * STEP
    return {(int(dataset.recording[row]), int(starts[row]) + step) for row in rows for step in range(WINDOW)}


def test_no_sample_of_a_recording_is_in_two_parts(shoulder: Dataset) -> None:
    partition = data.partition(shoulder, "natural", 20, 0, split=SPLIT)
    for parts in zip(partition.train, partition.val, partition.test, strict=True):
        train, val, test = (samples(shoulder, rows) for rows in parts)
        assert not train & val
        assert not val & test
        assert not train & test
        assert {r for r, _ in train} == {r for r, _ in val} == {r for r, _ in test}
        for recording in {r for r, _ in train}:  # earlier windows train, later ones test
            last, first = (edge(t for r, t in part if r == recording) for edge, part in ((max, train), (min, test)))
            assert last < first


def test_windows_are_those_of_the_recordings(shoulder: Dataset) -> None:
    (path,) = packaged.packaged_files("shoulder")
    raw = read_contents(path)
    for client, number in ((0, 3), (7, 50), (19, 139)):
        rows = np.flatnonzero(shoulder.recording == number)
        name, exercise = shoulder.names[shoulder.owner[rows[0]]], shoulder.y[rows[0]]
        person, arm = int(name.split()[1].rstrip(",")), name.split()[2]
        subject, side, y = (np.asarray(raw[key]) for key in ("subject", "side", "y"))
        (position,) = np.flatnonzero((subject == person) & (side == (arm == "right")) & (y == exercise))
        recording = np.asarray(raw["X"][position], np.float32)
        assert len(rows) == (len(recording) - WINDOW) // STEP + 1, client
        for k in (0, 1, len(rows) - 1):
            span = recording[k * STEP : k * STEP + WINDOW]
            assert np.allclose(shoulder.x[rows[k], :, 0].T, (span[::2] + span[1::2]) / 2, atol=1e-5)


def test_a_damaged_file_of_recordings_is_refused(tmp_path: Path) -> None:
    """The header is cut, or the file has another format."""
    for content in (b"\x93NUMPY\1", b"", b"x" * 200):
        (tmp_path / "watch.npy").write_bytes(content)
        with pytest.raises(BadInput, match=r"watch.npy: not a pickle of plain arrays .* run the download stage again"):
            read_contents(tmp_path / "watch.npy")


def test_classes_have_their_names_in_the_table_of_labels(shoulder: Dataset, tmp_path: Path) -> None:
    """Names are in the order of the classes: the rows of a class are those with its name."""
    partition = data.partition(shoulder, "natural", 20, 0, split=SPLIT)
    out = data.describe(tmp_path, shoulder, partition)
    counts, names = label_counts(tmp_path / "labels.csv")
    assert names == [
        "pendulum",
        "abduction",
        "forward elevation",
        "internal rotation",
        "external rotation",
        "trapezius extension",
        "upright row",
    ]
    assert (*names,) == shoulder.class_names
    assert counts.tolist() == out["labels"]


def test_arms_are_clients_and_sides_are_groups(shoulder: Dataset) -> None:
    partition = data.partition(shoulder, "natural", 20, 0, split=SPLIT)
    assert partition.names[:3] == ("subject 1, left", "subject 1, right", "subject 2, left")
    sides = [partition.group_names[g].split()[0] for g in partition.group]
    assert sides == [name.split()[-1] for name in partition.names]
    people = [name.split(",")[0] for name in partition.names]
    assert (*people,) == partition.units == shoulder.units
    assert len({*people}) == 10
    assert data.partition(shoulder, "dirichlet", 20, 0, beta=1.0).units == ()  # these clients are not arms
    assert all(len(np.unique(shoulder.y[rows])) == 7 for rows in (*partition.train, *partition.val, *partition.test))


@pytest.fixture(scope="module")
def departures() -> Dataset:
    return data.load("flights", "unused")


@pytest.mark.parametrize("name", ["shoulder", "income", "departures"])
def test_scaling_does_not_depend_on_later_rows(name: str, request: pytest.FixtureRequest) -> None:
    """Training rows are the same for any validation and test rows."""
    dataset: Dataset = request.getfixturevalue(name)
    series = dataset.kind == "series"
    rule = {"window": 5, "horizon": 5, "gap": 4, "split": SPLIT} if series else {"split": SPLIT}
    partition = data.partition(dataset, "natural", len(dataset.names), 0, **rule)
    training = slice(None) if series else np.concatenate(partition.train), slice(None)
    x = dataset.x.copy()
    if not series:
        x[np.setdiff1d(np.arange(len(x)), training[0])] *= 100
    else:
        trained = int(max(partition.train[0])) + 10
        x[:, trained:] *= 100
        training = slice(None), slice(trained)
    before, after = (
        data.normalise(d, partition, "standard")[training] for d in (dataset, Dataset(**{**vars(dataset), "x": x}))
    )
    assert np.array_equal(before, after)


def test_flights_are_in_the_order_of_time_with_the_weather_before(departures: Dataset) -> None:
    """Each airport has as many flights as in the table, and the same late ones. No weather is from after the scheduled
    departure.
    """
    table, weather = map(pd.read_csv, packaged.packaged_files("flights"))
    rows = flights.select_flights(table, weather)
    assert np.bincount(departures.owner).tolist() == [flights.FLIGHTS] * flights.DESTINATIONS
    assert [departures.names[i] for i in departures.owner] == rows["dest"].tolist()
    assert departures.y.tolist() == (rows["arr_delay"] > 15).tolist()
    for _, mine in rows.groupby("dest"):
        assert mine["time"].is_monotonic_increasing
    later = weather.assign(precip=np.where(weather["time_hour"] > "2013-07", 99.0, weather["precip"]))
    changed = flights.select_flights(table, later)["precip"].ne(rows["precip"])
    assert changed.any()
    assert rows[changed]["time"].min() >= pd.Timestamp("2013-07-01", tz="UTC")
    partition = data.partition(departures, "natural", 20, 0, split=SPLIT)
    assert all(
        a.max() < b.min() < b.max() < c.min()
        for a, b, c in zip(partition.train, partition.val, partition.test, strict=True)
    )


def test_incomes_borders_and_divisions(income: Dataset) -> None:
    assert np.allclose(np.exp(income.x.astype(np.float64)).mean(0), 1, atol=1e-6)  # relative to the mean of the year
    assert float(np.exp(income.x[income.names.index("Mississippi"), 0])) == pytest.approx(0.47, abs=0.01)
    near = {(income.names[a], income.names[b]) for a, b in income.relation.T}
    assert {b for a, b in near if a == "Florida"} == {"Alabama", "Georgia"}
    assert {b for a, b in near if a == "Maine"} == {"New Hampshire"}
    assert np.array_equal(symmetrise_edges(income.relation, 48), income.relation)
    sizes = dict(zip(income.group_names, np.bincount(income.group).tolist(), strict=True))
    states = [6, 3, 5, 7, 8, 4, 4, 8, 3]  # states of each division, without the District of Columbia
    assert sizes == dict(zip(DIVISIONS.values(), states, strict=True))


def test_no_year_is_forecast_in_two_parts(income: Dataset) -> None:
    partition = data.partition(income, "natural", 48, 0, window=5, horizon=5, gap=4, split=SPLIT)
    targets = [{start + 5 + step for start in getattr(partition, part)[0] for step in range(5)} for part in PARTS]
    assert not targets[0] & targets[1]
    assert not targets[1] & targets[2]
    assert max(targets[0]) < min(targets[1])


def made_recordings(counts: Sequence[int], overlap: int) -> Dataset:
    """Two clients with recordings of `counts` windows each. Rows of a recording are not adjacent."""
    recording = np.concatenate([np.repeat(np.arange(len(counts)), counts)])
    order = np.argsort(stream(3).random(len(recording)), kind="stable")
    recording = recording[order]
    y = np.zeros(len(recording), np.int64)
    about = {"owner": recording % 2, "recording": recording, "overlap": overlap}
    return Dataset("r", "images", np.zeros((len(y), 1, 1, 1), np.float32), y, 1, **about)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(20, 60), min_size=2, max_size=5), st.integers(0, 3), st.integers(0, 2))
def test_recordings_are_cut_in_the_order_of_time(counts: list[int], overlap: int, more: int) -> None:
    """For any lengths, all windows but the gaps are used, and windows of two parts are more than `overlap` apart."""
    dataset, gap = made_recordings(counts, overlap), overlap + more
    partition: Partition = data.partition(
        dataset, "natural", 2, 0, split={"train": 0.4, "val": 0.3, "test": 0.3}, gap=gap
    )
    for number, count in enumerate(counts):
        mine = np.flatnonzero(dataset.recording == number)
        train, val, test = (np.flatnonzero(np.isin(mine, np.concatenate(getattr(partition, part)))) for part in PARTS)
        assert len(train) + len(val) + len(test) == count - 2 * gap
        assert (val[0] - train[-1], test[0] - val[-1]) == (gap + 1, gap + 1)
        assert (train[0], test[-1]) == (0, count - 1)


def test_a_gap_that_shares_samples_is_refused(shoulder: Dataset) -> None:
    for options, message in [
        ({"gap": 0}, "partition.gap: 0 must be a whole number, at least 1"),
        ({"gap": 8}, r"too few windows \(19\) for train, val and test and gaps of 8"),
        ({"window": 5}, "is not a series"),
    ]:
        with pytest.raises(BadInput, match=message):
            data.partition(shoulder, "natural", 20, 0, split=SPLIT, **options)
    y = np.zeros(40, np.int64)
    plain = Dataset("o", "images", np.zeros((40, 1, 1, 1), np.float32), y, 1, owner=np.arange(40) % 2)
    with pytest.raises(BadInput, match="no time order"):
        data.partition(plain, "natural", 2, 0, gap=1)


@pytest.mark.parametrize("name", PACKAGED)
def test_a_missing_package_or_file_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PACKAGED[name][0]
    monkeypatch.setattr(packaged, "find_spec", lambda package: None)
    command = f'pip install "{file.package}=={file.version}"'
    with pytest.raises(BadInput, match=f"needs the package {file.package}, .* {command}"):
        data.load(name, "unused")
    assert not packaged.is_installed(name)
    spec = ModuleSpec(file.package, None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(packaged, "find_spec", lambda package: spec)
    (tmp_path / file.path).parent.mkdir(parents=True)
    for content in (b"", b"\0" * file.bytes):
        (tmp_path / file.path).write_bytes(content)
        with pytest.raises(BadInput, match=f"not the file of {file.package} .*--force-reinstall"):
            data.load(name, "unused")
