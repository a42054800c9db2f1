"""Tables: embedded categories, scaling by each client's own rows, predictions of raw rows, and warnings about leaks."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedweave as fw
from fedweave.models import build
from fedweave.prediction import packing

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
CLIENTS = ("Ann", "Bob", "Cy")
QUIET: dict[str, Any] = {"progress": False, "rounds": 3, "seed": 0, "lr": 0.2}


def shops(count: int = 600, items: int = 150) -> pd.DataFrame:
    """Rows whose label is a property of one of many items. Every kind of column has missing values."""
    draws = np.random.default_rng(0)
    item = draws.integers(items, size=count)
    good = draws.integers(2, size=items)[item]
    table = pd.DataFrame(
        {
            "who": [CLIENTS[i % 3] for i in range(count)],
            "item": [f"item {i}" for i in item],
            "price": draws.normal(size=count) + 10.0 * (np.arange(count) % 3),
            "open": draws.integers(2, size=count).astype(bool),
            "late": np.where(good ^ (draws.random(count) < 0.05), "yes", "no"),
        }
    )
    table.loc[::11, "price"] = np.nan
    table.loc[::13, "item"] = None
    return table


def federation(table: pd.DataFrame, **options: Any) -> fw.Federation:
    """Its columns `item`, `price` and `open` predict whether a row is late."""
    return fw.Federation.from_pandas(table, client="who", label="late", **options)


def test_a_column_of_many_values_is_embedded() -> None:
    """The data set declares the codes. 0 is a missing or new value."""
    table = shops()
    made = federation(table)
    item, price, is_open = made.preprocessing.columns
    assert made.dataset.categories == (len(item.levels) + 1, 0, 0)
    train = np.concatenate(made.partition.train)
    assert {*item.levels} == {*table["item"].iloc[train].dropna()}
    codes = made.dataset.x[:, 0, 0, 0]
    np.testing.assert_array_equal(codes[table["item"].isna()], 0)
    for code, name in zip(codes[:50].astype(int), table["item"][:50], strict=True):
        assert code == 0 or item.levels[code - 1] == name
    assert not price.coded
    assert not is_open.coded
    assert "item: category" in str(made.describe())


def test_a_column_is_described_in_one_line_whatever_its_name() -> None:
    """A name with a line break, and one of spaces, are visible."""
    draws = np.random.default_rng(0)
    names = ["two\nlines", " ", "größe (cm)"]
    table = pd.DataFrame({name: draws.normal(size=60) for name in names})
    table = table.assign(who=[*"abc"] * 20, late=np.arange(60) // 3 % 2)
    lines = fw.Federation.from_pandas(table, client="who", label="late").describe().splitlines()
    for name in ("'two\\nlines'", "' '", "größe (cm)"):
        assert len([line for line in lines if line.startswith(f"{name}: number, minus ")]) == 1


def test_embeddings_and_one_column_per_value_learn_the_same(tmp_path: Path) -> None:
    """Both solve the task, in every executor. The model of a folder predicts raw rows with the scores of the run."""
    table = shops(1500, items=40)
    scores = {}
    for embed in (False, True):
        made = federation(table, embed=embed)
        run = fw.fit("fedavg", made, out=tmp_path / str(embed), model="mlp", **{**QUIET, "rounds": 12})
        scores[embed] = run.scores.mean()
        again = fw.load(tmp_path / str(embed))["fedavg"]
        raw = table.drop(columns=["who", "late"])
        for i, name in enumerate(CLIENTS):
            test = made.partition.test[i]
            answers = again.predict(raw.iloc[test], name)
            assert 100 * (answers == table["late"].iloc[test]).mean() == pytest.approx(run.scores[name])
        new = raw.iloc[:2].assign(item=["never seen", None])
        shares = again.predict_proba(new.assign(price=1.0, open=True), "Ann")
        np.testing.assert_allclose(shares.iloc[0], shares.iloc[1], atol=1e-6)
    assert min(scores.values()) > 75  # half of the rows are late, which `item` alone determines
    loop, stacked = (
        fw.fit("ditto", federation(table, embed=True), executor=name, **QUIET).scores for name in ("loop", "batched")
    )
    np.testing.assert_allclose(loop, stacked, atol=0.5)


def test_the_embedding_model_agrees_with_its_description() -> None:
    """Outputs equal those of torch's own layers on the same numbers."""
    torch.manual_seed(0)
    model = build("mlp", (3, 1, 1), 2, categories=(0, 5, 0), hidden=4, embedding=3)
    x = torch.tensor([[0.5, 4.0, -1.0], [0.1, 0.0, 2.0]])[:, :, None, None]
    vectors = torch.cat([x[:, [0, 2], 0, 0], model.embedding1.weight[x[:, 1, 0, 0].long()]], 1)
    expected = torch.relu(vectors @ model.fc1.weight.T + model.fc1.bias) @ model.fc.weight.T + model.fc.bias
    torch.testing.assert_close(model(x), expected)
    assert model.embedding1.weight.shape == (5, 3)
    assert build("mlp", (2,), 2, categories=(2, 0)).embedding0.weight.shape == (2, 2)


def test_models_without_embeddings_are_refused() -> None:
    """A model that reads codes as numbers is refused. One column per value is the way out."""
    made = federation(shops())
    with pytest.raises(fw.BadInput, match=r"'lenet16' has no embeddings.*embed=False"):
        fw.fit("fedavg", made, model="lenet16", progress=False)
    with pytest.raises(fw.BadInput, match=r"150 different values, more than 100; .* or use embed=True"):
        federation(shops(3000), embed=False)


def test_each_client_scales_by_its_own_training_rows(tmp_path: Path) -> None:
    """Means are zero for each client. Rows outside of training change nothing. Predictions use the same scaling."""
    table = shops(items=20)
    made = federation(table, preprocess="client")
    price = made.preprocessing.encode(table, np.array([CLIENTS.index(who) for who in table["who"]]))
    column = sum(c.width for c in made.preprocessing.columns[:1])
    for i in range(3):
        own = price[made.partition.train[i], column]
        np.testing.assert_allclose([own.mean(), own.std()], [0, 1], atol=1e-5)
    np.testing.assert_array_equal(price, made.dataset.x[:, :, 0, 0])
    other = table.copy()
    outside = np.concatenate([*made.partition.test, *made.partition.val])
    other.loc[outside, "price"] = 1e6
    assert federation(other, preprocess="client").preprocessing == made.preprocessing
    run = fw.fit("local", made, out=tmp_path, **QUIET)
    for i, name in enumerate(CLIENTS):
        test = made.partition.test[i]
        answers = fw.load(tmp_path)["local"].predict(table.iloc[test], name)
        assert 100 * (answers == table["late"].iloc[test]).mean() == pytest.approx(run.scores[name])
    assert "each client's own training rows" in run.run.info["note"]
    assert "all clients together" in fw.fit("local", federation(table), **QUIET).run.info["note"]


def test_each_client_may_scale_its_vectors(tmp_path: Path) -> None:
    """normalize='standard_client', in training and in predictions. Shared rows are refused."""
    draws = np.random.default_rng(0)
    client = np.array(CLIENTS * 40)
    x = draws.normal(size=(120, 3)) + 10 * (np.arange(120) % 3)[:, None]
    y = (x[:, 0] - 10 * (np.arange(120) % 3) > 0).astype(int)
    made = fw.Federation.from_arrays(x, y, client=client, normalize="standard_client")
    run = fw.fit("fedavg", made, out=tmp_path, **{**QUIET, "rounds": 20})
    assert run.scores.mean() > 80
    for i, name in enumerate(CLIENTS):
        test = made.partition.test[i]
        answers = fw.load(tmp_path)["fedavg"].predict(x[test], name).astype(int)
        assert 100 * (answers == y[test]).mean() == pytest.approx(run.scores[name])


def test_a_column_that_reveals_the_label_is_reported() -> None:
    """The label under another name, as codes, texts or numbers. A number of each row is named as such, too."""
    table = shops()
    assert federation(table).notes == ()
    late = table["late"] == "yes"
    draws = np.random.default_rng(1)
    leaks = {
        "code": late.map({True: 7, False: 3}),
        "text": late.map({True: "paid", False: "due"}),
        "number": np.where(late, 1, -1) * draws.uniform(0.1, 5, len(table)),
        "row": np.arange(len(table)),
    }
    made = federation(table.assign(**leaks))
    assert [line.split("'")[1] for line in made.notes] == ["code", "text", "number", "row"]
    assert "column 'row' counts the rows" in made.notes[-1]
    assert "alone predicts 100.0 % of the labels" in str(made.describe())
    with pytest.warns(UserWarning, match="column 'code' alone predicts"):
        fw.compare(made, ["local"], rounds=1, seeds=1, progress=False, tune=0)


def test_a_rare_class_alone_is_not_reported_as_a_leak() -> None:
    """The frequent class alone is correct for 99.2 % of the rows, without any column."""
    table = shops(1000).assign(late=np.where(np.arange(1000) % 125, "no", "yes"))
    split = np.where(table["late"] == "yes", "train", np.tile(["train", "val", "test", "train"], 250))
    assert federation(table, features=["open"], split=split).notes == ()


def test_rows_in_both_training_and_test_are_reported() -> None:
    """Each row occurs twice, and the second copy is in another part."""
    table = shops(300).dropna()
    twice = pd.concat([table, table], ignore_index=True)
    made = federation(twice)
    test, train = (
        pd.util.hash_pandas_object(twice.iloc[np.concatenate(getattr(made.partition, part))], index=False)
        for part in ("test", "train")
    )
    assert made.notes[0].startswith(f"{test.isin(train).sum()} of {len(test)} test rows are training rows too")
    few = pd.DataFrame({"who": table["who"], "open": table["open"], "late": table["late"]})
    assert federation(few).notes == ()  # a table of two different rows
    codes = np.random.default_rng(3).integers(0, 20, (2, len(few)))
    many = few.assign(item=codes[0], place=codes[1])
    made = federation(many)
    hashes = pd.util.hash_pandas_object(many.drop(columns="who"), index=False)
    test, train = (hashes.iloc[np.concatenate(getattr(made.partition, part))] for part in ("test", "train"))
    assert test.isin(train).any()
    assert made.notes == ()  # as many equal rows as chance gives


def test_columns_can_be_excluded(tmp_path: Path) -> None:
    """One without any value is refused otherwise. The message says how; a file has the same option."""
    table = shops(300).assign(remarks=np.nan, note="x")
    with pytest.raises(fw.BadInput, match=r"no value in any training row; .* exclude=\['remarks'\] \(--exclude"):
        fw.Federation.from_pandas(table, client="who", label="late")
    made = fw.Federation.from_pandas(table, client="who", label="late", exclude=["remarks", "note"])
    assert made.preprocessing is not None
    names = [column.name for column in made.preprocessing.columns]
    assert names == [name for name in table.columns if name not in ("who", "late", "remarks", "note")]
    table.to_csv(tmp_path / "shops.csv", index=False)
    same = fw.Federation.from_file(tmp_path / "shops.csv", client="who", label="late", exclude=["remarks", "note"])
    assert np.array_equal(same.dataset.x, made.dataset.x)
    np.savez(tmp_path / "shops.npz", x=np.ones((4, 2)), y=np.arange(4) % 2, who=np.arange(4) % 2)
    with pytest.raises(fw.BadInput, match="exclude: is an option of tables, and this file holds arrays"):
        fw.Federation.from_file(tmp_path / "shops.npz", client="who", label="y", exclude=["x"])


REFUSED: dict[str, dict[str, Any]] = {
    "features: ['late'] must name columns other than 'who' and 'late'": {"features": ["late"]},
    "column 'empty' has no value in any training row": {"features": ["empty", "price"]},
    "time: cannot be read as times": {"time": "item"},
    "client 'Ann' has no row in 'test'": {"split": "part"},
    "exclude: ['empty'] and features are both given; give one of them": {"exclude": ["empty"], "features": ["price"]},
    "exclude: no column 'emty'; did you mean 'empty'?": {"exclude": ["emty"]},
    "exclude: forecasts read the label and `features` alone; drop it": {
        "exclude": ["empty"],
        "window": 2,
        "horizon": 1,
        "time": "price",
        "label": "price",
    },
    "features: ['price', 'price'] names a column twice": {"features": ["price", "price"]},
    "column 'late' is missing in 3 rows": {"table": shops().assign(late=lambda t: t["late"].where(t.index > 2))},
    "column 'lists' holds lists": {"features": ["lists"]},
    "labels that no training row has: 'new'": {"split": "third", "label": "odd"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_tables_are_refused(message: str) -> None:
    """One line names the column and the way out."""
    table = shops().assign(
        empty=np.nan,
        part=lambda t: np.where(t["who"] == "Ann", "train", "test"),
        third=lambda t: [("train", "val", "test")[i // 3 % 3] for i in range(len(t))],
        odd=lambda t: t["late"].where(t["third"] != "test", "new"),
        lists=[[1]] * 600,
    )
    arguments = {"client": "who", "label": "late", "val": 0.2, "table": table, **REFUSED[message]}
    with pytest.raises(fw.BadInput, match=re.escape(message)):
        fw.Federation.from_pandas(arguments.pop("table"), **arguments)


def test_the_summary_says_how_sentences_are_read_as_texts() -> None:
    """Few different sentences make a category, as names do."""
    notes = {"note": ["it came very late", "good and fast, thanks"], "shop": ["Ulm", "Bern, second floor"]}
    table = pd.DataFrame({**{name: values * 20 for name, values in notes.items()}, "y": [0, 1] * 20, "who": ["A"] * 40})
    columns = fw.Federation.from_pandas(table, client="who", label="y").describe().splitlines()
    hints = {line.partition(":")[0]: "for the words in them, text=[" in line for line in columns if "category" in line}
    assert hints == {"note": True, "shop": False}


def test_a_prediction_refuses_texts_among_numbers() -> None:
    """The line names the column."""
    made = federation(shops(items=20))
    with pytest.raises(fw.BadInput, match="column 'price' held numbers in training; give numbers"):
        made.preprocessing.encode(shops(items=20).assign(price="cheap"))


def test_stored_codes_are_unchanged(tmp_path: Path) -> None:
    """A stored data set declares the same categories. A data set with other codes is refused."""
    made = federation(shops()).dataset
    fw.data.save_dataset(tmp_path, made)
    assert fw.data.load_dataset(tmp_path).categories == made.categories
    with pytest.raises(fw.BadInput, match="must be a code in 0"):
        fw.data.Dataset("d", "images", made.x, made.y, 2, categories=(3, 0, 0))
    with pytest.raises(fw.BadInput, match="codes of categories, which no scaling fits"):
        fw.data.fit_scaling(made, federation(shops()).partition, "standard")


def test_texts_among_numbers_and_identifiers_are_reported() -> None:
    """A few texts turn a column of numbers into categories. Categories of few codes give no warning."""
    table, draws = shops(), np.random.default_rng(2)
    numbers = pd.Series(draws.normal(size=len(table)).round(2).astype(str))
    rare = np.arange(len(table)) % 20 == 0
    odd = {
        "texts": numbers.mask(rare, "n/a?"),
        "limits": numbers.mask(rare, "<0.5"),
        "comma": numbers.str.replace(".", ","),
        "both": numbers.str.replace(".", ",").mask(rare, "k.A."),
        "codes": [str(i % 9) if i % 20 else "other" for i in range(len(table))],
        "half": [str(i % 50) if i % 2 else f"ward {i % 50}" for i in range(len(table))],
        "gaps": pd.Series(draws.normal(size=len(table))).mask(rare),
        "patient": [f"P{i}" for i in range(len(table))],
    }
    notes = federation(table.assign(**odd)).notes
    assert [note.split("'")[1] for note in notes] == ["texts", "limits", "comma", "both", "patient"]
    assert notes[0].startswith("column 'texts': 95 % of its values are numbers, and it is read as ")
    assert notes[0].endswith(" categories because of 'n/a?' (30 rows); make these empty")
    assert notes[2].endswith("; write a point in place of the comma")
    assert notes[3].endswith(
        " categories because of 'k.A.' (30 rows); make these empty, and write a point in place of the comma"
    )
    assert "'patient' has 360 different values in 360 training rows" in notes[4]


def test_the_example_of_a_table_has_the_types_of_its_columns() -> None:
    """MLflow reads the types of a served model's inputs from it."""
    table = shops().assign(note="a word")
    made = federation(table, features=["item", "price", "note"], text=["note"])
    assert made.preprocessing is not None
    row = packing._typical_row(made.preprocessing)
    assert [type(row[name][0]) for name in ("item", "price", "note")] == [str, np.float64, str]


def test_names_that_differ_only_in_spelling_are_reported() -> None:
    """Spaces, capitals, and accents in two encodings, of clients and of classes."""
    table = shops()
    cases = {"'Ann' and 'Ann '": "Ann ", "'ANN' and 'Ann'": "ANN"}
    for names, other in cases.items():
        who = table["who"].where((table["who"] != "Ann") | (table.index % 2 == 0), other)
        assert federation(table.assign(who=who)).notes == (
            f"clients {names} differ only in spelling; write them the same way if they are one",
        )
    accents = table.assign(who=table["who"].replace({"Bob": "Zo\u00eb", "Cy": "Zoe\u0308"}))
    assert r"clients 'Zoe\u0308' and 'Zo\xeb' differ" in federation(accents).notes[0]
    late = table["late"].where(table.index % 4 > 0, table["late"].str.title())
    notes = federation(table.assign(late=late)).notes
    assert notes[0].startswith("classes 'No' and 'no' differ only in spelling (and 1 more group of names); ")


def test_unknown_options_are_refused_before_the_file_is_read() -> None:
    """The line names the most similar option, in every call with options."""
    named: dict[str, Any] = {"client": "who", "label": "late", "windw": 3}
    calls: dict[str, Any] = {
        "table": lambda: fw.Federation.from_pandas(shops(), **named),
        "file": lambda: fw.Federation.from_file("missing.csv", **named),
        "graphs": lambda: fw.Federation.from_graphs([], windw=3),
    }
    for call in calls.values():
        with pytest.raises(fw.BadInput, match="options: 'windw' is unknown; did you mean 'window'"):
            call()
    with pytest.raises(fw.BadInput, match=r"table: has no rows"):
        federation(shops().iloc[:0])


@pytest.mark.parametrize("scaling", ["none", "standard", "unit"])
def test_a_scaling_of_arrays_is_refused_for_a_table(scaling: str) -> None:
    """It would scale the columns a second time, including those of categories. Forecasts accept it."""
    table = shops()
    with pytest.raises(fw.BadInput, match=f"^normalize: '{scaling}' does not fit the columns of a table, .*preprocess"):
        federation(table, normalize=scaling)
    with pytest.raises(fw.BadInput, match=r"normalize: .* or texts"):
        fw.Federation.from_arrays([*map(str, table["item"])], table["late"], client=table["who"], normalize=scaling)
    steps = table.dropna().assign(step=range(len(table.dropna())))
    made = fw.Federation.from_pandas(
        steps, client="who", label="price", time="step", window=3, horizon=1, normalize=scaling
    )
    assert made.normalize == scaling
