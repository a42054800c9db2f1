"""Numbers, forecasts and texts: their scaling, the units of scores, and refused input."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave import exported_model
from fedweave.pipelines.commands import own_data

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
QUIET: dict[str, Any] = {"progress": False, "seed": 0, "lr": 0.05}
DRAWS = np.random.default_rng(0)
COUNT = 240
SHOP = np.arange(COUNT) % 3
HOUSES = pd.DataFrame(
    {
        "town": [f"town {i}" for i in SHOP],
        "size": DRAWS.normal(size=COUNT),
        "kind": DRAWS.choice(["flat", "house"], COUNT),
        "day": np.arange(COUNT) // 3,
    }
)
HOUSES["price"] = 200.0 + 100 * SHOP + 30 * HOUSES["size"] + 5 * DRAWS.normal(size=COUNT)
PRICE: dict[str, Any] = {"client": "town", "label": "price", "features": ["size", "kind"]}
SERIES: dict[str, Any] = {"features": None}
SALES: dict[str, Any] = {"client": "town", "label": "price", "time": "day", "window": 8, "horizon": 3}


def test_scores_are_in_the_unit_of_the_target() -> None:
    """They agree with a computation from the predictions, also for controls. A target in other units has scores in
    these.
    """
    federation = fw.Federation.from_pandas(HOUSES, **PRICE)
    assert "numbers" in repr(federation)
    run = fw.fit("fedavg", federation, rounds=4, metric="rmse", **QUIET)
    controls = run.comparison.controls().set_index("control")["mean"]
    means = []
    for i, name in enumerate(federation.names):
        test, train = federation.partition.test[i], federation.partition.train[i]
        answers = run.predict(HOUSES.iloc[test], name)
        truth = HOUSES["price"].to_numpy()
        assert run.scores[name] == pytest.approx(np.sqrt(np.square(answers - truth[test]).mean()), rel=1e-4)
        means.append(np.sqrt(np.square(truth[train].mean() - truth[test]).mean()))
    assert controls["Training mean"] == pytest.approx(np.mean(means), rel=1e-4)
    cents = fw.Federation.from_pandas(HOUSES.assign(price=HOUSES["price"] * 100), **PRICE)
    again = fw.fit("fedavg", cents, rounds=4, metric="rmse", **QUIET)
    np.testing.assert_allclose(again.scores, 100 * run.scores, rtol=1e-3)
    assert run.comparison.with_metric("r2").leaderboard()["mean"].item() <= 1


@pytest.mark.parametrize("preprocess", ["pooled", "client"])
def test_targets_are_scaled_by_training_rows(preprocess: Any) -> None:
    """The rows are those of all clients, or of each client. Test rows change nothing. The text names the scaling."""
    federation = fw.Federation.from_pandas(HOUSES, **PRICE, preprocess=preprocess)
    offset, unit = fw.data.fit_units(federation.dataset, federation.partition, federation.normalize)
    prices = HOUSES["price"].to_numpy()
    for i, train in enumerate(federation.partition.train):
        rows = train if preprocess == "client" else np.concatenate(federation.partition.train)
        assert offset[i, 0] == pytest.approx(prices[rows].mean(), rel=1e-5)
        assert unit[i, 0] == pytest.approx(prices[rows].std(), rel=1e-5)
    words = {"pooled": "all clients together; scores", "client": "each client's own training rows; scores"}
    assert words[preprocess] in str(federation.describe())


def test_forecasts_use_windows_in_the_order_of_time() -> None:
    """No step is forecast in two parts. The control repeats the last value."""
    federation = fw.Federation.from_pandas(HOUSES, **SALES, features=["size"], preprocess="client")
    assert "scaled by training rows of each client alone" in str(federation.describe())
    assert "of all clients together" in str(fw.Federation.from_pandas(HOUSES, **SALES).describe())
    assert federation.shape == (8, 2)
    run = fw.fit("local", federation, rounds=3, metric="mae", **QUIET)
    errors = []
    for i, name in enumerate(federation.names):
        series = HOUSES[HOUSES["town"] == name]["price"].to_numpy(np.float32)
        first = {
            part: getattr(federation.partition, part)[i] - federation.partition.train[i][0]
            for part in ("train", "val", "test")
        }
        assert first["train"].max() + 3 <= first["val"].min()
        assert first["val"].max() + 3 <= first["test"].min()
        truth = np.stack([series[s + 8 : s + 11] for s in first["test"]])
        np.testing.assert_array_equal(federation.dataset.targets[federation.partition.test[i]], truth)
        errors.append(np.abs(series[first["test"] + 7][:, None] - truth).mean())
    assert run.comparison.controls().set_index("control")["mean"]["Last value"] == pytest.approx(
        np.mean(errors), rel=1e-5
    )
    table = HOUSES[HOUSES["town"] == "town 1"]
    window = table[["price", "size"]].to_numpy()[-8:][None]
    np.testing.assert_allclose(
        run.predict(table.sample(frac=1, random_state=0), "town 1"), run.predict(window, "town 1")
    )
    arrays = fw.Federation.from_arrays(
        HOUSES[["size"]],
        HOUSES["price"],
        client=HOUSES["town"],
        time=HOUSES["day"],
        window=8,
        horizon=3,
        normalize="standard_client",
        gap=2,
    )
    np.testing.assert_array_equal(arrays.dataset.x, federation.dataset.x)
    np.testing.assert_array_equal(arrays.partition.test[2], federation.partition.test[2])


def test_several_series_with_missing_values_are_forecast() -> None:
    """Two columns are forecast in sequence. Windows with missing values are omitted; recordings are divided."""
    table = HOUSES.assign(trip=(HOUSES["day"] >= 40).astype(int))
    table.loc[table["day"] == 20, "size"] = np.nan
    federation = fw.Federation.from_pandas(
        table, client="town", label=["price", "size"], time="day", window=4, horizon=2, recording="trip"
    )
    assert federation.dataset.channels == (0, 1)
    assert federation.dataset.targets.shape[1] == 4
    assert any("windows with a missing value are left out" in note for note in federation.notes)
    assert len(federation.dataset.x) == 3 * (2 * (40 - 5) - 6)
    fw.fit("fedavg", federation, rounds=1, **QUIET)


def gap_lines(table: pd.DataFrame, **options: Any) -> list[str]:
    """The warnings about gaps of a federation that forecasts."""
    federation = fw.Federation.from_pandas(table, **{**SALES, "window": 4, "horizon": 2, **options})
    return [line for line in federation.notes if "a gap in time" in line]


def test_windows_across_gaps_in_time_are_counted() -> None:
    """Of 80 days of a town, one is missing. Five windows have rows before and after it: those of six rows."""
    assert not gap_lines(HOUSES)
    assert not gap_lines(HOUSES.assign(day=HOUSES["day"] / 24))  # rounding is not a gap
    missing = HOUSES[(HOUSES["town"] != "town 1") | (HOUSES["day"] != 40)]
    row = np.flatnonzero((missing["town"] == "town 1") & (missing["day"] == 39))[0]
    for table in (missing, missing.assign(day=pd.Timestamp("2024-01-01") + pd.to_timedelta(missing["day"], "h"))):
        (line,) = gap_lines(table)
        assert line.startswith("5 of 224 windows cross a gap in time")
        assert "the series have 1 gap of more than 1.5 times the usual step" in line
        assert f"the first of client 'town 1' after row {row};" in line
    later = missing.assign(day=missing["day"] + 1000 * (missing["day"] >= 70))
    assert gap_lines(later)[0].startswith("20 of 224 windows cross")
    assert "have 4 gaps" in gap_lines(later)[0]


def test_recordings_cut_a_series_at_its_gaps() -> None:
    """The way out of the warning works: no window has rows of two recordings."""
    table = HOUSES.assign(day=HOUSES["day"] + 9 * (HOUSES["day"] >= 40), part=(HOUSES["day"] >= 40).astype(int))
    assert len(gap_lines(table)) == 1
    assert not gap_lines(table, recording="part")


def test_ambiguous_dates_do_not_select_the_last_rows() -> None:
    """With the month first, 04.03. would be the latest date. The few rows of a prediction do not show the order of
    training.
    """
    columns = [{"name": "day", "role": "time"}, {"name": "sales", "role": "value"}]
    dates = ["2021-03-04", "2021-04-03", "2021-02-05"]
    table = pd.DataFrame({"day": dates, "sales": [1.0, 2.0, 3.0]})
    assert exported_model.last_window(table, columns, 2).ravel().tolist() == [1.0, 2.0]
    with pytest.raises(
        exported_model.InputError, match=r"two of the last 2 rows have one time, .*; give the rows of one s"
    ):
        exported_model.last_window(pd.concat([table, table]), columns, 2)
    table["day"] = ["04.03.2021", "03.04.2021", "05.02.2021"]
    with pytest.raises(exported_model.InputError, match=r"column 'day': '04\.03\.2021' may be 4 March or 3 April"):
        exported_model.last_window(table, columns, 2)
    for day, message in (
        (None, "column 'day': is missing in 1 row"),
        ("soon", "column 'day': cannot be read as times"),
    ):
        with pytest.raises(exported_model.InputError, match=message):
            exported_model.last_window(table.assign(day=["2021-03-04", day, "2021-02-05"]), columns, 2)


def test_rows_of_another_step_are_forecast_with_a_warning() -> None:
    """A model of hours takes rows of two hours as hours, and its forecast is for hours that are not the next ones."""
    hours = pd.date_range("2024-01-01", periods=120, freq="h")
    table = pd.concat(
        pd.DataFrame({"sensor": name, "hour": hours.astype(str), "load": np.sin(np.arange(120.0) + shift)})
        for shift, name in enumerate(["a", "b"])
    )
    options: dict[str, Any] = {"client": "sensor", "label": "load", "time": "hour", "window": 6, "horizon": 2}
    run = fw.fit("local", fw.Federation.from_pandas(table, **options), rounds=1, progress=False)
    own = table[table["sensor"] == "a"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.predict(own, "a")
        run.predict(own.drop(index=117), "a")  # one gap, as of a weekend
    with pytest.warns(
        UserWarning, match="by column 'hour' the last 6 rows are usually 2 times as far apart as those of"
    ):
        run.predict(own.iloc[::2], "a")


def test_forecasts_of_several_labels_have_their_names(tmp_path: Path) -> None:
    """In files and answers of a server: the steps of the second label looked like later ones of the first."""
    draws = np.random.default_rng(0)
    table = pd.DataFrame({"site": ["a", "b"] * 40, "day": np.arange(80) // 2, "sold": draws.random(80) + 9})
    table = table.assign(returned=draws.random(80), rain=draws.random(80))
    options: dict[str, Any] = {"label": ["sold", "returned"], "features": ["rain"], "window": 4, "horizon": 2}
    federation = fw.Federation.from_pandas(table, client="site", time="day", **options)
    run = fw.fit("local", federation, rounds=1, progress=False, out=tmp_path / "out")
    own, names = table[table["site"] == "a"], [f"{label}, step {i}" for label in ("sold", "returned") for i in (1, 2)]
    answers = exported_model.PyfuncModel(exported_model.load(run.export(tmp_path / "a", client="a"))).predict(own)
    assert answers.columns.tolist() == names
    own.to_csv(tmp_path / "own.csv", index=False)
    own_data.predict(tmp_path / "out", tmp_path / "own.csv", client="a", output=tmp_path / "answers.csv")
    printed = pd.read_csv(tmp_path / "answers.csv")
    assert printed.columns.tolist() == names
    np.testing.assert_allclose(printed, answers, rtol=1e-4)


def test_a_series_of_pandas_is_a_column() -> None:
    """It is read like a list, also for windows, and not as a mapping from clients."""
    time, client = [*range(60)] * 2, ["a"] * 60 + ["b"] * 60
    options = {"client": client, "time": time, "window": 4, "horizon": 2}
    side = ["left"] * 60 + ["right"] * 60
    y = np.sin(np.arange(120.0))
    pair = [fw.Federation.from_arrays(None, y, **options, group=group) for group in (side, pd.Series(side))]
    assert pair[0].table["group"].tolist() == pair[1].table["group"].tolist() == ["left", "right"]
    with pytest.raises(fw.BadInput, match="split: forecasts are split in the order of time; give shares"):
        fw.Federation.from_arrays(None, y, **options, split=pd.Series(["train"] * 120))


def test_texts_become_features() -> None:
    """Features are words of a vocabulary, or hashes. A list of texts is one column. A missing text is empty."""
    table = HOUSES.assign(
        note=np.where(HOUSES["size"] > 0, "large and bright", "small, dark"),
        late=np.where(HOUSES["size"] > 0, "y", "n"),
    )
    table.loc[0, "note"] = None
    federation = fw.Federation.from_pandas(
        table, client="town", label="late", features=["note"], text={"note": ["Large", "dark"]}
    )
    np.testing.assert_array_equal(
        federation.dataset.x[1:, :, 0, 0], np.stack([table["size"] > 0, table["size"] <= 0], 1)[1:]
    )
    assert not federation.dataset.x[0].any()
    listed = fw.Federation.from_arrays(table["note"].tolist(), table["late"], client=table["town"])
    assert not listed.dataset.x[0].any()
    run = fw.fit("fedavg", listed, rounds=5, **{**QUIET, "lr": 1.0})
    assert run.scores.mean() > 95
    assert run.predict(["large and bright"], "town 0").tolist() == ["y"]
    for rows in ("large and bright", 3):  # a text is not a list of its letters
        with pytest.raises(fw.BadInput, match="x: give a pandas table"):
            run.predict(rows, "town 0")
    for text, message in (
        ({"nte": 8}, "'nte' is unknown"),
        ({"note": 1}, "give a number of hashes"),
        ({"note": ["a", "A"]}, "words"),
    ):
        with pytest.raises(fw.BadInput, match=message):
            fw.Federation.from_pandas(table, client="town", label="late", features=["note"], text=text)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "town 0.* has no row in 'val'": ({"split": "part"}, {}),
    r"time: cannot be read as times \(.*\); give numbers, or such as": ({"time": "kind"}, {}),
    "metric: accuracy does not fit numbers; choices: mae, mse, r2, rmse": ({}, {"metric": "accuracy"}),
    "has 240 different whole numbers; say what they are: target=": ({"label": "id"}, {}),
    r"y: holds a value that is not a number \(could not convert string to float: '\w+'\)": (
        {"label": "kind", "target": "numbers", "features": ["size"]},
        {},
    ),
    "'stratified' keeps the mix of classes": ({"split": "stratified"}, {}),
    "needs classes": ({}, {"methods": ["fedrod"]}),
    r"compare\(\): central: every client has its own offset": (
        {"preprocess": "client"},
        {"methods": ["local", "central"]},
    ),
    "preprocess: 'clients' is unknown; did you mean 'client'": ({"preprocess": "clients"}, {}),
    "time: forecasts need the time of each row": ({"window": 3, "horizon": 1, "features": None}, {}),
    "a window and its horizon take 90": ({"window": 80, "horizon": 10, "time": "day", "features": None}, {}),
    "gap: 1, but then windows of two parts forecast the same steps; at least 2": ({**SALES, **SERIES, "gap": 1}, {}),
    "split: 'random' does not fit forecasts": ({**SALES, **SERIES, "split": "random"}, {}),
    "column 'kind': holds values that are not numbers": ({**SALES, **SERIES, "features": ["kind"]}, {}),
    "has two rows of one time": ({**SALES, **SERIES, "time": "zero"}, {}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_targets_are_refused(message: str) -> None:
    """One line names the argument and the way out."""
    table = HOUSES.assign(id=np.arange(COUNT), zero=0)
    table["part"] = np.where((SHOP == 0) & (np.arange(COUNT) % 2 == 0), "test", np.where(SHOP == 0, "train", "val"))
    table.loc[(SHOP != 0) & (np.arange(COUNT) % 5 == 0), "part"] = "train"
    table.loc[(SHOP != 0) & (np.arange(COUNT) % 5 == 1), "part"] = "test"
    data, call = REFUSED[message]
    with pytest.raises(fw.BadInput, match=message):
        fw.compare(fw.Federation.from_pandas(table, **{**PRICE, **data}), **{"methods": ["local"], "rounds": 1, **call})


def test_leaks_are_reported() -> None:
    """A column that reveals the target, and rows of training in the test."""
    many = pd.concat([HOUSES] * 10, ignore_index=True)
    many["price"] += DRAWS.normal(size=len(many))
    federation = fw.Federation.from_pandas(many.assign(cents=many["price"] * 100), client="town", label="price")
    assert any("'cents' alone explains" in note for note in federation.notes)
    assert not any("'size'" in note for note in federation.notes)
    twice = pd.concat([HOUSES, HOUSES.head(60)])
    federation = fw.Federation.from_pandas(twice, **PRICE)
    assert any("test rows are training rows too" in note for note in federation.notes)
