"""The command `predict` of a node: the answers of the simulation, without its files, and errors in one line."""

import numpy as np
import pandas as pd
import pytest
from hosts import Hosts, planned

import fedweave as fw
from fedweave.deployment.__main__ import main
from fedweave.errors import BadInput


def table(count: int, seed: int) -> pd.DataFrame:
    draws = np.random.default_rng(seed)
    hour = draws.integers(24, size=count).astype(float)
    shops, kinds = np.resize(["A", "B", "C"], count), draws.choice(["x", "y"], count)
    sales, late = hour / 3 + draws.normal(size=count), np.where(hour > 12, "yes", "no")
    return pd.DataFrame({"shop": shops, "hour": hour, "kind": kinds, "late": late, "sales": sales})


def shops(label: str) -> fw.Federation:
    data = table(90, 0).drop(columns="sales" if label == "late" else "late")
    return fw.Federation.from_pandas(data, client="shop", label=label, name="shops")


@pytest.fixture
def hosts(tmp_path):
    """A federation that predicts classes and has not begun."""
    return Hosts(tmp_path, planned("fedavg", shops("late")))


@pytest.fixture
def predict(tmp_path):
    """Runs `predict` on the node of client 1; returns its exit code."""
    node = ["--app", f"{tmp_path}/app", "--data", f"{tmp_path}/data/client-1.pt", "--state", f"{tmp_path}/nodes/1"]
    return lambda name, *options: main(["predict", f"{tmp_path}/{name}", *node, *options])


@pytest.mark.parametrize(
    ("method", "label"),
    [("fedavg_ft", "late"), ("fedavg_ft", "sales"), ("fedrep", "late"), ("fedrep", "sales"), ("knn_per", "late")],
)
def test_a_node_predicts_what_the_simulation_predicts(method, label, tmp_path, predict):
    """`fw.compare` trains the same run with the same seed; new rows have a missing value and no label."""
    new, federation = table(12, 1).drop(columns=["late", "sales"]), shops(label)
    new.loc[2, "hour"] = np.nan
    Hosts(tmp_path, planned(method, federation)).run()
    new.to_csv(tmp_path / "new.csv", index=False)
    assert not predict("new.csv", "--out", f"{tmp_path}/out.csv")
    answer = pd.read_csv(tmp_path / "out.csv")
    same = fw.compare(federation, [method], rounds=2, lr=0.1, seeds=[3], executor="loop")[method]
    features = new.drop(columns="shop")
    if label == "sales":
        np.testing.assert_allclose(answer["prediction"], same.predict(features, "B", refit=False), rtol=1e-4)
        return
    assert [*answer["prediction"]] == [*same.predict(features, "B", refit=False)]
    np.testing.assert_allclose(
        answer[["no", "yes"]], same.predict_proba(features, "B", refit=False), rtol=1e-4, atol=1e-6
    )


def test_wrong_input_is_one_line(hosts, tmp_path, capsys, predict):
    table(6, 1).to_csv(tmp_path / "new.csv", index=False)
    table(6, 1).drop(columns="hour").to_csv(tmp_path / "less.csv", index=False)
    assert predict("new.csv") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("model.pt: no model yet; the node keeps it when the federation has ended")
    hosts.run()
    assert predict("less.csv") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no column 'hour'" in line


def test_new_rows_in_another_encoding(hosts, tmp_path, capsys, predict):
    """The answers are those for the same rows in UTF-8."""
    hosts.run()
    new = table(6, 1).assign(note="süß")
    answers = []
    for encoding, option in (("utf-8", []), ("utf-16", ["--encoding", "utf-16"])):
        new.to_csv(tmp_path / "new.csv", index=False, encoding=encoding)
        assert not predict("new.csv", *option)
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
    assert answers[0].count("\n") == len(new) + 1
    assert predict("new.csv") == 2
    assert "`--encoding` of the command" in capsys.readouterr().err


def test_results_of_a_federation_say_where_the_models_are(hosts, tmp_path):
    hosts.run()
    (run,) = (tmp_path / "server").rglob("run.json")
    comparison = fw.load(run.parents[2])
    with pytest.raises(BadInput, match=r"models stay on the nodes; predict there: python -m fedweave\.dep"):
        comparison["fedavg"].predict(table(3, 1), "A")
