"""Federations from files: tables, arrays, images, nodes and edges; damaged ones are refused in one line."""

import gzip
import io
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fedweave as fw
from fedweave.own_data.user_files import read_table

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
COUNT = 90
DRAWS = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "shop": [f"shop {i % 3}" for i in range(COUNT)],
        "day": pd.date_range("2024-01-01", periods=COUNT).strftime("%Y-%m-%d"),
        "size": DRAWS.normal(size=COUNT),
        "kind": DRAWS.choice(["a", "b"], COUNT),
        "unused": DRAWS.normal(size=COUNT),
        "late": DRAWS.choice(["yes", "no"], COUNT),
    }
)
NAMES: dict[str, Any] = {"client": "shop", "label": "late"}


def same(first: fw.Federation, second: fw.Federation) -> None:
    """The data, clients and splits are equal."""
    np.testing.assert_array_equal(first.dataset.x, second.dataset.x)
    assert first.partition_block == second.partition_block
    assert first.names == second.names
    assert first.classes == second.classes


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv", "parquet"])
def test_a_table_is_read_from_a_file(ending: str, tmp_path: Path) -> None:
    """The values are those written."""
    file = tmp_path / f"orders.{ending}"
    if ending == "parquet":
        TABLE.to_parquet(file)
    else:
        TABLE.to_csv(file, index=False, sep="\t" if ending == "tsv" else ",", float_format="%.17g")
    options: dict[str, Any] = {"features": ["size", "kind"], "time": "day", "split": "chronological"}
    federation = fw.Federation.from_file(file, **NAMES, **options)
    assert federation.name == "orders"
    same(federation, fw.Federation.from_pandas(TABLE, **NAMES, **options))
    with pytest.raises(fw.BadInput, match=r"'sze'; did you mean 'size'\? the table has .*, kind, unused, late"):
        fw.Federation.from_file(file, **NAMES, features=["sze"])


def write_shops(folder: Path, ending: str = "csv") -> None:
    """One file for each shop, without its column, and files that are not tables."""
    folder.mkdir()
    for shop, part in TABLE.groupby("shop"):
        table = part.drop(columns="shop")
        file = folder / f"{shop}.{ending}"
        table.to_parquet(file) if ending == "parquet" else table.to_csv(file, index=False, float_format="%.17g")
    (folder / "README.md").write_text("Shops.", encoding="utf-8")
    (folder / ".shop 9.csv").write_text("a hidden file", encoding="utf-8")


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_a_folder_may_have_a_file_for_each_client(ending: str, tmp_path: Path) -> None:
    write_shops(tmp_path / "shops", ending)
    joined = pd.concat([part for _, part in TABLE.groupby("shop")])
    options: dict[str, Any] = {"time": "day", "split": "chronological"}
    federation = fw.Federation.from_file(tmp_path / "shops", **NAMES, **options)
    assert federation.name == "shops"
    same(federation, fw.Federation.from_pandas(joined, **NAMES, **options))


def test_a_folder_may_have_parts_of_one_table(tmp_path: Path) -> None:
    """Files with the client's column are parts of a table. The order of columns may differ."""
    (tmp_path / "parts").mkdir()
    for i in range(2):
        part = TABLE.iloc[45 * i : 45 * (i + 1)]
        part[[*part][:: 1 - 2 * i]].to_csv(tmp_path / "parts" / f"{i}.csv", index=False, float_format="%.17g")
    same(fw.Federation.from_file(tmp_path / "parts", **NAMES), fw.Federation.from_pandas(TABLE, **NAMES))


def test_a_client_has_the_whole_name_of_its_file(tmp_path: Path) -> None:
    """Also where there is a point in it; the endings of the table and of its packing are left out."""
    for name, ending in (("St. Gallen", ".csv"), ("St. Moritz", ".csv.gz"), ("v1.2", ".CSV")):
        TABLE.drop(columns="shop").to_csv(tmp_path / f"{name}{ending}", index=False)
    assert fw.Federation.from_file(tmp_path, **NAMES).names == ("St. Gallen", "St. Moritz", "v1.2")


def test_a_folder_of_parts_is_not_taken_for_clients_without_a_word(tmp_path: Path) -> None:
    for name in ("train", "test", "Validation"):
        TABLE.drop(columns="shop").to_csv(tmp_path / f"{name}.csv", index=False)
    notes = fw.Federation.from_file(tmp_path, **NAMES).notes
    assert any("the clients are 'Validation', 'test', 'train': if these are the parts of a split" in n for n in notes)
    (tmp_path / "train.csv").rename(tmp_path / "train station.csv")
    assert not any("parts of a split" in note for note in fw.Federation.from_file(tmp_path, **NAMES).notes)


def test_inconsistent_folders_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "shops"
    write_shops(folder)

    def refusal(client: str = "shop") -> str:
        with pytest.raises(fw.BadInput) as caught:
            fw.Federation.from_file(folder, client=client, label="late")
        return str(caught.value).replace(str(folder), "shops")

    with pytest.raises(fw.BadInput, match="is a folder, not a file; give the path of one file in it"):
        fw.Federation.from_file(folder, **NAMES, relation=folder)
    assert refusal("kin").startswith(
        "client: no column 'kin'; did you mean 'kind'? where each file is one client, give"
    )
    TABLE.to_csv(folder / "shop 0.tsv", sep="\t", index=False, columns=[*TABLE][1:])
    assert refusal() == "shops: two files have the name 'shop 0'; each is a client, rename one"
    (folder / "shop 0.tsv").unlink()
    TABLE[["size", "late"]].to_csv(folder / "shop 3.csv", index=False)
    assert refusal() == "shops/shop 3.csv: differs from shop 0.csv in the column 'day'; give both the same"
    (folder / "shop 3.csv").write_text("size\n", encoding="utf-8")
    assert refusal().startswith("shops/shop 3.csv: has no rows")
    for file in folder.glob("*.csv"):
        file.unlink()
    assert refusal().startswith("shops: has no tables; give a file, or a folder of files with the ending .csv")


@pytest.mark.parametrize("decimal", [",", "."])
@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_a_file_with_semicolons_is_read(decimal: str, ending: str, tmp_path: Path) -> None:
    """This is the format of spreadsheets. Training and prediction read it in the same way. Texts with a comma stay
    texts.
    """
    table = TABLE.assign(kind=TABLE["kind"] + ",5", unused=np.where(TABLE["unused"] > 1, np.nan, TABLE["unused"]))
    table.to_csv(tmp_path / f"orders.{ending}", index=False, sep=";", decimal=decimal, float_format="%.17g")
    table.to_csv(tmp_path / "plain.csv", index=False, float_format="%.17g")
    federation, plain = (
        fw.Federation.from_file(tmp_path / name, **NAMES, features=["size", "kind", "unused"])
        for name in (f"orders.{ending}", "plain.csv")
    )
    same(federation, plain)
    run = fw.fit("local", federation, rounds=1, progress=False)
    rows = read_table(tmp_path / f"orders.{ending}")[["size", "kind", "unused"]]
    np.testing.assert_array_equal(run.predict(rows, "shop 1"), run.predict(table[[*rows]], "shop 1"))


@pytest.mark.parametrize("ending", ["csv", "tsv", "txt.tsv.gz"])
def test_a_file_with_tabs_may_have_decimal_commas(ending: str, tmp_path: Path) -> None:
    """The numbers were categories, or the file was refused because a line had more commas than the header."""
    path = tmp_path / f"orders.{ending}"
    table = TABLE.assign(size=TABLE["size"].round(2))
    table.to_csv(path, index=False, sep="\t", decimal=",")
    np.testing.assert_array_equal(read_table(path)["size"], table["size"])


def test_commas_in_a_file_with_tabs_may_separate_thousands(tmp_path: Path) -> None:
    """Only a comma that cannot do so, such as that of 0,5, makes all of them decimal marks."""
    lines = [f"shop {i % 2}\t{i + 1},100\t0.{i + 1}\t{i % 2}" for i in range(9)]
    (tmp_path / "orders.csv").write_text("\n".join(["shop\tcost\tshare\tlate", *lines]))
    assert read_table(tmp_path / "orders.csv")["cost"].tolist() == [f"{i},100" for i in range(1, 10)]
    (tmp_path / "orders.csv").write_text("\n".join(["shop\tcost\tshare\tlate", *lines]).replace("0.", "0,"))
    table = read_table(tmp_path / "orders.csv")
    assert table["cost"].tolist() == pytest.approx([i + 0.1 for i in range(1, 10)])
    assert table["share"].tolist() == pytest.approx([i / 10 for i in range(1, 10)])


def test_semicolons_are_found_in_spite_of_commas_in_names(tmp_path: Path) -> None:
    """1,2E-05 is a number."""
    lines = [f"shop {i % 2};{i},5;{i},2E-05;{'yes' if i % 3 else 'no'}" for i in range(30)]
    (tmp_path / "orders.csv").write_text("\n".join(["shop;size (cm, measured);dose;late", *lines]))
    table = read_table(tmp_path / "orders.csv")
    assert [*table] == ["shop", "size (cm, measured)", "dose", "late"]
    np.testing.assert_allclose(table["size (cm, measured)"], np.arange(30) + 0.5)
    np.testing.assert_allclose(table["dose"], (np.arange(30) + 0.2) * 1e-5)


def test_names_are_texts_if_one_of_a_long_file_is(tmp_path: Path) -> None:
    """A text far below the numbers makes all names texts, so that client 1 is not two clients."""
    count = 400_000
    names = np.where(np.arange(count) < count - 9, np.tile(["1", "2"], count // 2), "A7")
    table = pd.DataFrame({"shop": names, "size": np.arange(count) % 7, "late": np.arange(count) % 2})
    table.to_csv(tmp_path / "orders.csv", index=False)
    assert fw.Federation.from_file(tmp_path / "orders.csv", **NAMES).names == ("1", "2", "A7")


def coded(codes: str) -> pd.DataFrame:
    """A table of texts whose clients have these codes, and whose units are the same codes."""
    table = pd.DataFrame({"site": np.repeat(codes.split(), 20), "size": [f"{i:02d}" for i in range(60)]})
    return table.assign(late=[0, 1] * 30, person=table["site"])


def test_codes_of_several_files_stay_as_they_are_written(tmp_path: Path) -> None:
    """A file in which all are numbers has texts too where another one needs them."""
    table = coded("01 1 10")
    for name, part in (("a", table[:40]), ("b", table[20:])):
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    made = fw.Federation.from_file(tmp_path, client="site", label="late")
    assert made.names == ("01", "1", "10")
    assert [len(rows) for rows in made.partition.train] == [12, 24, 12]


def test_codes_of_pairs_stay_as_they_are_written(tmp_path: Path) -> None:
    """In a graph of clients, and in the edges of a graph, of which some files have numbers alone."""
    coded("01 1 10").to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "pairs.csv").write_text("a,b\n01,10\n1,10\n")
    made = fw.Federation.from_file(tmp_path / "rows.csv", client="site", label="late", relation=tmp_path / "pairs.csv")
    assert made.partition.relation is not None
    assert {*map(tuple, made.partition.relation.T.tolist())} == {(0, 2), (2, 0), (1, 2), (2, 1)}
    nodes = pd.DataFrame({"node": [f"{i:02d}" for i in range(40)], "client": ["01"] * 20 + ["1"] * 20})
    nodes.assign(label=[0, 1] * 20, size=range(40)).to_csv(tmp_path / "nodes.csv", index=False)
    (tmp_path / "edges.csv").write_text("a,b\n10,11\n12,30\n")
    graph = fw.Federation.from_graphs(tmp_path / "nodes.csv", tmp_path / "edges.csv")
    assert graph.names == ("01", "1")
    assert [edges.shape[1] for edges in graph.partition.edges] == [2, 0]


def test_a_client_called_na_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Programs write NA where a value is missing, so a country's code NA (Namibia) cannot be told from it."""
    rows = coded("NA ZA BW")
    rows.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(
        fw.BadInput, match=r"column 'site' is missing in 20 rows; drop them first \(in a file, NA and null"
    ):
        fw.Federation.from_file(tmp_path / "rows.csv", client="site", label="late", unit="person")
    assert fw.Federation.from_pandas(rows, client="site", label="late").names == ("BW", "NA", "ZA")


def test_names_of_image_files_stay_as_they_are_written(tmp_path: Path) -> None:
    rows = []
    for i in range(40):
        Image.fromarray(np.full((4, 4, 3), i, np.uint8)).save(tmp_path / f"{i:03d}", format="png")
        rows.append({"file": f"{i:03d}", "client": f"{i % 2:02d}", "label": i // 2 % 2})
    pd.DataFrame(rows).to_csv(tmp_path / "table.csv", index=False)
    made = fw.Federation.from_images(tmp_path, tmp_path / "table.csv")
    assert made.names == ("00", "01")


def test_a_file_with_another_separator_is_refused(tmp_path: Path) -> None:
    """The message shows the one column, and the separators that can be read."""
    (tmp_path / "orders.csv").write_text("shop|size|late\na|1|yes\n")
    with pytest.raises(fw.BadInput, match=r"one column, 'shop\|size\|late'; separate the fields of a CSV file by"):
        fw.Federation.from_file(tmp_path / "orders.csv", **NAMES)


def test_arrays_are_read_from_a_file(tmp_path: Path) -> None:
    """In NPZ files, names of arrays replace names of columns."""
    x, late, shop = TABLE[["size", "unused"]].to_numpy(), TABLE["late"].to_numpy(str), TABLE["shop"].to_numpy(str)
    np.savez(tmp_path / "orders.npz", rows=x, late=late, shop=shop, day=np.arange(COUNT))
    federation = fw.Federation.from_file(
        tmp_path / "orders.npz", **NAMES, features=["rows"], time="day", normalize="standard"
    )
    same(federation, fw.Federation.from_arrays(x, late, client=shop, time=np.arange(COUNT), normalize="standard"))
    with pytest.raises(fw.BadInput, match="there is no 'x'; the file has rows, late, shop, day"):
        fw.Federation.from_file(tmp_path / "orders.npz", **NAMES)
    with pytest.raises(fw.BadInput, match="embed: is an option of tables"):
        fw.Federation.from_file(tmp_path / "orders.npz", **NAMES, embed=True)


def test_unused_arrays_are_refused(tmp_path: Path) -> None:
    """A second label or a second array of features would be ignored."""
    path = tmp_path / "rows.npz"
    np.savez(path, x=np.ones((9, 2)), y=[0, 1, 0] * 3, z=np.ones(9), client=[*"abc"] * 3)
    for options, message in (
        ({"label": ["y", "z"]}, r"label: \['y', 'z'\] are several arrays"),
        ({"features": ["x", "z"]}, r"features: \['x', 'z'\] are several arrays"),
        ({"features": 5}, "features: 5 is not a name"),
        ({"client": ["client"]}, r"arrays: there is no \['client'\]"),
    ):
        with pytest.raises(fw.BadInput, match=message):
            fw.Federation.from_file(path, **{"client": "client", "label": "y", **options})


def test_a_given_client_graph_is_used(tmp_path: Path) -> None:
    """Pairs of names, as a list or a file, in both directions. Other names are refused."""
    pairs = [("shop 0", "shop 1"), ("shop 2", "shop 1")]
    pd.DataFrame(pairs, columns=["from", "to"]).to_csv(tmp_path / "near.csv", index=False)
    for relation in (pairs, tmp_path / "near.csv"):
        federation = fw.Federation.from_pandas(TABLE, **NAMES, relation=relation)
        np.testing.assert_array_equal(federation.partition.relation, [[0, 1, 1, 2], [1, 0, 2, 1]])
    assert federation.partition_block != fw.Federation.from_pandas(TABLE, **NAMES, relation=pairs[:1]).partition_block
    with pytest.raises(fw.BadInput, match="relation: 'shop 9' is not a client"):
        fw.Federation.from_pandas(TABLE, **NAMES, relation=[("shop 9", "shop 1")])


def pictures(folder: Path, count: int = 12) -> np.ndarray:
    """Images CLIENT/CLASS/FILE of two clients and two classes. [M, 3, 5, 4] in the order of their names."""
    x = np.random.default_rng(0).integers(256, size=(2, 2, count, 5, 4, 3), dtype=np.uint8)
    for i, client in enumerate(("left", "right")):
        for j, label in enumerate(("cat", "dog")):
            (folder / client / label).mkdir(parents=True)
            for k in range(count):
                Image.fromarray(x[i, j, k]).save(folder / client / label / f"{k:02d}.png")
    return x.reshape(-1, 5, 4, 3).transpose(0, 3, 1, 2)


def test_folders_of_images_are_read(tmp_path: Path) -> None:
    """Files CLIENT/CLASS/FILE, or a table with their names. The bytes are those of the files."""
    x = pictures(tmp_path / "all")
    federation = fw.Federation.from_images(tmp_path / "all")
    assert federation.names == ("left", "right")
    assert federation.classes == ("cat", "dog")
    np.testing.assert_array_equal(federation.dataset.x, x)
    listed = pd.DataFrame(
        {"path": [f"{c}/{k}/{i:02d}.png" for c in ("left", "right") for k in ("cat", "dog") for i in range(12)]}
    )
    parts = listed["path"].str.split("/", expand=True)
    listed = listed.assign(site=parts[0], animal=parts[1], split=["train", "val", "test"] * 16)
    listed.to_csv(tmp_path / "list.csv", index=False)
    again = fw.Federation.from_images(
        tmp_path / "all", tmp_path / "list.csv", file="path", client="site", label="animal", split="split"
    )
    np.testing.assert_array_equal(again.dataset.x, x)
    np.testing.assert_array_equal(again.partition.train[0], np.arange(0, 24, 3))
    small = fw.Federation.from_images(tmp_path / "all", size=(4, 8), normalize="standard_client")
    assert small.dataset.x.shape == (48, 3, 4, 8)
    run = fw.fit("fedavg", small, rounds=1, progress=False)
    assert {*run.predict(small.dataset.x[:3], "left")} <= {"cat", "dog"}


def test_images_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    """A damaged file, a file of another size, and an empty folder."""
    pictures(tmp_path / "all")
    file = tmp_path / "all" / "right" / "dog" / "03.png"
    Image.fromarray(np.zeros((6, 4, 3), np.uint8)).save(file)
    with pytest.raises(fw.BadInput, match=r"03\.png: is of 6 x 4 pixels, the first image of 5 x 4; give size="):
        fw.Federation.from_images(tmp_path / "all")
    file.write_bytes(b"no image")
    with pytest.raises(fw.BadInput, match=r"03\.png: cannot be read as an image"):
        fw.Federation.from_images(tmp_path / "all")
    with pytest.raises(fw.BadInput, match=r"has no images of clients; it has all/left/cat/00\.png; name them CLIENT/"):
        fw.Federation.from_images(tmp_path)
    for size in ("big", 32, (32,), (0, 3), (4.5, 3)):
        with pytest.raises(fw.BadInput, match=r"size: .* is not a height and width"):
            fw.Federation.from_images(tmp_path / "all", size=size)


def test_images_in_other_folders_are_named(tmp_path: Path) -> None:
    pictures(tmp_path)
    assert not any("left out" in note for note in fw.Federation.from_images(tmp_path).notes)
    (tmp_path / "left" / "cat" / "2024").mkdir()
    (tmp_path / "left" / "cat" / "00.png").rename(tmp_path / "left" / "cat" / "2024" / "00.png")
    (tmp_path / "left" / "cat" / "._00.png").write_bytes(b"of macOS")
    notes = fw.Federation.from_images(tmp_path).notes
    assert f"left out: 1 image of {tmp_path} not at CLIENT/CLASS/FILE, such as left/cat/2024/00.png" in notes


@pytest.mark.parametrize("image", [np.full((4, 4), 0.5), np.full((4, 4), 300), np.full((4, 4), -3)])
def test_images_with_values_outside_of_bytes_are_refused(image: np.ndarray, tmp_path: Path) -> None:
    """As bytes they would be black images, or values would overflow to 0."""
    table = pd.DataFrame({"image": [image] * 6, "client": [*"ab"] * 3, "label": [0, 1] * 3})
    with pytest.raises(fw.BadInput, match=r"image in row 0: has values from .* that are not bytes"):
        fw.Federation.from_huggingface(Stored(table), client="client", label="label", image="image")
    (tmp_path / "a" / "x").mkdir(parents=True)
    Image.fromarray(np.full((4, 4), 300, np.uint16)).save(tmp_path / "a" / "x" / "0.png")
    with pytest.raises(fw.BadInput, match=r"0\.png: has values from 300 to 300 that are not bytes"):
        fw.Federation.from_images(tmp_path)


class Stored:
    """A data set with the used methods of Hugging Face's data sets."""

    def __init__(self, table: pd.DataFrame, **names: list[str]) -> None:
        self.table, self.features = table, {key: SimpleNamespace(names=value) for key, value in names.items()}

    def to_pandas(self) -> pd.DataFrame:
        return self.table


def test_data_sets_of_hugging_face_are_read() -> None:
    """One table or several parts. Numbers of classes get their names. Encoded images are decoded."""
    coded = TABLE.assign(late=(TABLE["late"] == "yes").astype(int))
    stored = Stored(coded, late=["no", "yes"])
    same(fw.Federation.from_huggingface(stored, **NAMES), fw.Federation.from_pandas(TABLE, **NAMES))
    parts = {"train": TABLE[:60], "validation": TABLE[60:75], "test": TABLE[75:]}
    federation = fw.Federation.from_huggingface({name: Stored(table) for name, table in parts.items()}, **NAMES)
    np.testing.assert_array_equal(np.sort(np.concatenate(federation.partition.val)), np.arange(60, 75))
    x, cells = np.random.default_rng(0).integers(256, size=(COUNT, 4, 4), dtype=np.uint8), []
    for image in x:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "png")
        cells.append({"bytes": buffer.getvalue(), "path": None})
    pictured = fw.Federation.from_huggingface(Stored(TABLE.assign(picture=cells)), **NAMES, image="picture")
    np.testing.assert_array_equal(pictured.dataset.x[:, 0], x)
    with pytest.raises(fw.BadInput, match="list has neither to_pandas"):
        fw.Federation.from_huggingface([1], **NAMES)


def test_classes_of_hugging_face_with_a_missing_value_keep_their_names() -> None:
    """Pandas makes 0.0, 1.0 and NaN of these numbers; as numbers, a category would have an order and a mean."""
    coded = pd.Series(np.arange(COUNT) % 3, dtype=float).mask(np.arange(COUNT) == 3)
    table = TABLE.assign(colour=coded)
    for column in (coded, coded.astype(object).where(coded.notna(), None), coded.fillna(-1).astype(int)):
        stored = Stored(table.assign(colour=column), colour=["red", "green", "blue"])
        federation = fw.Federation.from_huggingface(stored, **NAMES)
        named = TABLE.assign(colour=coded.map({0: "red", 1: "green", 2: "blue"}))
        same(federation, fw.Federation.from_pandas(named, **NAMES))


def graph_files(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Nodes of three sites in mixed order, and edges, some of them between sites."""
    draws = np.random.default_rng(0)
    nodes = pd.DataFrame(
        {
            "node": [f"n{i}" for i in draws.permutation(60)],
            "client": draws.choice(["x", "y", "z"], 60),
            "degree": draws.normal(size=60),
            "kind": draws.choice(["a", "b"], 60),
            "label": draws.choice(["red", "blue"], 60),
        }
    )
    edges = pd.DataFrame(np.stack([draws.choice(nodes["node"], 200), draws.choice(nodes["node"], 200)], 1))
    nodes.to_csv(folder / "nodes.csv", index=False)
    edges.to_csv(folder / "edges.csv", index=False)
    return nodes, edges


def test_a_graph_is_read_from_two_files(tmp_path: Path) -> None:
    """Every edge within a client is there in both directions, and the others are counted. Models train and predict."""
    nodes, edges = graph_files(tmp_path)
    federation = fw.Federation.from_graphs(tmp_path / "nodes.csv", tmp_path / "edges.csv")
    owner = dict(zip(nodes["node"], nodes["client"], strict=True))
    expected: dict[str, set[tuple[str, str]]] = {name: set() for name in federation.names}
    between = 0
    for a, b in edges.itertuples(index=False):
        between += owner[a] != owner[b]
        if owner[a] == owner[b] and a != b:
            expected[owner[a]] |= {(a, b), (b, a)}
    for i, name in enumerate(federation.names):
        ids = nodes["node"].to_numpy()[federation.partition.nodes[i]]
        assert {owner[one] for one in ids} == {name}
        assert {(ids[a], ids[b]) for a, b in federation.partition.edges[i].T} == expected[name]
        parts = [getattr(federation.partition, part)[i] for part in ("train", "val", "test")]
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(ids)))
    assert federation.notes == (f"{between} of 200 edges join nodes of two clients and are left out",)
    run = fw.fit("fedavg", federation, rounds=2, progress=False, out=tmp_path / "out")
    raw = nodes[nodes["client"] == "y"]
    test = federation.partition.test[1]
    answers = fw.load(tmp_path / "out")["fedavg"].predict(raw, "y")[test]
    assert 100 * (answers == raw["label"].to_numpy()[test]).mean() == pytest.approx(run.scores["y"])


def test_bad_graphs_are_refused(tmp_path: Path) -> None:
    """Unknown nodes, repeated nodes, and names as features."""
    nodes, edges = graph_files(tmp_path)
    make = fw.Federation.from_graphs
    with pytest.raises(fw.BadInput, match="edges: 'n99' is not a node"):
        make(nodes, [("n1", "n99")])
    with pytest.raises(fw.BadInput, match="nodes: 'n1' occurs twice"):
        make(nodes.assign(node="n1"), edges)
    with pytest.raises(fw.BadInput, match="'node' is the node's own name"):
        make(nodes, edges, features=["node"])
    with pytest.raises(fw.BadInput, match="no column 'place'"):
        make(nodes, edges, client="place")
    for option in ({"window": 4}, {"horizon": 2}):  # would have no effect
        with pytest.raises(fw.BadInput, match=f"{next(iter(option))}: is for forecasts, and nodes have classes"):
            make(nodes, edges, **option)
    for pair in ((["n1"], "n2"), ("n1", None)):
        with pytest.raises(fw.BadInput, match=r"edges: .* is not a node"):
            make(nodes, [pair])


def test_bad_graphs_of_arrays_are_refused() -> None:
    """Features that are not finite, one class beside missing labels, a split of another length, two equal names."""
    x, edges, y = np.ones((6, 2)), np.array([[0, 1], [1, 2]]), [0, 1] * 3
    parts = ["train", "train", "train", "val", "test", "test"]
    graphs = [(x, edges, y)] * 2
    federation = fw.Federation.from_graphs([(x, [[], []], y), (x, edges, y)], split=[parts] * 2)
    assert [part.shape for part in federation.partition.edges or ()] == [(2, 0), (2, 4)]
    for bad, options, message in (
        ([(x * np.nan, edges, y)], {}, "x of 'client 0': nan at"),
        ([([["a", "b"]] * 6, edges, y)], {}, "they must be numbers"),
        ([([[1], [1, 2]], edges, y)], {}, "the rows have different lengths"),
        ([(x, edges, ["a", None] * 3)], {}, "y: only one class, 'a'"),
        ({1: graphs[0], "1": graphs[1]}, {}, "two clients have the same name"),
        (graphs, {"split": [parts[:5], ["train", *parts]]}, "split: 5 labels, but 'client 0' has 6 nodes"),
        (graphs, {"split": [parts]}, "is not one list for each of 2 clients"),
        (graphs, {"split": 5}, "is not one list for each of 2 clients"),
    ):
        with pytest.raises(fw.BadInput, match=message):
            fw.Federation.from_graphs(bad, **options)


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "folder.csv": "has no tables; give a file, or a folder of files with the ending .csv",
        "pipe.csv": "is a pipe or a device, not a file; write its rows to a file",
        "https://example.org/rows.csv": "is an address, not a file; download it",
        "absent.csv": "there is no such file; check the path",
        "latin.csv": "UnicodeDecodeError.*; save the file as UTF-8",
        "fields.csv": "ParserError.*; give every line as many fields as the header",
        "cut.csv.gz": "the file is damaged or not what its ending says",
        "cut.parquet": "the file is damaged or not what its ending says",
        "cut.npz": "cannot be read as arrays",
        "header.csv": "has no rows; write one line per row below the header",
        "nothing.csv": "EmptyDataError.*; write a header and one line per row",
    }.items(),
)
def test_a_file_that_is_not_a_table_names_the_way_out(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line names the file and the next step."""
    monkeypatch.chdir(tmp_path)
    Path("folder.csv").mkdir()
    os.mkfifo("pipe.csv")
    Path("latin.csv").write_bytes(b"a,b\n\xe9,1\n")
    Path("fields.csv").write_text("a,b\n1,2,3\n1,2,3,4\n")
    Path("cut.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n" * 99)[:-20])
    Path("cut.parquet").write_bytes(b"PAR1")
    Path("cut.npz").write_bytes(b"PK")
    Path("header.csv").write_text("shop,late\n")
    Path("nothing.csv").write_text("")
    with pytest.raises(fw.BadInput, match=words) as caught:
        fw.Federation.from_file(name, **NAMES)
    assert str(caught.value).startswith(name)


HOURS = pd.date_range("2024-01-01", periods=60, freq="h")
PLAIN = HOURS.strftime("%Y-%m-%d %H:%M").to_list()
WITH_ZONE = {
    "offset": (PLAIN, "2024-01-01 05:00+02:00"),
    "short": (PLAIN, "2024-01-01 05:00-03"),
    "letter": (HOURS.strftime("%Y-%m-%dT%H:%M:%S.%f").to_list(), "2024-01-01T05:00:00.5Z"),
    "word": (PLAIN, "2024-01-01 05:00 UTC"),
    "compact": (HOURS.strftime("%Y%m%dT%H%M%S").to_list(), "20240101T050000+0200"),
    "date": (HOURS.strftime("%Y-%m-%d").to_list(), "2024-01-01 05:00+02:00"),
}


def timed_rows(times: Any) -> pd.DataFrame:
    return pd.DataFrame({"shop": ["a", "b"] * 30, "size": np.arange(60) % 7, "late": [0, 0, 1, 1] * 15, "at": times})


@pytest.mark.parametrize("case", WITH_ZONE)
@pytest.mark.parametrize("first", [True, False])
def test_times_of_which_only_some_have_a_zone_are_refused(case: str, first: bool, tmp_path: Path) -> None:
    """The line names the file, the column, and a value of each sort."""
    plain, zoned = WITH_ZONE[case]
    times = [zoned, *plain[1:]] if first else [*plain[:5], zoned, *plain[6:]]
    timed_rows(times).to_csv(tmp_path / "rows.csv", index=False)
    without = plain[1] if first else plain[0]
    words = f"rows.csv: time: {zoned!r} has a time zone, and {without!r} has none; write all with one"
    for label, options in (("late", {}), ("size", {"window": 3, "horizon": 1})):
        with pytest.raises(fw.BadInput, match=re.escape(words)):
            fw.Federation.from_file(tmp_path / "rows.csv", client="shop", label=label, time="at", **options)


def test_files_of_which_only_some_have_a_zone_are_refused(tmp_path: Path) -> None:
    """Pandas joins such columns, and would take the times without one as those of UTC."""
    table = timed_rows(HOURS)
    for name, rows in table.groupby("shop"):
        rows = rows.assign(at=rows["at"].dt.tz_localize("Europe/Berlin")) if name == "b" else rows
        rows.to_parquet(tmp_path / f"{name}.parquet")
    words = "time: '2024-01-01 01:00:00+01:00' has a time zone, and '2024-01-01 00:00:00' has none;"
    with pytest.raises(fw.BadInput, match=re.escape(f"{tmp_path}: {words}")):
        fw.Federation.from_file(tmp_path, client="shop", label="late", time="at")
    given = pd.concat([pd.read_parquet(file) for file in sorted(tmp_path.iterdir())])
    with pytest.raises(fw.BadInput, match=re.escape("time: '2024-01-01 01:00:00+01:00' has a time zone, and")):
        fw.Federation.from_arrays(
            given[["size"]].to_numpy(), given["late"].to_numpy(), client=[*given["shop"]], time=[*given["at"]]
        )


@pytest.mark.parametrize("end", ["", "+02:00", "Z", " UTC"])
def test_times_that_all_have_a_zone_or_none_are_read(end: str, tmp_path: Path) -> None:
    timed_rows([time + end for time in PLAIN]).to_csv(tmp_path / "rows.csv", index=False)
    assert len(fw.Federation.from_file(tmp_path / "rows.csv", client="shop", label="late", time="at")) == 2
