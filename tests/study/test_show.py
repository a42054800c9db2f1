"""`fedweave study show` refuses the same studies as `fedweave study use`, with the same line, and writes nothing."""

import copy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedweave.pipelines.commands import main

ROOT = Path(__file__).resolve().parents[2]
STUDY: dict[str, Any] = {
    "seeds": [0, 1],
    "without_controls": "a test",
    "tasks": {
        "own": {
            "dataset": "digits",
            "metric": "accuracy",
            "partition": {"name": "iid", "clients": 6, "seed": 1},
            "model": {"name": "mlp", "hidden": 8},
            "train": {"rounds": 4, "batch_size": 32, "lr": 0.1},
            "methods": ["fedavg", {"p": {"method": "pfedgraph", "set": {"graph": "uniform"}}}],
        }
    },
}
BAD = {
    "seeds": "0,1",
    "tasks/own/dataset": "digts",
    "tasks/own/metric": "auroc",
    "tasks/own/partition/clients": -3,
    "tasks/own/partition/shrds": 2,
    "tasks/own/model/hidden": 0,
    "tasks/own/train/lr": "high",
    "tasks/own/train/rounds": 0,
    "tasks/own/methods": ["fedavgg"],
    "tasks/own/methods/1/p/set": {"graph": "given:none.csv"},
    "tune": {"trials": "five"},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the tasks that studies build on."""
    monkeypatch.chdir(tmp_path)
    Path("studies").mkdir()
    shutil.copy(ROOT / "studies" / "base.yaml", "studies/base.yaml")


def run_command(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[Any, str, str]:
    """(exit code, output, errors) of a command on b.yaml."""
    monkeypatch.setattr(sys, "argv", ["fedweave", "study", command, "b.yaml"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    return ended.value.code or 0, *capsys.readouterr()


def altered(place: str, value: object) -> dict[str, Any]:
    """`STUDY` with another value at one place. The parts of `place` are keys, or indices of a list."""
    study = copy.deepcopy(STUDY)
    *parents, key = place.split("/")
    node: Any = study
    for parent in parents:
        node = node[int(parent)] if isinstance(node, list) else node[parent]
    node[key] = value
    return study


def written() -> set[Path]:
    return {*Path.cwd().rglob("*")}


@pytest.mark.parametrize("place", BAD)
def test_a_broken_study_is_not_shown(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("b.yaml").write_text(yaml.safe_dump(altered(place, BAD[place])))
    before = written()
    code, output, error = run_command("show", monkeypatch, capsys)
    assert (code, output, error.count("\n")) == (2, "", 1)
    assert error.startswith("error: b.yaml: ")
    assert (code, output, error) == run_command("use", monkeypatch, capsys)
    assert written() == before


def test_a_valid_study_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The output is the params.yaml that `use` writes."""
    Path("b.yaml").write_text(yaml.safe_dump(STUDY))
    before = written()
    code, output, _ = run_command("show", monkeypatch, capsys)
    assert (code, written()) == (0, before)
    assert run_command("use", monkeypatch, capsys)[0] == 0
    assert Path("params.yaml").read_text() == output
