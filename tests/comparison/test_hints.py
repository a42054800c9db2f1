"""Messages of the Python API that name what a newcomer has meant."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedweave as fw

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
DRAWS = np.random.default_rng(0)
X = DRAWS.normal(size=(1200, 2))
CLIENT = np.repeat(["a", "b", "c"], 400)
TWO_CLASSES = fw.Federation.from_arrays(X, np.arange(1200) % 2, client=CLIENT)


@pytest.mark.parametrize("name", ["", " "])
def test_a_client_without_a_name_is_refused(name: str) -> None:
    """In arrays with one entry per row, in arrays of each client, and in graphs. In tables it is a missing name."""
    owner = np.where(CLIENT == "a", name, CLIENT)
    labels = np.arange(1200) % 2
    nodes = (X[:12], np.stack([np.arange(12), (np.arange(12) + 1) % 12]), labels[:12])
    calls = (
        lambda: fw.Federation.from_arrays(X, labels, client=owner),
        lambda: fw.Federation.from_arrays({name: X[:40], "b": X[40:80]}, {name: labels[:40], "b": labels[40:80]}),
        lambda: fw.Federation.from_graphs({name: nodes, "b": nodes}),
        lambda: fw.Federation.from_arrays(None, X[:, 0], client=owner, time=np.arange(1200), window=3, horizon=1),
    )
    for call in calls:
        with pytest.raises(fw.BadInput, match=rf"client: '{name}' is not a name of a client; .* \(the others: b"):
            call()
    table = pd.DataFrame({"x": X[:, 0], "y": labels, "c": owner})
    with pytest.raises(fw.BadInput, match="column 'c' is missing in 400 rows; drop them first"):
        fw.Federation.from_pandas(table, client="c", label="y")


def test_pairs_with_more_columns_are_refused(tmp_path: Path) -> None:
    """The third column, such as a weight, would have no effect."""
    pairs = pd.DataFrame({"from": ["a", "b"], "to": ["b", "c"], "weight": [0.5, 2.0]})
    pairs.to_csv(tmp_path / "pairs.csv", index=False)
    labels = np.arange(1200) % 2
    for relation in (pairs, tmp_path / "pairs.csv"):
        with pytest.raises(fw.BadInput, match="relation: has the columns from, to, weight, and pairs have no weights"):
            fw.Federation.from_arrays(X, labels, client=CLIENT, relation=relation)
    nodes = pd.DataFrame({"node": range(30), "client": CLIENT[::40], "label": [0, 1] * 15, "x": X[:30, 0]})
    edges = pd.DataFrame({"source": range(9), "target": range(1, 10), "weight": 1.0})
    with pytest.raises(fw.BadInput, match="edges: has the columns source, target, weight"):
        fw.Federation.from_graphs(nodes, edges)
    made = fw.Federation.from_arrays(X, labels, client=CLIENT, relation=pairs[["from", "to"]])
    assert made.partition.relation is not None


def test_many_whole_numbers_may_be_meant_as_numbers() -> None:
    """The warning and the refusal name the option; a kind that is given needs no warning."""
    amounts = np.arange(1200) % 30
    (line,) = fw.Federation.from_arrays(X, amounts, client=CLIENT).notes
    assert line.startswith("the label has 30 different whole numbers, which are taken as classes;")
    assert "target='numbers'" in line
    assert "target='classes'" in line
    for target in ("classes", "numbers"):
        assert not fw.Federation.from_arrays(X, amounts, client=CLIENT, target=target).notes
    assert not fw.Federation.from_arrays(X, amounts % 20, client=CLIENT).notes
    assert not fw.Federation.from_arrays(X, [f"class {i}" for i in amounts], client=CLIENT).notes
    split = np.resize(["train", "val", "test"], 1200)
    rare = np.where(split == "test", 31, amounts)
    with pytest.raises(fw.BadInput, match=r"no training row has: '31'; .*; if the label is a number to predict, give"):
        fw.Federation.from_arrays(X, rare, client=CLIENT, split=split)
    with pytest.raises(fw.BadInput, match=r"no training row has: 'n31'; .* or leave their rows out$"):
        fw.Federation.from_arrays(X, [f"n{i}" for i in rare], client=CLIENT, split=split)


def test_a_class_that_may_mark_rows_without_a_label_is_named() -> None:
    """-1 as scikit-learn has it, -100 as PyTorch; not the classes -1 and 1, and not one that is meant."""
    classes = np.arange(1200) % 3
    for mark in (-1, -100):
        marked = np.where(classes == 2, mark, classes)
        (line,) = fw.Federation.from_arrays(X, marked, client=CLIENT).notes
        assert line.startswith(f"the label has the class {mark} beside 0 and 1; if it marks rows without a label, drop")
        assert not fw.Federation.from_arrays(X, marked, client=CLIENT, target="classes").notes
    for labels in (2 * (classes > 1) - 1, classes, classes - 2):
        assert not fw.Federation.from_arrays(X, labels, client=CLIENT).notes


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (fw.compare, {"loss": "mse"}, r"^compare\(\): loss: is not a setting: the label decides it, cross-entropy for"),
        (fw.compare, {"seed": 3}, r"^compare\(\): seed: is the argument of fit\(\), .* seeds=3 for three repetitions"),
        (fw.compare, {"trials": 5}, r"^compare\(\): trials: is not a setting: tune=10 searches .* with 10 trials"),
        (fw.recommend, {"trials": 5}, r"^recommend\(\): trials: is not a setting: settings=10 races 10 settings"),
        (fw.recommend, {"seed": 3}, r"^recommend\(\): seed: .* seeds=3 for three repetitions"),
    ],
)
def test_an_argument_with_another_place_is_explained(call: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(fw.BadInput, match=message):
        call(TWO_CLASSES, ["local"], **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seeds": 2}, r"^fit\(\): seeds: fit\(\) trains once and has seed=0; fw\.compare\(.*seeds=3\) has repe"),
        ({"tune": 5}, r"^fit\(\): tune: fit\(\) has no search; fw\.compare\(federation, \[method\], tune=10\) has one"),
        ({"trials": 5}, r"^fit\(\): trials: fit\(\) has no search; fw\.compare\(federation, \[method\], tune=10\)"),
        ({"loss": 5}, r"^fit\(\): loss: is not a setting"),
        ({"join_ratio": 0.1}, "did you mean 'participation'"),
        ({"local_epochs": 2}, "did you mean 'epochs'"),
        ({"global_epoch": 2}, "did you mean 'rounds'"),
        ({"stepz": 5}, r"^fit\(\): stepz: not a setting of train: 'stepz' is unknown; did you mean 'steps'"),
    ],
)
def test_fit_says_what_compare_has(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(fw.BadInput, match=message):
        fw.fit("local", TWO_CLASSES, **arguments)


def test_the_number_of_clients_is_suggested() -> None:
    with pytest.raises(fw.BadInput, match=r"^partition: 'client' is unknown; did you mean 'clients'"):
        fw.Federation.from_dataset("digits", "iid", client=5)
