"""Tables like exports of hospitals and databases: no value moves to another column, and codes stay codes."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave.own_data.newcomers import add_newcomers
from fedweave.own_data.user_files import read_table

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
COUNT = 120
DRAWS = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "ward": [f"ward {i % 3}" for i in range(COUNT)],
        "age": DRAWS.normal(60, 9, COUNT).round(1),
        "code": DRAWS.choice(["1", "2", "x"], COUNT),
        "days": DRAWS.gamma(2, 3, COUNT).round(2),
        "died": DRAWS.choice(["yes", "no"], COUNT),
    }
)
NAMES: dict[str, Any] = {"client": "ward", "label": "died"}
LINES = TABLE.to_csv(index=False).splitlines()


def write_lines(path: Path, lines: list[str]) -> Path:
    """Write a text file."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("extra", [",", ",7"])
def test_lines_with_more_fields_than_the_header_move_no_value(extra: str, tmp_path: Path) -> None:
    """pandas would use the first field as the index, and move every value to the column before its own."""
    file = write_lines(tmp_path / "rows.csv", [LINES[0], *(line + extra for line in LINES[1:])])
    line = r"rows\.csv: its lines have more fields than its header, 'ward,age,code,days,died'; name every column"
    with pytest.raises(fw.BadInput, match=line):
        read_table(file)


@pytest.mark.parametrize("separator", [",", ";"])
def test_a_separator_at_the_end_of_every_line_adds_no_column(separator: str, tmp_path: Path) -> None:
    """A column without a name is dropped if it has no values, and kept otherwise."""
    lines = [line.replace(",", separator) for line in LINES]
    file = write_lines(tmp_path / "rows.csv", [line + separator for line in lines])
    pd.testing.assert_frame_equal(read_table(file), TABLE)
    file = write_lines(tmp_path / "rows.csv", [lines[0] + separator, *(f"{line}{separator}3" for line in lines[1:])])
    assert [*read_table(file)] == [*TABLE, "Unnamed: 5"]


def test_two_used_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    """This holds for files as for `from_pandas`. pandas would name the second column age.1."""
    file = write_lines(tmp_path / "rows.csv", [LINES[0].replace("days", "age"), *LINES[1:]])
    for features in (None, ["age"], ["code", "age"]):
        with pytest.raises(fw.BadInput, match="two columns have the name 'age'; rename one"):
            fw.Federation.from_file(file, **NAMES, features=features)
    federation = fw.Federation.from_file(file, **NAMES, features=["code"])
    result = fw.fit("local", federation, rounds=1, progress=False)
    assert len(result.predict(read_table(file).drop(columns="ward"), "ward 1")) == COUNT
    result = fw.fit("local", fw.Federation.from_pandas(TABLE, **NAMES), rounds=1, progress=False)
    with pytest.raises(fw.BadInput, match="two columns have the name 'age'; rename one"):
        result.predict(pd.concat([TABLE, TABLE[["age"]]], axis=1).drop(columns="ward"), "ward 1")
    (tmp_path / "wards").mkdir()
    (tmp_path / "wards" / "a.csv").write_bytes(file.read_bytes())
    with pytest.raises(fw.BadInput, match=r"a\.csv: two columns have the name 'age'; rename one"):
        fw.Federation.from_file(tmp_path / "wards", **NAMES)


def test_an_index_is_not_a_feature(tmp_path: Path) -> None:
    """A note says so for the row number. The client may not be the index."""
    TABLE.to_csv(tmp_path / "rows.csv")
    federation = fw.Federation.from_file(tmp_path / "rows.csv", **NAMES)
    assert any(note.startswith("column 'Unnamed: 0' has no name in its file") for note in federation.notes)
    TABLE.set_index("ward").to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(fw.BadInput, match=r"client: 'ward' is the index of the table; .* reset_index\(\)"):
        fw.Federation.from_file(tmp_path / "rows.parquet", **NAMES)


def test_decimals_of_a_database_are_numbers(tmp_path: Path) -> None:
    """This holds for features, for labels, and for new rows."""
    decimals = TABLE.assign(**{name: [Decimal(str(value)) for value in TABLE[name]] for name in ("age", "days")})
    decimals.to_parquet(tmp_path / "rows.parquet")
    for label in ("died", "days"):
        federation, expected = (
            fw.Federation.from_pandas(table, client="ward", label=label)
            for table in (read_table(tmp_path / "rows.parquet"), TABLE)
        )
        np.testing.assert_array_equal(federation.dataset.x, expected.dataset.x)
        assert federation.dataset.targets_are == expected.dataset.targets_are
    result = fw.fit("local", federation, rounds=1, progress=False)
    answers, expected_answers = (result.predict(rows.drop(columns="ward"), "ward 1") for rows in (decimals, TABLE))
    np.testing.assert_array_equal(answers, expected_answers)


@pytest.mark.parametrize(
    "value", [pd.Timestamp("2024-01-01"), pd.Timestamp("2024-01-01", tz="UTC"), pd.Timedelta("1h"), 1j]
)
def test_times_where_training_had_numbers_are_refused(value: Any) -> None:
    """They would be taken as nanoseconds, and a complex number as its real part."""
    federation = fw.Federation.from_pandas(TABLE, **NAMES)
    assert federation.preprocessing is not None
    with pytest.raises(fw.BadInput, match="column 'age' held numbers in training; give numbers"):
        federation.preprocessing.encode(TABLE.assign(age=value))


def test_codes_that_pandas_reads_as_fractions_stay_the_same(tmp_path: Path) -> None:
    """Without the "x", and with one missing value, pandas reads the code "1" as 1.0."""
    federation = fw.Federation.from_pandas(TABLE, **NAMES, features=["code"])
    assert federation.preprocessing is not None
    codes = pd.DataFrame({"code": ["1", "2", None, "1", "3"]})
    codes.to_csv(tmp_path / "new.csv", index=False)
    read = read_table(tmp_path / "new.csv")
    assert read["code"].dtype == np.float64
    np.testing.assert_array_equal(federation.preprocessing.encode(read), federation.preprocessing.encode(codes))
    assert federation.preprocessing.encode(read).sum() == 3
    (tmp_path / "wards").mkdir()
    for name, part in TABLE.groupby("ward"):
        part = part.assign(code=["1", None, *["2"] * 38]) if name == "ward 1" else part
        part.to_csv(tmp_path / "wards" / f"{name}.csv", index=False)
    whole = fw.Federation.from_file(tmp_path / "wards", **NAMES)
    assert whole.preprocessing is not None
    assert whole.preprocessing.columns[1].levels == ("1", "2", "x")


LABELS = {
    "such as '0.5', but not '?'": [*(f"{i % 30}.5" for i in range(COUNT - 1)), "?"],
    "such as '0', but not 'none'": [*(str(i % 30) for i in range(COUNT - 1)), "none"],
    "such as '1,000.25'": [f"{1 + i % 30},000.25" for i in range(COUNT)],
    "such as '$1,000.25'": [f"${1 + i % 30},000.25" for i in range(COUNT)],
    "such as '0 kg'": [f"{i % 30} kg" for i in range(COUNT)],
    "such as '0,5 %'": [f"{i % 30},5 %" for i in range(COUNT)],
    "such as '0.5%'": [f"{i % 30}.5%" for i in range(COUNT)],
    "such as '0A'": [f"{i % 30}A" for i in range(COUNT)],  # amperes, or names of seats
}


@pytest.mark.parametrize("message", LABELS)
def test_labels_that_are_mostly_numbers_are_refused(message: str) -> None:
    """They would be classes, and a user who wants that must say so. Whole numbers as texts are classes."""
    table = TABLE.assign(died=LABELS[message])
    with pytest.raises(fw.BadInput) as caught:
        fw.Federation.from_pandas(table, **NAMES)
    assert message in str(caught.value)
    assert str(caught.value).endswith("or say target='classes' (--target classes)")
    x, labels = np.arange(2.0 * COUNT).reshape(COUNT, 2), LABELS[message][:30] * 4
    declared = fw.Federation.from_arrays(x, labels, client=["a"] * COUNT, target="classes")
    whole = fw.Federation.from_arrays(x, [str(i % 20) for i in range(COUNT)], client=["a"] * COUNT)
    assert (len(declared.classes), len(whole.classes)) == (30, 20)


def test_numbers_that_are_read_as_categories_are_named_once() -> None:
    """The advice on thousands is not that for a decimal comma, which would turn 1,090 into 1.09."""
    cost = [f"{1 + i % 40},{100 + i}" for i in range(COUNT)]
    thousands, signs = "leave out the thousands separators", "with the minus of the keyboard"
    for values, advice in (
        (cost, thousands),
        ([value + ".50" for value in cost], thousands),
        ([*cost[:-1], "3,5"], "write a point in place of the comma"),
        ([f"{1 + i % 40}.{100 + i},50" for i in range(COUNT)], thousands),
        ([f"{1 + i % 40} {100 + i},5" for i in range(COUNT)], thousands),
        ([f"{1 + i % 40}.000.{100 + i}" for i in range(COUNT)], thousands),
        ([f"{1 + i % 60}\u202f000" for i in range(COUNT)], thousands),
        (["1,234", "2,000", "999"] * 40, thousands),
        ([f"{1 + i % 40}.{100 + i},50 €" for i in range(COUNT)], signs),
        ([f"{1 + i % 40},5 %" for i in range(COUNT)], signs),
        ([f"\u2212{1 + i % 40},5" for i in range(COUNT)], signs),
        ([f"{i % 60}%" for i in range(COUNT)], signs),
        ([f"{i % 60 - 30}".replace("-", "\u2212") for i in range(COUNT)], signs),
        ([f"${i % 60}.50" for i in range(COUNT)], signs),
        ([f"({i % 30})" if i % 2 else f"{i % 30}" for i in range(COUNT)], signs),
    ):
        (note,) = fw.Federation.from_pandas(TABLE.assign(cost=values), **NAMES).notes
        assert note.startswith("column 'cost': 100 % of its values are numbers")
        assert note.endswith(advice)


ODD = {
    "column 'odd': 100 % of its values are numbers": [f"{i % 30} kg" for i in range(COUNT)],
    "column 'odd': 95 % of its values are numbers": [f"{i % 30}kg" if i % 20 else "none" for i in range(COUNT)],
    "column 'odd': 100 % of its values are numbers, and it": [f"{i % 30}.50-" for i in range(COUNT)],
    "column 'odd': 100 % of its values are numbers, and": [f"{i % 30}\u00a0" for i in range(COUNT)],
    "column 'odd': 12 values are -99.9, apart from all others": [-99.9 if i % 10 == 0 else i / 7 for i in range(COUNT)],
    "values of column 'odd' 'No' and 'no' differ only in spelling": ["yes", "No", "no"] * (COUNT // 3),
    "column 'odd' holds dates or times, such as '1 Jan 2020'": [f"{1 + i % 28} Jan 2020" for i in range(COUNT)],
    "column 'odd' holds dates or times, such as '1. März 2020'": [f"{1 + i % 28}. März 2020" for i in range(COUNT)],
    "column 'odd' holds dates or times, such as 'Jan 1, 2020'": [f"Jan {1 + i % 28}, 2020" for i in range(COUNT)],
    "column 'odd' holds dates or times, such as '2024-01-01'": [f"2024-01-{1 + i % 28:02}" for i in range(COUNT)],
    "column 'odd' holds dates or times, such as '00:15'": [f"{i % 24:02}:15" for i in range(COUNT)],
    "column 'odd' holds dates, such as 20200101, and is read as a number": [20200101 + i % 28 for i in range(COUNT)],
    "": [f"{1 + i % 3}{'ABCD'[i % 4]}" for i in range(COUNT)],  # seats
}


@pytest.mark.parametrize("line", ODD)
def test_values_that_are_hardly_meant_so_are_named(line: str) -> None:
    notes = fw.Federation.from_pandas(TABLE.assign(odd=ODD[line]), **NAMES).notes
    assert [note[: len(line)] for note in notes if "'odd'" in note] == [line] * bool(line)


def test_codes_that_are_read_as_numbers_are_named(tmp_path: Path) -> None:
    """Of features alone: the number of a patient that is left out is no number that models see."""
    codes = [f"{i % 30:03}" for i in range(COUNT)]
    file = tmp_path / "rows.csv"
    kinds = [f"{i % 4}E3" for i in range(COUNT)]
    TABLE.assign(zip=codes, patient=codes, share="0.5", dose="1e-05", kind=kinds).to_csv(file, index=False)
    notes = fw.Federation.from_file(file, exclude=["patient"], **NAMES).notes
    for note, (name, code, number) in zip(notes, (("zip", "000", "0"), ("kind", "0E3", "0")), strict=True):
        way = "if it is a code, write a letter before it, or read the file"
        assert note.startswith(f"column {name!r}: {code!r} is read as the number {number}; {way}")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.xlsx"])
def test_a_file_of_another_format_is_refused_with_a_way_out(name: str, tmp_path: Path) -> None:
    file = write_lines(tmp_path / name, LINES)
    with pytest.raises(fw.BadInput) as caught:
        fw.Federation.from_file(file, **NAMES)
    way = "save its rows as CSV or Parquet, with the ending .csv, .tsv, .parquet, .pq"
    assert str(caught.value) == f"{file}: has another ending than tables have; {way}"


def test_categories_of_numbers_stay_categories_in_a_file(tmp_path: Path) -> None:
    """A Parquet file of pandas has their values as numbers, and says beside them that they are categories."""
    table = TABLE.assign(shop=pd.Categorical(np.arange(COUNT) % 5, ordered=True))
    table.to_parquet(tmp_path / "rows.parquet")
    read, given = fw.Federation.from_file(tmp_path / "rows.parquet", **NAMES), fw.Federation.from_pandas(table, **NAMES)
    assert str(read.preprocessing) == str(given.preprocessing)
    assert "shop: category, 5 values" in str(read.preprocessing)
    few = fw.Federation.from_file(tmp_path / "rows.parquet", features=["shop"], **NAMES)
    assert str(few.preprocessing) == "shop: category, 5 values, one column each (others: zeros)"


def test_half_floats_of_arrow_are_numbers() -> None:
    """Arrow can neither sort nor count them."""
    halves, singles = (TABLE.assign(days=TABLE["days"].astype(kind)) for kind in ("halffloat[pyarrow]", "float16"))
    read, other = (fw.Federation.from_pandas(table, **NAMES).preprocessing for table in (halves, singles))
    assert str(read) == str(other)


@pytest.mark.parametrize("other", ["1.0", "01"])
def test_classes_that_are_one_number_are_named(other: str, tmp_path: Path) -> None:
    TABLE.assign(died=[["0", "1", other][i % 3] for i in range(COUNT)]).to_csv(tmp_path / "rows.csv", index=False)
    (note,) = fw.Federation.from_file(tmp_path / "rows.csv", **NAMES).notes
    assert note.startswith("classes ")
    assert f"'{other}'" in note
    assert note.endswith(" differ only in spelling; write them the same way if they are one")


@pytest.mark.parametrize("column", ["ward", "died"])
@pytest.mark.parametrize("blank", [" ", ""])
def test_a_blank_name_is_a_missing_one(column: str, blank: str) -> None:
    table = TABLE.assign(**{column: TABLE[column].where(np.arange(COUNT) % 10 > 0, blank)})
    with pytest.raises(fw.BadInput, match=f"table: column '{column}' is missing in 12 rows; drop them first"):
        fw.Federation.from_pandas(table, **NAMES)


def test_a_mark_of_missing_targets_is_named() -> None:
    days = TABLE["days"].where(np.arange(COUNT) % 10 > 0, -999)
    notes = fw.Federation.from_pandas(TABLE.assign(days=days), client="ward", label="days").notes
    assert [note for note in notes if note.startswith("column 'days': 12 values are -999, apart from all others")]


def test_forecasts_of_rows_of_several_clients() -> None:
    """The last rows of a table of all clients are not series of one."""
    steps = TABLE.assign(day=np.arange(COUNT))
    made = fw.Federation.from_pandas(steps, client="ward", label="days", time="day", window=4, horizon=1)
    result = fw.fit("local", made, rounds=1, progress=False)
    with pytest.raises(fw.BadInput, match=r"column 'ward' has rows of other clients, such as 'ward 0'; give the rows"):
        result.predict(steps, "ward 1")
    own = steps[steps["ward"] == "ward 1"]
    np.testing.assert_array_equal(result.predict(own, "ward 1"), result.predict(own.drop(columns="ward"), "ward 1"))
    joined = result.join(own.assign(ward="ward 9"), client="ward", label="days", time="day", rounds=1)
    assert joined.clients[-1] == "ward 9"


def test_newcomers_have_the_kind_of_target_of_training() -> None:
    """More than 100 whole numbers are classes if they were in training."""
    x, y = DRAWS.normal(size=(480, 2)), np.arange(480) % 120
    federation = fw.Federation.from_arrays(x, y, client=["a", "b"] * 240, target="classes")
    whole = add_newcomers(federation, x, ["c"] * 480, y, {})
    assert whole.classes == federation.classes


def test_infinite_numbers_are_named_and_count_as_missing() -> None:
    """In a table of rows and in one of nodes; the preprocessing is that of missing values."""
    ages = TABLE["age"].astype(float)
    infinite, missing = (TABLE.assign(age=ages.where(np.arange(COUNT) % 7 > 0, value)) for value in (-np.inf, np.nan))
    ours, theirs = (fw.Federation.from_pandas(table, **NAMES) for table in (infinite, missing))
    count = -(-COUNT // 7)
    line = f"column 'age': {count} values are infinite and count as missing; look for a division by 0"
    assert [note for note in ours.notes if note.startswith(line)]
    assert not [note for note in theirs.notes if "infinite" in note]
    np.testing.assert_array_equal(ours.dataset.x, theirs.dataset.x)
    nodes = infinite.assign(node=range(COUNT))
    graph = fw.Federation.from_graphs(nodes, pd.DataFrame([[0, 3]]), **NAMES)
    assert [note for note in graph.notes if note.startswith(line)]
    one = TABLE.assign(age=ages.where(np.arange(COUNT) > 0, np.inf))
    line = "column 'age': 1 value is infinite and counts as missing"
    assert [note for note in fw.Federation.from_pandas(one, **NAMES).notes if note.startswith(line)]
