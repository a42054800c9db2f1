"""Jobs in forked processes: every job once, in order, whatever happens to a fork."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from fedweave.processes import forks

pytestmark = pytest.mark.skipif(not forks.can_train_in_forks(), reason="needs Linux without a GPU")


@pytest.mark.parametrize("count", [1, 2, 5, forks.PARTS + 1, 2 * forks.PARTS + 7])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_results_are_in_order(count: int, processes: int) -> None:
    results = forks.map_jobs(lambda i: {"i": torch.full((2,), i)}, count, processes)
    assert [int(result["i"][0]) for result in results] == [*range(count)]


class Pair(NamedTuple):
    """A result with names."""

    first: object
    second: object


def test_results_keep_their_structure() -> None:
    def job(i: int) -> Pair:
        time.sleep(0.02)
        return Pair({"b": torch.tensor(i), "a": (i, None)}, [torch.full((3,), 0.1 * i), {}])

    for i, result in enumerate(forks.map_jobs(job, 8, 3)):
        expected = job(i)
        assert type(result) is Pair
        assert result.first == expected.first
        assert torch.equal(result.second[0], expected.second[0])
        assert result.second[1] == {}


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 60
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_results_of_another_structure_are_not_mixed_up(tmp_path: Path) -> None:
    """Jobs that give their entries in different orders. Job 0 waits until a fork has done another one."""
    main = os.getpid()

    def job(i: int) -> dict[str, torch.Tensor]:
        if os.getpid() == main:
            wait_for(tmp_path / "done")
        names = ("a", "b") if i else ("b", "a")
        result = {name: torch.tensor(f"{name}{i}".encode()[0]) for name in names}
        (tmp_path / "done").touch()
        return result

    with pytest.warns(UserWarning, match="computed twice"):
        results = [*forks.map_jobs(job, 8, 3)]
    for result in results:
        assert {name: chr(int(value)) for name, value in result.items()} == {"a": "a", "b": "b"}


def test_forks_share_the_jobs(tmp_path: Path) -> None:
    """Each job waits until three processes have one."""

    def job(i: int) -> torch.Tensor:
        (tmp_path / str(os.getpid())).touch()
        deadline = time.monotonic() + 60
        while len([*tmp_path.iterdir()]) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        return torch.tensor(os.getpid())

    pids = {int(pid) for pid in forks.map_jobs(job, 12, 3)}
    assert len(pids) == 3
    assert os.getpid() in pids


def test_a_job_has_one_thread_and_the_caller_gets_its_own_back() -> None:
    torch.set_num_threads(2)
    try:
        threads = {int(n) for n in forks.map_jobs(lambda i: torch.tensor(torch.get_num_threads()), 6, 2)}
        assert threads == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_gradients_in_a_fork_after_several_threads_here() -> None:
    """The fork of a process with a pool of threads neither waits for them nor rounds differently."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(7200, 5))
    x = torch.randn(8, 3, 32, 32)

    def job(i: int) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad((net(x * (i + 1)) ** 2).mean(), [*net.parameters()])

    expected = [job(i) for i in range(4)]
    torch.set_num_threads(2)
    try:
        torch.randn(2000, 2000) @ torch.randn(2000, 2000)
        job(0)
        actual = [*forks.map_jobs(job, 4, 2)]
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(a, b) for pair in zip(actual, expected, strict=True) for a, b in zip(*pair, strict=True))


def test_an_exception_of_a_job_is_raised_here() -> None:
    def job(i: int) -> torch.Tensor:
        if i == 3:
            raise KeyError("of job 3")
        return torch.tensor(i)

    with pytest.raises(KeyError, match="of job 3"):
        list(forks.map_jobs(job, 6, 3))
    with pytest.raises(ChildProcessError):  # no fork is left
        os.waitpid(-1, os.WNOHANG)


def test_jobs_of_a_killed_fork_are_computed_here(tmp_path: Path) -> None:
    """The job of this process waits until a fork has one, and is killed."""
    main = os.getpid()

    def job(i: int) -> torch.Tensor:
        if os.getpid() != main:
            (tmp_path / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        wait_for(tmp_path / "killed")
        return torch.tensor(i)

    with pytest.warns(UserWarning, match="a forked process ended early"):
        assert [int(i) for i in forks.map_jobs(job, 9, 3)] == [*range(9)]


def test_without_forks_all_jobs_are_computed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system refuses processes, such as those above the limit of a container."""

    def refuse() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    pids = [int(pid) for pid in forks.map_jobs(lambda i: torch.tensor(os.getpid()), 5, 3)]
    assert pids == [os.getpid()] * 5


def test_a_row_of_a_large_tensor_is_saved_alone(tmp_path: Path) -> None:
    large, file = torch.zeros(1000, 1000), tmp_path / "1"
    forks._save_results(lambda: {0: [large[0], {"a": large[1, :5]}]}, file)
    assert file.stat().st_size < 20_000


def test_forks_end_with_their_parent(tmp_path: Path) -> None:
    program = f"""
import os, time, torch
from pathlib import Path
from fedweave.tensors import forks
def job(i):
    Path({str(tmp_path)!r}, str(os.getpid())).touch()
    time.sleep(60)
list(forks.map_jobs(job, 2, 2))
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 60
    while len([*tmp_path.iterdir()]) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    (fork,) = [int(file.name) for file in tmp_path.iterdir() if int(file.name) != process.pid]
    process.kill()
    process.wait()
    while Path(f"/proc/{fork}").exists() and "Z" not in Path(f"/proc/{fork}/stat").read_text().split(")")[1]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
