"""Contestants in a study: declared in params.yaml, run by the stages, and read by the tables as any method."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedweave import data, results
from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.pipelines import paths
from fedweave.pipelines.commands import studies
from fedweave.pipelines.stages import evaluate, graphs, sources, train, tune
from fedweave.study import spec
from tests import trained

PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np

task, out = map(Path, sys.argv[1:])
about = json.loads((task / "task.json").read_text())
print("with", about["settings"]["power"])
for client in about["clients"]:
    y = np.load(task / client["folder"] / "train.npz")["y"]
    shares = (np.bincount(y, minlength=about["outputs"]) + 1.0) ** about["settings"]["power"]
    (out / client["folder"]).mkdir(parents=True)
    for part in ("val", "test"):
        table = np.tile(shares / shares.sum(), (client[part], 1))
        np.savez(out / client["folder"] / f"{part}.npz", outputs=table)
"""
MINE = {
    "command": "python mine.py",
    "uses": "more/",
    "env": {"N": 1},
    "timeout": 100,
    "settings": {"power": 50.0},
    "space": {"power": {"low": 0.1, "high": 50.0, "log": True}},
}
STUDY: dict[str, Any] = {
    "study": "judged",
    "seeds": [0],
    "tasks": {
        "blobs": {
            "dataset": "digits",
            "setting": "iid",
            "partition": {"name": "iid", "clients": 3, "seed": 0},
            "model": {"name": "mlp", "hidden": 4},
            "metric": "log_loss",
            "train": {"rounds": 2, "lr": 0.05, "batch_size": 0, "executor": "loop"},
        }
    },
    "runs": {f"blobs-{name}": {"task": "blobs", "method": name} for name in ("local", "mine", "fails")},
    "methods": {"local": {}, "mine": {"contestant": MINE}, "fails": {"contestant": {"command": "sh fails.sh"}}},
    "tune": {"trials": 2, "seeds": [1000], "workers": 1, "sampler": "random", "spaces": {"mine": MINE["space"]}},
}


@pytest.fixture(scope="module", autouse=True)
def project(tmp_path_factory: pytest.TempPathFactory):
    """A project whose data are partitioned; it is the current folder."""
    before = dict(METHODS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("judged"))
        Path("mine.py").write_text(PROGRAM)
        Path("fails.sh").write_text("echo a reason\nexit 3\n")
        Path("more").mkdir()
        Path("more", "facts.csv").write_text("1\n")
        Path("study.yaml").write_text(yaml.safe_dump(STUDY))
        dataset = trained.dataset("images")
        data.save_dataset(paths.FEATURES / "digits", dataset)
        partition = data.partition(dataset, **STUDY["tasks"]["blobs"]["partition"])
        data.save_partition(paths.PARTITIONS / "blobs" / "partition.npz", partition)
        studies.use("study.yaml", force=True)
        yield
    METHODS.clear()
    METHODS.update(before)


def digests() -> dict[str, str]:
    """What DVC sees of the code of each run after the stages `graphs` and `sources`."""
    for name in spec.read_yaml(spec.PARAMS)["graphs"]:
        graphs.main(name)
    sources.main()
    return {file.name: file.read_text() for file in (paths.code("study") / "runs").glob("*.json")}


def test_stages_depend_on_the_files_of_a_command() -> None:
    listed = spec.read_yaml(spec.PARAMS)["graphs"]
    assert sorted(listed.values()) == ["fails.sh", "mine.py", "more"]
    before = digests()
    Path("more", "facts.csv").write_text("2\n")
    after = digests()
    assert {name for name in after if after[name] != before[name]} == {"blobs-mine.json"}


def test_a_study_tunes_runs_and_shows_contestants(capsys: pytest.CaptureFixture[str]) -> None:
    """One that fails costs one line, and its declared space has the trials that others have."""
    tune.main("blobs")
    best = train.tuned_values(spec.load(), "blobs-mine")
    assert 0.1 <= best["power"] < 50
    for run in STUDY["runs"]:
        train.main(run)
    printed = capsys.readouterr().out.splitlines()
    assert f"log-0: with {best['power']}" in printed
    assert "log-0: a reason" in printed
    (line,) = (line for line in printed if line.startswith("fails: "))
    assert line.startswith("fails: it ended with exit code 3: its last line: a reason")
    assert line.endswith("dvc repro -f -s train@blobs-fails")
    evaluate.main()
    study = results.load_study(paths.RESULTS / "study")
    assert [run.printed_label for run in study.runs] == ["Local", "mine (program)"]
    (unfinished,) = study.unfinished
    assert unfinished.startswith("blobs-fails (fails: it ended with exit code 3")
    info = json.loads((study.runs[1].folder / "run.json").read_text())
    assert info["spec"]["method"] == {"name": "mine", "power": best["power"]}
    assert "tunes those" in info["contestant"]["unequal"][-1]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"command": "python no_such.py"}, r"methods\.mine\.contestant: there is no file no_such\.py"),
        ({}, r"methods\.mine\.contestant\.command: missing; write how the program is called"),
        ({"command": "python 'mine.py"}, r"methods\.mine\.contestant: the command .* cannot be read \(No closing quot"),
        ({"command": "python mine.py", "folder": None}, r"contestant\.folder: None is not a path or text"),
        ({"command": "python mine.py", "uses": 3}, r"contestant\.uses: 3 is not a list, each entry a path or text"),
        ({"comand": "x"}, r"methods\.mine\.contestant\.comand: .*did you mean 'command'"),
        ({"command": "python mine.py", "timeout": -1}, r"contestant: timeout: -1 is not a number above 0"),
        ({"command": "python mine.py", "space": {"a": {}}}, r"contestant: space: 'a' is unknown"),
        ({"command": "python mine.py", "settings": {"lr": [1]}}, r"settings\.lr: \[1\] is no number"),
        ("python mine.py", r"'python mine\.py' is not a mapping; write \{command"),
    ],
)
def test_wrong_declarations_are_refused(block: Any, message: str) -> None:
    content = STUDY | {"methods": STUDY["methods"] | {"mine": {"contestant": block}}}
    Path("wrong.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(BadInput, match=message):
        studies.use("wrong.yaml", force=True)


def test_terms_that_it_cannot_be_held_to_are_refused_before_any_work() -> None:
    run = {"task": "blobs", "method": "mine", "set": {"train.newcomers": 1, "train.join_round": 1}}
    content = STUDY | {"runs": {"blobs-mine": run}}
    Path("wrong.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(BadInput, match="mine: newcomers cannot be asked of code from elsewhere"):
        studies.use("wrong.yaml", force=True)
