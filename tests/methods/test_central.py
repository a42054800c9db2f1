"""One model on pooled rows: a control that is trained like the methods and is never ranked with them."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from fake_results import write_run, write_study

import fedweave as fw
from fedweave import results
from fedweave.engine.clients import balanced_weights, pad_rows
from fedweave.engine.engine import run
from fedweave.engine.executors import Loop
from fedweave.engine.records import Settings
from fedweave.report.baselines import upper_bound
from fedweave.tensors.trees import tree_leaves

ROUNDS = Settings(rounds=3, seed=1, participation=0.4)


def final(name: str, federation: object, settings: Settings = ROUNDS) -> object:
    """The server's model at the end."""
    *_, report = run(tiny.method(name, tiny.rows_task(), "rows"), federation, settings, Loop())
    return report


def equal(first: object, second: object) -> bool:
    """Whether two trees have the same bits."""
    return all(torch.equal(a, b) for a, b in zip(tree_leaves(first), tree_leaves(second), strict=True))


def test_the_pooled_model_is_fedavg_of_one_client_with_all_rows() -> None:
    """The bits are equal for any participants of a round. Every client gets the same model, and nothing is sent."""
    federation = tiny.rows_federation()
    pooled, alone = (
        final("central", federation),
        final("fedavg", federation.pooled_federation, replace(ROUNDS, every=9)),
    )
    assert equal(pooled.state.server, alone.state.server)
    assert all(bool((leaf == leaf[:1]).all()) for leaf in tree_leaves(pooled.models["pre"]))
    assert (pooled.bytes_up, pooled.bytes_down) == (0, 0)


def test_only_the_union_of_the_rows_matters() -> None:
    """Another order of clients, and other owners of the same rows, give the same model."""
    federation = tiny.rows_federation()
    rows = federation.train[federation.train >= 0].flip(0)
    parts = rows.tensor_split(len(federation.ids))
    other = replace(federation, train=pad_rows([part.numpy() for part in parts]))
    assert equal(final("central", federation).state.server, final("central", other).state.server)


def test_weights_of_classes_are_those_of_the_pooled_rows() -> None:
    federation = tiny.rows_federation()
    own = {"class_weight": torch.rand(len(federation.ids), tiny.CLASSES)}
    pooled = replace(federation, own=own).pooled_federation
    labels = federation.shared["y"][federation.train[federation.train >= 0]]
    torch.testing.assert_close(pooled.own["class_weight"][0], balanced_weights(labels, tiny.CLASSES))


def test_numbers_of_every_client_are_refused() -> None:
    """For example units of targets, which pooled rows do not have, unless they are the same for all clients."""
    federation = tiny.rows_federation()
    same = replace(federation, own={"unit": torch.full((len(federation.ids), 1), 3.0)})
    assert same.pooled_federation.own["unit"].tolist() == [[3.0]]
    own = {"unit": torch.arange(len(federation.ids), dtype=torch.float64)[:, None]}
    with pytest.raises(fw.BadInput, match="every client has its own unit"):
        _ = replace(federation, own=own).pooled_federation


def with_central(folder: Path) -> Path:
    """A generated study in which the pooled model has by far the best scores."""
    import json

    write_study(folder, extras=False)
    block = {"metric": "accuracy"}
    path = write_run(folder, "blobs", "Central", 15.0, block, (0, 1, 2), 12, 20, np.random.default_rng(0))
    file = path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "pools": True}))
    return folder


def test_the_pooled_model_never_leads_and_is_in_no_test(tmp_path: Path) -> None:
    """It has a row among the controls. It is not in the board, the tests, the ranks and the curves."""
    study = results.load_study(with_central(tmp_path / "results" / "study"))
    tables = results.compute_tables(study)
    assert [run.printed_label for run in study.pooled] == ["Central"]
    for name in ("board", "clients", "curves", "significance", "ranks", "leaky"):
        assert "Central" not in getattr(tables, name).to_numpy().ravel().tolist(), name
    row = tables.controls.set_index("control").loc["Central"]
    assert row["kind"] == "not federated"
    assert row["mean"] > tables.board["mean"].max()
    [sentence] = upper_bound(study, tables)
    assert "is not federated" in sentence
    assert f"the best method, {tables.board['method'].iloc[0]}, is" in sentence
    assert sentence.endswith(" points worse.")


def test_every_board_of_a_users_data_has_the_pooled_model() -> None:
    """The user can leave it out. Clients with graphs of their own have no rows to pool, and the summary says so."""
    draws = np.random.default_rng(0)
    x = draws.normal(size=(120, 4))
    federation = fw.Federation.from_arrays(x, x[:, 0] > 0, client=[*"abc"] * 40)
    settings = {"rounds": 2, "seeds": 1, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = fw.compare(federation, ["local"], **settings, tune=0)
        without = fw.compare(federation, ["local"], central=False, **settings, tune=0)
        nodes = {str(i): (x[:30], np.stack([np.arange(29), np.arange(1, 30)]), np.arange(30) % 2) for i in range(2)}
        graphs = fw.compare(fw.Federation.from_graphs(nodes), ["local"], **settings, tune=0)
    assert done.methods == ("local",)
    assert {*done.controls()["kind"]} == {"control", "not federated"}
    assert done.central is not None
    assert done.central.scores.index.tolist() == ["a", "b", "c"]
    assert without.central is None
    assert graphs.central is None
    [line] = upper_bound(graphs.study, results.compute_tables(graphs.study))
    assert line == "own-graphs: no model on pooled rows is shown as a control: every client has a graph of its own."
