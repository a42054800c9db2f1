"""A search that is killed goes on: nothing is lost, nothing counts twice, the declared values stay the first trial."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml
from optuna.trial import TrialState

from fedweave import data
from fedweave.data import Dataset
from fedweave.pipelines import paths
from fedweave.pipelines.searching import search
from fedweave.pipelines.stages import tune
from fedweave.runs import assembly
from fedweave.study import search_spaces

ROOT = Path(__file__).resolve().parents[2]
RUN, DECLARED, TRIALS = "toy-fedprox", {"mu": 0.25, "train.lr": 0.05}, 12
JOURNAL = paths.STATE / "tune" / "toy" / f"{RUN}.journal"
PROGRAM = (
    "from fedweave.pipelines.searching import search; from fedweave.runs import assembly; "
    f"search.perform(assembly.load(), {RUN!r})"
)
JOIN = [sys.executable, "-c", PROGRAM]
STUDY = {
    "study": "toy",
    "seeds": [0],
    "tasks": {
        "toy": {
            "dataset": "digits",
            "setting": "iid",
            "partition": {"name": "dirichlet", "clients": 3, "seed": 0, "beta": 10.0},
            "model": {"name": "mlp", "hidden": 4},
            "train": {"rounds": 9, "epochs": 4, "lr": 0.05, "batch_size": 0, "executor": "loop"},
        }
    },
    "runs": {
        RUN: {"task": "toy", "method": "fedprox"},
        "toy-strong": {"task": "toy", "method": "fedprox", "set": {"mu": 2.0}},
    },
    "methods": {"fedprox": {"mu": 0.25}},
    "tune": {
        "trials": TRIALS,
        "seeds": [1000, 1001],
        "spaces": {"fedprox": {"mu": {"low": 0.01, "high": 1.0}, "train.lr": {"low": 1e-5, "high": 0.2, "log": True}}},
    },
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose data are dealt and whose search has not begun, as the current folder."""
    return prepare(tmp_path, monkeypatch)


def prepare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Deal made-up data in `folder` and make it the current one."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    Path("params.yaml").write_text(yaml.safe_dump(STUDY))
    g = np.random.default_rng(0)
    y = g.integers(0, 4, 120)
    x = (g.normal(size=(120, 1, 4, 4)) + 2 * np.eye(4)[y][:, None, :, None]).astype(np.float32)
    dataset = Dataset("digits", "images", x, y, 4)
    data.save_dataset(paths.FEATURES / "digits", dataset)
    data.save_partition(
        paths.PARTITIONS / "toy" / "partition.npz", data.partition(dataset, **STUDY["tasks"]["toy"]["partition"])
    )
    return folder


def states() -> list[TrialState]:
    """What the journal says of every trial, in the order in which they began."""
    return [trial.state for trial in search.find(assembly.load(), RUN).opened.trials]


def made() -> list[tuple[dict[str, float], float | None, dict[int, float]]]:
    """What was tried and what it gave, in the order in which it was begun and brought to its end."""
    done = search.find(assembly.load(), RUN).opened.get_trials(states=search.DONE)
    return [
        (trial.params, trial.value if trial.state == TrialState.COMPLETE else None, trial.intermediate_values)
        for trial in done
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, float], float | None, dict[int, float]]]:
    """What one process finds that nobody kills."""
    with pytest.MonkeyPatch.context() as patch:
        prepare(tmp_path_factory.mktemp("alone"), patch)
        search.perform(assembly.load(), RUN)
        return made()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError where the block takes longer."""

    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


STAGE = [sys.executable, "-m", "fedweave.pipelines.stages.tune", "toy"]
COMMAND = [sys.executable, "-m", "fedweave.pipelines.commands.main", "search", "toy"]


@pytest.mark.parametrize(
    ("command", "number"),
    [(STAGE, signal.SIGINT), (STAGE, signal.SIGTERM), (COMMAND, signal.SIGINT)],
    ids=["stage-int", "stage-term", "command-int"],
)
def test_killed_without_a_traceback(project: Path, command: list[str], number: signal.Signals) -> None:
    """Ctrl-C, or a request to end, to the whole group: a search of two processes ends and says nothing."""
    endless = STUDY | {"tune": STUDY["tune"] | {"trials": 1000}}
    Path("params.yaml").write_text(yaml.safe_dump(endless))
    process = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    journals = [JOURNAL, JOURNAL.with_name("toy-strong.journal")]
    end = time.monotonic() + 60
    while not all(file.is_file() and '"step"' in file.read_text() for file in journals):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    for child in psutil.Process(process.pid).children(recursive=True):
        child.send_signal(number)  # before its parent, who would end it
    os.killpg(process.pid, number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode not in (0, 1, 2)
    assert "Traceback" not in said
    assert "Error" not in said


def test_killed_in_the_middle_of_a_trial(project: Path, alone: list) -> None:
    """SIGKILL once a later trial has reported a round: the same trials with the same values as without, and none
    twice.
    """
    process = subprocess.Popen(JOIN, start_new_session=True)
    end = time.monotonic() + 60
    while not (JOURNAL.is_file() and '"trial_id":2,"step"' in JOURNAL.read_text().replace(" ", "")):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = states()
    assert TrialState.RUNNING in before
    search.perform(assembly.load(), RUN)
    assert states().count(TrialState.FAIL) == 1
    assert states()[before.index(TrialState.RUNNING)] == TrialState.FAIL
    assert made() == alone


def test_two_processes_share_a_search(project: Path) -> None:
    """Together they make each trial once, the declared values first; each makes some."""
    other = subprocess.Popen(JOIN)
    while not JOURNAL.is_file():
        time.sleep(0.001)
    search.perform(assembly.load(), RUN)
    assert other.wait(60) == 0
    assert {*states()} <= {*search.DONE}
    assert len(made()) == TRIALS
    assert [params for params, _, _ in made()].count(DECLARED) == 1
    assert search.find(assembly.load(), RUN).opened.trials[0].params == DECLARED
    workers = {
        json.loads(line).get("worker_id")
        for line in JOURNAL.read_text().splitlines()
        if '"op_code":5' in line.replace(" ", "")
    }
    assert len(workers) == 2


def test_budget_first_trial_and_pruning_by_rounds(alone: list) -> None:
    """The declared number of trials, the declared values first; what is pruned was behind the median after a third of
    its rounds.
    """
    rounds = STUDY["tasks"]["toy"]["train"]["rounds"]
    assert len(alone) == TRIALS
    assert alone[0][0] == DECLARED
    pruned = [curve for _, value, curve in alone if value is None]
    assert pruned
    assert all(rounds // 3 <= max(curve) < rounds for curve in pruned)
    assert all([*curve] == [*range(1, 2 * rounds + 1)] for _, value, curve in alone if value is not None)


@pytest.mark.parametrize("queued", [0, 1, 4])
def test_a_grid_has_every_point_once(project: Path, queued: int) -> None:
    """And none is cut short; nor lost where a kill left only `queued` of them in the journal."""
    content = yaml.safe_load(Path("params.yaml").read_text())
    choices = {"mu": {"choices": [0.1, 0.25, 1.0]}, "train.lr": {"choices": [0.01, 0.05]}}
    content["tune"] |= {"sampler": "grid", "trials": 6, "spaces": {"fedprox": choices}}
    Path("params.yaml").write_text(yaml.safe_dump(content))
    for point in search.first(assembly.load(), RUN)[:queued]:
        search.find(assembly.load(), RUN).opened.enqueue_trial(point)
    search.perform(assembly.load(), RUN)
    assert sorted(tuple(params.values()) for params, _, _ in made()) == sorted(
        itertools.product([0.1, 0.25, 1.0], [0.01, 0.05])
    )
    assert all(value is not None for _, value, _ in made())


def test_two_searches_do_not_draw_the_same_points(project: Path) -> None:
    """Beside the declared point, which both begin with; else one lucky learning rate would decide for all methods."""
    runs = {key: {"task": "toy", "method": "fedprox"} for key in ("toy-a", "toy-b")}
    Path("params.yaml").write_text(
        yaml.safe_dump({**STUDY, "runs": runs, "tune": {**STUDY["tune"], "trials": 4, "seeds": [1000]}})
    )
    drawn = []
    for key in runs:
        search.perform(assembly.load(), key)
        drawn.append([tuple(trial.params.values()) for trial in search.find(assembly.load(), key).opened.trials])
    assert drawn[0][0] == drawn[1][0]
    assert len({*drawn[0], *drawn[1]}) == 7


def test_a_search_sees_validation_only(project: Path, alone: list) -> None:
    """Other test rows, the same trials with the same values."""
    file = paths.PARTITIONS / "toy" / "partition.npz"
    dealt = data.load_partition(file)
    data.save_partition(file, replace(dealt, test=dealt.test[1:] + dealt.test[:1]))
    search.perform(assembly.load(), RUN)
    assert made() == alone


def test_what_a_run_sets_itself_is_not_searched_for(project: Path) -> None:
    """It would win over every trial's value."""
    study = assembly.load()
    assert search.distributions(study, RUN).keys() == {"mu", "train.lr"}
    assert search.distributions(study, "toy-strong").keys() == {"train.lr"}


def test_the_stage_writes_what_training_reads_apart_from_the_trials(project: Path) -> None:
    """A longer search that finds nothing better leaves the file that training depends on as it was."""
    content = {**STUDY, "runs": {RUN: STUDY["runs"][RUN]}}
    written = []
    for trials in (3, 9):
        Path("params.yaml").write_text(
            yaml.safe_dump({**content, "tune": {**STUDY["tune"], "trials": trials, "seeds": [1000]}})
        )
        tune.main("toy")
        record = json.loads(paths.trials("toy", "toy", RUN).read_text())
        assert len(record["trials"]) == trials
        assert record["trials"][0]["params"] == DECLARED
        values = [trial["value"] for trial in record["trials"] if trial["value"] is not None]
        best = next(trial["params"] for trial in record["trials"] if trial["value"] == max(values))
        assert record["best"] == best
        assert bool(record["importance"]) == (len(values) >= tune.FEWEST)
        written.append(json.loads(paths.tuned("toy", "toy", RUN).read_text()))
        assert written[-1] == {"run": RUN, "best": best}
    assert len(made()) == 9


def test_killed_with_the_journal_in_its_hands(project: Path) -> None:
    """Whoever is killed while it writes does not keep others from the journal."""
    assert states() == []
    reader, writer = os.pipe()
    holder = os.fork()
    if not holder:
        search.KernelLock(str(JOURNAL)).acquire()
        os.write(writer, b"!")
        signal.pause()
    os.read(reader, 1)
    with pytest.raises(TimeoutError), within(0.2):
        search.KernelLock(str(JOURNAL)).acquire()
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    with within(20):
        assert states() == []


def test_killed_before_the_first_trial_had_its_values(project: Path) -> None:
    """What such a kill leaves behind is a trial that runs and knows only what it was queued with."""
    study = assembly.load()
    opened = search.find(study, RUN).opened
    opened.enqueue_trial(search_spaces.declared(study, RUN))
    opened.ask()
    search.perform(study, RUN)
    done = search.find(study, RUN).opened.get_trials(states=search.DONE)
    assert len(done) == TRIALS
    assert done[0].params == DECLARED
