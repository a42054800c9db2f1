"""The command `rows`: what it writes from an owner's table, and what it refuses in one line."""

import json

import numpy as np
import pandas as pd
import pytest
from hosts import Hosts, planned

import fedweave as fw
from fedweave.deployment import client_data
from fedweave.deployment.__main__ import main

DAYS = pd.date_range("2019-11-20", periods=60, freq="5D")


def table() -> pd.DataFrame:
    draws = np.random.default_rng(2)
    return pd.DataFrame({"shop": np.repeat(["A", "B"], 30), "hour": draws.integers(24, size=60),
                         "late": draws.choice(["no", "yes"], 60), "sales": draws.normal(size=60)})  # fmt: skip


@pytest.fixture(scope="module")
def apps(tmp_path_factory):
    """Folders of two apps: one predicts a class, one a number."""
    folder, rows = tmp_path_factory.mktemp("apps"), table()
    for label, other in (("late", "sales"), ("sales", "late")):
        federation = fw.Federation.from_pandas(rows.drop(columns=other), client="shop", label=label, name="shops")
        Hosts(folder / label, planned("fedavg", federation))
    return folder


@pytest.fixture
def written(apps, tmp_path, capsys):
    """Runs `rows` on a table; the file, or the line of the error."""

    def run(rows: pd.DataFrame, *words: str, label: str = "late", ending: str = "csv"):
        file, out = tmp_path / f"rows.{ending}", tmp_path / "client.pt"
        rows.to_parquet(file) if ending == "parquet" else rows.to_csv(file, index=False)
        app = ["--app", str(apps / label / "app"), "--label", label, "--client", "1", "--out", str(out)]
        if not main(["rows", str(file), *app, *words]):
            return client_data.read(out)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert not out.exists()
        return lines[0]

    return run


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_first_rows_in_time_train(written, ending):
    """Rows come in another order than their dates, which as texts would have another order than in time."""
    order = np.random.default_rng(0).permutation(60)
    for days in (DAYS.strftime("%Y-%m-%d"), DAYS.strftime("%Y-%m-%d %H:%M"), np.arange(60) - 30, np.arange(60) * 7.5):
        mixed = table().assign(day=days).iloc[order]
        file = written(mixed, "--time", "day", ending=ending)
        assert sorted(order[file.parts["train"].numpy()]) == [*range(36)]
        assert sorted(order[file.parts["test"].numpy()]) == [*range(48, 60)]


BAD_TIMES = {
    "days": (DAYS.strftime("%d/%m/%Y"), "--time: '20/11/2019' is no number and no ISO date"),
    "months": (DAYS.strftime("%m/%d/%Y"), "is no number and no ISO date; write dates such as 2020-04-25"),
    "words": (["soon"] * 60, "--time: 'soon' is no number"),
    "missing": ([None, *DAYS.strftime("%Y-%m-%d")[1:]], "time: is missing in 1 rows, first in row 0"),
    "number": ([1.0, np.nan] * 30, "time: is missing in 30 rows, first in row 1"),
    "absurd": (["2019-99-99"] * 60, "time: cannot be read as times"),
}


@pytest.mark.parametrize("case", BAD_TIMES)
def test_dates_whose_order_is_a_guess_are_refused(case, written):
    days, line = BAD_TIMES[case]
    assert line in written(table().assign(day=days), "--time", "day")


@pytest.mark.parametrize("shares", ["nan,nan,nan", "0,0,1", "0.5,0.5", "1,1,-1", "inf,0,0", "a,b,c", ""])
def test_shares_that_cannot_be_meant(shares, written):
    assert written(table(), "--shares", shares).startswith("error: --shares: ")


def test_a_file_without_a_training_row(written):
    assert "of 1 rows leave none for training; give more rows" in written(table()[:1], "--shares", "0.4,0.2,0.4")


def test_a_client_below_zero(written):
    assert "--client: -1 is no identity; `show` lists them, from 0" in written(table(), "--client", "-1")


LABELS = {
    "text": (["high"] * 60, "label: 'high' is no finite number in row 0"),
    "empty": ([1.5, None] * 30, "label: is missing in row 1"),
    "infinite": ([1.5, np.inf] * 30, "no finite number in row 1"),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_that_are_no_numbers(case, written):
    values, line = LABELS[case]
    assert line in written(table().assign(sales=values), label="sales")


def test_numbers_are_kept(written):
    file = written(table(), label="sales")
    assert np.allclose(file.arrays["targets"][:, 0].numpy(), table()["sales"])


def test_an_app_that_is_not_there(tmp_path, capsys):
    words = ["--label", "y", "--client", "0", "--out", str(tmp_path / "out.pt")]
    assert main(["rows", "rows.csv", "--app", str(tmp_path / "nosuch"), *words]) == 2
    assert capsys.readouterr().err.count("nosuch") == 1
    assert json.dumps([*map(str, tmp_path.iterdir())]) == "[]"
