"""A search that is killed goes on: nothing is lost, nothing counts twice, the declared values stay the first trial."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml
from optuna.trial import TrialState

from fedweave import assemble, data
from fedweave.data import Dataset
from pipelines import paths, tune

ROOT = Path(__file__).resolve().parent.parent
RUN, DECLARED, TRIALS = "toy-fedprox", {"mu": 0.25, "train.lr": 0.05}, 3
JOURNAL = paths.STATE / "tune" / "toy" / f"{RUN}.journal"
COMMAND = [sys.executable, "-m", "pipelines.tune", "toy"]
STUDY = {
    "study": "toy",
    "seeds": [0],
    "tasks": {
        "toy": {
            "dataset": "digits",
            "setting": "iid",
            "partition": {"name": "dirichlet", "clients": 3, "seed": 0, "beta": 10.0},
            "model": {"name": "mlp", "hidden": 4},
            "train": {"rounds": 20, "lr": 0.05, "batch_size": 0, "executor": "loop"},
        }
    },
    "runs": {RUN: {"task": "toy", "method": "fedprox"}},
    "methods": {"fedprox": {"mu": 0.25}},
    "tune": {
        "trials": TRIALS,
        "seeds": [1000],
        "spaces": {"fedprox": {"mu": {"low": 0.01, "high": 1.0}, "train.lr": {"low": 0.01, "high": 0.1, "log": True}}},
    },
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose data are dealt and whose search has not begun, as the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    Path("params.yaml").write_text(yaml.safe_dump(STUDY))
    g = np.random.default_rng(0)
    y = g.integers(0, 4, 120)
    x = (g.normal(size=(120, 1, 4, 4)) + y[:, None, None, None]).astype(np.float32)
    dataset = Dataset("digits", "images", x, y, 4)
    data.save_dataset(paths.FEATURES / "digits", dataset)
    data.save_partition(paths.PARTITIONS / "toy" / "partition.npz", data.partition(dataset, **STUDY["tasks"]["toy"]["partition"]))
    return tmp_path


def states() -> list[TrialState]:
    """What the journal says of every trial, in the order in which they began."""
    return [trial.state for trial in tune._open(assemble.load(), RUN).trials]


def found() -> list[dict[str, float]]:
    """The values of the finished trials in the stage's output."""
    return [trial["params"] for trial in json.loads(paths.tuned("toy", "toy", RUN).read_text())["trials"]]


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


def test_killed_in_the_middle_of_the_first_trial(project: Path) -> None:
    """SIGKILL once the first trial has reported a round; the same command then ends with the declared number of trials."""
    process = subprocess.Popen(COMMAND, start_new_session=True)
    end = time.monotonic() + 60
    while not (JOURNAL.is_file() and '"intermediate_value"' in JOURNAL.read_text()):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert states() == [TrialState.RUNNING]

    subprocess.run(COMMAND, check=True, timeout=60)
    assert states()[0] == TrialState.FAIL
    assert len(states()) == 1 + TRIALS
    assert {*states()[1:]} <= {*tune.DONE}
    assert len(found()) == TRIALS
    assert found()[0] == DECLARED


def test_killed_with_the_journal_in_its_hands(project: Path) -> None:
    """Whoever is killed while it writes does not keep others from the journal."""
    assert states() == []
    reader, writer = os.pipe()
    holder = os.fork()
    if not holder:
        tune.KernelLock(str(JOURNAL)).acquire()
        os.write(writer, b"!")
        signal.pause()
    os.read(reader, 1)
    with pytest.raises(TimeoutError), within(0.2):
        tune.KernelLock(str(JOURNAL)).acquire()
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    with within(20):
        assert states() == []


def test_killed_before_the_first_trial_had_its_values(project: Path) -> None:
    """What such a kill leaves behind is a trial that runs and knows only what it was queued with."""
    study = assemble.load()
    opened = tune._open(study, RUN)
    opened.enqueue_trial(tune.declared(study, RUN))
    opened.ask()
    tune.search(study, RUN)
    done = tune._open(study, RUN).get_trials(states=tune.DONE)
    assert len(done) == TRIALS
    assert done[0].params == DECLARED
