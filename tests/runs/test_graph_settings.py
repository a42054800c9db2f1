"""The setting `graph` of a study: the graphs that it builds from files and runs, and one line for each error."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

from fedweave.data.base import default_names
from fedweave.errors import BadInput
from fedweave.runs import graph_controls, graph_files
from fedweave.study import checks, spec
from fedweave.study.spec import RunSpec

N = tiny.CLIENTS


def run(graph: object, method: str = "fedaghn") -> RunSpec:
    """A run of a study with one method and one seed."""
    task = {
        "dataset": "digits",
        "setting": "s",
        "partition": {"name": "iid", "clients": N, "seed": 0},
        "model": {"name": "mlp"},
        "train": {"rounds": 2, "lr": 0.1},
    }
    raw = {
        "study": "s",
        "seeds": [7],
        "tasks": {"t": task},
        "methods": {method: {}},
        "runs": {"t-a": {"task": "t", "method": method, "set": {"graph": graph}}},
    }
    return spec.parse(raw).run("t-a")


def build(graph: str, kind: str = "rows", grouped: bool = True) -> torch.Tensor:
    """The stored graph [L, N, N] of round 2 for a word."""
    task, federation = (make() for make in tiny.TASKS[kind])
    federation = federation if grouped else federation.__class__(**{**vars(federation), "group": None})
    method = tiny.method("fedaghn", task, kind, graph=graph)
    control = graph_controls.build(run(graph), method, federation, default_names(federation.clients))
    assert control is not None
    return control.at(7, 2).graph(N)


def write_finished_run(folder: Path, seed: int = 7, **arrays: np.ndarray) -> None:
    """A finished run with a collaboration graph."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({}))
    if arrays:
        np.savez(folder / f"collaboration-{seed}.npz", **arrays)


def test_graphs_are_read_from_files_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of any format gives rows of sum 1. A replay uses the last graph up to the round."""
    monkeypatch.chdir(tmp_path)
    weights = np.random.default_rng(0).random((N, N))
    np.save("g.npy", weights)
    np.savez("g.npz", weights=np.stack([weights, weights]))
    np.savetxt("g.csv", weights, delimiter=",")
    expected = torch.from_numpy(weights / weights.sum(1, keepdims=True))
    for name in ("g.npy", "g.npz", "g.csv"):
        torch.testing.assert_close(build(f"given:{name}")[0], expected)
    recorded = np.stack([np.eye(N), np.full((N, N), 1 / N), weights])[:, None]
    write_finished_run(
        tmp_path / "results/other/runs/t-x", weights=recorded, rounds=np.array([1, 2, 5]), layers=np.array(["a"])
    )
    assert torch.equal(build("replayed:other/t-x")[0], torch.full((N, N), 1 / N, dtype=torch.float64))
    assert len(graph_files.files_of(run("replayed:other/t-x"))) == 1
    assert build("oracle").shape == (1, N, N)


BAD = {
    "a size that does not fit": ("given:small.npy", r"\[4, 4\], and this run needs \[5, 5\] or \[2, 5, 5\]"),
    "layers that do not fit": ("given:layers.npy", r"its weights are \[3, 5, 5\]"),
    "a row alone": ("given:row.csv", r"its weights are \[1, 5\]"),
    "a negative weight": ("given:negative.npy", "row 1, column 1 is -0.8; weights are finite numbers, at least 0"),
    "no number": ("given:nan.npy", "row 3, column 5 of matrix 2 is nan"),
    "a row without weight": ("given:empty.npy", r"row 2 \(client 1\) has no weight"),
    "no such file": ("given:none.npy", "no such file"),
    "a file of the home folder": ("given:~/g.npy", "write the whole path"),
    "another format": ("given:g.txt", "format"),
    "no array weights": ("given:named.npz", "no array"),
    "a damaged file": ("given:damaged.npz", "damaged"),
    "objects": ("given:objects.npy", "Object arrays cannot be loaded.*it must hold numbers only"),
    "texts": ("given:texts.npy", "of the type <U1; they must be numbers"),
    "a header alone": ("given:header.csv", "the first line has names, and no other line begins with one of them"),
    "words": ("given:words.csv", "could not convert string 'a b'.*numbers with commas between them"),
    "an empty file": ("given:nothing.csv", "the file is empty"),
    "an empty array": ("given:nothing.npy", "the file is empty"),
    "no such run": ("replayed:none", "no finished run"),
    "a run without graphs": ("replayed:plain", "no collaboration graph"),
    "a run with other seeds": ("replayed:seeded", "seed 7"),
    "a run whose graphs are damaged": ("replayed:broken", "collaboration-7.npz: damaged.*train that run again"),
}


def write_bad(folder: Path) -> None:
    """Files and runs that are not a graph of this run."""
    square = np.full((N, N), 1 / N)
    layered = np.stack([square, square])
    layered[1, 2, 4] = np.nan
    arrays = {
        "small": square[:-1, :-1],
        "layers": np.stack([square] * 3),
        "nan": layered,
        "negative": square - np.eye(N),
        "empty": square * (np.arange(N) != 1)[:, None],
        "objects": square.astype(object),
        "texts": np.full((N, N), "a"),
        "nothing": square[:0],
    }
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    np.savetxt("row.csv", square[:1], delimiter=",")
    np.savez("named.npz", graph=square)
    Path("damaged.npz").write_bytes(b"PK")
    Path("header.csv").write_text("a,b,c,d,e\n" + "1,1,1,1,1\n" * N)
    Path("words.csv").write_text("a b\n")
    Path("nothing.csv").write_text("# no weights yet\n\n")
    write_finished_run(folder / "results/s/runs/plain")
    recorded = {"weights": square[None, None], "rounds": np.array([1]), "layers": np.array([""])}
    write_finished_run(folder / "results/s/runs/seeded", 3, **recorded)
    write_finished_run(folder / "results/s/runs/broken", **recorded)
    (folder / "results/s/runs/broken/collaboration-7.npz").write_bytes(b"PK")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("what", BAD)
def test_bad_graphs_are_refused(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the run, the word and the error."""
    monkeypatch.chdir(tmp_path)
    write_bad(tmp_path)
    word, reason = BAD[what]
    with pytest.raises(BadInput, match=reason) as error:
        build(word)
    assert str(error.value).startswith(f"runs.t-a.graph: {word!r}: ")
    assert "\n" not in str(error.value)
    assert "params.yaml" not in str(error.value)  # a call from Python has no file


@pytest.mark.parametrize("what", [name for name in BAD if "layers" not in name])
def test_bad_graphs_are_found_without_data(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All errors but the number of layers, which only the model has."""
    monkeypatch.chdir(tmp_path)
    write_bad(tmp_path)
    graph_controls.check_stored_graph(run("given:layers.npy"), "params.yaml: runs.t-a")
    word = BAD[what][0]
    with pytest.raises(BadInput) as error:
        graph_controls.check_stored_graph(run(word), "params.yaml: runs.t-a")
    assert str(error.value).startswith(f"params.yaml: runs.t-a.graph: {word!r}: ")


def test_an_oracle_needs_groups_or_labels() -> None:
    """Without both, it is refused before training."""
    with pytest.raises(BadInput, match="neither groups"):
        build("oracle", "series", grouped=False)


@pytest.mark.parametrize(("method", "word"), [("local", "uniform"), ("fedaghn", "unifrom"), ("shn", "replayed:")])
def test_words_are_checked_with_the_study(method: str, word: str) -> None:
    """A method without a graph, a misspelt word and a replay of nothing are refused without data."""
    with pytest.raises(BadInput, match="graph"):
        checks.check_graph(run(word, method), "params.yaml: runs.t-a")
