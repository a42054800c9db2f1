"""The command `rows`: its file from an owner's table, and the input that it refuses in one line."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hosts import Hosts, planned

import fedweave as fw
from fedweave.deployment.__main__ import main
from fedweave.deployment.node import client_data, own_rows
from fedweave.deployment.wire import spec
from fedweave.errors import BadInput

DAYS = pd.date_range("2019-11-20", periods=60, freq="5D")


def table() -> pd.DataFrame:
    draws = np.random.default_rng(2)
    return pd.DataFrame(
        {
            "shop": np.repeat(["A", "B"], 30),
            "hour": draws.integers(24, size=60),
            "late": draws.choice(["no", "yes"], 60),
            "sales": draws.normal(size=60),
        }
    )


def own_table() -> pd.DataFrame:
    """A table of one client, which does not name it."""
    return table().drop(columns="shop")


@pytest.fixture(scope="module")
def apps(tmp_path_factory):
    """Folders of two apps: one predicts a class, the other a number."""
    folder, rows = tmp_path_factory.mktemp("apps"), table()
    for label, other in (("late", "sales"), ("sales", "late")):
        federation = fw.Federation.from_pandas(rows.drop(columns=other), client="shop", label=label, name="shops")
        Hosts(folder / label, planned("fedavg", federation))
    return folder


@pytest.fixture
def written(apps, tmp_path, capsys):
    """Runs `rows` on a table. Returns the file, or the line of the error."""

    def run(rows: pd.DataFrame, *arguments: str, label: str = "late", ending: str = "csv", encoding: str = "utf-8"):
        file, out = tmp_path / f"rows.{ending}", tmp_path / "client.pt"
        rows.to_parquet(file) if ending == "parquet" else rows.to_csv(file, index=False, encoding=encoding)
        app = ["--app", str(apps / label / "app"), "--label", label, "--client", "1", "--out", str(out)]
        if not main(["rows", str(file), *app, *arguments]):
            return client_data.read(out)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert not out.exists()
        return lines[0]

    return run


def test_a_table_in_another_encoding(written):
    rows = own_table().assign(note="süß")
    expected = written(rows)
    file = written(rows, "--encoding", "cp1252", encoding="cp1252")
    assert torch.equal(file.arrays["x"], expected.arrays["x"])
    assert torch.equal(file.arrays["y"], expected.arrays["y"])


def test_a_wrong_encoding_is_refused(written):
    rows = own_table().assign(note="süß")
    assert "rows.csv: cannot be read as a table (UnicodeDecodeError" in (line := written(rows, encoding="cp1252"))
    assert "or name its encoding, such as cp1252: `--encoding` of the command" in line
    assert written(rows, "--encoding", "latin-99").startswith("error: encoding: 'latin-99' is unknown; give one")
    line = written(rows, "--encoding", "cp1252", ending="parquet")
    assert line.startswith("error: encoding: 'cp1252' is for CSV and TSV files, and ")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_first_rows_in_time_train(written, ending):
    """The order of rows is not that of their dates. The order of dates as texts is not that in time."""
    order = np.random.default_rng(0).permutation(60)
    texts = [DAYS.strftime(form) for form in ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%d/%m/%Y", "%m/%d/%Y")]
    for days in (*texts, np.arange(60) - 30, np.arange(60) * 7.5):
        mixed = own_table().assign(day=days).iloc[order]
        file = written(mixed, "--time", "day", ending=ending)
        assert sorted(order[file.parts["train"].numpy()]) == [*range(36)]
        assert sorted(order[file.parts["test"].numpy()]) == [*range(48, 60)]


def test_rows_of_one_time_are_in_one_part(written):
    """As in `Federation.from_pandas`, a part ends at the change of time that is nearest to its share."""
    parts = written(own_table().assign(day=np.repeat([1, 9, 20], [24, 27, 9])), "--time", "day").parts
    ends = {name: (int(rows.min()), int(rows.max())) for name, rows in parts.items()}
    assert ends == {"train": (0, 23), "val": (24, 50), "test": (51, 59)}


BAD_TIMES = {
    "days": (["03/04/2020", "05/04/2020"] * 30, "time: '03/04/2020' may be 3 April or 4 March"),
    "words": (["soon"] * 60, "rows.csv: time: cannot be read as times"),
    "missing": ([None, *DAYS.strftime("%Y-%m-%d")[1:]], "time: is missing in 1 row, first in row 0"),
    "number": ([1.0, np.nan] * 30, "time: is missing in 30 rows, first in row 1"),
    "zones": (
        [f"{day}T08:00{'Z' * (i == 3)}" for i, day in enumerate(DAYS.strftime("%Y-%m-%d"))],
        "rows.csv: time: '2019-12-05T08:00Z' has a time zone, and '2019-11-20T08:00' has none;",
    ),
    "absurd": (["2019-99-99"] * 60, "time: cannot be read as times"),
}


@pytest.mark.parametrize("case", BAD_TIMES)
def test_dates_of_ambiguous_order_are_refused(case, written):
    days, line = BAD_TIMES[case]
    assert line in written(own_table().assign(day=days), "--time", "day")


@pytest.mark.parametrize("shares", ["nan,nan,nan", "0,0,1", "0.5,0.5", "1,1,-1", "inf,0,0", "a,b,c", ""])
def test_invalid_shares_are_refused(shares, written):
    assert written(own_table(), "--shares", shares).startswith("error: --shares")


def test_a_file_without_a_training_row_is_refused(written):
    assert "of 1 row leave none for training; give more rows" in written(own_table()[:1], "--shares", "0.4,0.2,0.4")


def test_rows_of_other_clients_are_refused(written):
    """Client 1 is B. In a table of several clients, the rows of A would train the model of B."""
    lines = [written(rows) for rows in (table(), table()[:30])]
    assert {*lines} == {
        "error: table: column 'shop' has rows of other clients, such as 'A'; give the rows of 'B' alone, or leave the "
        "column out"
    }
    own = table()[30:]
    file = written(own)
    assert len(file.arrays["x"]) == sum(map(len, file.parts.values())) == len(own)


def test_a_newcomer_is_one_client(written):
    """No name is known of it, so that its table may have any, but one."""
    line = written(table(), "--client", "2")
    assert "column 'shop' has rows of 2 clients, and --client 2 is one newcomer" in line
    file = written(table()[:30].assign(shop="C"), "--client", "2")
    assert file.client == 2
    assert len(file.arrays["x"]) == 30


def test_a_negative_client_is_refused(written):
    assert "--client: -1 is not an identity; `show` lists them, from 0" in written(own_table(), "--client", "-1")


LABELS = {
    "text": (["high"] * 60, "label: 'high' is not a finite number in row 0"),
    "empty": ([1.5, None] * 30, "label: is missing in row 1"),
    "infinite": ([1.5, np.inf] * 30, "is not a finite number in row 1"),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_that_are_not_numbers_are_refused(case, written):
    values, line = LABELS[case]
    assert line in written(own_table().assign(sales=values), label="sales")


def test_numeric_labels_are_unchanged(written):
    file = written(own_table(), label="sales")
    assert np.allclose(file.arrays["targets"][:, 0].numpy(), table()["sales"])


@pytest.mark.parametrize("label", ["late", "sales"])
def test_the_scaling_of_a_client_stays_on_its_host(label, tmp_path):
    """The setting is a word. A federation that predicts numbers turns it into a mapping."""
    rows, features = table(), table()[["hour"]].to_numpy(np.float32)
    federation = fw.Federation.from_arrays(
        features, rows[label].to_numpy(), client=rows["shop"].tolist(), name="shops", normalize="standard_client"
    )
    hosts = Hosts(tmp_path, planned("fedavg", federation))
    mean = features[federation.partition.train[1]].mean(dtype=np.float32)
    assert str(float(mean)) not in spec.text_of(hosts.spec)
    assert not {"scaling", "offset", "unit"} & {*hosts.spec.scaling}


def test_a_newcomer_without_scaling_of_its_own_is_refused(tmp_path):
    """Each client's own rows scale its targets. The columns are categories, which need no scaling."""
    rows = table().assign(hour=lambda t: "h" + t["hour"].astype(str)).drop(columns="late")
    federation = fw.Federation.from_pandas(rows, client="shop", label="sales", name="shops", preprocess="client")
    hosts = Hosts(tmp_path, planned("fedavg", federation))
    offset = own_rows.of_table(hosts.spec, rows[rows["shop"] == "B"], "sales", 1).arrays["offset"]
    assert offset.tolist() == hosts.spec.scaling["offset"][1] != hosts.spec.scaling["offset"][0]
    with pytest.raises(
        BadInput, match="client 2: each client's own rows scale its targets, and the app has no numbers for a new"
    ):
        own_rows.of_table(hosts.spec, rows.assign(shop="C"), "sales", 2)


def test_a_missing_app_is_refused(tmp_path, capsys):
    arguments = ["--label", "y", "--client", "0", "--out", str(tmp_path / "out.pt")]
    assert main(["rows", "rows.csv", "--app", str(tmp_path / "nosuch"), *arguments]) == 2
    assert capsys.readouterr().err.count("nosuch") == 1
    assert json.dumps([*map(str, tmp_path.iterdir())]) == "[]"
