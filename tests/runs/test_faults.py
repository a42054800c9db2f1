"""A training stage that is killed at any moment, or fails at any write, has the same bits in the end. Before that it
never counts as finished.
"""

import errno
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from fedweave import data
from fedweave.files.atomic import atomic_path, write_atomic
from fedweave.pipelines import paths
from fedweave.pipelines.stages import train
from fedweave.tensors.random_streams import stream
from tests.study.test_spec import good

# One worker runs all tests of this file: the forks need the cores for which the times of the kills were measured.
pytestmark = [pytest.mark.acceptance, pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]

KEY = "digits-ditto"
KILLS = 20


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of a few digits whose next stage is `train`, with a checkpoint in every round and two repetitions."""
    monkeypatch.chdir(tmp_path)
    write_params([0])
    whole = data.load("digits", "unused")
    dataset = replace(whole, x=whole.x[:300], y=whole.labels[:300])
    data.save_dataset(paths.FEATURES / "digits", dataset)
    data.save_partition(paths.PARTITIONS / "digits" / "partition.npz", data.partition(dataset, "iid", 4, 0))
    write_atomic(paths.tuning_result("small", "digits", KEY), '{"best": {}}')
    train.main(KEY)  # one run in this process, so that its forks have everything imported
    clear(checkpoints=True)
    write_params([0, 1])
    return tmp_path


def write_params(seeds: list[int]) -> None:
    """The study: Ditto with one epoch per round."""
    content = good()
    task = content["tasks"]["digits"]
    task["train"] |= {"rounds": 4, "epochs": 1, "checkpoint": 1}
    task |= {"partition": {"name": "iid", "clients": 4, "seed": 0}, "model": {"name": "mlp", "hidden": 8}}
    content |= {"seeds": seeds, "methods": {"ditto": {"personal_epochs": 1}, "fedavg": {}}}
    Path("params.yaml").write_text(_dumped(content))


def _dumped(content: dict[str, Any]) -> str:
    from fedweave.pipelines.commands.params_file import dump

    return dump(content)


def stage(before: Callable[[], None] = lambda: None) -> int:
    """Start the training stage in its own process and session. Returns the process number."""
    child = os.fork()
    if child:
        return child
    code = 1
    with suppress(BaseException):
        os.setsid()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        before()
        train.main(KEY)
        code = 0
    os._exit(code)


def wait_for_exit(child: int) -> int:
    """Wait for a process. Returns its exit code, which is negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def orphans(session: int) -> list[str]:
    """The processes of a session that are still running."""
    names = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                names.append(entry.parent.name)
    return names


def results(seeds: Sequence[int] = (0, 1)) -> dict[str, Any]:
    """All results of a finished run but its times, as comparable values."""
    folder = paths.run("small", KEY)
    rounds = pd.read_csv(folder / "rounds.csv").drop(columns="seconds")
    models = {seed: torch.load(folder / f"models-{seed}.pt", weights_only=True) for seed in seeds}
    return {
        "files": sorted(path.name for path in folder.iterdir()),
        "run": (folder / "run.json").read_bytes(),
        "rounds": rounds.to_csv(),
        "evaluations": pd.read_parquet(folder / "evaluations.parquet").to_csv(float_format="%.17g"),
        "diagnostics": (folder / "diagnostics.csv").read_bytes(),
        "models": {f"{s}/{n}": v.numpy().tobytes() for s, m in models.items() for n, v in m["models"].items()},
        "picked": {seed: m["round"] for seed, m in models.items()},
    }


def is_finished() -> bool:
    """Whether the run counts as finished."""
    return (paths.run("small", KEY) / "run.json").is_file()


def clear(checkpoints: bool = False) -> None:
    """Remove the files that DVC removes before a stage. With `checkpoints`, also remove those."""
    shutil.rmtree(paths.run("small", KEY), ignore_errors=True)
    if checkpoints:
        shutil.rmtree(paths.STATE, ignore_errors=True)


def test_killed_at_any_moment(project: Path) -> None:
    """Twenty random kills. No process, no result that looks complete, and nothing to repair remains."""
    assert wait_for_exit(stage()) == 0
    clear(checkpoints=True)
    start = time.monotonic()
    assert wait_for_exit(stage()) == 0
    span = time.monotonic() - start
    expected = results()
    generator, killed = stream(7), 0
    for number in range(KILLS):
        if number % 4 == 0:  # then four kills of the same run; each start continues from the last checkpoint
            clear()
        child = stage()
        time.sleep(generator.uniform(0.05, 0.8) * span)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        was_killed = wait_for_exit(child) == -signal.SIGKILL
        killed += was_killed
        span *= 1.1 if was_killed else 0.7  # the machine may be faster or slower now than when the time was measured
        end = time.monotonic() + 60
        while (left := orphans(child)) and time.monotonic() < end:
            time.sleep(0.01)
        assert left == []
        if is_finished():
            assert results() == expected
        if number % 4 == 3:
            assert wait_for_exit(stage()) == 0
            assert results() == expected
            remaining = {path.name.rpartition("-")[2] for path in (paths.STATE / "checkpoints").rglob("*.*")}
            assert remaining == {"finished.pt", "written.json"}
    assert killed >= KILLS // 4


def fail_at(at: int, how: str, taken: Any) -> Callable[[], None]:
    """Make the `at`-th durable step of a process, a sync or a rename, fail with an error or the end of the process.
    Count in `taken`.
    """

    def before() -> None:
        taken.value = 0

        def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
            def step(*args: Any) -> Any:
                taken.value += 1
                if taken.value - 1 == at:
                    if how == "power cut":
                        os._exit(77)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return real(*args)

            return step

        os.fsync, os.replace = wrapped(os.fsync), wrapped(os.replace)

    return before


def test_failing_at_every_write(project: Path) -> None:
    """A full disk and a power cut in turn at every sync and rename, twice: the run does not count as finished, and has
    the same bits in the end.
    """
    write_params([0])  # one repetition runs in one process, so that its steps have a fixed order
    taken = multiprocessing.get_context("fork").Value("i", 0)
    assert wait_for_exit(stage(fail_at(10**9, "", taken))) == 0
    expected, total = results([0]), taken.value
    assert total > 20
    for at in range(total):
        how = ("power cut", "full disk")[at % 2]
        clear(checkpoints=True)
        assert wait_for_exit(stage(fail_at(at, how, taken))) == (77 if how == "power cut" else 1)
        assert not is_finished() or at >= total - 4  # but the last two renames, and the syncs after them
        clear()
        again = wait_for_exit(
            stage(fail_at(at, how, taken))
        )  # it continues from a checkpoint, so it may end before the failure
        assert again or results([0]) == expected
        if again:
            assert wait_for_exit(stage()) == 0
            assert results([0]) == expected


def test_content_is_on_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync of the file, rename, sync of the folder: in this order a power cut leaves the old or the new file."""
    seen: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(handle: int) -> None:
        seen.append("folder" if Path(f"/proc/self/fd/{handle}").resolve().is_dir() else "file")
        real_fsync(handle)

    def rename(source: Any, target: Any) -> None:
        seen.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    write_atomic(tmp_path / "a", "content")
    assert seen == ["file", "rename", "folder"]


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """A file whose writer failed during the write of the next version."""
    write_atomic(tmp_path / "a", "old")
    with suppress(KeyboardInterrupt), atomic_path(tmp_path / "a") as temporary:
        temporary.write_text("new, but only ha")
        raise KeyboardInterrupt
    return tmp_path


def test_an_interrupted_write_leaves_the_old_file(interrupted: Path) -> None:
    """No other file is there."""
    assert [path.name for path in interrupted.iterdir()] == ["a"]
    assert (interrupted / "a").read_text() == "old"
