"""Contestants in a comparison: equal terms with the methods, hidden targets, and failures that cost one line."""

import dataclasses
import doctest
import json
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from torch import nn

import fedweave as fw
from fedweave.contestants.exchange import write_task
from fedweave.errors import BadInput
from tests import convex
from tests.contestants.test_raw_rows import catch

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
CLIENTS, ROWS, ROUNDS, RATE = 4, 60, 30, 0.5

FEDAVG = """
import json, sys
from pathlib import Path
import numpy as np

task, out = map(Path, sys.argv[1:])
about = json.loads((task / "task.json").read_text())
clients = [{part: np.load(task / c["folder"] / f"{part}.npz") for part in ("train", "val", "test")}
           for c in about["clients"]]
wide = lambda x: np.column_stack([np.ones(len(x)), x.reshape(len(x), -1)])
def shares(x, weights):
    values = np.exp(wide(x) @ weights)
    return values / values.sum(1, keepdims=True)
weights = np.zeros((1 + clients[0]["train"]["x"][0].size, about["outputs"]))
sizes = np.array([len(c["train"]["y"]) for c in clients])
for _ in range(about["budget"]["rounds"]):
    uploads = []
    for c in clients:
        x, y = c["train"]["x"], c["train"]["y"]
        error = shares(x, weights) - np.eye(about["outputs"])[y]
        uploads.append(weights - RATE * wide(x).T @ error / len(x))
    weights = np.average(uploads, axis=0, weights=sizes)
for c, rows in zip(about["clients"], clients):
    folder = out / c["folder"]
    folder.mkdir(parents=True)
    np.savez(folder / "val.npz", outputs=shares(rows["val"]["x"], weights))
    table = shares(rows["test"]["x"], weights)
    np.savetxt(folder / "test.csv", np.column_stack([np.arange(len(table)), table]), "%.17g", ",",
               header=",".join(["row", *map(str, range(about["outputs"]))]), comments="")
(out / "bytes.json").write_text(json.dumps({"up": 12, "down": 34}))
np.savetxt(out / "graph.csv", np.full((len(clients), len(clients)), 1 / len(clients)), delimiter=",")
(out / "curves.csv").write_text("round,name,value\\n1,mine,0.5\\n2,mine,0.25\\n")
print("finished")
""".replace("RATE", str(RATE))


@pytest.fixture(scope="module")
def federation():
    draws = np.random.default_rng(3)
    x = draws.normal(size=(CLIENTS * ROWS, 4))
    noise = draws.logistic(size=len(x))
    y = np.where(2 * x[:, 0] - x[:, 1] + 0.5 + 0.5 * noise > 0, "yes", "no")
    return fw.Federation.from_arrays(x, y, client=[f"c{i % CLIENTS}" for i in range(len(x))])


def base_rate(task):
    """The control of the same name: shares of the classes in all training rows, and one more row of each class."""
    counts = np.bincount(np.concatenate([c.train_y for c in task.clients]), minlength=task.outputs) + 1.0
    return {c.name: [np.tile(counts / counts.sum(), (len(x), 1)) for x in (c.val_x, c.test_x)] for c in task.clients}


def crash(task):
    raise RuntimeError("no more\nideas")


@pytest.fixture(scope="module")
def compared(federation, tmp_path_factory):
    folder = tmp_path_factory.mktemp("contestants")
    (folder / "mine.py").write_text(FEDAVG)
    (folder / "fails.py").write_text("print('first')\nraise SystemExit('a reason')\n")
    c = fw.contestants
    methods = [
        "fedavg",
        c.function(crash),
        c.program("python fails.py", folder=folder),
        c.function(base_rate),
        c.estimator(LogisticRegression()),
        c.program("python mine.py", folder=folder, timeout=300),
    ]
    options = {"rounds": ROUNDS, "batch_size": 0, "lr": RATE, "metric": "log_loss", "central": False}
    options["model"] = lambda shape, k: nn.Sequential(nn.Flatten(), nn.Linear(4, k))
    return fw.compare(federation, methods, seeds=2, progress=False, out=folder / "out", **options)


def test_a_contestant_that_is_a_control_has_its_score_to_the_last_digit(compared):
    run = compared["base_rate"].run
    control = run.info["controls"]["Base rate of all clients"]
    scores = compared["base_rate"].select_scores()
    for seed in (0, 1):
        assert scores[scores["seed"] == seed]["value"].tolist() == control


def test_fedavg_as_a_program_agrees_with_ours(compared):
    """Full batches of a convex loss: only the first values of the model differ."""
    ours, theirs = (compared[name].select_scores().groupby("seed")["value"].mean() for name in ("fedavg", "mine"))
    assert abs(ours.mean() - theirs.mean()) < 0.02
    assert theirs.mean() < compared["base_rate"].select_scores()["value"].mean() - 0.1
    assert theirs.std() == 0


def test_fedavg_as_a_program_agrees_with_ours_where_clients_differ_in_size(tmp_path: Path):
    """Three classes; so the weights of clients and the order of classes count, too."""
    (tmp_path / "mine.py").write_text(FEDAVG)
    distance = convex.distance(convex.TASKS[1], fw.contestants.program("python mine.py", folder=tmp_path))
    assert abs(distance) < convex.NEAR


@pytest.mark.usefixtures("undrawn")
def test_contestants_stand_on_the_board_with_marks(compared):
    assert set(compared.methods) == {"fedavg", "base_rate", "LogisticRegression", "mine"}
    assert compared["mine"].run.printed_label == "mine (program)"
    line = next(line for line in compared.warnings if line.startswith("mine (program)"))
    assert "not tuned" in line
    assert "federated" in line
    page = compared.report().read_text(encoding="utf-8")
    assert "mine (program) brought its own code" in page
    again = fw.load(compared.study.folder)
    assert again.leaderboard()["mean"].tolist() == compared.leaderboard()["mean"].tolist()


def leave(task):
    raise SystemExit("no data")


def with_gradient(task):
    return [[torch.tensor(part, requires_grad=True) for part in pair] for pair in base_rate(task).values()]


def test_a_function_that_leaves_python_ends_alone(federation):
    """As a script that calls `sys.exit` does; a tensor that has a gradient is as good as one without."""
    functions = [fw.contestants.function(code) for code in (base_rate, with_gradient, leave)]
    result = fw.compare(federation, functions, rounds=1, seeds=1, tune=0, central=False, progress=False)
    assert "leave: it ended with SystemExit: no data" in result.lost
    means = result.leaderboard().set_index("method")["mean"]
    assert means["with_gradient"] == pytest.approx(means["base_rate"])


def test_a_failing_estimator_names_its_client():
    """As where one client has too few rows for a cross-validation."""
    x, client = np.arange(126.0)[:, None] % 7, ["a", "b"] * 60 + ["small"] * 6
    federation = fw.Federation.from_arrays(x, np.arange(126) // 2 % 2, client=client)
    model = fw.contestants.estimator(CalibratedClassifierCV(LogisticRegression()), name="calibrated")
    failure = "calibrated: client 'small': CalibratedClassifierCV ended with ValueError: "
    with pytest.raises(RuntimeError, match=failure):
        fw.fit(model, federation, rounds=1, progress=False)


def test_classes_without_probabilities_are_noted():
    """A score of probabilities, such as `roc_auc`, is then one of classes."""
    for model, expected in ((LinearSVC(), True), (make_pipeline(LinearSVC()), True), (LogisticRegression(), False)):
        unequal = fw.contestants.estimator(model, name="one").runner.unequal
        assert ("it gives classes without probabilities" in unequal) == expected


def test_bytes_curves_and_the_graph_are_stored(compared):
    run = compared["mine"]
    assert run.rounds[["bytes_up", "bytes_down"]].drop_duplicates().to_numpy().tolist() == [[12, 34]]
    curve = run.diagnostics[run.diagnostics["name"] == "mine"]
    assert curve["value"].tolist() == [0.5, 0.25] * 2
    assert np.allclose(run.graph(), 1 / CLIENTS)
    assert (run.run.folder / "log-0.txt").read_text() == "finished\n"


def constant(share):
    def predict_share(task):
        parts = ((len(c.val_x), len(c.test_x)) for c in task.clients)
        return [[np.tile([share, 1 - share], (rows, 1)) for rows in pair] for pair in parts]

    return fw.contestants.function(predict_share, settings={"level": 1.0})


def test_contestants_of_one_name_run_their_own_code():
    """As estimators of one class with other arguments. All ran the code of the last one, under the names of all."""
    x, client = np.arange(120.0)[:, None] % 7, ["a", "b", "c"] * 40
    federation = fw.Federation.from_arrays(x, np.arange(120) // 3 % 5 == 0, client=client)
    listed = {"rare": constant(0.2), "even_odds": constant(0.5), "often": constant(0.8)}
    options = {"rounds": 1, "seeds": 1, "tune": 0, "progress": False, "metric": "log_loss", "central": False}
    means = fw.compare(federation, listed, **options).leaderboard().set_index("method")["mean"]
    assert [*means.index] == ["often", "even_odds", "rare"]
    assert means["even_odds"] == pytest.approx(np.log(2))
    with pytest.raises(BadInput, match="methods: 'predict_share' occurs twice; change a setting, or give names"):
        fw.compare(federation, [*listed.values()], **options)


def test_settings_of_a_contestant_reach_its_task(federation):
    """As those of a method do: a class with settings, or an object that has others."""
    levels = []

    def record_level(task):
        levels.append(task.settings["level"])
        return base_rate(task)

    entry = fw.contestants.function(record_level, settings={"level": 1.0})
    listed = {"declared": entry, "high": entry(level=9.0)}
    fw.compare(federation, listed, rounds=1, seeds=2, tune=0, central=False, progress=False)
    assert sorted(levels) == [1.0, 1.0, 9.0, 9.0]


def test_failures_are_one_line_each(compared):
    lines = [line for line in compared.lost if line.startswith(("crash", "fails"))]
    assert lines[0] == "crash: it ended with RuntimeError: no more"
    assert lines[1].startswith("fails: it ended with exit code 1: its last line: a reason (all of it: ")
    assert len(compared.lost) == 2


def test_other_metrics_and_models_of_a_contestant(compared):
    scores = compared.with_metric("accuracy").leaderboard().set_index("method")["mean"]
    assert scores["mine"] > scores["base_rate"]
    with pytest.raises(BadInput, match="left predictions and no models"):
        compared["mine"].predict(np.zeros((1, 4)), "c0")


def test_a_program_runs_again_only_when_it_changed(compared, federation):
    """Whether a finished run is taken from its folder depends on the files of the command."""
    folder = compared.study.folder.parent
    runners = [fw.contestants.program("python mine.py", folder=folder).runner.digest() for _ in range(2)]
    assert runners[0] == runners[1]
    (folder / "mine.py").write_text(FEDAVG + "\n# another line\n")
    assert fw.contestants.program("python mine.py", folder=folder).runner.digest() != runners[0]
    (folder / "mine.py").write_text(FEDAVG)


@pytest.fixture(scope="module")
def task(federation):
    return catch(federation)


def test_no_target_of_a_test_row_is_handed_out(task, tmp_path: Path):
    fields = {field.name for field in dataclasses.fields(task.clients[0])}
    assert "test_y" not in fields
    arrays = {name for name in fields if name.endswith(("_x", "_y"))}
    assert all(getattr(c, name).base is None for c in task.clients for name in arrays)
    write_task(task, tmp_path / "task")
    files = sorted(str(p.relative_to(tmp_path / "task")) for p in (tmp_path / "task").rglob("*") if p.is_file())
    parts = product(range(CLIENTS), ("test", "train", "val"), ("csv", "npz", "parquet"))
    names = [f"clients/{i}/{part}.{kind}" for i, part, kind in parts]
    assert files == [*names, "task.json"]
    for i in range(CLIENTS):
        place = tmp_path / "task" / "clients" / str(i)
        assert np.load(place / "test.npz").files == ["x"]
        assert (place / "test.csv").read_text().splitlines()[0] == "x1,x2,x3,x4"
        assert [*pd.read_parquet(place / "test.parquet")] == ["x1", "x2", "x3", "x4"]
        assert (place / "train.csv").read_text().splitlines()[0] == "x1,x2,x3,x4,y"
    about = json.loads((tmp_path / "task" / "task.json").read_text())
    assert (about["version"], about["kind"], about["classes"]) == (2, "classes", ["no", "yes"])


def test_tables_read_back_to_the_same_bits(task, tmp_path: Path):
    write_task(task, tmp_path / "task")
    table = np.loadtxt(tmp_path / "task" / "clients" / "0" / "train.csv", delimiter=",", skiprows=1)
    first = task.clients[0]
    assert np.array_equal(pd.read_parquet(tmp_path / "task" / "clients" / "0" / "train.parquet").to_numpy(), table)
    assert np.array_equal(table[:, :-1].astype(np.float32), first.train_x.reshape(len(first.train_x), -1))
    assert np.array_equal(table[:, -1], first.train_y)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda c: c.program(""), "the command is empty"),
        (lambda c: c.program("no-such-program-at-all x"), "there is no program 'no-such-program-at-all'"),
        (lambda c: c.program("python no_such.py"), "there is no file no_such.py"),
        (lambda c: c.program("python -c 1", name="a", timeout=0), "timeout: 0 is not a number above 0"),
        (lambda c: c.program("python -c 1", name="a", network="no"), "network: 'no' is neither True nor False"),
        (lambda c: c.program("python -c 1", name="a", sandbox="no"), "sandbox: 'no' is neither True nor False"),
        (lambda c: c.program("python -c 1", name="a", uses=["no-such"]), "no-such is not there"),
        (lambda c: c.program("python -c 1", name="a b"), "'a b' is not a name"),
        (lambda c: c.function(3), "3 is not a function"),
        (lambda c: c.function(crash, settings=["x"]), r"settings: \['x'\] is not a mapping; give \{name: value\}"),
        (lambda c: c.estimator(LogisticRegression), "is not an estimator"),
        (lambda c: c.estimator(LogisticRegression(), "all"), "'all' is unknown"),
    ],
)
def test_wrong_contestants_are_refused(make, message: str):
    with pytest.raises(BadInput, match=message):
        make(fw.contestants)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"privacy": {"clip": 1.0, "noise": 1.0}}, "base_rate: privacy cannot be asked of code from elsewhere"),
        ({"methods": {"fedavg": None}}, "the contestant 'fedavg' has the name of a method"),
    ],
)
def test_terms_that_a_contestant_cannot_be_held_to(federation, settings, message: str):
    named = fw.contestants.function(base_rate, name="fedavg" if settings.pop("methods", None) else None)
    with pytest.raises(BadInput, match=message):
        fw.compare(federation, ["local", named], progress=False, **settings)


def oracle(task):
    """Nearly the rule by which the rows were made."""
    answers = {}
    for c in task.clients:
        scores = [2 * (x := part.reshape(len(part), -1))[:, 0] - x[:, 1] + 0.5 for part in (c.val_x, c.test_x)]
        answers[c.name] = [np.stack([1 / (1 + np.exp(2 * one)), 1 / (1 + np.exp(-2 * one))], 1) for one in scores]
    return answers


def test_recommend_judges_contestants_in_the_last_comparison(federation, tmp_path: Path):
    methods = [fw.contestants.function(code) for code in (oracle, crash)]
    advice = fw.recommend(federation, methods, rounds=2, seeds=2, settings=1, progress=False, out=tmp_path / "out")
    board = advice.board.set_index("method")
    assert {*board.index} == {"local", "fedavg", "fedavg_ft", "oracle"}
    assert board.index[0] == "oracle"
    assert np.isnan(board["bytes"]["oracle"])
    assert {*advice.race["method"]} == {"local", "fedavg", "fedavg_ft"}
    assert any("oracle brings its own code" in note for note in advice.facts["notes"])
    assert "nan MiB" not in str(advice)


def test_the_command_line_takes_programs(tmp_path: Path, monkeypatch, capsys):
    from fedweave.pipelines.commands import own_data

    monkeypatch.chdir(tmp_path)
    draws = np.random.default_rng(0)
    rows = [f"c{i % 3},{a},{'yes' if a > 0 else 'no'}" for i, a in enumerate(draws.normal(size=90))]
    Path("rows.csv").write_text("\n".join(["who,a,label", *rows]))
    Path("mine.py").write_text(FEDAVG)
    named = {"client": "who", "label": "label", "methods": ["local"], "contestant": ["python mine.py"]}
    own_data.compare(Path("rows.csv"), **named, out=tmp_path / "out", rounds=20, seeds=1, tune=0, model="mlp")
    printed = capsys.readouterr().out
    assert "mine (program)" in printed
    assert fw.load(tmp_path / "out").methods == ("local", "mine")
    programs = own_data.build_contestants(["python mine.py", "python mine.py --rate 2", "python mine.py --rate 3"])
    assert [program.own_name for program in programs] == ["mine", "mine-2", "mine-3"]
    with pytest.raises(BadInput, match=r"^--contestant: there is no file no\.py"):
        own_data.build_contestants(["python no.py"])


def training_mean(task):
    return [[np.tile(c.train_y.mean(0), (len(x), 1)) for x in (c.val_x, c.test_x)] for c in task.clients]


def test_numbers_are_scored_in_the_unit_of_the_targets():
    """A contestant gets and gives scaled numbers, and its score is that of the control of the same rule."""
    x = np.arange(120.0)[:, None] % 7
    numbers = fw.Federation.from_arrays(x, 50 + 3 * x[:, 0] + np.arange(120) % 2 / 4, client=["a", "b", "c"] * 40)
    named = fw.contestants.function(training_mean)
    result = fw.fit(named, numbers, rounds=1, progress=False)
    assert result.scores.to_numpy() == pytest.approx(result.run.info["controls"]["Training mean"], rel=1e-5)


def test_a_program_can_compute_the_unit_of_the_targets(tmp_path: Path):
    """task.json has the two numbers of each client."""
    x = np.arange(120.0)[:, None] % 7
    label = 50 + 3 * x[:, 0] + np.arange(120) % 2 / 4
    numbers = fw.Federation.from_arrays(x, label, client=["a", "b"] * 60, normalize="standard_client")
    write_task(catch(numbers), tmp_path / "task")
    for i, client in enumerate(json.loads((tmp_path / "task" / "task.json").read_text())["clients"]):
        y = np.load(tmp_path / "task" / client["folder"] / "train.npz")["y"]
        own = y * client["unit"] + client["offset"]
        np.testing.assert_allclose(own[:, 0], label[numbers.partition.train[i]], rtol=1e-6)


def test_the_example_in_the_docstring_runs():
    outcome = doctest.testmod(fw.contestants)
    assert outcome.attempted
    assert not outcome.failed
