"""Kills and full disks during `challenge`: what is done again gives the same bits as without them."""

import os
import resource
import shutil
import signal
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedweave as fw
from fedweave.errors import BadInput
from fedweave.files.atomic import load_tensors
from fedweave.lifecycle import record, roles
from tests.lifecycle.test_life import begin, week

KILLS, MORE = 5, 20
FULL = 3_000  # bytes, of which the largest file of a training has more


def in_a_fork(work: Callable[[], None]) -> int:
    """How a child of this process ends that does some work: its exit code, or minus the number of a signal."""
    if not (child := os.fork()):
        try:
            work()
            os._exit(0)
        except BadInput as error:
            os._exit(2 if "free space" in str(error) else 3)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at(write: int, is_done: bool) -> list[int]:
    """End this process before or after a write with this number; returns the list that counts them."""
    real, count = Path.replace, [0]

    def replace(path: Path, target: Path) -> Path:
        count[0] += 1
        if count[0] == write and not is_done:
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(path, target)
        if count[0] == write:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    Path.replace = replace  # type: ignore[method-assign, assignment]
    return count


def outcome(folder: Path) -> dict[str, Any]:
    """All that a night decides, without the time at which it did."""
    events = [{**asdict(event), "when": ""} for event in fw.Lifecycle(folder).roles.events]
    models = {str(file.relative_to(folder)): load_tensors(file)["models"] for file in folder.rglob("models-0.pt")}
    weights = {name: {key: value.numpy().tobytes() for key, value in models[name].items()} for name in models}
    files = [(folder / name).read_bytes() for name in (record.FILE, record.DRIFTS)]
    return {"events": events, "weights": weights, "files": files}


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], int]:
    """A life before a night that promotes, trains and admits a site; what that night decides; how often it writes."""
    folder = tmp_path_factory.mktemp("kills")
    life = begin(folder, patience=1, per_year=2, methods="fedavg_ft", warm_rounds=1)
    for number, sign in ((1, -1.0), (2, 1.0), (3, 1.0)):
        count = {1: 60, 2: 180, 3: 600}[number]
        week(number, count=count, sign=sign, sites="ABCDEFG"[: 6 + (number == 3)]).to_csv(
            folder / f"week-{number}.csv", index=False
        )
        life.refresh()
        if number < 3:
            life.challenge()
    whole = folder / "whole" / "life"  # the name of a life is in its trainings
    shutil.copytree(life.folder, whole)
    read, write = os.pipe()

    def count_writes() -> None:
        count = kill_at(0, True)
        fw.Lifecycle(whole).challenge()
        os.write(write, str(count[0]).encode())

    assert in_a_fork(count_writes) == 0
    return life.folder, outcome(whole), int(os.read(read, 99))


@pytest.mark.parametrize(
    "seed", [*range(KILLS), *(pytest.param(seed, marks=pytest.mark.acceptance) for seed in range(KILLS, MORE))]
)
def test_a_killed_night_is_made_up_for(nights: Any, tmp_path: Path, seed: int) -> None:
    """Killed twice, at two writes that are drawn, the second time of what was left."""
    begun, expected, writes = nights
    assert [event["event"] for event in expected["events"]][-3:] == [roles.PROMOTED, roles.BEGUN, roles.JOINED]
    shutil.copytree(begun, tmp_path / "life")
    draws = np.random.default_rng(seed)
    ends = []
    for most in (writes, max(2, writes // 2)):
        moment, is_done = int(draws.integers(1, most + 1)), bool(draws.integers(2))

        def night(moment: int = moment, is_done: bool = is_done) -> None:
            kill_at(moment, is_done)
            fw.Lifecycle(tmp_path / "life").challenge()

        ends.append(in_a_fork(night))
    assert ends[0] == -signal.SIGKILL
    fw.Lifecycle(tmp_path / "life").challenge()
    assert outcome(tmp_path / "life") == expected


def test_a_full_disk_is_one_line_and_made_up_for(nights: Any, tmp_path: Path) -> None:
    """The kernel refuses to write large files."""
    begun, expected, _ = nights
    shutil.copytree(begun, tmp_path / "life")

    def night() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        from fedweave.files.atomic import user_errors

        with user_errors():
            fw.Lifecycle(tmp_path / "life").challenge()

    assert in_a_fork(night) == 2
    fw.Lifecycle(tmp_path / "life").challenge()
    assert outcome(tmp_path / "life") == expected
