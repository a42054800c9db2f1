"""Federations from arrays, tables, graphs and known data sets: their content, their splits, and refused input."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pytest

import fedweave as fw
from fedweave.data.normalisation import normalise
from fedweave.own_data.arrays import as_times

PARTS = ("train", "val", "test")
X = np.random.default_rng(0).normal(size=(60, 4))
Y = np.arange(60) % 3
WHO = ["Ann", "Bob", "Cy"] * 20


def rows(federation: fw.Federation) -> list[dict[str, set[int]]]:
    """Rows of every client by part."""
    return [
        {part: {*getattr(federation.partition, part)[i].tolist()} for part in PARTS} for i in range(len(federation))
    ]


def test_rounds_without_validation_rows_are_shown_without_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    """A warning of NumPy would be an error here. Callbacks get every round."""
    seen = list[np.ndarray]()
    for split in ({"train": 0.6, "val": 0.2, "test": 0.2}, {"train": 0.6, "val": 0.0, "test": 0.4}):
        federation = fw.Federation.from_dataset("digits", "iid", clients=3, split=split)
        plan = {"rounds": 1, "seeds": 1, "central": False, "evaluate": {"select": "last"}}
        fw.compare(federation, ["local"], progress=True, callbacks=[lambda p: seen.append(p.val)], **plan, tune=0)
        assert ("validation " in capsys.readouterr().err) == bool(split["val"])
    assert [np.isfinite(values).tolist() for values in seen] == [[True] * 3, [False] * 3]


@pytest.mark.parametrize(
    "ids", [WHO, np.array(WHO), [(i % 3, "x") for i in range(60)], pd.Series(WHO), [i % 3 for i in range(60)]]
)
def test_clients_keep_rows_and_names(ids: object) -> None:
    """Clients may have names of any type. Each row belongs to its client only, and is there once."""
    federation = fw.Federation.from_arrays(X, Y, client=ids)
    listed = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    for name, parts in zip(federation.names, rows(federation), strict=True):
        mine = {i for i, one in enumerate(listed) if str(one) == name}
        assert set.union(*parts.values()) == mine
        assert sum(map(len, parts.values())) == len(mine)
        assert all(parts.values())


def test_random_split_is_stratified_and_seeded() -> None:
    """Each part has the client's mix of classes. The same seed gives the same rows."""
    split = {"train": 0.5, "val": 0.25, "test": 0.25}
    y = np.repeat([0, 1], 30)
    first, again, other = (fw.Federation.from_arrays(X, y, client=WHO, split=split, seed=seed) for seed in (1, 1, 2))
    assert rows(first) == rows(again) != rows(other)
    for parts in rows(first):
        for part in parts.values():
            assert abs(y[[*part]].mean() - 0.5) <= 1 / len(part) + 1e-9


def test_a_split_by_time_trains_on_the_first_rows() -> None:
    """The last rows of each client are test rows."""
    clock = np.random.default_rng(1).permutation(60)
    for parts in rows(fw.Federation.from_arrays(X, Y, client=WHO, time=clock)):
        ends = [(min(clock[[*parts[p]]]), max(clock[[*parts[p]]])) for p in PARTS]
        assert ends[0][1] < ends[1][0] <= ends[1][1] < ends[2][0]


@pytest.mark.filterwarnings("error:Could not infer format")  # of pandas, for years of two digits
@pytest.mark.parametrize("written", ["%d.%m.%Y %H:%M", "%d/%m/%y", "%m/%d/%Y", "%Y-%m-%d"])
def test_dates_as_texts_are_read_in_their_own_order(written: str) -> None:
    """One number above 12 shows for all rows whether the day comes first. It need not be in the first rows."""
    days = pd.Series(pd.date_range("2021-01-02", periods=60))
    order = np.random.default_rng(1).permutation(60)
    order = np.concatenate([order[days[order].dt.day <= 12], order[days[order].dt.day > 12]])
    clock = days[order].dt.strftime(written).tolist()
    for parts in rows(fw.Federation.from_arrays(X, Y, client=WHO, time=clock)):
        ends = [(min(order[[*parts[p]]]), max(order[[*parts[p]]])) for p in PARTS]
        assert ends[0][1] < ends[1][0] <= ends[1][1] < ends[2][0]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_are_microseconds_in_every_unit_of_pandas(unit: str) -> None:
    days = pd.Series(pd.date_range("2021-01-02", periods=3)).dt.as_unit(unit)
    expected = [1_609_545_600_000_000 + i * 86_400_000_000 for i in range(3)]
    for given in (days, days.to_numpy(), days.dt.strftime("%Y-%m-%d").tolist(), [*days.dt.to_pydatetime()]):
        assert as_times(given, 3).tolist() == expected


@pytest.mark.parametrize(
    ("clock", "message"),
    [
        (["01.04.2021", "02.04.2021"] * 30, r"'01.04.2021' may be 1 April or 4 January, .* such as 2021-04-03"),
        (["13.4.2021", "4/13/2021"] * 30, r"'13.4.2021' has the day first, and '4/13/2021' the month; write dates"),
    ],
)
def test_dates_of_two_meanings_are_refused(clock: list[str], message: str) -> None:
    """Neither order is assumed."""
    with pytest.raises(fw.BadInput, match=message):
        fw.Federation.from_arrays(X, Y, client=WHO, time=clock)


def test_given_splits_are_used() -> None:
    """Labels per row and rows per part are equivalent. Validation rows may come from training rows."""
    label = np.array((["train"] * 3 + ["val"] * 3 + ["test"] * 3) * 7)[:60]
    first = fw.Federation.from_arrays(X, Y, client=WHO, split=label)
    second = fw.Federation.from_arrays(X, Y, client=WHO, split={part: np.flatnonzero(label == part) for part in PARTS})
    assert rows(first) == rows(second)
    assert first.partition_block == second.partition_block
    with_validation = fw.Federation.from_arrays(
        X, Y, client=WHO, split=np.where(label == "test", "test", "train"), val=0.25
    )
    assert [p["test"] for p in rows(with_validation)] == [p["test"] for p in rows(first)]
    assert all(len(p["val"]) >= 1 for p in rows(with_validation))


@pytest.mark.parametrize(("shape", "stored"), [((4,), (4, 1, 1)), ((7, 2), (2, 1, 7)), ((3, 8, 8), (3, 8, 8))])
def test_the_kind_of_data_follows_from_the_shape(shape: tuple[int, ...], stored: tuple[int, ...]) -> None:
    """Vectors, windows and images. A user's module gets rows in the given shape."""
    from torch import nn

    x = np.random.default_rng(0).normal(size=(60, *shape)).astype(np.float32)
    federation = fw.Federation.from_arrays(x, Y, client=WHO)
    assert federation.dataset.x.shape[1:] == stored
    seen = []

    class Sees(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(int(np.prod(shape)), 3)

        def forward(self, batch):
            seen.append(tuple(batch.shape[1:]))
            return self.fc(batch.flatten(1))

    from fedweave.models.own_module import wrap

    adapter = wrap(Sees, federation.shape, 3, windows=len(shape) == 2)
    import torch

    rows = torch.from_numpy(federation.dataset.x[:5])
    assert torch.equal(adapter.call(nn.Identity(), rows), torch.from_numpy(x[:5]))
    assert {*seen} == {shape}


def test_outputs_that_are_not_finite_are_not_called_random() -> None:
    """NaN differs from itself, like a random number."""
    from torch import nn

    class Wrong(nn.Linear):
        def forward(self, batch):
            return super().forward(batch) * float("nan")

    with pytest.raises(fw.BadInput, match="its outputs are not finite; look for a division by 0"):
        fw.fit("local", fw.Federation.from_arrays(X, Y, client=WHO), model=lambda s, o: Wrong(4, o), progress=False)


def test_the_digest_depends_on_the_data() -> None:
    """Other values, labels or rows are another federation. The order of the clients' names does not matter."""
    one = fw.Federation.from_arrays(X, Y, client=WHO).partition_block
    assert one == fw.Federation.from_arrays(X.copy(), [*Y], client=np.array(WHO)).partition_block
    assert one != fw.Federation.from_arrays(X + 1, Y, client=WHO).partition_block
    assert one != fw.Federation.from_arrays(X, Y[::-1], client=WHO).partition_block
    assert one != fw.Federation.from_arrays(X, Y, client=WHO, seed=1).partition_block


def test_table_preprocessing_uses_training_rows_only() -> None:
    """Numbers are standardised and completed; categories become columns. Rows outside of training change nothing."""
    part = (["train"] * 6 + ["val"] * 2 + ["test"] * 2) * 6
    table = pd.DataFrame(
        {
            "who": [f"c{i // 10}" for i in range(60)],
            "number": [float(i) if i % 7 else np.nan for i in range(60)],
            "kind": [["a", "b", None][i % 3] for i in range(60)],
            "flag": [bool(i % 2) for i in range(60)],
            "label": [["no", "yes"][i % 2] for i in range(60)],
            "part": part,
        }
    )
    federation = fw.Federation.from_pandas(table, client="who", label="label", split="part")
    train = np.array(part) == "train"
    values = federation.dataset.x[:, :, 0, 0]
    assert federation.shape == (4,)
    np.testing.assert_allclose(values[train, 0].mean(), 0.0, atol=1e-6)
    np.testing.assert_allclose(values[train, 0].std(), 1.0, atol=1e-6)
    np.testing.assert_array_equal(values[:, 1], [i % 3 == 0 for i in range(60)])
    other = table.copy()
    other.loc[~train, "number"] = 1e6
    other.loc[~train, "kind"] = "new"
    changed = fw.Federation.from_pandas(other, client="who", label="label", split="part")
    assert changed.preprocessing == federation.preprocessing
    np.testing.assert_array_equal(changed.dataset.x[train], federation.dataset.x[train])
    assert (changed.dataset.x[~train][:, 1:3] == 0).all()
    text = str(federation.describe())
    assert "number: number, minus" in text
    assert "missing values become the median" in text
    assert "kind: category, 2 values" in text
    np.testing.assert_array_equal(federation.preprocessing.encode(table), values)
    shifted = table.assign(number=table["number"] / 1e3 + 1e8)  # a range of 6 digits would be from 1e+08 to 1e+08
    text = str(fw.Federation.from_pandas(shifted, client="who", label="label", split="part").describe())
    low, high = re.search(r"number: number, .* from (\S+) to (\S+), such", text).groups()  # type: ignore[union-attr]
    assert float(high) - float(low) == pytest.approx((table["number"].max() - table["number"].min()) / 1e3, rel=0.01)


def test_each_client_has_its_graph() -> None:
    """Training runs on the graphs."""
    draws = np.random.default_rng(0)
    graphs = {
        f"site {i}": (draws.normal(size=(12, 3)), np.stack([np.arange(11), np.arange(1, 12)]), np.arange(12) % 2)
        for i in range(3)
    }
    federation = fw.Federation.from_graphs(graphs, split={"train": 0.5, "val": 0.25, "test": 0.25})
    assert federation.names == ("site 0", "site 1", "site 2")
    assert federation.partition.edges[0].shape == (2, 22)
    run = fw.fit("fedavg", federation, rounds=2, progress=False)
    assert {*run.history["client"]} == {*federation.names}
    for node in (12, -1):
        with pytest.raises(fw.BadInput, match=f"'bad' has an edge of node {node}; its nodes are 0 to 11"):
            fw.Federation.from_graphs({"bad": (np.ones((12, 3)), np.array([[0], [node]]), np.arange(12) % 2)})


def test_a_data_set_of_the_package_has_names_groups_and_a_partition() -> None:
    federation = fw.Federation.from_dataset("digits", {"name": "dirichlet", "beta": 0.3}, clients=4)
    assert federation.partition_block == {"seed": 0, "name": "dirichlet", "beta": 0.3, "clients": 4}
    assert federation.table["train"].sum() + federation.table["val"].sum() + federation.table["test"].sum() == 1797
    with pytest.raises(fw.BadInput, match="'digit' is unknown; did you mean"):
        fw.Federation.from_dataset("digit", "dirichlet", clients=3)


TABLE = pd.DataFrame({"who": WHO, "x": X[:, 0], "empty": np.nan, "when": pd.date_range("2024", periods=60), "y": Y})
FORECAST: dict[str, Any] = {"x": None, "y": X[:, 0], "time": range(60), "window": 2, "horizon": 1}
ONE_COLUMN = [np.where(np.isin(np.arange(60), rows)[:, None], np.nan, X[:, :1]) for rows in ([3], [3, 5])]
ARRAYS: dict[str, dict[str, Any]] = {
    "client: 5 ids, but x has 60 rows": {"client": WHO[:5]},
    "y: shape [4], but x has 60 rows": {"y": Y[:4]},
    "x: shape [60]": {"x": X[:, 0]},
    "x of own-data: nan at [0, 0]": {"x": X * np.nan},
    "y: is missing in 20 rows, first in row 2": {"y": ["yes", "no", float("nan")] * 20},
    "y: is missing in 30 rows, first in row 1": {"y": ["yes", None] * 30},
    "client: is missing in some rows": {"client": ["a", "b", pd.NA] * 20},
    "recording: is missing in 30 rows": {"recording": [None, "first"] * 30},
    "client: 3 ids, but x has 60 rows": {"x": ["a text"] * 60, "client": ["a", "b", "c"]},
    "y: shape [4], but x has 60 rows; give one": {"x": ["a text"] * 60, "y": Y[:4]},
    "y: shape [60, 2] has 2 values for each row; give one, such as y[:, 0]; several labels are for fore": {
        "y": X[:, :2]
    },
    "group: shape [60, 2] has 2 values for each row; give one": {"group": [["g", "h"]] * 60},
    "x of own-data: nan at [3, 0] is not finite; drop": {"x": ONE_COLUMN[0]},
    "x of own-data: nan at [3, 0], and 1 more value is not finite; drop": {"x": ONE_COLUMN[1]},
    "y: only one class, '0'": {"y": Y * 0},
    "y: has numbers that are not classes": {"y": Y + 0.5, "target": "classes"},
    "two ids have the same name": {"client": [1, "1", "a"] * 20},
    "split: row 19 is in 'train' and 'val'; the parts must not overlap": {
        "split": {"train": range(20), "val": range(19, 40), "test": range(40, 60)}
    },
    "split: row 0 is in 'test' twice": {"split": {"test": [0, 0]}},
    "split: 'val' names row 60": {"split": {"val": [60]}},
    "split: 'late' is unknown": {"split": {"late": [1]}},
    "split: 'tain' is unknown": {"split": ["tain"] * 60},
    "split: shape (5,), but there are 60 rows": {"split": ["train"] * 5},
    "split: client 'Ann' has no row in 'test'": {
        "split": [["val", "train", "test"][i % 3] if i % 2 else "train" for i in range(60)]
    },
    "split: no row is 'val'": {"split": ["train", "test"] * 30},
    "add up to 0.8, not to 1": {"split": {"train": 0.6, "test": 0.2, "val": 0.0}},
    "too few for train, val and test, in 3 of 3 clients ('Ann', 'Bob', 'Cy')": {
        "x": X[:6],
        "y": Y[:6],
        "client": WHO[:6],
    },
    "group: client 'Ann' is in two groups, 'a' and 'b'; give all rows": {"group": [*"ab"] * 30},
    "group: client 'Bob' has none": {"group": {"Ann": 1}},
    "seed: -1 is not a seed": {"seed": -1},
    "name: 3 is not a name": {"name": 3},
    "val: 'x' must be a share": {"val": "x"},
    "x: the rows have different lengths": {"x": [[1], [1, 2]] * 30},
    "y: the entries have different lengths": {"y": [[1], [1, 2]] * 30},
    "client: 3 is not a list of names": {"client": 3},
    "is not a list of names; give the name of a client": {"client": [[1]] * 60},
    "relation: None is not a client": {"relation": [("Ann", None)]},
    "relation: no pair has two clients": {"relation": [("Ann", "Ann")]},
    "relation: 3 is not a pair": {"relation": 3},
    "x: holds complex numbers; give the real": {"x": X * 1j},
    "x: holds dates; give numbers": {"x": X.astype("M8[s]")},
    "x: holds durations; give numbers": {"x": X.astype("m8[s]")},
    "y: holds complex numbers": {"y": X[:, 0] * 1j},
    "y: holds dates": {"y": X[:, 0].astype("M8[s]")},
    "y: holds durations": {**FORECAST, "y": X[:, 0].astype("m8[s]")},
    "x: 5 rows, but y has 60": {**FORECAST, "x": X[:5]},
    "group: shape [5], but x has 60 rows": {**FORECAST, "group": ["g"] * 5},
    "gap: '2' must be a number of rows": {**FORECAST, "gap": "2"},
    "e+300 in row 3 is too large to train with": {"x": np.where(np.arange(60)[:, None] == 3, 1e300, X)},
    "y: 1e+25 in row 0 is too large": {"y": Y + 1e25},
    "y: 1e+30 in row 2 is too large": {**FORECAST, "y": np.where(np.arange(60) == 2, 1e30, 1.0)},
    "stride: 5 is for forecasts; give window and horizon": {"stride": 5},
}
TABLES: dict[str, dict[str, Any]] = {
    "table: no column is left as a feature; it has who, y alone": {"table": TABLE[["who", "y"]]},
    "column 'x' holds complex numbers": {"table": TABLE.assign(x=TABLE["x"] * 1j), "features": ["x"]},
    "column 'x': 1e+300 in row": {"table": TABLE.assign(x=np.where(np.arange(60) > 50, 1e300, 1.0)), "features": ["x"]},
    "table: Table is not a pandas table; give one, such as its to_pandas()": {"table": pyarrow.table({"who": [1]})},
    "reset_index('client') does": {"table": {"a": TABLE}, "client": "client"},
    "table: 3 is not a pandas table": {"table": 3},
    "is not a pandas table; give one": {"table": TABLE["who"]},
    "label: 3 is not a name of a column": {"label": 3},
    "label: [] is not a name of a column": {"label": []},
    "features: 3 is not a name of a column": {"features": 3},
    "text: 3 is not a name of a column": {"features": ["x"], "text": 3},
    "column 'lists' holds lists or other objects": {
        "table": TABLE.assign(lists=[[1]] * 60),
        "features": ["lists"],
        "text": ["lists"],
    },
    "text: 'who' has 2.5; give a number of hashes": {
        "table": TABLE.assign(word="a"),
        "client": "word",
        "features": ["who"],
        "text": {"who": 2.5},
    },
    "client: no column ['who']; did you mean 'who'?": {"client": ["who"]},
    "label: 'who' is also the column of client": {"label": "who"},
    "time: 'y' is also the column of label": {"time": "y"},
    "recording: 'who' is also the column of client": {"recording": "who"},
    "label: 'x' is named twice": {"label": ["x", "x"], "time": "when", "window": 2, "horizon": 1},
    "client: no column 'whom'; did you mean 'who'? the table has who, x": {"client": "whom"},
    "column 'when' is a time": {"features": ["x", "when"]},
}
REFUSED: dict[str, Callable[[], fw.Federation]] = {
    **{
        message: partial(fw.Federation.from_arrays, **{"x": X, "y": Y, "client": WHO, **options})
        for message, options in ARRAYS.items()
    },
    **{
        message: partial(fw.Federation.from_pandas, **{"table": TABLE, "client": "who", "label": "y", **options})
        for message, options in TABLES.items()
    },
    "partition: 3 is neither a name nor a mapping": lambda: fw.Federation.from_dataset("digits", 3),
    "partition: ['iid'] is not a name": lambda: fw.Federation.from_dataset("digits", {"name": ["iid"]}, clients=3),
    "name: ['digits'] is not a name": lambda: fw.Federation.from_dataset(["digits"], "iid", clients=3),
    "root: None is not a path": lambda: fw.Federation.from_dataset("digits", "iid", root=None),
    "path: 3 is not a path": lambda: fw.Federation.from_file(3, client="who", label="y"),
    "folder: 3 is not a path": lambda: fw.Federation.from_images(3),
    "graphs: 3 is not a list of graphs": lambda: fw.Federation.from_graphs(3),
    "graphs: 'client 0' has 3": lambda: fw.Federation.from_graphs([3]),
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_input_is_refused(message: str) -> None:
    """One line names the argument and the way out."""
    with pytest.raises(fw.BadInput, match=re.escape(message)):
        REFUSED[message]()


def test_a_client_without_test_rows_has_no_majority(recwarn: pytest.WarningsRecorder, tmp_path: Path) -> None:
    """It counts in no mean, and there is no warning about an empty mean."""
    federation = fw.Federation.from_arrays(X, Y, client=WHO)
    test = federation.partition.test
    partition = replace(federation.partition, test=(*test[:2], test[2][:0]))
    bare = replace(federation, partition=partition)
    assert np.isfinite(bare.majority()).tolist() == [True, True, False]
    compared = fw.compare(bare, ["local"], rounds=1, seeds=1, central=False, progress=False, out=tmp_path, tune=0)
    assert compared.majority() == pytest.approx(compared.controls().set_index("control")["mean"]["Majority class"])
    assert not [warning for warning in recwarn if "empty slice" in str(warning.message)]


def test_columns_may_have_numbers_as_names() -> None:
    """A table of an array has such names."""
    table = pd.DataFrame(X).assign(who=WHO, y=Y)
    federation = fw.Federation.from_pandas(table, client="who", label="y")
    assert [column["name"] for column in federation.dataset.columns] == [0, 1, 2, 3]
    run = fw.fit("local", federation, rounds=1, progress=False)
    assert len(run.predict(table[[0, 1, 2, 3]], "Ann")) == 60


def test_unseen_classes_are_refused_and_small_clients_are_reported() -> None:
    """A class without training rows is an error. The description has what a user must know of the data."""
    label = ["train", "val", "test"] * 20
    y = np.where(np.array(label) == "test", 2, np.arange(60) // 3 % 2)
    with pytest.raises(fw.BadInput, match="labels that no training row has: '2'"):
        fw.Federation.from_arrays(X, y, client=np.repeat(["a", "b"], 30), split=label)
    federation = fw.Federation.from_arrays(X, Y, client=WHO)
    assert "3 of 3 clients have fewer than 10 test rows" in str(federation.describe())


@pytest.mark.parametrize("name", ["own-data", "cifar10", "fashion-mnist"])
def test_own_rows_are_standardised_by_themselves(name: str) -> None:
    """Published numbers are those of the known data set, whatever the user's data are called."""
    draws = np.random.default_rng(0)
    images, windows = draws.normal(5, 3, (60, 3, 4, 4)), draws.normal(5, 3, (60, 2))
    owner, labels = ["a", "b", "c"] * 20, np.arange(60) // 3 % 2
    series = fw.Federation.from_arrays(
        windows, windows[:, 0], client=owner, time=np.arange(60) // 3, window=3, horizon=1, name=name
    )
    for made in (fw.Federation.from_arrays(images, labels, client=owner, normalize="standard", name=name), series):
        scaled = normalise(made.dataset, made.partition, made.normalize)[np.concatenate(made.partition.train)]
        np.testing.assert_allclose(scaled.mean((0, 2, 3)), 0, atol=1e-6)
        np.testing.assert_allclose(scaled.std((0, 2, 3)), 1, atol=1e-6)
    given = {"name": "standard", "mean": [0.0] * 3, "std": [1.0] * 3}
    assert fw.Federation.from_arrays(images, labels, client=owner, normalize=given, name=name).normalize == given
