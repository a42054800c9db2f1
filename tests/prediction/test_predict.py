"""Predictions for raw rows, by the client's name, have the scores of the run."""

import re
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedweave as fw
from fedweave import exported_model
from tests import trained

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
CLIENTS = ("Ann", "Bob", "Cy")
QUIET: dict[str, Any] = {"progress": False, "rounds": 2, "seed": 0}
OWNER = np.array(CLIENTS * 30)


def blobs(shape: tuple[int, ...] = (4,)) -> tuple[np.ndarray, np.ndarray]:
    """Rows far from zero in two classes, so that scaling changes the predictions."""
    draws = np.random.default_rng(0)
    y = np.array(["no", "yes"])[draws.integers(2, size=len(OWNER))]
    offset = (y == "yes").astype(float).reshape(-1, *[1] * len(shape))
    return 50 + 20 * (draws.normal(size=(len(OWNER), *shape)) + 1.5 * offset), y


def compute_accuracy(
    result: fw.MethodResult, rows: Any, y: np.ndarray, federation: fw.Federation, client: str
) -> float:
    """The accuracy of the predictions on a client's test rows, in percent."""
    test = federation.partition.test[CLIENTS.index(client)]
    answers = result.predict(rows.iloc[test] if hasattr(rows, "iloc") else rows[test], client)
    return 100.0 * float((answers == y[test]).mean())


@pytest.mark.parametrize("method", ["local", "fedrod", "knn_per"])
@pytest.mark.parametrize("shape", [(4,), (3, 5), (1, 8, 8)])
def test_raw_rows_have_the_scores_of_the_run(shape: tuple[int, ...], method: str, tmp_path: Path) -> None:
    """Vectors, windows and images, scaled by training rows. A folder gives the same."""
    x, y = blobs(shape)
    federation = fw.Federation.from_arrays(x, y, client=OWNER, normalize="standard")
    result = fw.fit(method, federation, model="mlp", lr=0.2, **QUIET)
    again = fw.load(result.save(tmp_path / "out"))[method]
    for client in CLIENTS:
        expected = result.scores[client]
        assert compute_accuracy(result, x, y, federation, client) == pytest.approx(expected)
        assert compute_accuracy(again, x, y, federation, client) == pytest.approx(expected)
        shares = again.predict_proba(x[:5], client)
        assert [*shares.columns] == ["no", "yes"]
        np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-5)


def test_a_table_is_encoded_as_in_training(tmp_path: Path) -> None:
    """Numbers, categories and missing values. The columns of the label and the client may be missing."""
    x, y = blobs((1,))
    table = pd.DataFrame({"size": x[:, 0], "kind": np.array(["a", "b", None] * 30, dtype=object)})
    table.loc[::7, "size"] = np.nan
    federation = fw.Federation.from_pandas(table.assign(who=OWNER, late=y), client="who", label="late")
    result = fw.fit("ditto", federation, out=tmp_path, lr=0.2, **QUIET)
    for client in CLIENTS:
        assert compute_accuracy(fw.load(tmp_path)["ditto"], table, y, federation, client) == pytest.approx(
            result.scores[client]
        )
    with pytest.raises(fw.BadInput, match="give a pandas table with the columns of the training's"):
        result.predict(x, "Ann")
    with pytest.raises(fw.BadInput, match="no column 'kind'"):
        result.predict(table[["size"]], "Ann")
    with pytest.raises(fw.BadInput, match="no column 'kind'; it has size, ' kind'"):
        result.predict(table.rename(columns={"kind": " kind"}), "Ann")


def test_columns_may_have_whole_numbers_as_names(tmp_path: Path) -> None:
    """As those of an array as a table; in a file they are texts."""
    x, y = blobs((2,))
    table = pd.DataFrame(x)
    federation = fw.Federation.from_pandas(table.assign(who=OWNER, late=y), client="who", label="late")
    assert "\n0: number, minus " in str(federation.describe())
    result = fw.fit("fedavg", federation, **QUIET)
    model = exported_model.load(result.export(tmp_path / "Ann", "Ann"))
    expected = result.predict_proba(table, "Ann").to_numpy()
    for names in (int, str):
        for predict in (lambda rows: result.predict_proba(rows, "Ann"), model.predict_proba):
            np.testing.assert_allclose(predict(table.rename(columns=names)).to_numpy(), expected, atol=1e-5)


class Net(nn.Module):
    """A user's model, whose outputs change if its dropout layer is active."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5))
        self.fc = nn.Linear(6, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x))


class Linear(Net):
    """Another user's model."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body[0](x))


def make(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The arguments of `fit` and `predict`."""
    return Net(*shape, outputs)


def test_a_users_model_predicts(tmp_path: Path) -> None:
    """After `fit` it is available. After `load` the user must give it, and it must be the trained one."""
    x, y = blobs()
    federation = fw.Federation.from_arrays(x, y, client=OWNER, normalize="standard")
    result = fw.fit("fedavg_ft", federation, model=make, out=tmp_path, lr=0.1, **QUIET)
    loaded = fw.load(tmp_path)["fedavg_ft"]
    assert compute_accuracy(result, x, y, federation, "Bob") == pytest.approx(result.scores["Bob"])
    np.testing.assert_array_equal(loaded.predict(x, "Bob", model=make), result.predict(x, "Bob"))
    with pytest.raises(fw.BadInput, match=r"the model 'make' is your own; pass the function that makes it: model="):
        loaded.predict(x, "Bob")
    with pytest.raises(fw.BadInput, match="is not the one that was trained"):
        loaded.predict(x, "Bob", model=Linear(4, 2))


def test_a_module_in_place_of_a_function_is_known_by_its_values(tmp_path: Path) -> None:
    """In another process it has others. The message says what to give."""
    x, y = blobs()
    federation = fw.Federation.from_arrays(x, y, client=OWNER, normalize="standard")
    module = Net(4, 2)
    expected = fw.fit("fedavg", federation, model=module, out=tmp_path, lr=0.1, **QUIET).predict(x, "Bob")
    loaded = fw.load(tmp_path)["fedavg"]
    np.testing.assert_array_equal(loaded.predict(x, "Bob", model=module), expected)
    with pytest.raises(fw.BadInput, match=r"not the one .* give the function or class that made it, .* model=Net$"):
        loaded.predict(x, "Bob", model=Net(4, 2))


def test_graphs_give_predictions_for_all_nodes(tmp_path: Path) -> None:
    """The nodes are those of the client's own graph."""
    draws = np.random.default_rng(1)
    graphs = {
        name: (draws.normal(size=(20, 3)), draws.integers(20, size=(2, 40)), np.arange(20) % 2) for name in ("u", "v")
    }
    federation = fw.Federation.from_graphs(graphs)
    fw.fit("fedavg_ft", federation, out=tmp_path, **QUIET)
    result = fw.load(tmp_path)["fedavg_ft"]
    for i, (name, (x, _, y)) in enumerate(graphs.items()):
        right = (result.predict(x, name) == y)[federation.partition.test[i]].mean()
        assert 100 * right == pytest.approx(result.scores[name])
    with pytest.raises(fw.BadInput, match="x: 5 rows, but the client's graph has 20 nodes"):
        result.predict(graphs["u"][0][:5], "u")
    with pytest.raises(fw.BadInput, match="x: cannot be read as rows of numbers"):
        result.predict([["a", "b", "c"]] * 20, "u")


def make_nodes() -> tuple[fw.Federation, pd.DataFrame]:
    """A federation of nodes called 01, 02, ... and the nodes of its client "u"."""
    draws = np.random.default_rng(0)
    nodes = pd.DataFrame({"node": [f"{i:02d}" for i in range(40)], "client": ["u", "v"] * 20})
    nodes["size"] = 50 + 20 * draws.normal(size=40)
    nodes["label"] = (nodes["size"] > 50).astype(int)
    edges = nodes["node"].to_numpy()[draws.integers(40, size=(60, 2))].tolist()
    return fw.Federation.from_graphs(nodes, edges), nodes.query("client == 'u'")


def test_nodes_of_a_table_keep_their_order(tmp_path: Path) -> None:
    """Nodes in another order would get the edges of others."""
    federation, own = make_nodes()
    result = fw.fit("fedavg", federation, out=tmp_path / "out", **QUIET)
    for predict in (
        lambda rows: result.predict_proba(rows, "u"),
        lambda rows: fw.load(tmp_path / "out")["fedavg"].predict_proba(rows, "u"),
        exported_model.load(result.export(tmp_path / "u", "u")).predict_proba,
    ):
        expected = predict(own.drop(columns="node"))
        pd.testing.assert_frame_equal(predict(own), expected)
        with pytest.raises(ValueError, match="table: row 0 is node '38', and in training it was '00'; give all nodes"):
            predict(own[::-1])
        with pytest.raises(ValueError, match="x: 5 rows, but the client's graph has 20 nodes"):
            predict(own[:5])


def test_an_array_of_nodes_is_not_taken_for_encoded_ones() -> None:
    """The columns of a table are scaled in training; an array has no columns."""
    federation, own = make_nodes()
    result = fw.fit("fedavg", federation, **QUIET)
    with pytest.raises(fw.BadInput, match="give a pandas table with the columns of the training's"):
        result.predict(own[["size"]].to_numpy(), "u")


def test_series_of_a_project_have_forecasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For results of the stages, the scaling comes from the arrays in `data`. Forecasts have the unit of the series."""
    monkeypatch.chdir(tmp_path)
    folder, whole, partition = (
        trained.train("series", {"fedavg": {}}),
        trained.dataset("series"),
        trained.partition("series"),
    )
    result = fw.load(folder)["fedavg"]
    expected = result.select_scores().query("seed == 0").set_index("client")["value"]
    for i, name in enumerate(result.clients):
        steps = (partition.test[i] % whole.x.shape[1])[:, None] + np.arange(7)
        error = result.predict(np.stack([whole.x[i, steps], whole.time[steps]], -1), name) - whole.x[i, steps[:, 4:]]
        assert np.square(error).mean() == pytest.approx(expected[name], rel=1e-4)
    with pytest.raises(fw.BadInput, match="predict numbers, not classes; use predict"):
        result.predict_proba(np.zeros((1, 7, 2)), name)
    with pytest.raises(fw.BadInput, match=r"x: shape \[1, 7\], but the model reads \[M, 7, 2\]"):
        result.predict(np.zeros((1, 7)), name)


@pytest.fixture(scope="module")
def result() -> fw.MethodResult:
    """One method on vectors."""
    x, y = blobs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fw.fit("local", fw.Federation.from_arrays(x, y, client=OWNER, name="people"), **QUIET)


REFUSED = {
    "client: 'Anne' is unknown; did you mean 'Ann'": (blobs()[0], "Anne", {}),
    "x: shape [90, 3], but the model reads [M, 4]": (blobs()[0][:, :3], "Ann", {}),
    "one row is x[None]": (blobs()[0][0], "Ann", {}),
    "x: cannot be read as rows of numbers": ([[1, 2], [1]], "Ann", {}),
    "x: a value is missing or infinite": (blobs()[0] * np.nan, "Ann", {}),
    "x: holds complex numbers, dates": (blobs()[0] * 1j, "Ann", {}),
    "dates or durations; give real numbers": (blobs()[0].astype("datetime64[s]"), "Ann", {}),
    "seed: 5 was not trained; choices: 0": (blobs()[0], "Ann", {"seed": 5}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_rows_are_refused(message: str, result: fw.MethodResult) -> None:
    """One line says what is needed."""
    x, client, options = REFUSED[message]
    with pytest.raises(fw.BadInput, match=re.escape(message)):
        result.predict(x, client, **options)


def test_threads_get_the_predictions_of_their_own_client() -> None:
    """As those of a server, which answers several requests at once; threads change as often as Python can."""
    x, y = blobs()
    federation = fw.Federation.from_arrays(x, y, client=OWNER, normalize="standard")
    result = fw.fit("local", federation, model="mlp", **QUIET)
    expected = {client: result.predict_proba(x, client) for client in CLIENTS}
    assert not expected["Ann"].equals(expected["Bob"])
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as pool:
            said = pool.map(lambda client: (client, result.predict_proba(x, client)), CLIENTS * 60)
            assert [client for client, answer in said if not answer.equals(expected[client])] == []
    finally:
        sys.setswitchinterval(interval)


def test_missing_models_are_refused() -> None:
    """The line says how to store them."""
    x, y = blobs()
    run = fw.fit("local", fw.Federation.from_arrays(x, y, client=OWNER), evaluate={"models": False}, **QUIET)
    for ask in (lambda: run.predict(x, "Ann"), run.models):
        with pytest.raises(fw.BadInput, match=r"train again with evaluate=\{'models': True\}, which is the default"):
            ask()


def test_rows_of_other_clients_are_refused(tmp_path: Path) -> None:
    """By the clients' column, after loading and by an exported model. A table without it is taken as it is."""
    x, y = blobs()
    table = pd.DataFrame({"who": [int(name == "Ann") for name in OWNER], "a": x[:, 0], "b": x[:, 1], "late": y})
    federation = fw.Federation.from_pandas(table, client="who", label="late")
    fw.fit("local", federation, out=tmp_path / "out", lr=0.2, **QUIET)
    result = fw.load(tmp_path / "out")["local"]
    exported = exported_model.load(result.export(tmp_path / "export", 1))
    own = table[table["who"] == 1]
    expected = result.predict(own.drop(columns="who"), 1)
    missing = own.assign(who=own["who"].where(own["a"] > 0))  # numbers with fractions, as pandas has them
    for model in (lambda rows: result.predict(rows, 1), exported.predict):
        for rows in (own, missing, own.astype({"who": str})):
            np.testing.assert_array_equal(model(rows), expected)
        line = "^table: column 'who' has rows of other clients, such as '0'; give the rows of '1' alone, or leave the"
        with pytest.raises(ValueError, match=line):
            model(table)


class Words(nn.Module):
    """A sequence of codes: their vectors, and a layer on the mean."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.vectors, self.out = nn.Embedding(9, 4), nn.Linear(4, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.vectors(x.long()).mean(1))


def test_a_code_that_an_embedding_does_not_have_is_refused() -> None:
    """A model of the user's own reads sequences of codes, as they are."""
    draws = np.random.default_rng(0)
    x = draws.integers(0, 9, size=(60, 5))
    federation = fw.Federation.from_arrays(
        x, np.arange(60) // 3 % 2, client=["Ann", "Bob", "Cy"] * 20, normalize="none"
    )
    result = fw.fit("fedavg_ft", federation, model=Words, **QUIET)
    assert len(result.predict(x[:3], "Bob")) == 3
    with pytest.raises(fw.BadInput, match=r"x: the model has no entry for a value of these rows .*; give codes as in"):
        result.predict(x[:3] + 9, "Bob")
