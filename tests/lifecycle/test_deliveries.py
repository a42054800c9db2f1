"""Deliveries: what is new counts once, corrections replace, damage is put aside, and a kill loses nothing."""

import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedweave.errors import BadInput, Busy
from fedweave.lifecycle import LEDGER
from fedweave.lifecycle.deliveries import CHANGE, ID, LABELLED, PART, Deliveries, Terms
from fedweave.lifecycle.ledger import Arrival, Quarantined
from fedweave.lifecycle.sources import Source

TERMS = Terms(client="site", label="late", key=("id",))


def flights(first: int, count: int = 60, seed: int = 0) -> pd.DataFrame:
    """Rows with codes that look like numbers, such as 007."""
    draws = np.random.default_rng([seed, first])
    return pd.DataFrame(
        {
            "id": [f"{number:05}" for number in range(first, first + count)],
            "site": [("007", "7", "NA1")[number % 3] for number in range(count)],
            "delay": draws.normal(10, 5, count).round(2),
            "seats": draws.integers(50, 300, count),
            "late": draws.choice(["no", "yes"], count),
        }
    )


def take(folder: Path, pattern: Any = "*.csv", terms: Terms = TERMS, **more: Any) -> list[Arrival | Quarantined]:
    """What a reading of the CSV files in `folder` brings."""
    source = pattern if isinstance(pattern, Source) else Source(str(folder / pattern))
    return [*Deliveries(folder / "life", terms).take(source.readings(), **more)]


def arrive(*arguments: Any, **more: Any) -> Arrival:
    """The one delivery that a reading brings."""
    [arrival] = take(*arguments, **more)
    assert isinstance(arrival, Arrival)
    return arrival


def put_aside(*arguments: Any, **more: Any) -> Quarantined:
    """The one reading that is put aside."""
    [entry] = take(*arguments, **more)
    assert isinstance(entry, Quarantined)
    return entry


def rows(folder: Path, terms: Terms = TERMS, until: int | None = None) -> pd.DataFrame:
    """The rows of the newest version, or of that of a delivery."""
    return Deliveries(folder / "life", terms).rows(until)


def test_files_are_taken_once_and_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """The same file again, under another name too, brings nothing; names stay as they are written."""
    for number in (10, 9):
        flights(number * 60).to_csv(tmp_path / f"part-{number}.csv", index=False)
    assert [str(one).split(": ")[0][-11:] for one in take(tmp_path)] == ["/part-9.csv", "part-10.csv"]
    assert take(tmp_path) == []
    (tmp_path / "part-11.csv").write_bytes((tmp_path / "part-9.csv").read_bytes())
    pd.concat([flights(540), flights(660, 3)]).to_csv(tmp_path / "part-12.csv", index=False)  # one that has grown
    arrival = arrive(tmp_path)
    assert (arrival.new, arrival.corrections) == (3, 0)
    expected = pd.concat([flights(540), flights(600), flights(660, 3)], ignore_index=True)
    pd.testing.assert_frame_equal(rows(tmp_path)[[*expected]], expected)


@pytest.mark.parametrize("with_commas", [0, 1])
def test_points_mean_what_they_meant_in_earlier_deliveries(with_commas: int, tmp_path: Path) -> None:
    """Decimal commas in one say that points separate thousands in later ones without any comma, too."""
    costs = 100 + 15 * np.arange(60)
    for number in range(3):
        table = flights(60 * number).astype({"delay": float if number == with_commas else int})
        table["cost"] = [f"{cost:,}".replace(",", ".") for cost in (costs + 200 if number > 1 else costs)]
        table.to_csv(tmp_path / f"part-{number}.csv", sep=";", decimal=",", index=False)
        arrive(tmp_path, f"part-{number}.csv")
    assert rows(tmp_path)["cost"].tolist() == [*costs, *costs, *(costs + 200)]


def test_rows_without_a_key_count_once_and_copies_stay(tmp_path: Path) -> None:
    """Equal rows of one file are as many. A file that was edited is put aside, one that was replaced is not."""
    terms = Terms(client="site", label="late")
    table = pd.concat([flights(0, 30), flights(0, 30)[:2], flights(0, 30)[:1]]).drop(columns="id")
    table.to_csv(tmp_path / "all.csv", index=False)
    take(tmp_path, terms=terms)
    assert len(rows(tmp_path, terms)) == 33
    table.assign(delay=[99.0, *table["delay"].iloc[1:]]).to_csv(tmp_path / "all.csv", index=False)
    aside = put_aside(tmp_path, terms=terms)
    assert "1 row of delivery 1 changed in it" in aside.reason
    flights(100, 30).drop(columns="id").to_csv(tmp_path / "all.csv", index=False)
    arrival = arrive(tmp_path, terms=terms)
    assert arrival.new == 30


def test_rows_with_times_count_once(tmp_path: Path) -> None:
    """In whatever zone they are written, and where one is missing."""
    times = pd.date_range("2024-01-01", periods=60, freq="h", tz="UTC").to_series(index=range(60))
    times[3] = pd.NaT
    flights(0).assign(when=times).to_parquet(tmp_path / "a-1.parquet")
    assert arrive(tmp_path, "*.parquet").new == 60
    times[4] += pd.Timedelta(minutes=1)
    flights(0).assign(when=times.dt.tz_convert("Asia/Tokyo")).to_parquet(tmp_path / "a-2.parquet")
    again = arrive(tmp_path, "*.parquet")
    assert (again.new, again.corrections) == (0, 1)


def test_corrections_replace_and_late_labels_count_when_they_come(tmp_path: Path) -> None:
    """A row keeps its part. An old file that is read again corrects nothing back."""
    first = flights(0)
    first.loc[5, "late"] = None
    first.to_csv(tmp_path / "a-1.csv", index=False)
    take(tmp_path)
    before = rows(tmp_path).set_index("id")
    flights(0).loc[[5, 7]].assign(delay=11.5).to_csv(tmp_path / "a-2.csv", index=False)
    arrival = arrive(tmp_path)
    assert (arrival.new, arrival.corrections, arrival.labelled) == (0, 2, 1)
    first.assign(seats=[*first["seats"].iloc[:-1], 123]).to_csv(tmp_path / "a-1.csv", index=False)
    again = arrive(tmp_path)
    assert again.corrections == 1
    after = rows(tmp_path).set_index("id")
    assert after["delay"].loc[["00005", "00007"]].tolist() == [11.5, 11.5]
    assert after[PART].to_dict() == before[PART].to_dict()
    assert after[LABELLED].loc["00005"] == 2
    assert (after[LABELLED].drop("00005") == 1).all()
    assert rows(tmp_path, until=1).set_index("id")["delay"].equals(before["delay"])


def test_what_was_corrected_or_deleted_comes_back(tmp_path: Path) -> None:
    """In a new file, in a query that gives what it gave before, and in a complete file that is written again."""
    for number, delay in enumerate((10.0, 11.5, 10.0)):
        flights(0, 60 - number).assign(delay=delay).to_csv(tmp_path / f"a-{number}.csv", index=False)
    assert [one.corrections for one in take(tmp_path) if isinstance(one, Arrival)] == [0, 59, 58]
    assert rows(tmp_path).sort_values("id")["delay"].tolist() == [10.0] * 58 + [11.5, 10.0]
    terms, file = Terms(client="site", label="late", key=("id",), complete=True), tmp_path / "all" / "all.csv"
    file.parent.mkdir()
    shop = Source(command=f"cat {file}")
    for folder, source in (("files", Source(str(file))), ("command", shop)):
        deliveries, counts = Deliveries(tmp_path / folder, terms), []
        for table in (flights(0), flights(0)[3:], flights(0), flights(0)):
            table.to_csv(file, index=False)
            counts += [(one.new, one.deletions) for one in deliveries.take(source.readings())]  # type: ignore[union-attr]
        assert counts == [(60, 0), (0, 3), (3, 0)]
        assert len(deliveries.rows()) == 60


def test_every_client_has_rows_in_each_part_and_a_row_keeps_its_part(tmp_path: Path) -> None:
    """Parts depend on the row alone, but for the first three of a client; shares are those of the terms."""
    flights(0, 3000).to_csv(tmp_path / "a.csv", index=False)
    take(tmp_path)
    table = rows(tmp_path)
    assert all({*parts} == {"train", "val", "test"} for _, parts in table.head(9).groupby("site")[PART])
    assert abs((table[PART] == "train").mean() - 0.7) < 0.04  # five standard errors
    assert len({*table[ID]}) == 3000


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.drop(columns="delay"), "column 'delay' is missing"),
        (lambda t: t.assign(gate=1), "column 'gate' is new"),
        (lambda t: t.assign(delay="late"), "column 'delay' has texts such as 'late', and had numbers"),
        (lambda t: t.assign(delay=["1.5", "?", *t["delay"][2:]]), "column 'delay' has texts such as '?', and had"),
        (lambda t: t.assign(late="maybe"), "column 'late': the class 'maybe' is new"),
        (lambda t: t.assign(delay=t["delay"] * 60), "column 'delay': "),
        (lambda t: t.assign(delay=[99999, *t["delay"][1:]]), "1 value of 60 far outside of"),
        (lambda t: t.assign(delay=10 + t["delay"] / 1000), "as if in another unit"),
        (lambda t: t.assign(seats=None), "column 'seats': 100% of the values are missing, before 0%"),
        (lambda t: t.assign(site="XYZ"), "none of its clients is known"),
        (lambda t: t.replace({"site": {"NA1": "na1 "}}), "'NA1' and 'na1 ' differ only in spelling; "),
        (lambda t: t.assign(id=t["id"].str.lstrip("0").replace("60", "1")), "'00001' and '1' differ only in spelling"),
        (lambda t: t.assign(id=["00001.0", *t["id"][1:]]), "'00001' and '00001.0' differ only in spelling"),
        (lambda t: t.assign(site=[None, *t["site"][1:]]), "column 'site' is empty in 1 row"),
        (lambda t: t.assign(id="1"), "key 1 is there twice"),
    ],
)
def test_a_suspicious_delivery_is_put_aside(tmp_path: Path, change: Any, reason: str) -> None:
    """With one line, once; nothing else changes."""
    flights(0).to_csv(tmp_path / "a-1.csv", index=False)
    take(tmp_path)
    ledger = (tmp_path / "life" / "deliveries" / LEDGER).read_bytes()
    change(flights(60)).to_csv(tmp_path / "a-2.csv", index=False)
    aside = put_aside(tmp_path)
    assert reason in aside.reason
    assert (tmp_path / "life" / "quarantine" / aside.file).read_bytes() == (tmp_path / "a-2.csv").read_bytes()
    assert take(tmp_path) == []
    assert Deliveries(tmp_path / "life", TERMS).quarantined == (aside,)
    assert (tmp_path / "life" / "deliveries" / LEDGER).read_bytes() == ledger


@pytest.mark.parametrize(
    ("later", "expected"),
    [([7, 8] * 30, [7, 8] * 30), (["B", "7"] * 30, ["B", "7"] * 30), (["B", 7] * 30, ["B", "7"] * 30)],
)
def test_an_empty_column_gets_the_kind_of_its_first_values(
    tmp_path: Path, later: list[Any], expected: list[Any]
) -> None:
    """Values of several kinds, as a database has them, are texts."""
    connection = sqlite3.connect(tmp_path / "base.db")
    source = Source(f"sqlite:///{tmp_path}/base.db", "select * from flights")
    flights(0).assign(gate=None).to_sql("flights", connection, index=False, dtype={"gate": "BLOB"})
    arrive(tmp_path, source)
    table = flights(60).assign(gate=pd.Series(later, dtype=object))
    table.to_sql("flights", connection, index=False, if_exists="append")
    assert arrive(tmp_path, source).new == 60
    assert rows(tmp_path)["gate"][60:].tolist() == expected
    connection.close()


def test_a_new_reading_can_be_accepted_at_once(tmp_path: Path) -> None:
    """Who knows that its values are right need not wait until it was put aside."""
    flights(0).to_csv(tmp_path / "a-1.csv", index=False)
    take(tmp_path)
    flights(60).replace({"late": {"no": "maybe"}}).to_csv(tmp_path / "a-2.csv", index=False)
    arrival = arrive(tmp_path, accept=[str(tmp_path / "a-2.csv")])
    assert "'maybe' is new" in arrival.notes[0]
    with pytest.raises(BadInput, match="accept"):
        take(tmp_path, accept=[str(tmp_path / "a-2.csv")])


def test_a_file_that_is_being_written_waits_and_what_is_right_can_be_accepted(tmp_path: Path) -> None:
    """A cut line is no row. The whole file comes later; a new class only when it is accepted."""
    flights(0).to_csv(tmp_path / "a-1.csv", index=False)
    take(tmp_path)
    text = flights(60).replace({"late": {"no": "maybe"}}).to_csv(index=False)
    (tmp_path / "a-2.csv").write_text(text[:-9], encoding="utf-8")
    aside = put_aside(tmp_path)
    assert "ends within a line" in aside.reason
    (tmp_path / "a-2.csv").write_text(text, encoding="utf-8")
    aside = put_aside(tmp_path)
    assert "'maybe' is new" in aside.reason
    assert Deliveries(tmp_path / "life", TERMS).quarantined == (aside,)  # nothing is left of the cut file
    with pytest.raises(BadInput, match=r"accept: .*a-3\.csv' is unknown; did you mean '.*a-2\.csv'"):
        take(tmp_path, accept=[str(tmp_path / "a-3.csv")])
    arrival = arrive(tmp_path, accept=[str(tmp_path / "a-2.csv")])
    assert arrival.new == 60
    assert "'maybe' is new" in arrival.notes[0]
    store = Deliveries(tmp_path / "life", TERMS)
    assert store.ledger.schema is not None
    assert store.ledger.schema.classes == ("maybe", "no", "yes")
    assert store.quarantined == ()


@pytest.mark.parametrize("rows", ["new", "known"])
def test_a_file_that_was_mended_is_in_quarantine_no_more(rows: str, tmp_path: Path) -> None:
    """Another file stays there. A call that was killed before it removed the entry is made up for."""
    flights(0).to_csv(tmp_path / "a-1.csv", index=False)
    take(tmp_path)
    for number in (2, 3):
        flights(60 * number).assign(late="maybe").to_csv(tmp_path / f"a-{number}.csv", index=False)
    second, third = take(tmp_path)
    store = Deliveries(tmp_path / "life", TERMS)
    assert store.quarantined == (second, third)
    flights(60 if rows == "new" else 0).to_csv(tmp_path / "a-2.csv", index=False)
    next(Deliveries(tmp_path / "life", TERMS).take(Source(str(tmp_path / "*.csv")).readings()), None)
    take(tmp_path)
    assert store.quarantined == (third,)
    assert len([*(tmp_path / "life" / "quarantine").glob("*a-*.csv")]) == 1


def test_keys_that_are_no_whole_numbers_are_compared_as_they_are(tmp_path: Path) -> None:
    """Such as the number of a patient and of a visit."""
    for number, visit in ((0, "{}.1"), (1, "{}.10")):
        names = [visit.format(i) for i in range(60)]
        flights(60 * number).assign(id=names).to_csv(tmp_path / f"a-{number}.csv", index=False)
        assert arrive(tmp_path).new == 60


def test_columns_that_may_be_misread_are_named_once(tmp_path: Path) -> None:
    """As `compare` names them, in the delivery that brings the first such value; hidden columns are not named."""

    def write(number: int, zips: str, **more: Any) -> None:
        table = flights(60 * number).assign(zip=[zips.format(100 + i % 9) for i in range(60)], **more)
        table.to_csv(tmp_path / f"a-{number}.csv", sep=";", decimal=",", index=False)

    days = pd.date_range("2024-01-01", periods=60).strftime("%Y%m%d")
    write(0, "{}", day=days, room=days)
    names, dates = arrive(tmp_path, columns=[("exclude", "room")]).notes
    assert names.startswith("clients '007' and '7' differ only in spelling; ")
    assert dates.startswith("column 'day' holds dates, such as 20240101, and is read as a number; ")
    write(1, "0{}", day=days, room=days)
    [code] = arrive(tmp_path).notes
    assert code.startswith("column 'zip': '0100' is read as the number 100; if it is a code, ")
    write(2, "0{}", day=days, room=[f"20.240.{i + 100}" for i in range(60)])
    [points] = arrive(tmp_path).notes
    assert points.startswith("column 'room': points separate thousands, ")


def test_values_of_a_category_in_another_spelling_are_named(tmp_path: Path) -> None:
    """Where a later delivery brings them; neither in a hidden column nor again."""
    kinds = (["lorry", "van"], ["Lorry", "van"], ["Lorry", "bus"])
    notes = []
    for number, values in enumerate(kinds):
        table = flights(60 * number).assign(kind=values * 30, room=values * 30)
        table.to_csv(tmp_path / f"a-{number}.csv", index=False)
        notes.append(arrive(tmp_path, columns=[("exclude", "room")]).notes[number == 0 :])
    line = (
        "values of column 'kind' 'lorry' and 'Lorry' differ only in spelling; write them the same way if they are one"
    )
    assert notes == [(), (line,), ()]


def test_clients_that_join_and_leave_are_named(tmp_path: Path) -> None:
    """In the delivery's own line."""
    flights(0).to_csv(tmp_path / "a-1.csv", index=False)
    take(tmp_path)
    flights(60).replace({"site": {"007": "new"}}).to_csv(tmp_path / "a-2.csv", index=False)
    arrival = arrive(tmp_path)
    assert str(arrival).endswith("a-2.csv: 60 new rows; clients new: new; clients without rows: 007")


def test_a_query_is_complete_and_its_names_stay_texts(tmp_path: Path) -> None:
    """A missing number makes no fraction of a name; a row that has left the table was deleted, and stays deleted."""
    table = flights(0).assign(site=lambda t: np.where(t.index % 2, 7, 8).astype(object))
    connection = sqlite3.connect(tmp_path / "base.db")
    source = Source(f"sqlite:///{tmp_path}/base.db", "select * from flights")
    terms = Terms(client="site", label="late", key=("id",), complete=True)
    table.assign(seats=[None, *table["seats"][1:]]).to_sql("flights", connection, index=False)
    take(tmp_path, source, terms)
    assert {*rows(tmp_path, terms)["site"]} == {"7", "8"}
    connection.execute("delete from flights where id < '00003'")
    connection.execute("update flights set delay = 1.25 where id = '00010'")
    connection.commit()
    arrival = arrive(tmp_path, source, terms)
    assert (arrival.new, arrival.corrections, arrival.deletions) == (0, 1, 3)
    assert len(rows(tmp_path, terms)) == 57
    assert len(rows(tmp_path, terms, until=1)) == 60
    assert (Deliveries(tmp_path / "life", terms).state()[CHANGE] == "deletion").sum() == 3
    flights(60, 10).to_sql("flights", connection, index=False, if_exists="append")
    assert arrive(tmp_path, source, terms).new == 10  # after a deletion
    connection.execute("delete from flights where id < '00050'")
    connection.commit()
    aside = put_aside(tmp_path, source, terms)
    assert "47 of 67 rows would be deleted" in aside.reason
    connection.close()


def test_a_command_prints_rows(tmp_path: Path) -> None:
    """CSV or Parquet; one that fails says why."""
    flights(0).to_parquet(tmp_path / "rows.parquet")
    code = "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())"
    arrival = arrive(tmp_path, Source(command=f'{sys.executable} -c "{code}" {tmp_path}/rows.parquet'))
    assert arrival.new == 60
    with pytest.raises(BadInput, match=r"ended with 1; it said: .*No such file"):
        take(tmp_path, Source(command=f'{sys.executable} -c "{code}" {tmp_path}/none'))


def test_sources_that_contradict_themselves_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password is not stored; it comes from the environment."""
    for arguments in (
        {},
        {"address": "a.csv", "command": "ls"},
        {"address": "a.csv", "query": "select 1"},
        {"address": "sqlite:///a.db"},
    ):
        with pytest.raises(BadInput, match=r"source|query"):
            Source(**arguments)
    with pytest.raises(BadInput, match="has a password"):
        Source("postgresql://me:secret@host/base", "select 1")
    monkeypatch.setenv("BASE", "postgresql://me:secret@host/base")
    assert Source("$BASE", "select 1").address == "$BASE"


def test_a_kill_at_any_write_loses_and_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before or after each step of a write; the rows and their parts are those of a call that nothing ended."""
    for number in range(2):
        flights(60 * number).to_csv(tmp_path / f"a-{number}.csv", index=False)
    flights(0, 5).assign(delay=3.0).to_csv(tmp_path / "a-3.csv", index=False)
    flights(300).assign(late="maybe").to_csv(tmp_path / "a-4.csv", index=False)
    whole = [*Deliveries(tmp_path / "whole", TERMS).take(Source(str(tmp_path / "*.csv")).readings())]
    expected = Deliveries(tmp_path / "whole", TERMS)
    real, draws, killed_at = Path.replace, np.random.default_rng(1), []

    def replace(path: Path, target: Path) -> Path:
        moment = draws.integers(4)  # two of four writes are not disturbed
        done = real(path, target) if moment else target
        if moment < 2:
            killed_at.append((Path(target).suffix, int(moment)))
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(Path, "replace", replace)
    for _ in range(20):
        try:
            take(tmp_path)
            break
        except KeyboardInterrupt:
            continue
    killed = Deliveries(tmp_path / "life", TERMS)
    assert len(whole) == 4
    assert {*killed_at} == {(suffix, moment) for suffix in (".parquet", ".json") for moment in (0, 1)}
    assert [one.digest for one in killed.ledger.arrivals] == [one.digest for one in expected.ledger.arrivals]
    pd.testing.assert_frame_equal(killed.rows(), expected.rows())
    assert sorted(file.name for file in killed.place.iterdir()) == [*(f"{n:06}.parquet" for n in range(1, 5)), LEDGER]


def test_two_calls_at_once_and_a_changed_file_are_refused(tmp_path: Path) -> None:
    """The second call is busy; a damaged delivery is named, and how to restore it."""
    flights(0).to_csv(tmp_path / "a-1.csv", index=False)
    flights(60).to_csv(tmp_path / "a-2.csv", index=False)
    first = Deliveries(tmp_path / "life", TERMS).take(Source(str(tmp_path / "*.csv")).readings())
    next(first)
    with pytest.raises(Busy, match="another process"):
        take(tmp_path)
    first.close()  # type: ignore[attr-defined]
    take(tmp_path)
    (tmp_path / "life" / "deliveries" / "000001.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadInput, match=r"000001.parquet: is missing or has changed .* dvc checkout"):
        rows(tmp_path)
    with pytest.raises(BadInput, match=r"key: .*; begin another folder"):
        take(tmp_path, terms=Terms(client="site", label="late"))
