"""The Python interface: federations in memory, compare, fit, save and load, as a user calls them."""

import json
import re
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedweave as fw
from fedweave import data, results
from fedweave.comparison import folder_copies
from fedweave.methods import METHODS
from fedweave.runs import archive, repetition
from fedweave.study import spec, validate

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


QUIET = {"progress": False}


def people(clients: int = 6, rows: int = 40, seed: int = 0) -> fw.Federation:
    """Two blobs per client. In one of two groups the labels are swapped."""
    draws = np.random.default_rng(seed)
    count = clients * rows
    owner = np.repeat(np.arange(clients), rows)
    side = draws.integers(2, size=count)
    x = draws.normal(size=(count, 5)) + 2.0 * side[:, None]
    y = np.where(owner % 2, side, 1 - side)
    names = [f"person {i}" for i in owner]
    return fw.Federation.from_arrays(x, y, client=names, group=[f"side {i % 2}" for i in owner], name="people")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> fw.Comparison:
    """Three methods on six people, written to a folder."""
    methods = ["local", "pfedgraph", fw.methods.Ditto(lam=0.5)]
    folder = tmp_path_factory.mktemp("api") / "out"
    return fw.compare(people(), methods, rounds=3, seeds=2, lr=0.1, out=folder, **QUIET)


def test_tables_are_tidy_and_named(compared: fw.Comparison) -> None:
    """Every score is there once, with the names of methods and clients."""
    table = compared.table
    assert table.columns.tolist() == ["method", "seed", "client", "round", "point", "split", "metric", "value"]
    assert {*table["method"]} == {"local", "pfedgraph", "ditto"} == {*compared.methods}
    assert {*table["client"]} == {f"person {i}" for i in range(6)}
    assert len(table) == 3 * 2 * 6 * 3 * 2 * 2
    assert not table.duplicated([c for c in table if c != "value"]).any()
    board = compared.leaderboard()
    assert board["mean"].is_monotonic_decreasing
    for name in compared.methods:
        expected = compared[name].select_scores().groupby("seed")["value"].mean().mean()
        assert board.set_index("method")["mean"][name] == pytest.approx(expected)
        assert compared[name].scores.index.tolist() == [*compared.clients]


def test_paired_test_and_graph(compared: fw.Comparison) -> None:
    """A test has its result in numbers and in words. The graph has the clients' names and shows the groups."""
    test = compared.test("pfedgraph", "local")
    other = compared.test("local", "pfedgraph")
    assert test.difference == pytest.approx(-other.difference)
    assert (test.clients, test.seeds) == (6, 2)
    assert "95 % interval" in str(test)
    assert test.low <= test.difference <= test.high
    graph = compared["pfedgraph"].graph()
    assert graph.index.tolist() == graph.columns.tolist() == [*compared.clients]
    same = graph.loc["person 0", ["person 2", "person 4"]].mean()
    assert same > graph.loc["person 0", ["person 1", "person 3", "person 5"]].mean()
    for wrong in (99, "1"):
        with pytest.raises(fw.BadInput, match=f"round: {wrong!r} is not in 1 to"):
            compared["pfedgraph"].graph(round=wrong)
    for ask in (compared["pfedgraph"].graph, compared["pfedgraph"].models, compared["pfedgraph"].plot.graph):
        with pytest.raises(fw.BadInput, match="seed: 9 was not trained; choices: 0, 1"):
            ask(seed=9)
    with pytest.raises(fw.BadInput, match="local has no collaboration graph"):
        compared["local"].graph()


def test_figures_are_shown_and_saved(compared: fw.Comparison, tmp_path: Path) -> None:
    """Every figure is a drawing that a notebook shows and that can be saved."""
    plots = [compared.plot.curves(), compared.plot.clients(), compared.plot.cost()]
    plots += [compared["pfedgraph"].plot.graph(), compared["pfedgraph"].plot.evolution()]
    for figure in plots:
        assert "<svg" in figure._repr_html_()
    assert "ditto" in plots[0].svg
    with pytest.raises(fw.BadInput, match="path: None is not a path"):
        plots[0].save(None)
    assert plots[0].save(tmp_path / "curves.svg").read_text(encoding="utf-8").startswith("<svg xmlns")


def test_clients_have_their_names_in_a_figure() -> None:
    """Without groups, the weights over rounds have a line for each client."""
    draws = np.random.default_rng(0)
    data = fw.Federation.from_arrays(draws.normal(size=(60, 3)), [0, 1] * 30, client=["Ann", "Bob", "Cy"] * 20)
    figure = fw.fit("pfedgraph", data, rounds=2, **QUIET).plot.evolution()
    assert "Bob" in figure.svg
    assert "client 1" not in figure.svg


@pytest.mark.usefixtures("undrawn")
def test_a_saved_comparison_is_loaded_unchanged(compared: fw.Comparison, tmp_path: Path) -> None:
    """The folder is that of a study, and the readers open it."""
    folder = compared.save(tmp_path / "saved")
    again = fw.load(folder)
    pd.testing.assert_frame_equal(again.table, compared.table)
    pd.testing.assert_frame_equal(again.leaderboard(), compared.leaderboard())
    assert again.majority() == compared.majority()
    assert {run.name for run in results.load_study(folder).runs} == {"people-local", "people-pfedgraph", "people-ditto"}
    assert (folder / "leaderboard.csv").is_file()
    page = again.report().read_text(encoding="utf-8")
    assert "people" in page
    processor = again["ditto"].run.info["processor"]
    assert processor.endswith(torch.backends.cpu.get_cpu_capability())
    assert f"<dt>processor</dt><dd>{processor}</dd>" in page
    models = again["ditto"].models(seed=1)
    assert [*models] == [*compared.clients]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(fw.BadInput, match="is not an empty folder; choose"):
        compared.save(tmp_path / "other")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (None, "folder: None is not a path of a folder"),
        ("", "folder: '' is not a path of a folder"),
        ("{}/file", "file: cannot be used"),
        ("{}/file/below", "cannot be written"),
        ("/proc/new", "cannot be written"),
    ],
)
def test_places_where_nothing_can_be_saved_are_refused(
    place: str | None, message: str, compared: fw.Comparison, tmp_path: Path
) -> None:
    """One line for the whole comparison, and one for a single exported model."""
    (tmp_path / "file").touch()
    folder = place and place.format(tmp_path)
    for save in (compared.save, lambda path: compared["ditto"].export(path, "person 0")):
        with pytest.raises(fw.BadInput, match=message):
            save(folder)


def test_a_copy_does_not_write_through_a_link_of_the_user(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "runs").mkdir(parents=True)
    (tmp_path / "one" / "notes.txt").write_text("of one")
    (tmp_path / "notes.txt").write_text("elsewhere")
    (tmp_path / "two" / "notes.txt").symlink_to(tmp_path / "notes.txt")
    folder_copies.copy(tmp_path / "one", tmp_path / "two", "runs")
    texts = [(tmp_path / name).read_text() for name in ("two/notes.txt", "notes.txt")]
    assert texts == ["of one", "elsewhere"]


def test_a_saved_copy_has_nothing_of_an_earlier_one(compared: fw.Comparison, tmp_path: Path) -> None:
    """Methods that are no longer compared are removed, and the user's files are kept. A failed copy changes nothing."""
    place = compared.save(tmp_path / "saved")
    (place / "runs" / "data-gone").mkdir()
    (place / "runs" / "data-gone" / "run.json").touch()
    (place / "report-f1.html").touch()
    (place / "notes.md").write_text("mine")
    (place / "own").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "copytree", failing)
        with pytest.raises(OSError, match="full"):
            compared.save(place)
    assert (place / "runs" / "data-gone").is_dir()
    compared.save(place)
    assert fw.load(place).methods == compared.methods
    assert not (place / "report-f1.html").exists()
    assert (place / "notes.md").read_text() == "mine"
    assert (place / "own").is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    with pytest.raises(fw.BadInput, match="holds the results that are to be copied"):
        fw.load(place).save(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "5", "{}"])
def test_damaged_files_of_results_are_trained_again_or_named(content: str, tmp_path: Path) -> None:
    """A damaged run is trained again. A damaged description of the data is named, with a way out that works."""
    settings = {"rounds": 1, "seeds": 1, "tune": 0, "central": False, "out": tmp_path, **QUIET}
    train = partial(fw.compare, people(), ["local"], **settings)
    (train()["local"].run.folder / "run.json").write_text(content)
    assert repr(train()) == "Comparison of 1 method on 'people': 6 clients, 1 seed"
    file = tmp_path / "partitions" / "people" / "federation.json"
    file.write_text(content)
    for ask in (train, lambda: fw.load(tmp_path)["local"].predict(np.zeros((1, 5)), "person 0")):
        with pytest.raises(fw.BadInput, match=r"federation\.json: damaged .* remove it, and train again"):
            ask()
    file.unlink()
    train()


@pytest.mark.parametrize("name", ["rounds.csv", "diagnostics.csv"])
def test_texts_among_the_numbers_of_a_run_are_named(name: str, tmp_path: Path) -> None:
    """A byte of a table that is not the one that was written."""
    settings = {"rounds": 2, "seeds": 1, "central": False, "tune": 0, "out": tmp_path, **QUIET}
    file = fw.compare(people(), ["pfedgraph"], **settings)["pfedgraph"].run.folder / name
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], *(re.sub(r"\d,", "x,", line, count=3) for line in lines[1:])]) + "\n")
    with pytest.raises(fw.BadInput, match=rf"{re.escape(name)}: damaged .*texts.*; remove the folder of the run"):
        fw.load(tmp_path)["pfedgraph"].run  # noqa: B018
    shutil.rmtree(file.parent)
    assert repr(fw.compare(people(), ["pfedgraph"], **settings))


def test_another_seed_does_not_predict_for_a_missing_one(tmp_path: Path) -> None:
    result = fw.compare(people(), ["local"], rounds=1, seeds=2, central=False, tune=0, out=tmp_path, **QUIET)["local"]
    (result.run.folder / "models-0.pt").unlink()
    rows = people().dataset.x[:40].reshape(40, 5)
    with pytest.raises(fw.BadInput, match=r"models-0\.pt: is missing; remove the folder .*, and train again"):
        fw.load(tmp_path)["local"].predict(rows, "person 0", refit=False)


@pytest.mark.parametrize("share", [0, 0.5])
def test_damaged_models_are_named_with_a_way_out_that_works(share: float, tmp_path: Path) -> None:
    settings = {"rounds": 1, "seeds": 1, "central": False, "tune": 0, "out": tmp_path, **QUIET}
    folder = fw.compare(people(), ["local"], **settings)["local"].run.folder
    for name in ("models-0.pt", "state-0.pt"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(share * len(content))])
    federation = people()
    local, rows = fw.load(tmp_path)["local"], federation.dataset.x[:40].reshape(40, 5)
    newcomers = {"client": ["new"] * 40, "label": federation.dataset.y[:40], "federation": federation, "rounds": 1}
    for name, ask in [
        ("models", lambda: local.predict(rows, "person 0", refit=False)),
        ("models", local.models),
        ("state", lambda: local.join(rows, **newcomers)),
    ]:
        way = rf"{name}-0\.pt: damaged .* remove the folder {re.escape(str(folder))}, and train again"
        with pytest.raises(fw.BadInput, match=way):
            ask()
    shutil.rmtree(folder)
    assert len(fw.compare(people(), ["local"], **settings)["local"].models()) == 6


def failing(*args: Any, **options: Any) -> None:
    raise OSError("the disk is full")


def test_finished_runs_are_not_trained_again(compared: fw.Comparison) -> None:
    """Another setting trains its own run and keeps the others."""
    folder = compared.study.folder
    stamps = {run: (folder / "runs" / f"people-{run}" / "run.json").stat().st_mtime_ns for run in compared.methods}
    calls: list[fw.Progress] = []
    settings = {"rounds": 3, "seeds": 2, "lr": 0.1, "out": folder, "callbacks": [calls.append], **QUIET}
    again = fw.compare(people(), ["local", "pfedgraph", fw.methods.Ditto(lam=0.5)], **settings, tune=0)
    assert not calls
    pd.testing.assert_frame_equal(again.table, compared.table)
    more = fw.compare(people(), ["local", "fedavg"], **settings, tune=0)
    assert {call.method for call in calls} == {"fedavg"}
    assert {*more.methods} == {"local", "fedavg"}
    assert all((folder / "runs" / f"people-{run}" / "run.json").stat().st_mtime_ns == stamps[run] for run in stamps)
    with pytest.raises(fw.BadInput, match="holds results of other data"):
        fw.compare(people(seed=1), ["local"], **settings, tune=0)


def test_another_graph_in_the_same_file_is_trained_again(tmp_path: Path) -> None:
    """The same graph is not."""
    file, calls = tmp_path / "graph.npy", list[fw.Progress]()
    settings = {"rounds": 2, "seeds": 1, "lr": 0.1, "out": tmp_path / "out", "callbacks": [calls.append], **QUIET}
    methods = {"given": fw.methods.PFedGraph(graph=f"given:{file}")}
    tables = []
    for graph, trained in ((np.eye(6), True), (np.eye(6), False), (np.ones((6, 6)), True)):
        calls.clear()
        np.save(file, graph)
        tables.append(fw.compare(people(), methods, central=False, **settings, tune=0).table)
        assert bool(calls) == trained
    pd.testing.assert_frame_equal(tables[0], tables[1])
    assert not tables[0]["value"].equals(tables[2]["value"])


def test_callbacks_get_every_evaluated_round() -> None:
    """They run in this process. They get validation values of every client and no test values."""
    calls: list[fw.Progress] = []
    options = {"rounds": 4, "seeds": 2, "tune": 0, "evaluate": {"every": 2}, **QUIET}
    fw.compare(people(), ["local", "fedavg"], callbacks=[calls.append], **options)
    assert sorted({(c.method, c.seed, c.round) for c in calls}) == [
        (m, s, r) for m in ("central", "fedavg", "local") for s in (0, 1) for r in (2, 4)
    ]
    assert len(calls) == 12
    assert all(c.rounds == 4 and c.val.shape == (6,) and not hasattr(c, "test") for c in calls)


def test_compare_has_the_bits_of_the_stages(tmp_path: Path) -> None:
    """`compare` gives the numbers of a study with the same params.yaml, run by the functions of the stages."""
    block = {"name": "dirichlet", "clients": 5, "seed": 3, "beta": 0.5}
    train = {"rounds": 2, "epochs": 2, "batch_size": 16, "lr": 0.05}
    task = {"dataset": "digits", "setting": "own", "normalize": "unit", "partition": block, "train": train}
    raw = {
        "study": "comparison",
        "seeds": [0, 1],
        "tasks": {"digits": {**task, "model": {"name": "mlp"}}},
        "runs": {"digits-ditto": {"task": "digits", "method": "ditto", "set": {"lam": 0.5}}},
        "methods": {"ditto": {}},
    }
    run = validate.check(spec.parse(raw)).run("digits-ditto")
    dataset = data.load("digits", tmp_path)
    bench = repetition.prepare(run, dataset, data.partition(dataset, **block))
    archive.write(tmp_path / "runs" / run.key, bench, repetition.run_repetitions(bench, tmp_path / "checkpoints"))
    stages = results.load_run(tmp_path / "runs" / run.key)
    federation = fw.Federation.from_dataset("digits", block, normalize="unit", setting="own")
    compared = fw.compare(federation, [fw.methods.Ditto(lam=0.5)], seeds=2, **train, **QUIET, tune=0)["ditto"].run
    pd.testing.assert_frame_equal(compared.evaluations, stages.evaluations, check_exact=True)
    assert compared.info["spec_hash"] == stages.info["spec_hash"]


class Net(nn.Module):
    """A model with dropout and batch normalisation."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.fc = nn.Linear(8, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x))


@dataclass(frozen=True, kw_only=True)
class Damped(fw.methods.FedAvg):
    """FedAvg that goes a part of the way.

    Attributes:
        step: the part.
    """

    step: float = 0.5

    label = "Damped"

    def merge(self, old: dict, mean: dict) -> dict:
        return {name: value + self.step * (mean[name] - value) for name, value in old.items()}


def test_a_model_and_a_method_of_the_user_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other methods in the comparison need a head and batch normalisation."""
    monkeypatch.setitem(METHODS, "damped", Damped)  # removed again after this test
    methods = {"half": Damped(), "whole": Damped(step=1.0), "fedavg": "fedavg", "fedrod": "fedrod", "fedbn": "fedbn"}
    options = {"rounds": 2, "seeds": 1, "tune": 0, **QUIET}
    compared = fw.compare(people(), methods, model=lambda shape, outputs: Net(*shape, outputs), **options)
    whole, half, fedavg = (compared[name].history["value"].to_numpy() for name in ("whole", "half", "fedavg"))
    np.testing.assert_array_equal(whole, fedavg)
    assert (half != fedavg).any()
    assert compared["fedrod"].settings["task"]["model"]["name"] == "lambda"
    assert compared["fedavg"].run.info["layers"] == ["body.0", "body.1", "fc"]


def test_fit_names_the_argument_for_the_method() -> None:
    with pytest.raises(fw.BadInput, match=r"fit\(\): the first argument is a federation; give the method first"):
        fw.fit(people(), "fedavg", rounds=1)  # type: ignore[arg-type]


def test_fit_returns_scores_with_the_same_bits_for_a_seed() -> None:
    federation, model = people(), Net(5, 2)
    train = partial(fw.fit, "fedaghn", federation, model=model, rounds=2, **QUIET)
    first, again, other = (train(seed=seed) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(first.history, again.history)
    assert not first.rounds["train_loss"].equals(other.rounds["train_loss"])
    assert first.graph().shape == (6, 6)


def test_tuning_has_the_trials_of_the_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trials use validation data, and the bar counts them. The best values train. A second call repeats no trial."""
    search = {"trials": 3, "spaces": {"ditto": {"train.lr": {"choices": [0.01, 0.1]}}}}
    settings = {"rounds": 2, "seeds": 1, "tune": search, "out": tmp_path}
    compared = fw.compare(people(), ["ditto"], **settings, **{**QUIET, "progress": True})
    assert re.search(r"tuning: (\d+) of \1 trials", capsys.readouterr().err)
    trials = json.loads((tmp_path / "tuned" / "people" / "trials" / "people-ditto.json").read_text(encoding="utf-8"))
    assert len(trials["trials"]) == 3
    assert compared["ditto"].settings["train"]["lr"] == trials["best"]["train.lr"]
    calls: list[fw.Progress] = []
    fw.compare(people(), ["ditto"], **settings, callbacks=[calls.append], **QUIET)
    assert not calls
    narrower: dict[str, Any] = {"trials": 3, "spaces": {"ditto": {"train.lr": {"choices": [0.05]}}}}
    again = fw.compare(people(), ["ditto"], **{**settings, "tune": narrower}, **QUIET)
    assert again["ditto"].settings["train"]["lr"] == 0.05


def test_one_method_may_run_with_two_settings() -> None:
    """The names of the runs have the settings."""
    pair = [fw.methods.Ditto(lam=lam) for lam in (0.5, 1e-5)]
    compared = fw.compare(people(), pair, rounds=1, seeds=1, **QUIET, tune=0)
    names = ("ditto-lam-0_5", "ditto-lam-1e-05")
    assert [compared[name].settings["method"]["lam"] for name in names] == [0.5, 1e-5]


def test_warnings_are_printed_once(tmp_path: Path) -> None:
    """Training was too short, no method is better than the majority class, clients are small or few.

    A folder that is loaded later prints the same.
    """
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(90, 3)), (draws.random(90) < 0.2).astype(int)
    federation = fw.Federation.from_arrays(x, y, client=["a", "b", "c"] * 30, name="noise")
    small = {"lr": 1e-4, "model": {"name": "mlp", "hidden": [4]}, **QUIET}
    with pytest.warns(UserWarning, match="no method is better than") as caught:
        compared = fw.compare(federation, ["local", "fedavg"], rounds=2, seeds=1, out=tmp_path / "one", **small)
    messages = " | ".join(str(w.message) for w in caught)
    assert "With 3 clients there is no verdict" in messages
    assert "3 of 3 clients have fewer than 10 test rows (a, b, c)" in messages
    assert {*compared.warnings} <= {str(w.message) for w in caught}
    assert fw.load(tmp_path / "one").warnings == compared.warnings
    copied = shutil.copytree(tmp_path / "one", tmp_path / "two")
    again = fw.Federation.from_arrays(x, y, client=["a", "b", "c"] * 30, name="again")
    with pytest.warns(UserWarning, match="With 3 clients there is no verdict: .* It takes 6 or more"):
        fw.compare(again, ["local", "fedavg"], rounds=1, seeds=2, name="two", out=copied, **QUIET, tune=0)
    both = fw.load(copied).warnings
    assert [line.removeprefix("noise: ") for line in both if line.startswith("noise: ")] == [*compared.warnings]
    assert any(line.startswith("again: With 3 clients") for line in both)
    assert 60 < compared.majority() <= 100
    with pytest.warns(UserWarning, match="the graph of pfedgat has collapsed: all clients get nearly the same mixture"):
        fw.compare(federation, ["pfedgat"], rounds=1, seeds=1, lr=1e-30, **QUIET)
    with pytest.warns(UserWarning, match="better than local training: collaboration is not shown to pay here"):
        fw.compare(federation, {"alone": "local", "avg": "fedavg"}, rounds=1, seeds=1, lr=1e-30, **QUIET)


def test_a_diverged_method_does_not_stop_the_others(tmp_path: Path) -> None:
    """Its line is a warning. If all methods diverge, it is the error."""
    methods = {"good": "fedavg", "bad": fw.methods.PerFedAvg(alpha=1e30)}
    settings = {"rounds": 3, "seeds": 1, "lr": 0.05, "evaluate": {"every": 3}, **QUIET}
    compared = fw.compare(people(), methods, **settings, tune=0)
    assert compared.methods == ("good",)
    assert any("training diverged" in line for line in compared.warnings)
    words = r"^people-bad: seed 0, round 1: training diverged.*; lower lr \(0\.05\) or set clip$"
    with pytest.raises(fw.Diverged, match=words):
        fw.compare(people(), {"bad": methods["bad"]}, **settings, tune=0)
    # An older result of that name has other settings, and is removed.
    fw.compare(people(), {"good": "fedavg", "bad": "fedavg_ft"}, **settings, out=tmp_path, tune=0)
    assert fw.compare(people(), methods, **settings, out=tmp_path, tune=0).methods == ("good",)


def same_name(share: float) -> type[fw.methods.FedAvg]:
    @dataclass(frozen=True, kw_only=True)
    class Same(fw.methods.FedAvg):
        label = f"Same {share}"

    return Same


class Killed(Exception):
    """Ends a training."""


def test_the_bar_of_a_resumed_training_begins_at_its_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first repetition was finished. The second continues after round 4, from its checkpoint."""

    def kill(progress: fw.Progress) -> None:
        if (progress.seed, progress.round) == (1, 5):
            raise Killed

    call: dict[str, Any] = {"rounds": 6, "seeds": 2, "checkpoint": 2, "central": False, "out": tmp_path}
    monkeypatch.setattr("fedweave.processes.parallel.cores", lambda: 1)  # one repetition after the other
    with pytest.raises(Killed):
        fw.compare(people(), ["fedavg"], **call, callbacks=[kill], **QUIET, tune=0)
    capsys.readouterr()
    calls: list[fw.Progress] = []
    fw.compare(people(), ["fedavg"], **call, callbacks=[calls.append], tune=0)
    shown = [int(count) for count in re.findall(r"(\d+)/12 ", capsys.readouterr().err)]
    assert [(progress.seed, progress.round) for progress in calls] == [(1, 5), (1, 6)]
    assert shown[-1] == 12
    assert not {1, 2, 3, 4} & {*shown}


REFUSED = {
    "methods: 'locall' is unknown; did you mean 'local'": {"methods": ["locall"]},
    "methods: the list is empty": {"methods": []},
    "methods: 'local' occurs twice": {"methods": ["local", "local"]},
    "methods: several classes have the name Same; rename": {"methods": {"a": same_name(1), "b": same_name(2)}},
    "methods: 'central' is a control on pooled rows; add a method": {"methods": ["central"]},
    "compare(): ditto.lam: -1 is out of range": {"methods": [fw.methods.Ditto(lam=-1)]},
    "compare(): ditto.lam: 'x' is not a finite number": {"methods": [fw.methods.Ditto(lam="x")]},
    "compare(): lrr: not a setting of train: 'lrr' is unknown; did you mean 'lr'": {"lrr": 0.1},
    "compare(): lam: is a setting of ditto and not of the training": {"methods": ["local", "ditto"], "lam": 2},
    "model.name: 'gcn' does not fit people (images); choices: aghn_cnn": {"model": "gcn"},
    "compare(): rounds: 0 is out of range": {"rounds": 0},
    "model: 'mpl' is unknown; did you mean 'mlp'": {"model": "mpl"},
    "model: 'hiden' is unknown; did you mean 'hidden'": {"model": {"name": "mlp", "hiden": 3}},
    "model.name: missing; for example {'name': 'mlp'": {"model": {"hidden": 3}},
    "model.name: ['mlp'] is not a name": {"model": {"name": ["mlp"]}},
    "SmallCNN takes larger images": {"model": "small_cnn"},
    "head: 'fc', but the model 'mlp' declares its own": {"model": "mlp", "head": "fc"},
    "FedSage+ needs subgraphs, which people with model mlp does not have": {"methods": ["fedsage"]},
    "seeds: 0 must be at least 1": {"seeds": 0},
    "compare(): evaluate.selct: not a setting of evaluate": {"evaluate": {"selct": "last"}},
    "seeds: 1000000000 repetitions are too many; give 1000 or fewer": {"seeds": 10**9},
    "seeds: the list has more than 1000 seeds": {"seeds": range(10**9)},
    "seeds: the list is empty; give a number of repetitions such as 3": {"seeds": []},
    "seeds: 2.5 must be a number of repetitions": {"seeds": 2.5},
    "methods: 3 is not a list of methods; name some": {"methods": 3},
    "methods: None is not a list of methods": {"methods": None},
    "methods: 3 is not a name; give a text": {"methods": {3: "local"}},
    "methods: '' is not a name; give a text": {"methods": {"": "local"}},
    "evaluate: 3 is not a mapping; for example {'every': 5}": {"evaluate": 3},
    "tune.spaces: 3 is not a mapping": {"tune": {"trials": 1, "spaces": 3}},
    "callbacks: 3 is not a list of functions; for example callbacks=[show]": {"callbacks": 3},
    "callbacks: [3] is not a list of functions": {"callbacks": [3]},
    "out: 3 is not a path of a folder": {"out": 3},
    "out: '' is not a path of a folder": {"out": ""},
    "name: 3 is not a name": {"name": 3},
    "model: lambda: gives outputs of shape [4, 7]": {"model": lambda shape, outputs: nn.Linear(5, 7)},
    "model: Flatten: has no parameters": {"model": nn.Flatten},
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_arguments_are_refused(message: str, tmp_path: Path) -> None:
    """One line before any work. The folder is unchanged."""
    arguments = {"methods": ["local"], "rounds": 1, "seeds": 1, "out": tmp_path / "out", **QUIET, **REFUSED[message]}
    with pytest.raises(fw.BadInput) as caught:
        fw.compare(people(), **arguments)
    assert message in str(caught.value)
    assert str(caught.value).count("compare(): ") < 2
    assert not any(word in str(caught.value) for word in ("params.yaml", "tasks.", "people-local."))
    assert not (tmp_path / "out").exists()


def test_seeds_may_be_an_iterator_that_is_read_once() -> None:
    compared = fw.compare(people(), ["local"], rounds=1, seeds=iter((3, 5)), **QUIET, tune=0)
    assert [*compared.study.runs[0].seeds] == [3, 5]


@pytest.mark.parametrize("folder", [None, 3, ""])
def test_a_folder_that_is_not_a_path_is_refused(folder: object) -> None:
    """One line names the argument."""
    with pytest.raises(fw.BadInput, match=r"folder: .* is not a path of a folder; for example 'results"):
        fw.load(folder)
