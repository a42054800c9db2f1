"""`fedweave run` makes the same run as `fit`, in a folder that collects runs and that every reader opens."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

import fedweave as fw
from fedweave import results
from fedweave.data import DATASETS
from fedweave.pipelines.commands import records, single_run
from fedweave.pipelines.processes import restore_interrupts
from tests.servers import python

OUT = Path("results/mine")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods on digits and one on the incomes of states, in an empty folder."""
    place = tmp_path_factory.mktemp("single")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        single_run.run("fedavg", rounds=2, output=OUT)
        single_run.run("ditto", rounds=2, settings=["lam=0.5"], output=OUT)
        single_run.run("fedavg", dataset="us-income", rounds=2, settings=["train.lr=0.1"], output=OUT)
    return place


def test_the_folder_has_the_format_of_the_api(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One folder has several data sets. Models predict. The record has the settings of the command line."""
    monkeypatch.chdir(folder)
    loaded = fw.load(OUT)
    assert {*loaded.methods} == {"digits-fedavg", "digits-ditto", "us-income-fedavg"}
    assert loaded["digits-ditto"].settings["method"]["lam"] == 0.5
    assert loaded["us-income-fedavg"].settings["train"]["lr"] == 0.1
    images = load_digits().images[:4, None] / 16
    assert loaded["digits-ditto"].predict(images, "client 3").shape == (4,)
    assert loaded.majority() > 10


def test_the_result_is_that_of_fit(folder: Path, tmp_path: Path) -> None:
    """The bits are those of the call in Python with the settings of the record."""
    ran = results.load_run(folder / OUT / "runs" / "digits-ditto")
    task, train = ran.info["spec"]["task"], ran.info["spec"]["train"]
    federation = fw.Federation.from_dataset(
        "digits", task["partition"], normalize=task["normalize"], setting=task["setting"]
    )
    method = fw.methods.Ditto(lam=0.5)
    result = fw.fit(method, federation, model=task["model"], out=tmp_path, progress=False, **train)
    pd.testing.assert_frame_equal(result.run.evaluations, ran.evaluations, check_exact=True)
    assert result.run.info["spec_hash"] == ran.info["spec_hash"]


def test_a_finished_run_is_reused_unless_training_is_requested(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By default nothing runs twice."""
    monkeypatch.chdir(folder)
    file = OUT / "runs" / "digits-fedavg" / "run.json"
    before = file.stat().st_mtime_ns
    single_run.run("fedavg", rounds=2, output=OUT)
    assert file.stat().st_mtime_ns == before
    output = capsys.readouterr().out
    assert "--no-resume trains it again" in output
    assert re.search(r"^round [12], chosen by validation; scored as received, before local training; ", output, re.M)
    single_run.run("fedavg", rounds=2, resume=False, output=OUT)
    assert file.stat().st_mtime_ns > before


@pytest.mark.usefixtures("undrawn")
def test_the_report_shows_the_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has tables, a page and a leaderboard, as for a study."""
    monkeypatch.chdir(folder)
    records.report("mine")
    assert "Ditto" in capsys.readouterr().out
    assert "us-income" in (OUT / "report.html").read_text(encoding="utf-8")
    assert len(pd.read_csv(OUT / "leaderboard.csv")) == 3


def test_other_clients_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same folder has runs of the same data set with another partition."""
    monkeypatch.chdir(folder)
    with pytest.raises(fw.BadInput, match="holds results of other data of the name 'digits'; choose another folder"):
        single_run.run("fedavg", rounds=2, settings=["partition.clients=4"], output=OUT)


def test_other_terms_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one data set in one folder have equal terms; each data set has its own."""
    monkeypatch.chdir(folder)
    for options, difference in (
        ({"rounds": 3}, "rounds: 2 there, 3 here"),
        ({"seed": 1}, r"seeds: \[0\] there, \[1\] here"),
        ({"settings": ["train.lr=0.1"]}, "lr: 0.05 there, 0.1 here"),
    ):
        with pytest.raises(fw.BadInput, match=rf"its run 'digits-ditto' .* other settings .*: {difference};.*--output"):
            single_run.run("fedavg", **{"rounds": 2, "output": OUT, **options})


@pytest.mark.usefixtures("undrawn")
def test_each_run_has_a_folder_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of different terms do not meet, and a run replaces the one before of the same method and data set."""
    monkeypatch.chdir(tmp_path)
    for method, rounds in (("fedavg", 2), ("local", 3), ("fedavg", 1)):
        single_run.run(method, rounds=rounds, settings=["model.name=mlp"])
    rounds_of = {
        folder.name: fw.load(folder)[folder.name.removeprefix("digits-")].rounds["round"].max()
        for folder in Path("results/single").iterdir()
    }
    assert rounds_of == {"digits-fedavg": 1, "digits-local": 3}
    records.report("single/digits-local")
    assert Path("results/single/digits-local/report.html").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"settings": ["lr=0.1"]}, r"--set lr: is not a setting of fedavg; did you mean 'train\.lr'"),
        ({"settings": ["every=2"]}, r"--set every: is not a setting of fedavg; did you mean 'evaluate\.every'"),
        ({"settings": ["partition.client=4"]}, r"^--set partition: 'client' is unknown; did you mean 'clients'"),
        (
            {"settings": ["partition.clients=5000"]},
            r"^--set partition\.clients: 5000 must be a whole number, at least 1",
        ),
        ({"rounds": -1}, "^--rounds: -1 is out of range"),
        ({"seed": -1}, "^--seed: -1 is out of range"),
    ],
)
def test_a_message_names_the_option_to_type(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fw.BadInput, match=message):
        single_run.run("fedavg", **options)


def test_a_training_that_diverges_names_the_options_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--set train.lr=...`, where `fw.fit` has `lr`."""
    monkeypatch.chdir(tmp_path)
    settings = ["train.lr=1000", "train.momentum=0.99", "train.epochs=5"]
    with pytest.raises(fw.Diverged, match=r"; lower train\.lr \(1000\.0\) or set train\.clip$"):
        single_run.run("fedavg", rounds=2, settings=settings)


@pytest.mark.acceptance
def test_a_training_that_diverges_ends_the_command(tmp_path: Path) -> None:
    """With one line and exit code 3."""
    words = ["run", "--method", "fedavg", "--dataset", "digits", "--rounds", "2", "--output", str(tmp_path / "out")]
    settings = ["--set", "train.lr=1000", "--set", "train.momentum=0.99", "--set", "train.epochs=5"]
    done = python("-m", "fedweave.pipelines.commands.main", *words, *settings, folder=tmp_path)
    assert done.returncode == 3, done.stderr
    assert re.search(r"\nerror: .*training diverged.*; lower train\.lr \(1000\.0\) or set train\.clip\n$", done.stderr)


def test_a_data_set_of_a_plug_in_needs_a_partition_in_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data set has no task in base.yaml."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "own_lines.py").write_text(
        "import numpy as np\nimport fedweave as fw\nfrom fedweave.data import Dataset\n\n"
        "@fw.dataset('own-lines')\ndef lines(root):\n"
        "    y = np.arange(60) % 2\n"
        "    x = y.astype(np.float32)[:, None, None, None]\n"
        "    return Dataset('own-lines', 'images', x, y.astype(np.int64), classes=2)\n"
    )
    with pytest.raises(fw.BadInput, match=r"--dataset own-lines: .*add for example --set partition\.name=iid"):
        single_run.run("fedavg", dataset="own-lines", uses=["own_lines.py"])
    single_run.run(
        "fedavg",
        dataset="own-lines",
        uses=["own_lines.py"],
        output=tmp_path / "out",
        settings=["partition.name=iid", "partition.clients=3", "train.rounds=2", "train.lr=0.5"],
    )
    assert np.isfinite(fw.load(tmp_path / "out")["fedavg"].scores).all()
    del DATASETS["own-lines"]  # other tests in this process iterate over all data sets


def test_errors_that_name_each_other_as_cause_end_the_search_for_a_ctrl_c() -> None:
    """As those of a training that diverges, which once never ended."""
    first, second = ValueError("first"), RuntimeError("second")
    first.__cause__, second.__cause__ = second, first
    with pytest.raises(ValueError, match="first"), restore_interrupts():
        raise first
    second.__cause__ = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), restore_interrupts():
        raise first


def test_a_warning_of_a_command_is_one_line_without_code(tmp_path: Path) -> None:
    """Other kinds of warnings, such as those of packages, stay as they are."""
    (tmp_path / "warns.py").write_text(
        "import warnings\nwarnings.warn('column bmi is empty')\nwarnings.warn('old', RuntimeWarning)\n"
    )
    words = ("-m", "fedweave.pipelines.commands.main", "list", "methods", "--uses", "warns.py")
    done = python(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("warning: column bmi is empty\n")
    assert "RuntimeWarning: old" in done.stderr
