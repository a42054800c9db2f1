"""A study from the download to the leaderboard: the two arms of a person count as one client in its tests."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedweave import results
from fedweave.errors import BadInput
from fedweave.files.atomic import write_atomic
from fedweave.pipelines import paths
from fedweave.pipelines.commands.params_file import dump
from fedweave.pipelines.stages import download, evaluate, leaderboard, partition, train
from fedweave.results import statistics
from fedweave.results.repetitions import interval
from tools.docs import claims

METHODS = ("local", "fedavg_ft")
SPLIT = {"train": 0.1, "val": 0.2, "test": 0.7}
PARAMS = {
    "study": "small",
    "about": "",
    "seeds": [0, 1],
    "datasets": ["shoulder"],
    "tasks": {
        "arms": {
            "dataset": "shoulder",
            "setting": "arms",
            "normalize": "standard",
            "model": {"name": "mlp", "hidden": [4]},
            "partition": {"name": "natural", "clients": 20, "seed": 0, "split": SPLIT},
            "train": {"rounds": 2, "epochs": 1, "batch_size": 32, "lr": 0.2},
            "evaluate": {"select": "last"},
        }
    },
    "runs": {f"arms-{name}": {"task": "arms", "method": name} for name in METHODS},
    "methods": {name: {} for name in METHODS},
    "tune": {"trials": 0, "seeds": [1000]},
    "ablate": {},
    "margins": {},
}
WORDS = "Clients of one unit count as one: 20 clients, 10 units."


def test_the_number_of_natural_clients_may_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The data have it. Settings that depend on it are then checked when the data are there."""
    monkeypatch.chdir(tmp_path)
    task = PARAMS["tasks"]["arms"]
    block = {"name": "natural", "seed": 0, "split": SPLIT}

    def write(participation: float) -> None:
        changed = {**task, "partition": block, "train": {**task["train"], "participation": participation}}
        Path("params.yaml").write_text(dump({**PARAMS, "tasks": {"arms": changed}}))

    write(21)
    download.main("shoulder")
    partition.main("arms")
    assert capsys.readouterr().out.splitlines()[-1].startswith("arms: 20 clients")
    write_atomic(paths.tuning_result("small", "arms", "arms-local"), '{"best": {}}')
    with pytest.raises(BadInput, match=r"runs\.arms-local: train\.participation: 21(\.0)? of 20 clients"):
        train.main("arms-local")
    write(20)
    train.main("arms-local")
    info = json.loads((paths.run("small", "arms-local") / "run.json").read_text())
    assert info["clients"] == 20


def test_the_tests_of_a_study_compare_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(dump(PARAMS))
    download.main("shoulder")
    partition.main("arms")
    assert json.loads(Path("data/partitions/arms/summary.json").read_text())["units"] == 10
    for run in PARAMS["runs"]:
        write_atomic(paths.tuning_result("small", "arms", run), '{"best": {}}')
        train.main(run)
    evaluate.main()
    info = json.loads((paths.run("small", "arms-local") / "run.json").read_text())
    assert info["sharing"] == [client // 2 for client in range(20)]
    assert info["units"][:3] == ["subject 1", "subject 1", "subject 2"]
    study = results.load_study(paths.RESULTS / "small")
    chosen = results.clients(study)
    people = {
        run.label: results.score_matrix(chosen, run.name).to_numpy().reshape(2, 10, 2).mean(2) for run in study.runs
    }
    tests = pd.read_csv(study.folder / "significance.csv").query("family == 'pairs'")
    assert tests["p"].tolist() == pytest.approx([test.p for test in statistics.compare_all_pairs(people, True)])
    board = pd.read_csv(study.folder / "leaderboard.csv").set_index("method")
    for name, values in people.items():
        np.testing.assert_allclose(board.loc[name, ["low", "high"]].astype(float), np.clip(interval(values), 0, 100))
    rows = claims.client_rows(study)
    assert (rows["part"] == rows["client"] // 2).all()
    capsys.readouterr()
    leaderboard.show_stored(study.name, study, results.compute_tables(study))
    assert WORDS in capsys.readouterr().out
