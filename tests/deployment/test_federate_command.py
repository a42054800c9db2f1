"""`fedweave federate`: its files, its output, and the input that it refuses before any work."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedweave import data
from fedweave.deployment.__main__ import main as hosts_main
from fedweave.deployment.node import client_data
from fedweave.deployment.wire import spec
from fedweave.errors import BadInput
from fedweave.pipelines.commands import federate
from fedweave.pipelines.commands.main import app
from fedweave.pipelines.commands.params_file import dump
from fedweave.study import plugins
from tests.servers import DIGITS

PARAMS = {
    "study": "small",
    "about": "",
    "seeds": [0, 1],
    "datasets": ["digits"],
    "tasks": {"digits": {**DIGITS, "model": {"name": "mlp", "hidden": [4]}}},
    "runs": {
        "digits-fedavg": {"task": "digits", "method": "fedavg"},
        "digits-central": {"task": "digits", "method": "central"},
    },
    "methods": {"fedavg": {}, "central": {}},
    "tune": {"trials": 0, "seeds": [1000]},
    "ablate": {},
    "margins": {},
}
EXPORT = ["export", "digits-fedavg", "--to", "app"]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with params.yaml and partitioned data."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "params.yaml").write_text(dump(PARAMS))
    digits = data.load("digits", folder / "raw")
    data.save_dataset(folder / "data" / "features" / "digits", digits)
    partition = data.partition(digits, **DIGITS["partition"])
    data.save_partition(folder / "data" / "partitions" / "digits" / "partition.npz", partition)
    return folder


@pytest.fixture
def run_federate(project, monkeypatch):
    """Runs `fedweave federate WORDS` in the project. Returns its output, or the line of its error."""
    monkeypatch.chdir(project)

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["federate", *arguments], env={"COLUMNS": "200"})
        if isinstance(done.exception, BadInput):
            return str(done.exception)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.output

    return run


def test_export_writes_an_app_and_the_files_of_its_clients(run_federate, project, capsys):
    """The seed is the requested one. A second export replaces both folders."""
    for _ in range(2):
        text = run_federate(*EXPORT, "--data", "app-data", "--seed", "1")
    made = spec.read(project / "app" / "fedweave_app" / "spec.json")
    assert f"app: fedavg on digits, 10 clients, specification {made.hash}" in text
    assert made.seed == 1
    assert {file.name for file in (project / "app-data").iterdir()} == {f"client-{i}.pt" for i in range(10)}
    assert client_data.read(project / "app-data" / "client-3.pt").client == 3
    assert hosts_main(["show", str(project / "app")]) == 0
    assert made.hash in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [[], ["export", "--help"], ["simulate", "--help"]], ids=["none", "export", "simulate"]
)
def test_help_is_printed(arguments, run_federate):
    text = run_federate(*arguments)
    assert "Usage" in text
    assert "Example: fedweave federate" in text if arguments else {"export", "simulate"} <= {*text.split()}


BAD = {
    "run": (["export", "digits-fedvag", "--to", "x"], "runs: 'digits-fedvag' is unknown; did you mean 'digits-fedavg'"),
    "method": (["export", "digits-central", "--to", "x"], "runs.digits-central: central cannot run on separate hosts"),
    "folder": (["export", "digits-fedavg", "--to", "data"], "data is not an empty folder; choose another one"),
    "file": (["export", "digits-fedavg", "--to", "params.yaml"], "params.yaml is not an empty folder"),
    "inside": ([*EXPORT[:3], "x", "--data", "x/data"], "x/data is inside of the app, which all hosts get"),
    "other": ([*EXPORT[:3], "x", "--data", "data"], "data is not an empty folder; choose another one for the data"),
    "seed": ([*EXPORT[:3], "x", "--seed", "7"], "seed: 7 is none of the run's: 0, 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_line_and_nothing_is_written(case, run_federate, project):
    arguments, line = BAD[case]
    text = run_federate(*arguments)
    assert line in text
    assert "\n" not in text
    assert not (project / "x").exists()


def test_a_partition_of_other_settings_is_refused(run_federate, project):
    """The files under data/ have the settings before params.yaml was changed."""
    file = project / "data" / "partitions" / "digits" / "partition.npz"
    partition, digits = file.read_bytes(), data.load_dataset(project / "data" / "features" / "digits")
    lines = []
    try:
        for change in ({"clients": 3}, {"seed": 5}):
            data.save_partition(file, data.partition(digits, **{**DIGITS["partition"], **change}))
            lines.append(run_federate(*EXPORT[:3], "x"))
    finally:
        file.write_bytes(partition)
    assert lines[0] == (
        "data/partitions/digits: 3 clients, but params.yaml asks for 10; make it again: dvc repro partition@digits"
    )
    assert "10 clients with other rows than params.yaml asks for" in lines[1]
    assert not (project / "x").exists()


PLUGIN = """import fedweave as fw
from fedweave.methods.fedavg import FedAvg

@fw.method("mine")
class Mine(FedAvg):
    label = "Mine"
"""


@pytest.fixture
def own_tables():
    """Restores the tables and modules after a test that imports a plug-in."""
    from fedweave.engine.registry import METHODS

    tables, path = (METHODS, plugins._loaded), [*sys.path]
    before = [dict(table) for table in tables]
    yield
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)
    sys.modules.pop("mine_plugin", None)
    sys.path[:] = path


def test_a_method_of_a_file_is_refused(run_federate, project, tmp_path, monkeypatch, own_tables):
    """No other host has the file."""
    (project / "mine_plugin.py").write_text(PLUGIN)
    params = {**PARAMS, "runs": {"digits-mine": {"task": "digits", "method": "mine"}}, "methods": {"mine": {}}}
    (tmp_path / "params.yaml").write_text(dump(params))
    (tmp_path / "data").symlink_to(project / "data")
    arguments = ["export", "digits-mine", "--to", "x", "--uses", str(project / "mine_plugin.py")]
    monkeypatch.chdir(tmp_path)
    assert "method mine is in the plug-in mine_plugin, which no host has" in run_federate(*arguments)
    assert not (tmp_path / "x").exists()


def test_simulate_is_refused_without_an_app_or_without_flower(run_federate, monkeypatch):
    line = run_federate("simulate", "none")
    assert line.startswith("none/fedweave_app/spec.json: no specification of a federation (No such file or directory)")
    assert line.count("none/") == 1
    monkeypatch.setattr(federate, "find_spec", lambda name: None)
    monkeypatch.setattr(federate, "ENVIRONMENT", Path("absent/python"))
    run_federate(*EXPORT[:3], "other")
    assert "absent/python: not found; Flower has an environment of its own: make flower" in run_federate(
        "simulate", "other"
    )


def test_simulate_is_replaced_by_the_process_of_flower(run_federate, project, monkeypatch):
    """A signal to the command reaches the process that ends the SuperLink and the nodes."""
    called = []
    monkeypatch.setattr(federate, "flower_python", lambda: Path("/flower/python"))
    monkeypatch.setattr(federate.os, "execv", lambda *arguments: called.append(arguments))
    run_federate(*EXPORT[:3], "another")
    run_federate("simulate", "another", "--out", "runs")
    arguments = ["-m", "fedweave.deployment", "simulate", "another", "--data", "another-data", "--out", "runs"]
    assert called == [("/flower/python", ["/flower/python", *arguments])]
    monkeypatch.chdir(project / "another")
    run_federate("simulate", ".")
    assert called[1][1][4:7] == [".", "--data", str(project / "another-data")]


def test_simulate_uses_the_files_of_clients(run_federate, project, capsys):
    """Each client of the start needs its file. Files of newcomers are used, and other files are ignored."""
    run_federate(*EXPORT[:3], "simulated", "--data", "files")
    folder = project / "files"
    for name in ("client-12.pt", "client-x.pt", "client-07.pt", "client-3.pt.old", "client-.pt"):
        (folder / name).touch()
    expected = [folder / f"client-{i}.pt" for i in (*range(10), 12)]
    assert client_data.find_files(folder, 10) == expected
    (folder / "client-4.pt").unlink()
    assert hosts_main(["simulate", "simulated", "--data", "files", "--out", "out"]) == 2
    line = "error: files/client-4.pt: not found, but the federation has 10 clients; write it with"
    assert capsys.readouterr().err.startswith(line)
    assert not (project / "out").exists()


def test_simulate_needs_flower(run_federate, project, monkeypatch, capsys):
    """Without Flower, the command starts no process."""
    monkeypatch.setattr("fedweave.deployment.flower.processes.find_spec", lambda name: None)
    run_federate(*EXPORT[:3], "bare", "--data", "rows")
    capsys.readouterr()
    assert hosts_main(["simulate", "bare", "--data", "rows", "--out", "out"]) == 2
    assert "has no Flower" in capsys.readouterr().err
    assert not (project / "out").exists()


def test_a_specification_with_an_unknown_method_is_refused_in_one_line(run_federate, project, capsys):
    """`simulate` also refuses it, before it starts a process."""
    run_federate(*EXPORT[:3], "changed")
    path = project / "changed" / "fedweave_app" / "spec.json"
    content = json.loads(path.read_text())
    for run in ({}, [], {"method": "fedavg"}):
        path.write_text(json.dumps({**content, "run": run}))
        assert hosts_main(["show", "changed"]) == 2
        assert "export it again" in capsys.readouterr().err
    path.write_text(json.dumps({**content, "run": {**content["run"], "method": "nosuch"}}))
    for arguments in (["show", "changed"], ["simulate", "changed", "--data", "changed", "--out", "out"]):
        assert hosts_main(arguments) == 2
        assert "spec.json: run.method: 'nosuch' is unknown" in capsys.readouterr().err
    assert not (project / "out").exists()
