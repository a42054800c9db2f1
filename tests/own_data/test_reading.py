"""No input is silently misread: names, numbers, times and images mean the same from every source, or are refused."""

import io
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import fedweave as fw
from fedweave import exported_model
from fedweave.own_data import contents
from fedweave.own_data.user_files import read_folder, read_table

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
COUNT = 120
DRAWS = np.random.default_rng(0)
NOISE = DRAWS.normal(size=COUNT)
WHO = [f"k{i % 4}" for i in range(COUNT)]
Y = np.arange(COUNT) // 4 % 2
WAVE = np.sin(np.arange(COUNT) / 5)
QUIET: dict[str, Any] = {"progress": False, "rounds": 5}
PARTS = ("train", "val", "test")


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def from_lines(path: Path, lines: list[str], label: str = "y", **options: Any) -> fw.Federation:
    return fw.Federation.from_file(write(path, lines), client="c", label=label, **options)


def from_table(table: pd.DataFrame, **options: Any) -> fw.Federation:
    return fw.Federation.from_pandas(table, client="c", label="y", **options)


def from_rows(x: Any, y: Any = Y, **options: Any) -> fw.Federation:
    return fw.Federation.from_arrays(x, y, client=WHO, **options)


def from_series(times: Any, values: Any = WAVE, **options: Any) -> fw.Federation:
    """Forecasts of two clients whose 60 rows have these times."""
    table = pd.DataFrame({"c": ["k"] * 60 + ["m"] * 60, "t": [*times] * 2, "v": values})
    return fw.Federation.from_pandas(table, client="c", label="v", time="t", window=6, horizon=2, **options)


CODES = [
    ["01", "1", "02", "2"],
    ["007", "008", "010", "10"],
    ["1.10", "1.1", "2.5", "1.0"],
    ["1e2", "100", "7", "10"],
    ["-1", "0", "1", "2"],
    ["True", "False", "Tru", "Fals"],
    ["true", "FALSE", "True", "x"],
    ["9007199254740993", "9007199254740992", "1", "2"],
    ["1e3", "1000", "1.0", "1"],
    ["+1", "1", "2", "3"],
    ["1,5", "1,50", "2", "3"],
]


@pytest.mark.parametrize("names", CODES)
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_names_are_texts_in_every_role(names: list[str], separator: str, tmp_path: Path) -> None:
    """Clients, units and classes are those that stand in the file, whatever its separator. Features are numbers."""
    quoted = [f'"{name}"' if "," in name else name for name in names]
    rows = [separator.join([quoted[i % 4], quoted[i % 4], f"{i:03}", quoted[i // 4 % 4]]) for i in range(COUNT)]
    file = tmp_path / ("t.tsv" if separator == "\t" else "t.csv")
    for features in (["a"], None):
        options: dict[str, Any] = {"unit": "u", "target": "classes", "features": features}
        federation = from_lines(file, [separator.join("cuay"), *rows], **options)
        assert {*federation.names} == {*federation.partition.units} == {*federation.classes} == {*names}
        assert federation.preprocessing is not None
        assert [column.mean > 0 for column in federation.preprocessing.columns] == [True]


def test_plain_numbers_sort_as_numbers(tmp_path: Path) -> None:
    rows = [f"{i % 12},{i},{i // 12 % 2}" for i in range(COUNT)]
    assert from_lines(tmp_path / "t.csv", ["c,a,y", *rows]).names == tuple(map(str, range(12)))
    rows = [f"{i % 3}.0,{i},{i // 12 % 2}" for i in range(COUNT)]
    assert from_lines(tmp_path / "t.csv", ["c,a,y", *rows]).names == ("0.0", "1.0", "2.0")


def test_label_codes_stay_texts_and_numbers_numbers(tmp_path: Path) -> None:
    """007 is a code, and so is 1E3, as all labels are written so. A price of 0.50 is a number."""
    for labels, classes in (
        (["007", "008"], ("007", "008")),
        (["01", "1"], ("01", "1")),
        (["1E3", "2E1"], ("1E3", "2E1")),
        (["1", "2"], ("1", "2")),
        (["1e+03", "2e+01"], ("20", "1000")),
    ):
        rows = [f"{WHO[i]},{i},{labels[i // 4 % 2]}" for i in range(COUNT)]
        assert from_lines(tmp_path / "t.csv", ["c,a,y", *rows]).classes == classes
    prices = from_lines(tmp_path / "t.csv", ["c,a,y", *(f"{WHO[i]},{i},{i}.50" for i in range(COUNT))])
    np.testing.assert_array_equal(prices.dataset.targets[:, 0], np.arange(COUNT) + 0.5)


NODES = pd.DataFrame(
    {"node": range(60), "client": [f"k{i // 20}" for i in range(60)], "f": range(60), "label": np.arange(60) % 2}
)
PAIRS = [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize("header", ["", "source,target\n"])
def test_edges_and_relations_need_no_header(header: str, tmp_path: Path) -> None:
    edges, relation = tmp_path / "edges.csv", tmp_path / "relation.csv"
    edges.write_text(header + "".join(f"{a},{b}\n" for a, b in PAIRS))
    relation.write_text(header + "k0,k1\nk1,k2\n")
    NODES.to_csv(tmp_path / "nodes.csv", index=False)
    for nodes in (NODES, NODES.assign(node=NODES.node.astype(str)), tmp_path / "nodes.csv"):
        federation = fw.Federation.from_graphs(nodes, edges, relation=relation)
        assert federation.dataset.links.shape[1] == 2 * len(PAIRS)
        assert federation.partition.relation is not None
        assert federation.partition.relation.shape[1] == 4


def test_a_first_line_that_may_be_a_pair_is_refused(tmp_path: Path) -> None:
    edges = write(tmp_path / "edges.csv", ["0,there", "1,2"])
    with pytest.raises(fw.BadInput, match="edges: the first line '0,there' may be a header or a pair"):
        fw.Federation.from_graphs(NODES, edges)
    with pytest.raises(fw.BadInput, match=r"edges: the first line '0,1' may be .*header=None"):
        fw.Federation.from_graphs(NODES, pd.DataFrame({"0": [1], "1": [2]}))


@pytest.mark.parametrize(
    ("kind", "labels"), [("int", [3, 5]), ("bool", [False, True]), ("", ["3", "5"]), ("float", [1.0, 2.0])]
)
def test_predictions_have_the_type_of_the_labels(kind: str, labels: list[Any], tmp_path: Path) -> None:
    """In memory, from the results, and in an exported and a served model."""
    table = pd.DataFrame({"c": WHO, "a": NOISE, "y": [labels[int(value > 0)] for value in NOISE]})
    run = fw.fit("fedavg", from_table(table), out=tmp_path / "run", lr=0.1, **{**QUIET, "rounds": 20})
    own = table[table.c == "k0"]
    loaded = fw.load(tmp_path / "run")["fedavg"]
    model = exported_model.load(run.export(tmp_path / "model", "k0"))
    expected = run.predict(own, "k0")
    served = exported_model.PyfuncModel(model).predict(own)["prediction"]
    for answer in (expected, loaded.predict(own, "k0"), model.predict(own), served.to_numpy()):
        assert (answer == own.y.to_numpy()).mean() > 0.8
        assert type(answer[0].item() if hasattr(answer[0], "item") else answer[0]) is type(labels[0])
    assert [*run.predict_proba(own, "k0").columns] == [*model.predict_proba(own).columns] == labels


@pytest.mark.parametrize("given", ["table", "arrays", "file"])
def test_scores_do_not_depend_on_the_offset_of_the_target(given: str, tmp_path: Path) -> None:
    """float32 has a step of 128 at 1.7e9; scores and predictions are those of the numbers that were given."""
    scores, answers = [], []
    for offset in (0.0, 1.7e9):
        table = pd.DataFrame({"c": WHO, "a": NOISE, "y": offset + 10 * NOISE + np.sin(np.arange(COUNT))})
        federation = {
            "table": lambda t=table: from_table(t, target="numbers"),
            "arrays": lambda t=table: from_rows(t[["a"]], t.y, target="numbers"),
            "file": lambda t=table: from_lines(
                tmp_path / "t.csv", t.to_csv(index=False, float_format="%.17g").splitlines(), target="numbers"
            ),
        }[given]()
        run = fw.fit("fedavg", federation, model="linear", metric="mae", out=tmp_path / f"{offset}", **QUIET)
        scores.append(run.scores.mean())
        rows = table[["a"]] if given == "table" else table[["a"]].to_numpy() if given == "arrays" else table
        rows = rows[table.c == "k0"] if given == "file" else rows
        answers.append(run.predict(rows, "k0") - offset)
        model = exported_model.load(run.export(tmp_path / f"model {offset}", "k0"))
        np.testing.assert_allclose(model.predict(rows) - offset, answers[-1], atol=1e-5)
    assert scores[0] == pytest.approx(scores[1], rel=1e-4)
    np.testing.assert_allclose(*answers, atol=1e-3)


@pytest.mark.parametrize("preprocess", ["pooled", "client"])
def test_forecasts_do_not_depend_on_the_offset_of_the_series(preprocess: str) -> None:
    scores = []
    for offset in (0.0, 1e9):
        federation = from_series(range(60), offset + 5 * np.sin(np.arange(120) / 9), preprocess=preprocess)
        scores.append(fw.fit("fedavg", federation, metric="mae", **QUIET).scores.mean())
    assert scores[0] == pytest.approx(scores[1], rel=1e-3)


@pytest.mark.parametrize("normalize", [None, "standard", "standard_client"])
def test_array_features_are_centred_before_they_lose_digits(normalize: str | None) -> None:
    x, y = np.stack([NOISE, np.arange(COUNT) % 7], 1), (NOISE > 0).astype(int)
    scores, answers = [], []
    for offset in (0.0, 1e9):
        federation = from_rows(x + offset, y, normalize=normalize)
        run = fw.fit("fedavg", federation, lr=0.1, **QUIET)
        scores.append(run.scores.mean())
        answers.append(run.predict(x + offset, "k1"))
    assert scores[0] == pytest.approx(scores[1])
    assert (answers[0] == answers[1]).mean() > 0.98
    with pytest.raises(fw.BadInput, match="normalize: 'none' leaves numbers so far from 0"):
        from_rows(x + 1e9, y, normalize="none")


def test_digits_that_were_lost_before_are_refused() -> None:
    lost = (1.7e9 + 60 * NOISE).astype(np.float32)
    with pytest.raises(fw.BadInput, match=r"y: numbers up to .* below the resolution of float32"):
        from_rows(NOISE[:, None], lost, target="numbers")
    with pytest.raises(fw.BadInput, match="below the resolution of float32"):
        from_rows(None, lost, time=np.arange(COUNT), window=3, horizon=1)


@pytest.mark.parametrize("shape", [(1, 8, 8), (8, 8), (64,), (192,), (3, 8, 8)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_bytes_in_the_shape_of_images_are_divided_by_255(shape: tuple[int, ...], dtype: Any) -> None:
    x = DRAWS.integers(0, 256, size=(COUNT, *shape)).astype(dtype)
    federation = from_rows(x)
    scaled = fw.data.normalise(federation.dataset, federation.partition, federation.normalize)
    np.testing.assert_allclose(np.sort(scaled.ravel()), np.sort(x.ravel() / 255), atol=1e-6)
    run = fw.fit("local", federation, **QUIET)
    np.testing.assert_array_equal(run.predict(x[:9].astype(float), "k0"), run.predict(x[:9], "k0"))


def test_other_arrays_are_standardised() -> None:
    x = np.stack([1000 * NOISE, NOISE + 50], 1)
    federation = from_rows(x)
    scaled = fw.data.normalise(federation.dataset, federation.partition, federation.normalize)
    train = np.concatenate(federation.partition.train)
    np.testing.assert_allclose(scaled[train].mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(scaled[train].std((0, 2, 3)), 1, atol=1e-5)
    np.testing.assert_array_equal(from_rows(x, normalize="none").dataset.x[:, :, 0, 0], x.astype(np.float32))


def test_marks_of_missing_values_are_named() -> None:
    values = np.abs(NOISE)
    values[:5] = -999
    line = "5 values are -999, apart from all others"
    assert line in " ".join(from_table(pd.DataFrame({"c": WHO, "a": values, "y": Y})).notes)
    assert line in " ".join(from_rows(values[:, None]).notes)
    assert line in " ".join(from_rows(NOISE[:, None], values, target="numbers").notes)
    spread = np.where(values < 0, -999, 9 * NOISE)
    spread[5:] += np.linspace(-2000, 2000, COUNT - 5)
    assert not any("-999" in note for note in from_rows(spread[:, None]).notes)


def test_hidden_entries_are_missing() -> None:
    x = np.ma.masked_greater(np.stack([NOISE, NOISE], 1), 99)
    x[3, 0] = np.ma.masked
    with pytest.raises(fw.BadInput, match=r"nan at \[3, 0\]"):
        from_rows(x)
    for y in (np.ma.masked_equal(np.arange(COUNT) // 4 % 3, 2), np.ma.masked_equal(np.array(WHO), "k0")):
        with pytest.raises(fw.BadInput, match="y: is missing"):
            from_rows(NOISE[:, None], y)


def test_a_sigmoid_before_cross_entropy_is_named() -> None:
    federation = from_rows(np.stack([NOISE, NOISE], 1))
    module = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid())
    with pytest.warns(UserWarning, match="a sigmoid, makes its outputs numbers from 0 to 1"):
        fw.compare(federation, ["local"], model=module, rounds=1, seeds=1, progress=False, tune=0)


def test_numbers_with_commas_and_points(tmp_path: Path) -> None:
    """In a file with decimal commas, points separate thousands; where it is not clear, a note says so."""
    amounts = DRAWS.integers(200, 9000, COUNT)
    rows = [f"{WHO[i]};{i},5;" + f"{n:,}".replace(",", ".") for i, n in enumerate(amounts)]
    federation = from_lines(tmp_path / "t.csv", ["c;w;p", *rows], label="p")
    np.testing.assert_array_equal(federation.dataset.targets[:, 0], amounts)
    assert "points separate thousands" in federation.notes[0]
    table = read_table(tmp_path / "t.csv")
    np.testing.assert_array_equal(table["p"], amounts)
    rows = [f"{WHO[i]};{i};" + f"{n:,}".replace(",", ".") + f";{i // 4 % 2}" for i, n in enumerate(amounts)]
    line = "is read as a fraction, but all fractions have three digits"
    assert line in from_lines(tmp_path / "t.csv", ["c;w;p;y", *rows]).notes[0]
    rows = [row.replace(";", ",") for row in rows]
    for label in "yp":
        assert line in from_lines(tmp_path / "t.csv", ["c,w,p,y", *rows], label=label).notes[0]
    federation = from_lines(tmp_path / "t.csv", ["c,w,p,y", *(f"{row}.25" for row in rows)])
    assert "three digits" in federation.notes[0]
    assert "column 'y'" not in federation.notes[0]
    rows = [f"{WHO[i]};1.{i:03}.{n % 1000:03},5;{i // 4 % 2}" for i, n in enumerate(amounts)]
    table = read_table(write(tmp_path / "t.csv", ["c;p;y", *rows]))
    np.testing.assert_array_equal(table["p"], 1_000_000 + 1000 * np.arange(COUNT) + amounts % 1000 + 0.5)


def test_the_advice_about_a_comma_does_not_change_the_number(tmp_path: Path) -> None:
    rows = [f'{WHO[i]},"{value:.3f}",{int(value > 0)}'.replace(".", ",") for i, value in enumerate(NOISE)]
    notes = from_lines(tmp_path / "t.csv", ["c,a,y", *rows]).notes
    assert any("write a point in place of the comma" in note for note in notes)


@pytest.mark.parametrize(("separator", "title"), [(";", "pain: none, low, medium, high"), (",", "pain (0;1;2;3;4)")])
def test_the_lines_below_the_header_decide_the_separator(separator: str, title: str, tmp_path: Path) -> None:
    rows = [separator.join([WHO[i], str(i), str(i // 4 % 2)]) for i in range(COUNT)]
    file = write(tmp_path / "t.csv", [separator.join(["c", f'"{title}"', "y"]), *rows])
    assert [*read_table(file)] == ["c", title, "y"]


STEPS = pd.date_range("2024-01-01", periods=60)
TIMES: dict[str, list[Any]] = {
    "dates as numbers": [int(f"{day:%Y%m%d}") for day in STEPS],
    "dates as texts": [f"{day:%Y%m%d}" for day in STEPS],
    "hours as numbers": [int(f"{hour:%Y%m%d%H}") for hour in pd.date_range("2024-01-01", periods=60, freq="h")],
    "seconds as texts": [f"{t:%Y%m%d%H%M%S}" for t in pd.date_range("2024-01-01", periods=60, freq="s")],
    "months": [int(f"{day:%Y%m}") for day in pd.date_range("2015-01-01", periods=60, freq="MS")],
    "isoformat": [t.to_pydatetime().isoformat() for t in pd.date_range("2024-01-01", periods=60, freq="500ms")],
    "no midnight": [
        f"{t:%Y-%m-%d %H:%M}" if t.hour else f"{t:%Y-%m-%d}" for t in pd.date_range("2024-01-01", periods=60, freq="h")
    ],
    "bytes": [f"{day:%Y-%m-%d}".encode() for day in STEPS],
}


@pytest.mark.parametrize("kind", TIMES)
def test_times_without_a_gap_have_none(kind: str) -> None:
    federation = from_series(TIMES[kind])
    assert federation.notes == ()
    assert "dates" in str(federation.describe()) or "usually" in str(federation.describe())


def test_a_doubled_hour_needs_its_zone() -> None:
    hours = pd.date_range("2024-10-26", periods=60, freq="h", tz="Europe/Berlin").tz_localize(None)
    with pytest.raises(fw.BadInput, match=r"two rows of one time, 2024-10-27.02:00:00; .*summer time, needs its zone"):
        from_series(hours)


def test_rows_of_one_time_are_in_one_part() -> None:
    time = np.arange(COUNT) // 20
    federation = fw.Federation.from_arrays(NOISE[:, None], np.arange(COUNT) % 2, client=["a"] * COUNT, time=time)
    parts = [{*time[np.concatenate(getattr(federation.partition, part))]} for part in PARTS]
    assert all(parts)
    assert max(parts[0]) < min(parts[1]) <= max(parts[1]) < min(parts[2])


def photo(image: Image.Image, turned: bool) -> bytes:
    """The PNG file of an image, which viewers rotate by 90 degrees if it is `turned`."""
    buffer, tag = io.BytesIO(), Image.Exif()
    if turned:
        tag[0x0112] = 6
    image.save(buffer, "png", exif=tag)
    return buffer.getvalue()


def test_photos_are_read_as_viewers_show_them(tmp_path: Path) -> None:
    """Turned by EXIF, on white where they are transparent, and in colours if one file has colours."""
    upright = np.zeros((8, 8, 3), np.uint8)
    upright[:4] = 255
    seen = Image.fromarray(upright)
    sideways = Image.fromarray(np.ascontiguousarray(np.rot90(upright)))
    clear = Image.fromarray(np.concatenate([np.zeros((8, 8, 3), np.uint8), 255 - upright[..., :1]], 2))
    kinds = [(Image.fromarray(upright[..., 0]), False), (seen, False), (sideways, True), (clear, False)]
    for client, label in ("ax", "ay", "bx", "by"):
        (tmp_path / client / label).mkdir(parents=True)
        for i in range("xy".index(label), 12, 2):
            (tmp_path / client / label / f"{i:02}.png").write_bytes(photo(*kinds[i // 3]))
    x = fw.Federation.from_images(tmp_path).dataset.x
    assert x.shape == (24, 3, 8, 8)
    assert (x == upright.transpose(2, 0, 1)).all()
    cells = [{"bytes": photo(*kinds[i % 4])} for i in range(COUNT)]
    rows = pd.DataFrame({"c": WHO, "y": Y, "image": cells})

    class Data:
        def to_pandas(self) -> pd.DataFrame:
            return rows

    x = fw.Federation.from_huggingface(Data(), client="c", label="y", image="image").dataset.x
    assert (x == upright.transpose(2, 0, 1)).all()


@pytest.mark.parametrize("source", ["arrays", "npz", "parquet"])
def test_names_may_be_bytes(source: str, tmp_path: Path) -> None:
    client, label = np.array([b"k0", b"k1"] * 60), np.array([b"no", b"no", b"yes", b"yes"] * 30)
    if source == "arrays":
        federation = fw.Federation.from_arrays(NOISE[:, None], label, client=client)
    elif source == "npz":
        np.savez(tmp_path / "t.npz", x=NOISE[:, None], c=client, y=label)
        federation = fw.Federation.from_file(tmp_path / "t.npz", client="c", label="y")
    else:
        table = pd.DataFrame(
            {"c": [*map(bytes, client)], "y": [*map(bytes, label)], "a": NOISE, "k": [b"u", b"v"] * 60}
        )
        table.to_parquet(tmp_path / "t.parquet")
        federation = fw.Federation.from_file(tmp_path / "t.parquet", client="c", label="y")
        assert federation.preprocessing is not None
        assert federation.preprocessing.columns[1].levels == ("u", "v")
    assert (federation.names, federation.classes) == (("k0", "k1"), ("no", "yes"))


def folder_of(path: Path, files: dict[str, list[str]]) -> Path:
    path.mkdir()
    for name, lines in files.items():
        write(path / name, lines)
    return path


def test_all_columns_and_files_decide_what_a_point_means(tmp_path: Path) -> None:
    """Points separate thousands where any column of any file has decimal commas, but not behind a 0."""
    rows = [f"{WHO[i]};{i},5;{1 + i % 9}.234;0.{100 + i};{i // 4 % 2}" for i in range(COUNT)]
    file = write(tmp_path / "t.csv", ["c;w;p;q;y", *rows])
    for features in (None, ["p", "q"]):
        columns = fw.Federation.from_file(file, client="c", label="y", features=features).preprocessing.columns
        means = {column.name: column.mean for column in columns}
        assert means["p"] > 1000
        assert means["q"] < 1
    plain = [row.replace(",5;", ";") for row in rows[1::2]]
    folder = folder_of(tmp_path / "parts", {"a.csv": ["c;w;p;q;y", *rows[::2]], "b.csv": ["c;w;p;q;y", *plain]})
    table = read_folder(folder, "c", labels=["y"])
    np.testing.assert_array_equal(np.sort(table["p"]), np.sort([1000 * (1 + i % 9) + 234 for i in range(COUNT)]))


def test_a_text_is_one_category_in_all_files_of_a_folder(tmp_path: Path) -> None:
    """007, 1.50 and true are what they are in a file beside others with texts."""
    for codes in (["007", "008"], ["1.50", "1.5"], ["true", "false"]):
        files = {
            f"{client}.csv": ["k,y", *(f"{codes[i % 2]},{i // 2 % 2}" for i in range(20)), *others]
            for client, others in (("a", []), ("b", ["x,1", "x,0"] * 8))
        }
        federation = fw.Federation.from_file(folder_of(tmp_path / codes[0], files), client="c", label="y")
        assert federation.preprocessing is not None
        assert federation.preprocessing.columns[0].levels == tuple(sorted([*codes, "x"]))


def test_a_value_with_the_name_of_a_column_hides_no_warning_about_it() -> None:
    values = [f"v{i // 4 % 3 + 10 * (i > 100)}" for i in range(COUNT)]  # later rows have new ones
    numbers = ["a" if i % 10 == 0 else str(i % 60) for i in range(COUNT)]
    table = pd.DataFrame({"c": WHO, "a": values, "n": numbers, "t": range(COUNT), "y": Y})
    notes = from_table(table, time="t").notes
    assert any(note.startswith("column 'n': 90 % of its values are numbers, and") for note in notes)
    assert any("because of 'a' (" in note for note in notes)
    (line,) = (note for note in notes if note.startswith("column 'a': "))
    assert "no training row has" in line


def test_objects_are_numbers_or_times_as_their_values_are() -> None:
    days = pd.date_range("2024-01-01", periods=COUNT)
    table = pd.DataFrame({"c": WHO, "a": NOISE, "y": Y})
    assert from_table(table.assign(a=table.a.astype(object))).preprocessing == from_table(table).preprocessing
    times = (days.date, days.to_pydatetime(), days.to_period("D"), days.time)
    columns_of_times = [pd.Series([*one], dtype=object) for one in times]
    for column in (*columns_of_times, pd.Series(days - days[0]).astype("duration[s][pyarrow]")):
        with pytest.raises(fw.BadInput, match="column 'a' is a time"):
            from_table(table.assign(a=column))
    with pytest.raises(fw.BadInput, match="column 'a' holds complex numbers; give the real and the imaginary part"):
        from_table(table.assign(a=pd.Series([*NOISE * 1j], dtype=object)))


def test_names_from_arrays_of_other_types() -> None:
    """Dates are no nanoseconds, float32 has no ids above 2^24, and a column [M, 1] is one name a row."""
    x = NOISE[:, None]
    days = np.array([f"2024-01-0{1 + i % 4}" for i in range(COUNT)], "M8[ns]")
    federation = fw.Federation.from_arrays(x, Y, client=days, unit=days)
    assert federation.names == federation.partition.units
    assert federation.names[0].startswith("2024-01-01")
    assert fw.Federation.from_arrays(x, Y, client=np.array(WHO)[:, None]).names == ("k0", "k1", "k2", "k3")
    with pytest.raises(fw.BadInput, match=r"client: .* is a float32 above 2\^24"):
        fw.Federation.from_arrays(x, Y, client=np.float32(2**24) + np.arange(COUNT, dtype=np.float32) % 4)
    with pytest.raises(fw.BadInput, match=r"y: .* give y.argmax\(1\)"):
        from_rows(x, np.eye(3)[np.arange(COUNT) % 3])


def test_pairs_of_an_array_are_its_rows() -> None:
    for pairs in (np.array(PAIRS), torch.tensor(PAIRS)):
        assert fw.Federation.from_graphs(NODES, pairs).dataset.links.shape[1] == 2 * len(PAIRS)
        with pytest.raises(fw.BadInput, match=r"edges: shape .* has a pair in each column, as an edge_index has"):
            fw.Federation.from_graphs(NODES, pairs.T)
    with pytest.raises(fw.BadInput, match="nodes: is missing in 1 row"):
        fw.Federation.from_graphs(NODES.assign(node=[None, *range(1, 60)]), PAIRS)


UNREADABLE = {
    "has no date": ["13:45", "00:10", "01:10"],
    "may have the year first or last": ["23-12-31", "24-01-01", "24-01-02"],
    "would be the year 1": ["1,5", "2,5", "10,5"],
    "ends with its year": [31122023, 1012024, 2012024],
}


@pytest.mark.parametrize("problem", UNREADABLE)
def test_a_time_that_may_be_misread_is_refused(problem: str) -> None:
    with pytest.raises(exported_model.InputError, match=problem):
        exported_model.as_times(np.array(UNREADABLE[problem]))


def test_the_exported_model_reads_what_the_result_reads(tmp_path: Path) -> None:
    """Hidden entries are missing, bfloat16 is a number, and truth values are 0 and 1."""
    x = np.stack([NOISE, NOISE], 1).round(1)
    run = fw.fit("fedavg", from_rows(x), **QUIET)
    model = exported_model.load(run.export(tmp_path / "arrays", "k0"))
    half = torch.tensor(x[:4], dtype=torch.bfloat16)
    np.testing.assert_allclose(run.predict_proba(half, "k0"), model.predict_proba(half), atol=1e-5)
    for predict in (lambda rows: run.predict(rows, "k0"), model.predict):
        with pytest.raises(ValueError, match=r"x.*(missing|not finite)"):
            predict(np.ma.masked_less(x, 0))
    table = pd.DataFrame({"c": WHO, "k": pd.Categorical(np.arange(COUNT) % 2), "y": Y})
    run = fw.fit("fedavg", from_table(table), **QUIET)
    rows = pd.DataFrame({"k": [False, True]})
    expected = run.predict_proba(rows.assign(k=[0, 1]), "k0")
    np.testing.assert_array_equal(run.predict_proba(rows, "k0"), expected)
    with pytest.warns(UserWarning, match=r"column 'k' has no value that training had \('0', '1'\), such as '7'"):
        run.predict(pd.DataFrame({"k": [7]}), "k0")


def test_a_category_in_another_spelling_is_named(tmp_path: Path) -> None:
    """In some of the rows that are to be predicted, with the same line from the folder of the model."""
    table = pd.DataFrame({"c": WHO, "k": ["lorry", "van"] * 60, "y": Y})
    run = fw.fit("fedavg", from_table(table), **QUIET)
    for predict in (partial(run.predict, client="k0"), exported_model.load(run.export(tmp_path / "k0", "k0")).predict):
        with pytest.warns(UserWarning, match="column 'k' has 'Lorry ', which training had as 'lorry'; it counts as un"):
            predict(pd.DataFrame({"k": ["van", "bus", "Lorry "]}))


EDGES = [(i, i + 1) for i in range(89)]
NODE_PARTS = np.array(PARTS)[np.arange(90) // 3 % 3]
UNLABELLED: dict[str, tuple[list[Any], list[Any] | None]] = {
    "None": ([["a", "b", None][i % 3] for i in range(90)], None),
    "nan": ([[0, 1, np.nan][i % 3] for i in range(90)], None),
    "empty": ([["a", "b", ""][i % 3] for i in range(90)], None),
    "-1": ([[0, 1, -1][i % 3] for i in range(90)], None),
    "no part": (
        [["a", "b"][i % 2] for i in range(90)],
        [part if i % 3 < 2 else None for i, part in enumerate(NODE_PARTS)],
    ),
}


@pytest.mark.parametrize("kind", UNLABELLED)
@pytest.mark.parametrize("given", ["tables", "arrays"])
def test_nodes_without_a_label_or_a_part_stay_in_the_graph(kind: str, given: str) -> None:
    label, split = UNLABELLED[kind]
    client = [f"k{i // 30}" for i in range(90)]
    options: dict[str, Any] = {}
    if given == "tables":
        nodes = pd.DataFrame({"node": range(90), "client": client, "f": np.arange(90.0), "label": label, "part": split})
        options = {} if split is None else {"split": "part"}
        federation = fw.Federation.from_graphs(nodes, EDGES, features=["f"], **options)
    else:
        own = [slice(30 * i, 30 * i + 30) for i in range(3)]
        chain = np.array([[*range(29)], [*range(1, 30)]])
        graphs = {f"k{i}": (np.arange(90.0)[rows, None], chain, label[rows]) for i, rows in enumerate(own)}
        options = {} if split is None else {"split": [split[rows] for rows in own]}
        federation = fw.Federation.from_graphs(graphs, **options)
    assert len(federation.classes) == 2
    assert federation.dataset.links.shape[1] == 2 * 87
    parts = np.concatenate([rows for part in PARTS for rows in getattr(federation.partition, part)])
    assert len(parts) == 60
    assert (parts % 3 < 2).all()
    assert "30 of 90 nodes have no label or no part" in federation.notes[0]
    fw.fit("fedavg", federation, **QUIET)


def test_two_signs_are_two_classes_of_nodes() -> None:
    """-1 beside 1 alone is a class."""
    nodes = NODES.assign(label=np.where(np.arange(60) % 2, 1, -1))
    assert fw.Federation.from_graphs(nodes, PAIRS).classes == ("-1", "1")


class Colour(Enum):
    RED, BLUE = 1, 2


def test_small_ones_are_read_or_refused_in_one_line() -> None:
    x, colours = np.stack([NOISE, NOISE], 1), [[Colour.RED, Colour.BLUE][i] for i in Y]
    assert from_rows(x, Y[:, None]).classes == ("0", "1")
    assert len(from_rows(torch.ones(COUNT, 2, requires_grad=True))) == 4
    with pytest.raises(fw.BadInput, match=r"y: has labels of the type Colour; give texts or .*, such as str\(label\)"):
        from_rows(x, colours)
    with pytest.raises(fw.BadInput, match="client: two ids have the same name"):
        fw.Federation.from_arrays(x, Y, client=[[1, True][i] for i in Y])
    with pytest.raises(fw.BadInput, match=r"client: .* is a float above 2\^53"):
        fw.Federation.from_arrays(x, Y, client=2.0**60 + 1024 * (np.arange(COUNT) % 4))
    words = [["train", "Validation", "test"][i // 4 % 3] for i in range(COUNT)]
    assert len(np.concatenate(from_rows(x, split=words).partition.val)) == COUNT // 3
    for owner in (np.array([-1] + [0] * (COUNT - 1)), np.array(["a"] * COUNT)):
        with pytest.raises(fw.BadInput, match="owner must be the number of a client for every row, from 0"):
            fw.data.Dataset("mine", "images", x.astype(np.float32)[:, :, None, None], Y, 2, owner=owner)


def test_a_category_of_codes_is_read_as_in_training(tmp_path: Path) -> None:
    """A file of new rows that has numbers alone is read like that of training, which had texts."""
    codes = ["007", "7", "x"]
    rows = [f"{WHO[i]},{codes[i % 3]},{int(i % 3 == 0)}" for i in range(COUNT)]
    federation = from_lines(tmp_path / "t.csv", ["c,zip,y", *rows])
    run = fw.fit("fedavg", federation, out=tmp_path / "run", lr=0.5, **{**QUIET, "rounds": 20})
    from fedweave.prediction import input_description
    from fedweave.prediction.predictor import read_inputs

    names = input_description.name_columns(read_inputs(run.run)[0])
    new = read_table(write(tmp_path / "new.csv", ["zip", "007", "7"]), names=names)
    np.testing.assert_array_equal(run.predict(new, "k0"), [1, 0])


TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters="\"'"), min_size=1, max_size=6
)
NAMES = st.one_of(
    TEXTS.filter(lambda text: text.strip() not in MISSING),
    st.integers(-(2**62), 2**62).map(str),
    st.sampled_from(["01", "1", "1.0", "1.50", "1e3", "True", "true", "+1", "0x1", "1_0", "1,5", "a;b"]),
)
MISSING = {*pd._libs.parsers.STR_NA_VALUES}


@settings(max_examples=25, deadline=None, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_a_table_means_the_same_in_every_format(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Random tables, written and read back: the same names, types, parts and values."""
    clients = data.draw(st.lists(NAMES, min_size=2, max_size=4, unique=True))
    labels = data.draw(st.lists(NAMES, min_size=2, max_size=3, unique=True))
    offset = data.draw(st.sampled_from([0.0, 1e9, -1e5, 1e-9]))
    values = offset + np.array(data.draw(st.lists(st.floats(-1e3, 1e3, width=32), min_size=12, max_size=12)))
    count = 12 * len(clients) * len(labels)
    table = pd.DataFrame(
        {
            "c": [clients[i % len(clients)] for i in range(count)],
            "y": [labels[i // len(clients) % len(labels)] for i in range(count)],
            "a": np.resize(values, count),
            "k": [["u", "v", "w;"][i % 3] for i in range(count)],
            "part": [["train", "train", "val", "test"][i // (len(clients) * len(labels)) % 4] for i in range(count)],
        }
    )
    options: dict[str, Any] = {"client": "c", "label": "y", "split": "part", "target": "classes"}
    folder = tmp_path_factory.mktemp("formats")
    table.to_csv(folder / "t.csv", index=False, float_format="%.17g")
    table.to_csv(folder / "s.csv", index=False, sep=";", decimal=",", float_format="%.17g")
    table.to_csv(folder / "t.tsv", index=False, sep="\t", float_format="%.17g")
    table.to_csv(folder / "t.csv.gz", index=False, float_format="%.17g")
    table.to_parquet(folder / "t.parquet")
    (folder / "parts").mkdir()
    for i in range(2):
        table.iloc[i::2].to_csv(folder / "parts" / f"{i}.csv", index=False, float_format="%.17g")
    expected = fw.Federation.from_pandas(table, **options)
    assert {*expected.names} == {*clients}
    for name in ("t.csv", "s.csv", "t.tsv", "t.csv.gz", "t.parquet", "parts"):
        federation = fw.Federation.from_file(folder / name, **options)
        assert {*federation.names} == {*clients}, name
        assert {*federation.classes} == {*labels}, name
        for part in PARTS:
            for client in clients:
                np.testing.assert_allclose(
                    *(sorted_rows(one, part, client) for one in (federation, expected)), rtol=1e-5, atol=1e-6
                )


def sorted_rows(federation: fw.Federation, part: str, client: str) -> np.ndarray:
    """The features and classes of a client's part, in an order that does not depend on that of rows and classes."""
    rows = getattr(federation.partition, part)[federation.names.index(client)]
    classes = [sorted(federation.classes).index(federation.classes[i]) for i in federation.dataset.labels[rows]]
    matrix = np.column_stack([federation.dataset.x[rows].reshape(len(rows), -1), classes])
    return matrix[np.lexsort(matrix.T)]


@pytest.mark.parametrize(
    ("times", "line"),
    [
        (
            pd.date_range("2024-10-26", periods=30, freq="h", tz="Europe/Berlin"),
            "2024-10-27 03:00:00 UTC, usually 1 hour",
        ),
        (pd.date_range("2020-01-01", periods=30, freq="MS"), "2022-06-01 00:00:00, usually 31 days apart"),
        (pd.date_range("2024-01-01", periods=30, freq="90min"), "2024-01-02 19:30:00, usually 90 minutes apart"),
        (pd.date_range("2024-01-01", periods=30, freq="14D"), "2025-02-10 00:00:00, usually 2 weeks apart"),
    ],
)
def test_times_are_described_by_their_usual_step(times: pd.DatetimeIndex, line: str) -> None:
    """Dates with a time zone are dates, and no part of a step is rounded away."""
    text = contents.describe(pd.Series(times).to_numpy(), "time")
    assert text.startswith("dates, from ")
    assert line in text


def test_a_description_is_a_screen() -> None:
    hours = pd.date_range("2024-01-01", periods=COUNT, freq="h")
    table = pd.DataFrame({"c": WHO, "t": hours, "y": Y, "k": ["u", "v"] * 60})
    table["a"] = np.where(np.arange(COUNT) == 3, np.nan, NOISE)
    text = str(from_table(table, time="t").describe())
    assert "c: client, texts, 4 different, such as 'k0'" in text
    assert "t: time, dates, from 2024-01-01 00:00:00 to 2024-01-05 23:00:00, usually 1 hour apart" in text
    assert "y: label, whole numbers from 0 to 1, such as 0" in text
    assert "1 missing" in next(line for line in text.splitlines() if line.startswith("a: number"))
    wide = pd.DataFrame(DRAWS.normal(size=(COUNT, 80))).add_prefix("f")
    wide = wide.assign(c=[f"k{i % 40}" for i in range(COUNT)], y=Y)
    assert len(str(from_table(wide).describe()).splitlines()) < 80
