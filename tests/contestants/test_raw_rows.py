"""Raw rows: texts, categories and missing values as the user gave them, beside the inputs that methods get."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import fedweave as fw
from fedweave import data
from fedweave.contestants import exchange
from fedweave.contestants.exchange import write_task
from fedweave.data.raw_rows import find_raw
from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.runs.inputs import load_inputs

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
ROWS = 120
WORDS = ("fast", "broken", "late", "good")


@pytest.fixture(scope="module")
def table():
    draws = np.random.default_rng(0)
    words = draws.integers(0, 4, (ROWS, 3))
    table = pd.DataFrame(
        {
            "shop": ["Ulm", "Bern", "Bonn"] * (ROWS // 3),
            "age": draws.normal(40, 9, ROWS),
            "town": draws.choice(["here", "there, or\nnear"], ROWS),
            "note": [" ".join(WORDS[i] for i in row) + "!" for row in words],
            "day": range(ROWS),
            "liked": np.where((words % 3 == 0).sum(1) + draws.normal(size=ROWS) > 1.5, "yes", "no"),
        }
    )
    table.loc[::7, "age"], table.loc[::9, "town"], table.loc[::11, "note"] = np.nan, None, None
    return table


@pytest.fixture(scope="module")
def federation(table):
    features = ["age", "town", "note"]
    return fw.Federation.from_pandas(table, client="shop", label="liked", features=features, text=["note"], time="day")


def catch(federation, **options):
    """The task that a function gets."""
    caught = []

    def keep(task):
        caught.append(task)
        raise KeyError("enough")

    with pytest.raises(RuntimeError, match="keep: it ended with KeyError"):
        fw.fit(fw.contestants.function(keep), federation, rounds=1, progress=False, **options)
    return caught[0]


def of_client(federation, table, name, part):
    return table.iloc[getattr(federation.partition, part)[federation.names.index(name)]].reset_index(drop=True)


def test_rows_are_those_of_the_user_without_the_label(federation, table):
    task = catch(federation)
    kinds = [(column["name"], column["kind"]) for column in task.columns]
    assert kinds == [("age", "number"), ("town", "category"), ("note", "text")]
    assert task.columns[1]["values"] == ["here", "there, or\nnear"]
    for client in task.clients:
        for part in ("train", "val", "test"):
            own, raw = of_client(federation, table, client.name, part), getattr(client, f"{part}_raw")
            assert len(raw) == len(getattr(client, f"{part}_x"))
            assert [*raw] == ["age", "town", "note"]
            assert raw["age"].equals(own["age"])
            assert raw["town"].isna().tolist() == own["town"].isna().tolist()
            assert raw["town"].dropna().tolist() == own["town"].dropna().tolist()
            assert raw["note"].tolist() == own["note"].fillna("").tolist()


def test_a_program_gets_them_as_parquet_and_csv(federation, tmp_path: Path):
    task = catch(federation)
    write_task(task, tmp_path / "task")
    about = json.loads((tmp_path / "task" / "task.json").read_text(encoding="utf-8"))
    assert about["version"] == 2
    assert about["columns"] == [*task.columns]
    for i, client in enumerate(task.clients):
        for part in ("train", "val", "test"):
            file = tmp_path / "task" / "clients" / str(i) / f"{part}-raw"
            raw = getattr(client, f"{part}_raw")
            assert pd.read_parquet(file.with_suffix(".parquet")).equals(raw)
            text = pd.read_csv(file.with_suffix(".csv"), float_precision="round_trip").fillna({"note": ""})
            pd.testing.assert_frame_equal(text, raw, check_exact=True)


def test_of_a_large_task_a_program_gets_parquet_alone(federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exchange, "MOST_CELLS", 10)
    write_task(catch(federation), tmp_path / "task")
    assert [*tmp_path.rglob("*-raw.parquet")]
    assert not [*tmp_path.rglob("client*/**/*.csv")]


def test_a_column_has_a_name():
    with pytest.raises(BadInput, match="raw: '' is neither a bool nor the name of a column"):
        fw.contestants.estimator(LogisticRegression(), raw="")


def test_rows_of_numbers_have_none(tmp_path: Path):
    federation = fw.Federation.from_arrays(np.arange(60.0).reshape(30, 2), np.arange(30) % 2, client=["a", "b"] * 15)
    task = catch(federation)
    assert task.columns == ()
    assert task.clients[0].test_raw is None
    write_task(task, tmp_path / "task")
    assert not [*tmp_path.rglob("*raw*")]


def compare(federation, *contestants, **options):
    options = {"rounds": 1, "seeds": 1, "tune": 0, "central": False, "progress": False, **options}
    return fw.compare(federation, ["local", *contestants], **options)


def test_pipelines_give_what_they_give_by_hand(federation, table):
    """The same pipeline on the same rows, without fedweave."""
    columns = make_column_transformer(
        (SimpleImputer(), ["age"]), (OneHotEncoder(handle_unknown="ignore"), ["town"]), (TfidfVectorizer(), "note")
    )
    mixed, words = (make_pipeline(first, LogisticRegression(C=9)) for first in (columns, TfidfVectorizer()))
    estimator = fw.contestants.estimator
    named = estimator(mixed, raw=True, name="mixed"), estimator(words, "pooled", raw="note", name="words")
    result = compare(federation, *named, metric="log_loss")
    parts = {
        part: [of_client(federation, table, name, part).fillna({"note": ""}) for name in federation.names]
        for part in ("train", "test")
    }
    every = pd.concat(parts["train"])
    for i, (train, test) in enumerate(zip(parts["train"], parts["test"], strict=True)):
        for name, model, rows in (("mixed", mixed, train), ("words", words, every)):
            select = (lambda one: one) if name == "mixed" else (lambda one: one["note"])
            p = model.fit(select(rows), rows["liked"]).predict_proba(select(test))
            loss = -np.log(p[np.arange(len(test)), (test["liked"] == "yes").astype(int)]).mean()
            scores = result[name].select_scores()["value"].tolist()
            assert scores[i] == pytest.approx(loss, rel=1e-5)
    assert any("prepares the raw rows itself" in line for line in result.warnings)


def test_numbers_to_predict_of_raw_rows_are_in_their_own_unit(table):
    """A logarithm of them, and a count, are those of the label; also where each client is scaled by its own rows."""
    draws = np.random.default_rng(0)
    rows = table.assign(age=table["age"].fillna(40), gifts=draws.poisson(3, ROWS) * 1.0)
    rows["cost"] = np.exp(rows["age"] / 9 + draws.normal(size=ROWS))
    log = TransformedTargetRegressor(LinearRegression(), func=np.log, inverse_func=np.exp)
    estimator, names = fw.contestants.estimator, {"client": "shop", "features": ["age"], "time": "day"}
    for label, model, scope in (("cost", log, "pooled"), ("gifts", PoissonRegressor(), "client")):
        federation = fw.Federation.from_pandas(rows, label=label, target="numbers", preprocess="client", **names)
        mine = estimator(model, scope, raw=True, name=label)
        scaled = estimator(model, name=f"scaled-{label}")
        result = compare(federation, mine, scaled, metric="mae")
        parts = {
            part: [of_client(federation, rows, name, part) for name in federation.names] for part in ("train", "test")
        }
        for i, (train, test) in enumerate(zip(parts["train"], parts["test"], strict=True)):
            train = pd.concat(parts["train"]) if scope == "pooled" else train
            expected = abs(model.fit(train[["age"]], train[label]).predict(test[["age"]]) - test[label]).mean()
            assert result[label].select_scores()["value"].tolist()[i] == pytest.approx(expected, rel=1e-4)
        [line] = [line for line in result.warnings if line.startswith(f"scaled-{label}: ")]
        assert line.endswith("; numbers to predict are scaled here, with raw=True they are in their own unit")


def test_a_list_of_texts_has_one_column():
    texts = ["good and fast", "late and broken", "fast, thank you"] * 20
    federation = fw.Federation.from_arrays(texts, ["yes", "no", "yes"] * 20, client=["Ulm", "Bern"] * 30)
    task = catch(federation)
    assert {*task.clients[0].train_raw["text"]} == {*texts}
    message = "wrong: raw: 'review' is not in these rows: their raw columns are text"
    with pytest.raises(BadInput, match=message):  # before any method has trained
        fw.compare(federation, ["local", fw.contestants.estimator(LogisticRegression(), raw="review", name="wrong")])


def test_a_missing_text_of_a_data_set_is_empty():
    """A function that makes a data set gives the table as it is; a missing number and a missing category stay."""
    raw = pd.DataFrame({"age": [1.0, np.nan] * 9, "note": ["late", None, "fast"] * 6, "town": ["here", None] * 9})
    levels = ({"name": "town", "kind": "category", "levels": ["here"]},)
    x, owner = np.zeros((18, 1, 1, 1), np.float32), np.zeros(18, np.int64)
    dataset = data.Dataset("own", "images", x, np.arange(18) % 2, 2, owner=owner, columns=levels, raw=raw)
    every = (np.arange(18),)
    rows = find_raw(dataset, data.Partition(every, every, every))
    assert rows is not None
    table = rows.take(0, np.arange(18))
    assert table["note"].tolist() == ["late", "", "fast"] * 6
    assert table[["age", "town"]].isna().sum().tolist() == [9, 9]
    assert raw["note"].isna().sum() == 6


def test_every_part_of_a_pipeline_is_drawn_by_the_seed(federation):
    """A forest inside of a pipeline would draw anew in each process."""
    pipeline = make_pipeline(TfidfVectorizer(), RandomForestClassifier(3))
    one, two = (
        compare(federation, fw.contestants.estimator(pipeline, raw="note", name="forest"), seeds=3, metric="log_loss")
        for _ in range(2)
    )
    scores = one["forest"].select_scores()
    assert scores["value"].tolist() == two["forest"].select_scores()["value"].tolist()
    assert scores.groupby("seed")["value"].mean().nunique() == 3


def test_they_are_stored_with_the_data_set_and_are_part_of_its_digest(federation, table, tmp_path: Path):
    data.save_dataset(tmp_path, federation.dataset)
    again = data.load_dataset(tmp_path)
    assert again.raw.equals(federation.dataset.raw)
    data.save_dataset(tmp_path, fw.data.Dataset("d", "images", np.zeros((2, 1, 1, 1)), np.arange(2), 2))
    assert data.load_dataset(tmp_path).raw is None
    louder = table.assign(note=table["note"].str.upper())  # the counts of words stay
    other = fw.Federation.from_pandas(
        louder, client="shop", label="liked", features=["age", "town", "note"], text=["note"], time="day"
    )
    assert np.array_equal(other.dataset.x, federation.dataset.x)
    assert other.partition_block["content"] != federation.partition_block["content"]


def test_runs_of_methods_leave_the_file_unread(federation, tmp_path: Path):
    """It can be large, and methods have no use for it."""
    contestant = fw.contestants.function(lambda task: [], name="reader")
    METHODS["reader"] = contestant
    data.save_dataset(tmp_path / "features/shops", federation.dataset)
    data.save_partition(tmp_path / "partitions/shops/partition.npz", federation.partition)
    task = SimpleNamespace(dataset="shops")
    read = {
        name: load_inputs(SimpleNamespace(task=task, name="shops", method=name), tmp_path)[0].raw is not None
        for name in ("local", "reader")
    }
    assert read == {"local": False, "reader": True}


def test_nodes_of_a_graph_have_them():
    nodes = pd.DataFrame(
        {
            "node": [f"n{i}" for i in range(60)],
            "client": ["a", "b", "c"] * 20,
            "age": [float(i) for i in range(60)],
            "label": ["x", "y"] * 30,
        }
    )
    edges = pd.DataFrame({"from": nodes["node"][:-3], "to": nodes["node"][3:].to_numpy()})
    task = catch(fw.Federation.from_graphs(nodes, edges))
    for client in task.clients:
        for part in ("train", "val", "test"):
            raw, x = getattr(client, f"{part}_raw")["age"], getattr(client, f"{part}_x")[:, 0]
            assert np.corrcoef(raw, x)[0, 1] == pytest.approx(1, abs=1e-5)
            assert all((raw - raw[0]) % 3 == 0)  # of the same client
