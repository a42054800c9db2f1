"""`fedweave import` writes a data set and a study that give the same results through the stages as through the API."""

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import yaml

import fedweave as fw
from fedweave.data import DATASETS, PARTITIONS, load_dataset, load_partition
from fedweave.own_data import user_files
from fedweave.own_data.user_files import read_folder
from fedweave.pipelines.commands import importing, projects, studies
from fedweave.pipelines.stages import download, partition, train, tune
from fedweave.study import validate

DRAWS = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "shop": [f"shop {i % 3}" for i in range(90)],
        "size": DRAWS.normal(size=90),
        "kind": DRAWS.choice(["a", "b"], 90),
        "price": DRAWS.normal(size=90) * 9 + 50,
    }
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The files of a new project, made without starting DVC. What is imported is known until the end of the test."""
    for name, text in projects.contents().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    TABLE.to_csv(tmp_path / "orders.csv", index=False, float_format="%.17g")
    monkeypatch.chdir(tmp_path)
    with patch.dict(DATASETS), patch.dict(PARTITIONS):
        yield tmp_path


def test_a_file_through_the_stages(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows, clients and parts are those of `from_file`. The project predicts raw rows. Only a change is refused."""
    arguments = {"client": "shop", "label": "price", "name": "orders", "preprocess": "client"}
    budget = {"methods": ["local,fedavg"], "rounds": 2, "seeds": 1, "metric": "rmse", "tune": 0}
    importing.import_(Path("orders.csv"), **arguments, **budget)
    assert "next: dvc repro" in capsys.readouterr().out
    study = validate.load()
    assert study.tasks["orders"].targets == "numbers"
    download.main("orders")
    partition.main("orders")
    tune.main("orders")
    train.main("orders-fedavg")
    federation = fw.Federation.from_file("orders.csv", **arguments)
    np.testing.assert_array_equal(load_dataset("data/features/orders").x, federation.dataset.x)
    stored = load_partition("data/partitions/orders/partition.npz")
    assert stored.names == federation.names
    for first, second in zip(stored.train, federation.partition.train, strict=True):
        np.testing.assert_array_equal(first, second)
    result = fw.load("results/orders")["fedavg"]
    alone = fw.fit("fedavg", federation, rounds=2, metric="rmse", progress=False)
    pd.testing.assert_series_equal(result.scores, alone.scores)
    own = TABLE[TABLE["shop"] == "shop 1"]
    np.testing.assert_array_equal(result.predict(own, "shop 1"), alone.predict(own, "shop 1"))
    with pytest.raises(fw.BadInput, match="column 'shop' has rows of other clients"):
        result.predict(TABLE, "shop 1")
    importing.import_(Path("orders.csv"), **arguments, **budget)
    with pytest.raises(fw.BadInput, match=r"own_orders\.py: is there and says something else; .*--force"):
        importing.import_(Path("orders.csv"), client="shop", label="kind", name="orders")
    with Path("imports/orders.csv").open("a", encoding="utf-8") as copy:
        copy.write("shop 1,0.5,a,55.0\n")
    with pytest.raises(fw.BadInput, match=r"imports/orders\.csv: was changed after its import.*--name orders --force"):
        download.main("orders")


def test_refused_partitions_name_the_file_and_the_task(project: Path) -> None:
    """More clients than rows, and a rule that gives no validation rows."""
    names = {"client": "shop", "label": "kind", "name": "sold"}
    importing.import_(Path("orders.csv"), **names, methods=["local,fedavg"], rounds=2, seeds=1, tune=0)
    download.main("sold")
    params = Path("params.yaml")
    content = yaml.safe_load(params.read_text(encoding="utf-8"))
    block = {"name": "iid", "clients": 5000, "seed": 0}
    content["tasks"]["sold"]["partition"] = block
    params.write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(
        fw.BadInput, match=r"^params\.yaml: tasks\.sold\.partition\.clients: 5000 must be a whole number"
    ):
        partition.main("sold")
    block |= {"clients": 3, "split": {"train": 0.8, "val": 0, "test": 0.2}}
    params.write_text(yaml.safe_dump(content), encoding="utf-8")
    partition.main("sold")
    tune.main("sold")
    no_rows = r"^params\.yaml: runs\.sold-fedavg: evaluate\.select: .* no client has any in the partition 'iid'"
    with pytest.raises(fw.BadInput, match=no_rows):
        train.main("sold-fedavg")


def test_a_folder_becomes_one_file(project: Path) -> None:
    Path("shops").mkdir()
    for shop, part in TABLE.groupby("shop"):
        part.drop(columns="shop").to_csv(Path("shops") / f"{shop}.csv", index=False)
    importing.import_(Path("shops"), client="shop", label="price")
    federation = fw.Federation.from_file("shops", client="shop", label="price")
    np.testing.assert_array_equal(DATASETS["shops"](Path()).x, federation.dataset.x)
    assert validate.load().tasks["shops"].partition["clients"] == len(federation) == 3
    assert [*pd.read_parquet("imports/shops.parquet")] == ["size", "kind", "price", "shop"]


def test_a_folder_is_read_once_and_keeps_its_types(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client "01" does not become the number 1. Codes of two files are texts. A second import writes nothing."""
    Path("sites").mkdir()
    for site, codes in (("01", [1, 2]), ("02", ["x", "y"])):
        part = TABLE[:40].assign(code=[codes[i % 2] for i in range(40)]).drop(columns="shop")
        part.to_csv(Path("sites") / f"{site}.csv", index=False)
    reads = []
    monkeypatch.setattr(user_files, "read_folder", lambda *words: reads.append(words) or read_folder(*words))
    importing.import_(Path("sites"), client="ward", label="price")
    assert len(reads) == 1
    federation = fw.Federation.from_file("sites", client="ward", label="price")
    assert PARTITIONS["sites-rows"](DATASETS["sites"](Path()), 2, 0).names == federation.names == ("01", "02")
    np.testing.assert_array_equal(DATASETS["sites"](Path()).x, federation.dataset.x)
    files = ["imports/sites.parquet", "imports/own_sites.py", "studies/sites.yaml"]
    before = [Path(file).stat() for file in files]
    importing.import_(Path("sites"), client="ward", label="price")
    assert [(state.st_mtime_ns, state.st_ino) for state in before] == [
        (state.st_mtime_ns, state.st_ino) for state in map(os.stat, files)
    ]


def test_names_with_quotes_and_backslashes_are_kept(project: Path) -> None:
    """A column and a file may have them. The written code reads the names unchanged."""
    label, file = 'a "price" \\N', Path('say """x.y"z.csv')
    TABLE.rename(columns={"price": label}).to_csv(file, index=False)
    importing.import_(file, client="shop", label=label, name="quoted")
    assert len(DATASETS["quoted"](Path()).x) == len(TABLE)
    assert DATASETS["quoted"].__doc__ == f"{file}: {label} of 3 clients."


def test_columns_can_be_excluded(project: Path) -> None:
    """One without any value is refused otherwise. The plug-in says which ones were left out."""
    with_remarks = pd.read_csv("orders.csv").assign(remarks="", note=7)
    with_remarks.to_csv("remarks.csv", index=False)
    with pytest.raises(fw.BadInput, match=r"'remarks' has no value in any training row; .*--exclude"):
        importing.import_(Path("remarks.csv"), client="shop", label="kind")
    importing.import_(Path("remarks.csv"), client="shop", label="kind", exclude=["remarks,note"])
    assert "'exclude': ['remarks', 'note']" in (project / "imports/own_remarks.py").read_text()


def test_warnings_about_the_data_are_printed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are those of `fw.compare` on the same file: few test rows, and names that differ in capitals alone."""
    TABLE[:45].replace({"shop": {"shop 0": "Shop 1"}}).to_csv("warned.csv", index=False)
    importing.import_(Path("warned.csv"), client="shop", label="price")
    assert validate.load().tune.sampler == "rates"
    printed = [line.removeprefix("warning: ") for line in capsys.readouterr().out.splitlines() if "warning: " in line]
    federation = fw.Federation.from_file("warned.csv", client="shop", label="price")
    with pytest.warns(UserWarning, match="fewer than 10 test rows") as caught:
        fw.compare(federation, ["local", "fedavg"], rounds=1, seeds=1, progress=False, tune=0)
    assert len(printed) == 2
    assert printed[0].startswith("clients 'Shop 1' and 'shop 1' differ only in spelling")
    assert printed[1].startswith("3 of 3 clients have fewer than 10 test rows")
    assert {*printed} <= {str(warning.message) for warning in caught}


def files_of(folder: Path) -> dict[str, bytes]:
    """Path -> content of every file, except of compiled modules, which Python writes at an import."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_the_name_of_another_data_set_is_refused(project: Path) -> None:
    """Before the file is read: nothing is written."""
    before = files_of(project)
    with pytest.raises(fw.BadInput, match=r"--name: the data set 'digits' already exists, in .*give another --name"):
        importing.import_(Path("orders.csv"), client="shop", label="kind", name="digits")
    assert files_of(project) == before


def test_a_refused_study_leaves_nothing(project: Path) -> None:
    """The current study was changed by hand. An earlier import stays as it was."""
    studies.use("first")
    params = Path("params.yaml")
    params.write_text(params.read_text(encoding="utf-8").replace("study: first", "study: mine"), encoding="utf-8")
    before = files_of(project)
    with pytest.raises(fw.BadInput, match=r"params\.yaml: has changes made by hand"):
        importing.import_(Path("orders.csv"), client="shop", label="kind", name="kept")
    assert files_of(project) == before
    assert not Path("imports").exists()


@pytest.mark.parametrize("encoding", ["latin1", "utf-16"])
@pytest.mark.parametrize("separator", [",", ";"])
def test_a_file_in_another_encoding(project: Path, encoding: str, separator: str) -> None:
    """As spreadsheets write it. The written code reads the copy, which has the bytes of the file."""
    table = TABLE.assign(shop=TABLE["shop"].str.replace("shop", "Käufer"), größe=TABLE["size"])
    table.to_csv("orders.csv", index=False, encoding=encoding, sep=separator)
    name = f"encoded_{encoding.replace('-', '')}_{ord(separator)}"  # a process imports a plug-in of a name once
    arguments = {"client": "shop", "label": "kind", "name": name}
    advice = "such as cp1252: `--encoding` of the command"
    with pytest.raises(fw.BadInput, match=rf"^orders\.csv: cannot be read .* {advice}"):
        importing.import_(Path("orders.csv"), **arguments)
    importing.import_(Path("orders.csv"), **arguments, features=["größe"], encoding=encoding, rounds=2, seeds=1)
    assert Path(f"imports/{name}.csv").read_bytes() == Path("orders.csv").read_bytes()
    download.main(name)
    partition.main(name)
    federation = fw.Federation.from_pandas(table, client="shop", label="kind", features=["größe"], name=name)
    assert np.array_equal(load_dataset(f"data/features/{name}").x, federation.dataset.x)
    stored = load_partition(f"data/partitions/{name}/partition.npz")
    assert stored.names == federation.names == ("Käufer 0", "Käufer 1", "Käufer 2")


def test_a_folder_in_another_encoding_and_wrong_encodings(project: Path) -> None:
    """The copy of a folder is a Parquet file, which needs no encoding."""
    Path("depots").mkdir()
    for name, rows in TABLE.assign(kind=TABLE["kind"].str.replace("a", "ä")).groupby("shop"):
        rows.drop(columns="shop").to_csv(f"depots/{name}.csv", index=False, encoding="cp1252")
    arguments = {"client": "shop", "label": "kind", "rounds": 2, "seeds": 1}
    importing.import_(Path("depots"), **arguments, encoding="cp1252")
    download.main("depots")
    assert load_dataset("data/features/depots").class_names == ("b", "ä")
    TABLE.to_parquet("orders.parquet")
    for file, encoding, line in (
        ("orders.csv", "latin-99", "encoding: 'latin-99' is unknown; give one that Python has"),
        ("depots", "hex", "encoding: 'hex' is unknown"),
        ("orders.parquet", "latin1", "encoding: 'latin1' is for CSV and TSV files, and orders.parquet is none"),
    ):
        with pytest.raises(fw.BadInput, match=line):
            importing.import_(Path(file), **arguments, name="other", encoding=encoding)


def test_bad_input_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, and nothing is written."""
    Path("orders.csv").with_name("2 Orders of 2024.csv").write_bytes(Path("orders.csv").read_bytes())
    with pytest.raises(
        fw.BadInput, match=r"^2 Orders of 2024\.csv: its name, '2 orders of 2024', .*--name orders-of-2024$"
    ):
        importing.import_(Path("2 Orders of 2024.csv"), client="shop", label="price")
    with pytest.raises(fw.BadInput, match="--name: 'Or ders' must begin"):
        importing.import_(Path("orders.csv"), client="shop", label="price", name="Or ders")
    with pytest.raises(fw.BadInput, match="no column 'shp'"):
        importing.import_(Path("orders.csv"), client="shp", label="price", name="orders")
    for message, options in (
        ("'ditoo' is unknown; did you mean 'ditto'", {"methods": ["local,ditoo"]}),
        ("metric: 'acuracy' is unknown", {"metric": "acuracy"}),
        ("rounds", {"rounds": 0}),
        ("seeds: 0 must be at least 1", {"seeds": 0}),
    ):
        with pytest.raises(fw.BadInput, match=message):
            importing.import_(Path("orders.csv"), client="shop", label="kind", name="orders", **options)
    Path("studies/orders.yaml").write_text("about: mine\n")
    with pytest.raises(fw.BadInput, match=r"studies/orders\.yaml: is there and says something else"):
        importing.import_(Path("orders.csv"), client="shop", label="price", name="orders")
    assert not Path("imports").exists()
    (project / "empty").mkdir()
    monkeypatch.chdir(project / "empty")
    with pytest.raises(fw.BadInput, match="is not a project"):
        importing.import_(Path("../orders.csv"), client="shop", label="price")
