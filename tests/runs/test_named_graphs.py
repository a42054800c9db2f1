"""Graphs in a .csv with names of clients: a file of pandas is read in the order of the run."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave.data.base import default_names
from fedweave.errors import BadInput
from fedweave.runs import graph_controls, graph_tables
from tests.runs.test_graph_settings import N, run

NAMES = ("St. Anna", "Köln, Süd", 'the "old" one', "7", "#5")
ORDERS = {"rows": [4, 2, 0, 1, 3], "columns": [1, 3, 4, 0, 2]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def table(names: tuple[str, ...] = NAMES) -> pd.DataFrame:
    """Random weights between clients."""
    return pd.DataFrame(np.random.default_rng(0).random((N, N)), names, names)


def federation() -> fw.Federation:
    """Clients with names of all kinds. Their order is not that of `NAMES`."""
    draws = np.random.default_rng(1)
    x = draws.normal(size=(40 * N, 2))
    y = (x[:, 0] + draws.normal(size=len(x)) > 0).astype(int)
    return fw.Federation.from_arrays(x, y, client=[name for name in NAMES for _ in range(40)])


def train_with_graph(graph: str, clients: fw.Federation) -> fw.MethodResult:
    return fw.fit(fw.methods.PFedGraph(graph=graph), clients, rounds=2, progress=False)


def test_a_learned_graph_is_read_again() -> None:
    """A file of `graph().to_csv` with reordered rows and columns gives the run of the .npy file."""
    clients = federation()
    learned = train_with_graph("learned", clients).graph().astype(float)  # to_csv writes every digit of these
    learned.iloc[0] = [0.5, 0.3, 0.2, 0.0, 0.0]  # not symmetric, so that an exchange of rows and columns would show
    learned.iloc[ORDERS["rows"], ORDERS["columns"]].to_csv("g.csv")
    np.save("g.npy", learned.to_numpy())
    np.save("turned.npy", learned.to_numpy().T)
    files = {name: train_with_graph(f"given:{name}", clients) for name in ("g.csv", "g.npy", "turned.npy")}
    columns = ["client", "round", "split", "metric", "value"]
    pd.testing.assert_frame_equal(files["g.csv"].history[columns], files["g.npy"].history[columns])
    pd.testing.assert_frame_equal(files["g.csv"].graph(), files["g.npy"].graph())
    assert not files["g.csv"].graph().equals(files["turned.npy"].graph())


@pytest.mark.parametrize("options", [{}, {"index_label": "learner"}, {"encoding": "utf-8-sig"}, {"quoting": 1}])
def test_equivalent_forms_of_a_table_are_read(options: dict[str, Any]) -> None:
    """A label in the first cell, a byte order mark, and quotes around all cells."""
    table().iloc[ORDERS["rows"], ORDERS["columns"]].to_csv("g.csv", **options)
    read = graph_tables.read_csv(Path("g.csv"))
    weights = graph_tables.reorder(read["weights"], read["names"], NAMES, "graph")
    np.testing.assert_array_equal(weights, table().to_numpy())


def test_clients_without_names_are_named_by_their_numbers() -> None:
    """Results name them in the same way."""
    numbered = default_names(N)
    table(numbered[::-1]).to_csv("g.csv")
    graph_controls.check_stored_graph(run("given:g.csv"), "x", numbered)


UNKNOWN = {
    "another name": (("St. Anne", *NAMES[1:]), "'St. Anne' is unknown; did you mean 'St. Anna'"),
    "a space": ((*NAMES[:3], "7 ", "#5"), "'7 ' is unknown"),
    "a client is missing": (NAMES[:4], "the client '#5' is missing; add its row and its column"),
    "a client too much": ((*NAMES, "8"), "'8' is unknown"),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_unknown_names_are_refused(what: str) -> None:
    """The line names the first one, before any training."""
    names, reason = UNKNOWN[what]
    pd.DataFrame(np.ones((len(names), len(names))), names, names).to_csv("g.csv")
    with pytest.raises(BadInput, match=reason) as error:
        fw.compare(federation(), ["local", fw.methods.PFedGraph(graph="given:g.csv")], rounds=2, out="out", tune=0)
    assert "compare(): pfedgraph.graph: 'given:g.csv': " in str(error.value)
    assert not Path("out").exists()


MALFORMED = {
    "rows of other clients": ("x,a,b,c,d,e\n" + "f,1,1,1,1,1\n" * 5, "no other line begins with one of them"),
    "a row that occurs twice": ("x,a,b\na,1,1\na,1,1\n", "the row 'a' occurs twice"),
    "a column that occurs twice": ("x,a,a\na,1,1\n", "the column 'a' occurs twice"),
    "a row without column": (",a,b\na,1,1\nb,1,1\nc,1,1\n", "the row 'c' has no column of this name"),
    "a column without row": (",a,b\na,1,1\n", "the column 'b' has no row of this name"),
    "a short row": (",a,b\na,1,1\nb,1\n", "the row 'b' has 1 of 2 weights"),
    "a word": (",a,b\na,1,x\nb,1,1\n", "row 'a', column 'b' is 'x', no number"),
    "an empty cell": (",b,a\na,1,1\nb,1,\n", "row 'b', column 'a' is '', no number"),
    "a negative weight": (",b,a\na,-1,1\nb,1,1\n", "row 'a', column 'b' is -1.0; weights are finite numbers"),
    "a row of zeros": (",b,a\na,1,1\nb,0,0\n", "row 'b' has no weight"),
    "too few": (",b,a\na,1,1\nb,1,1\n", r"\[2, 2\], and this run needs \[5, 5\]"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_tables_are_refused_without_data(what: str) -> None:
    """The line names the row and the column of the file."""
    text, reason = MALFORMED[what]
    Path("g.csv").write_text(text)
    with pytest.raises(BadInput, match=reason) as error:
        graph_controls.check_stored_graph(run("given:g.csv"), "params.yaml: runs.t-a")
    assert str(error.value).startswith("params.yaml: runs.t-a.graph: 'given:g.csv': ")
