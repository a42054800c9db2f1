"""Forecasts and graphs for code from elsewhere: no target of a test row is within reach, and scores are equal."""

import fcntl
import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

import fedweave as fw
from fedweave.contestants.exchange import write_task
from fedweave.contestants.origins import Origins, ask_functions
from fedweave.contestants.rows import ContestClient, ContestTask
from fedweave.contestants.sandbox import find_problem
from fedweave.errors import BadInput, ContestantFailed

WINDOW, HORIZON = 4, 3
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
PAGE = Path(__file__).parents[2].joinpath("docs", "contestants.md").read_text(encoding="utf-8")
START = """
import json, sys
from pathlib import Path
import numpy as np

task, output = map(Path, sys.argv[1:])
about = json.loads((task / "task.json").read_text())


def last(x):
    return np.repeat(x.reshape(len(x), WINDOW)[:, -1:], about["outputs"], 1)


def forecast(client, x):
    assert [file.name for file in (task / client["folder"]).glob("test*.npz")] == [f"test-{k}.npz"]
    return last(x)


for client in about["clients"]:
    (output / client["folder"]).mkdir(parents=True)
    np.savez(output / client["folder"] / "val.npz", outputs=last(np.load(task / client["folder"] / "val.npz")["x"]))
""".replace("WINDOW", str(WINDOW))
LAST = START + re.findall(r"```python\n(for line in sys.stdin:.*?)```", PAGE, re.DOTALL)[0]
WRITE = 'np.savez(output / client["folder"] / f"test-{k}.npz", outputs=forecast(client, x))'
TEXT = '(output / client["folder"] / f"test-{k}.csv").write_text("a,b,c\\n" + ",".join(map(repr, last(x)[0].tolist())))'
# The input of a window has the first target of the one before it: too late, as its forecast was taken.
CHEAT = f"{WRITE}\n            if k:\n                " + WRITE.replace("test-{k}", "test-{k - 1}").replace(
    "forecast(client, x)", "np.repeat(x.reshape(1, -1)[:, -1:], about['outputs'], 1)"
)
PROGRAMS = {
    "npz": LAST,
    "cheat": LAST.replace(WRITE, CHEAT),
    "csv": LAST.replace(WRITE, TEXT),
    "early": START,
    "nan": LAST.replace("outputs=forecast(client, x)", "outputs=forecast(client, x) * (np.nan if k == 2 else 1)"),
    "folder": LAST.replace("touch()", "mkdir()"),
    "clean": LAST.replace("(output / f", "import shutil; shutil.rmtree(task); (output / f"),
}
LINK = """
for client in about["clients"]:
    (task / client["folder"] / "test-3.npz").symlink_to("VICTIM")
"""
LINKED = START.replace("    assert ", "    # ") + LINK + LAST.removeprefix(START)


@pytest.fixture(scope="module")
def series() -> fw.Federation:
    """Two clients, one of which has fewer windows."""
    draws = np.random.default_rng(0)
    counts = {"Ann": 90, "Bob": 60}
    time = np.concatenate([np.arange(count) for count in counts.values()])
    client = [name for name, count in counts.items() for _ in range(count)]
    y = np.sin(time / 3) + 0.1 * draws.normal(size=len(time))
    return fw.Federation.from_arrays(None, y, client=client, time=time, window=WINDOW, horizon=HORIZON)


def compare(federation: fw.Federation, contestants: list, methods: tuple[str, ...] = ("local",)) -> fw.Comparison:
    options = {"rounds": 1, "seeds": 1, "tune": 0, "central": False, "evaluate": {"select": "last"}}
    return fw.compare(federation, [*methods, *contestants], progress=False, **options)


def last_value(task: ContestTask):
    """The control of the same name; a window is asked for after the one before it."""
    assert task.forecasts
    assert not any(len(client.test_x) for client in task.clients)

    def last(x: np.ndarray) -> np.ndarray:
        return np.repeat(x.reshape(len(x), WINDOW)[:, -1:], HORIZON, 1)

    return {client.name: (last(client.val_x), last) for client in task.clients}


def test_forecasts_are_asked_for_one_origin_at_a_time(series: fw.Federation, tmp_path: Path) -> None:
    """A function, programs and a control give the same scores; failures are one line."""
    for name, text in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    programs = [fw.contestants.program(f"python {name}.py", folder=tmp_path) for name in PROGRAMS]
    array = fw.contestants.function(lambda task: [(client.val_x, client.test_x) for client in task.clients], "array")
    others = [fw.contestants.function(last_value), fw.contestants.estimator(Ridge()), array]
    comparison = compare(series, [*programs, *others])
    scores = {name: comparison[name].scores.to_numpy() for name in ("npz", "cheat", "csv", "last_value", "Ridge")}
    controls = comparison.controls().set_index("control")["mean"]
    assert np.allclose(scores["npz"].mean(), controls["Last value"], rtol=1e-5)
    assert (scores["npz"] == scores["csv"]).all()
    assert (scores["npz"] == scores["cheat"]).all()
    assert np.allclose(scores["npz"], scores["last_value"], rtol=1e-6)
    assert scores["Ridge"].mean() < controls["Last value"]
    lost = "\n".join(comparison.lost)
    assert "nan: client 'Ann': test window 2: its prediction of row 0 is nan" in lost
    assert "early: it ended without a file done-0" in lost
    assert "array: client 'Ann': it gave no function for its test windows" in lost
    assert "folder: file done-0 of an origin: it cannot be used (Is a directory)" in lost
    assert "clean: file test-1.npz of an origin: it cannot be used (No such file or directory)" in lost
    assert len(comparison.lost) == 5


@pytest.mark.skipif(bool(find_problem()), reason=f"the sandbox: {find_problem()}")
def test_windows_are_not_written_through_a_link_out_of_the_sandbox(series: fw.Federation, tmp_path: Path) -> None:
    (victim := tmp_path / "victim").write_text("mine", encoding="utf-8")
    (folder := tmp_path / "code").mkdir()
    (folder / "linked.py").write_text(LINKED.replace("VICTIM", str(victim)), encoding="utf-8")
    comparison = compare(series, [fw.contestants.program("python linked.py", folder=folder, sandbox=True)])
    assert "Permission denied" in comparison.lost[0]
    assert victim.read_text(encoding="utf-8") == "mine"


def forecasts_of_one_client(windows: np.ndarray) -> ContestTask:
    client = ContestClient("Ann", np.zeros((1, 2)), np.zeros((1, 1)), np.zeros((1, 2)), np.zeros((1, 1)), windows)
    return ContestTask("pipe", "numbers", 1, (), "mae", False, 0, 1, (client,), forecasts=True)


def test_a_program_that_never_reads_its_input_does_not_stop_fedweave(tmp_path: Path) -> None:
    """A pipe takes some thousand numbers, and then writing waits for the program."""
    task = forecasts_of_one_client(np.zeros((20_000, 2)))
    with subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        (tmp_path / "clients" / "0").mkdir(parents=True)
        os.write(process.stdin.fileno(), bytes(fcntl.fcntl(process.stdin, fcntl.F_GETPIPE_SZ)))
        try:
            with pytest.raises(ContestantFailed, match="it does not read its standard input"):
                next(Origins(task, tmp_path, tmp_path).hand_out(process))
        finally:
            process.kill()


def test_a_function_gets_one_window_and_no_way_to_the_others() -> None:
    x = np.zeros((3, 2))
    task = forecasts_of_one_client(x)
    seen: list[np.ndarray] = []

    def forecast(window: np.ndarray) -> np.ndarray:
        seen.append(window)
        window += 1
        return np.zeros((1, 1))

    assert task.without_origins().clients[0].test_x.base is None
    ask_functions(task, {"Ann": (np.zeros((1, 1)), forecast)})
    assert [window.base is None for window in seen] == [True] * 3
    assert not x.any()


@pytest.fixture(scope="module")
def graphs() -> fw.Federation:
    """Two rings of nodes, whose label is known by the neighbours alone."""
    draws, parts = np.random.default_rng(1), {}
    for name, count in {"Ann": 40, "Bob": 30}.items():
        y = np.repeat([0, 1], count // 2)
        edges = np.array([(i, (i + step) % count) for i in range(count) for step in (1, 2)]).T
        parts[name] = (draws.normal(size=(count, 3)) + 0.5 * y[:, None], edges, y)
    return fw.Federation.from_graphs(parts)


def test_graphs_are_handed_out_with_edges_and_without_test_labels(graphs: fw.Federation, tmp_path: Path) -> None:
    """A program spreads the labels of training over the edges; an estimator sees features alone."""
    caught: list[ContestTask] = []

    def spread(task: ContestTask):
        caught.append(task)
        answers = []
        for client in task.clients:
            graph = client.graph
            assert graph is not None
            votes = np.ones((len(graph.x), task.outputs))
            for _ in range(20):
                votes[graph.train] = 50 * np.eye(task.outputs)[client.train_y]
                sums = np.zeros_like(votes)
                np.add.at(sums, graph.edges[1], votes[graph.edges[0]])
                votes = sums / sums.sum(1, keepdims=True)
            answers.append((votes[graph.val], votes[graph.test]))
        return answers

    comparison = compare(graphs, [fw.contestants.function(spread), fw.contestants.estimator(LogisticRegression())])
    means = {name: comparison[name].scores.mean() for name in ("spread", "LogisticRegression")}
    assert means["spread"] > 85 > means["LogisticRegression"], comparison.lost
    [task] = caught
    write_task(task, tmp_path / "task")
    ann, nodes = task.clients[0], graphs.dataset.x[: len(graphs.partition.nodes[0])]
    place = tmp_path / "task" / "clients" / "0"
    stored = dict(np.load(place / "graph.npz"))
    assert {*stored} == {"x", "edges", "train", "val", "test"}
    assert np.array_equal(stored["x"], nodes.reshape(len(nodes), -1))
    assert np.array_equal(stored["x"][stored["test"]], ann.test_x)
    assert {*map(tuple, stored["edges"].T.tolist())} == {*map(tuple, graphs.partition.edges[0].T.tolist())}
    assert np.load(place / "test.npz").files == ["x"]
    assert (place / "edges.csv").read_text().splitlines()[0] == "node,neighbour"
    heading, *lines = (place / "nodes.csv").read_text().splitlines()
    assert heading == "part,row,x1,x2,x3"
    assert len(lines) == len(nodes)
    about = json.loads((tmp_path / "task" / "task.json").read_text())
    assert (about["kind"], about["origins"], about["clients"][0]["test"]) == ("classes", 0, len(ann.test_x))


def test_a_node_that_another_client_trains_on_is_refused(graphs: fw.Federation) -> None:
    """Its label could not be hidden."""
    from dataclasses import replace

    nodes = (graphs.partition.nodes[0], graphs.partition.nodes[0][: len(graphs.partition.nodes[1])])
    shared = replace(graphs, partition=replace(graphs.partition, nodes=nodes))
    with pytest.raises(BadInput, match="is a test row of one client, and a training or validation row of another"):
        compare(shared, [fw.contestants.estimator(LogisticRegression())])
