"""Processes: reused memory, and shared cores."""

import os
import platform
import select
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from torch import nn

from fedweave import plots
from fedweave.models.base import make_constants
from fedweave.processes import parallel

# Two forks of one process without settings of its own, so that their requests for memory are counted separately.
PROGRAM = """
import ctypes, os, resource, sys
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: each fault brings one page, and not 512 of them
sys.path.insert(0, {src!r})
from fedweave.runs import parallel
import torch
def faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones(2**24)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
for keep in (True, False):
    if not os.fork():
        if keep:
            parallel.keep_memory()
        faults(10)
        least = min(faults(10) for _ in range(3))  # the system may take memory away meanwhile
        print(least * resource.getpagesize() / 2**20, flush=True)
        os._exit(0)
    assert not os.wait()[1]
os._exit(0)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this setting")
def test_large_tensors_reuse_the_memory_of_those_before_them() -> None:
    """Ten tensors of 64 MiB need few new MiB of the kernel if ten others came before them."""
    program = PROGRAM.format(src=str(Path(parallel.__file__).parents[2]))
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    kept, given_back = map(float, done.stdout.split())
    assert kept < 64 < given_back


@pytest.mark.parametrize("available", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("repetitions", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("width", [1, 1000])
def test_repetitions_and_threads_fill_the_cores(
    monkeypatch: pytest.MonkeyPatch, available: int, repetitions: int, width: int
) -> None:
    """More processes than cores run only where they replace a second group that is smaller than the first. Only
    large models use threads.
    """
    monkeypatch.setattr(parallel, "cores", lambda: available)
    template = nn.Linear(width, width)
    workers, threads = parallel.allocate_workers(template, repetitions, "cpu")
    assert 1 <= workers <= repetitions
    assert workers < 2 * available
    assert workers >= min(available, repetitions)
    assert threads == 1 or workers * threads <= available
    assert threads == 1 or width == 1000
    assert parallel.allocate_workers(template, repetitions, "cuda") == (1, available)


def test_a_frozen_table_of_vectors_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are looked up. A frozen layer multiplies."""
    monkeypatch.setattr(parallel, "cores", lambda: 8)
    for body, threads in ((nn.Embedding(1000, 1000), 1), (nn.Linear(1000, 1000), 8)):
        network = nn.Sequential(body.requires_grad_(False), nn.Linear(1000, 2))
        make_constants(network)
        assert parallel.allocate_workers(network, 1, "cpu") == (1, threads)


def test_parallel_repetitions_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes four copies of all clients' parameters. At least one repetition runs. They share all cores."""
    monkeypatch.setattr(parallel, "cores", lambda: 8)
    network = nn.Linear(1000, 1000)
    need = 4 * 4 * 20 * 1001 * 1000
    for memory, expected in ((0, 1), (need - 1, 1), (2 * need, 2), (3 * need - 1, 2), (100 * need, 8)):
        monkeypatch.setattr(parallel, "total_memory", lambda memory=memory: memory)
        assert parallel.allocate_workers(network, 16, "cpu", 20) == (expected, 8 // expected)
        assert parallel.allocate_workers(network, 4, "cpu", 20) == (min(expected, 4), 8 // min(expected, 4))
    monkeypatch.undo()
    assert parallel.total_memory() > 2**28


def test_gathered_results_are_in_order_and_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for any number of cores. The caller does the jobs of a killed child."""
    caller = os.getpid()

    def refuse() -> int:
        raise ValueError("no")

    def die_in_a_child() -> int:
        if os.getpid() != caller:
            os._exit(1)
        return -1

    jobs = [lambda number=number: number**2 for number in range(23)]
    for available in (1, 2, 5):
        monkeypatch.setattr(parallel, "cores", lambda available=available: available)
        assert parallel.gather(jobs) == [number**2 for number in range(23)]
        assert parallel.gather([*jobs, die_in_a_child]) == [*(number**2 for number in range(23)), -1]
        with pytest.raises(ValueError, match="no"):
            parallel.gather([*jobs, refuse])
    assert parallel.gather([]) == []


def test_gathered_jobs_run_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also if they end at once, so that a process looks for work that another one has done."""
    monkeypatch.setattr(parallel, "cores", lambda: 2)

    def run(number: int) -> None:
        with (tmp_path / "runs").open("a", encoding="utf-8") as lines:
            lines.write(f"{number}\n")
        time.sleep(0.02 * (number == 0))

    for count in (2, 3, 20):
        (tmp_path / "runs").write_text("")
        parallel.gather([partial(run, number) for number in range(count)])
        assert sorted(map(int, (tmp_path / "runs").read_text().split())) == [*range(count)]


def test_processes_have_ended_when_an_error_ends_their_work() -> None:
    """Otherwise they would still write into a folder that the caller removes."""
    others = psutil.Process().children()  # of tests before this one, such as multiprocessing's resource tracker
    children: list[psutil.Process] = []

    def receive(_message: object) -> None:
        children.extend(child for child in psutil.Process().children() if child not in others)
        raise ValueError("no")

    inbox = parallel.Inbox(receive)

    def work(_item: int) -> None:
        inbox.post("started")
        time.sleep(600)

    with pytest.raises(ValueError, match="no"):
        parallel.run_processes(work, range(2), 2, inbox=inbox)
    assert children
    assert not [child for child in children if child.is_running()]


@pytest.mark.parametrize("available", [1, 2])
def test_work_parallel_to_a_block_ends_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str], available: int
) -> None:
    """It is done at the end of the block, and may have processes of its own. An error in the block ends it."""
    monkeypatch.setattr(parallel, "cores", lambda: available)
    file, lost = tmp_path / "sum", list[str]()

    def add() -> None:
        file.write_text(str(sum(parallel.gather([lambda: 1, lambda: 2]))))

    with parallel.run_in_background(add, lambda: lost.append("killed")):
        pass
    assert file.read_text() == "3"
    file.unlink()
    with pytest.raises(ValueError, match="no"), parallel.run_in_background(lambda: time.sleep(600), lambda: None):
        raise ValueError("no")
    with parallel.run_in_background(lambda: 1 // 0, lambda: lost.append("raised")):
        pass
    if available > 1:
        with parallel.run_in_background(lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: lost.append("killed")):
            pass
    assert lost == ["raised", "killed"][:available]
    assert capfd.readouterr().err.count("ZeroDivisionError") == 1


def test_drawings_made_in_parallel_are_those_made_in_sequence() -> None:
    def page() -> str:
        return "".join(f"<p>{plots.importance({'lr': share, 'mu': 1 - share})}</p>" for share in (0.2, 0.5, 0.9))

    assert plots.draw_in_parallel(page) == page()
    assert plots.draw_in_parallel(lambda: "no drawing") == "no drawing"


class Deadly:
    """Kills the process that sends it, as the kernel does when memory runs out."""

    def __reduce__(self) -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return ""


@pytest.mark.timeout(60)
def test_a_process_killed_while_it_sends_does_not_block_the_others() -> None:
    """It may be killed before the first byte of a message, or within it."""
    received: list[int] = []

    def receive(message: int) -> None:
        received.append(message)
        if message < 0:  # read nothing more before the sender has died within its next message
            os.waitid(os.P_PID, -message, os.WEXITED | os.WNOWAIT)

    def die_when_the_pipe_is_full() -> None:
        while select.select([], [inbox._writer], [], 0)[1]:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    def job(item: int) -> None:
        if item == 0:
            inbox.post(Deadly())
        if item == 1:
            inbox.post(-os.getpid())
            threading.Thread(target=die_when_the_pipe_is_full).start()
            inbox.post([0] * 10**6)  # more than the pipe holds
        for _ in range(3):
            inbox.post(item)

    inbox = parallel.Inbox(receive)
    parallel.run_processes(job, range(5), 2, inbox=inbox)
    others = sorted(message for message in received if message >= 0)
    assert others == [item for item in (2, 3, 4) for _ in range(3)]
    assert len(received) == len(others) + 1
