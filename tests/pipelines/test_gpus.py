"""A GPU is lent to one process at a time, and is returned however that process ends."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedweave.pipelines.scheduling.gpus import acquire_gpu, visible_devices

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys, time; sys.path[:0] = [{src!r}, {root!r}]
from fedweave.pipelines.scheduling.gpus import acquire_gpu
with acquire_gpu(["0", "1"]) as name:
    print(name, flush=True)
    time.sleep(60)
"""


class Impatient(Exception):
    """Raised instead of waiting."""


def refuse(_seconds: float) -> None:
    """Raises instead of waiting."""
    raise Impatient


@pytest.fixture(autouse=True)
def loans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of loans for one test."""
    monkeypatch.setenv("FEDWEAVE_LOANS", str(tmp_path / "loans"))
    return tmp_path / "loans"


def test_the_environment_names_the_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-12ab")
    assert visible_devices() == ("3", "GPU-12ab")
    monkeypatch.setenv("FEDWEAVE_GPUS", "0,0,1")
    assert visible_devices() == ("0", "0", "1")
    monkeypatch.setenv("FEDWEAVE_GPUS", "")
    assert visible_devices() == ()


def test_the_driver_is_asked_where_the_environment_names_no_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("FEDWEAVE_GPUS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho 0\necho 1\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_devices() == ("0", "1")
    driver.unlink()
    assert visible_devices() == ()


def test_a_gpu_is_lent_once(loans: Path) -> None:
    with acquire_gpu(["0", "1"]) as first, acquire_gpu(["0", "1"]) as second:
        assert {first, second} == {"0", "1"}
        with pytest.raises(Impatient), acquire_gpu(["0", "1"], refuse):
            pass
    with acquire_gpu(["1"], refuse) as again:
        assert again == "1"


def test_a_name_listed_twice_is_lent_twice() -> None:
    with acquire_gpu(["0", "0"], refuse) as first, acquire_gpu(["0", "0"], refuse) as second:
        assert first == second == "0"
        with pytest.raises(Impatient), acquire_gpu(["0", "0"], refuse):
            pass


def test_every_user_of_the_host_can_open_a_lock(loans: Path) -> None:
    """This holds for every umask of the first user. Otherwise another user would get an error instead of waiting."""
    before = os.umask(0o077)
    try:
        with acquire_gpu(["0"]):
            pass
    finally:
        os.umask(before)
    assert loans.stat().st_mode & 0o7777 == 0o1777
    assert [file.stat().st_mode & 0o777 for file in loans.iterdir()] == [0o644]


def test_an_error_gives_the_gpu_back() -> None:
    with pytest.raises(ZeroDivisionError), acquire_gpu(["0"]):
        raise ZeroDivisionError
    with acquire_gpu(["0"], refuse):
        pass


def test_a_crash_gives_the_gpu_to_a_waiting_process() -> None:
    program = HOLD.format(src=str(ROOT / "src"), root=str(ROOT))
    holders = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    names = [holder.stdout.readline().strip() for holder in holders if holder.stdout]
    assert sorted(names) == ["0", "1"]
    with pytest.raises(Impatient), acquire_gpu(["0", "1"], refuse):
        pass
    waits = threading.Event()
    gpu_names: list[str] = []

    def wait(seconds: float) -> None:
        waits.set()
        threading.Event().wait(seconds)

    def ask() -> None:
        with acquire_gpu(["0", "1"], wait) as name:
            gpu_names.append(name)

    thread = threading.Thread(target=ask)
    thread.start()
    assert waits.wait(60)
    holders[1].kill()
    thread.join(60)
    assert gpu_names == [names[1]]
    for holder in holders:
        holder.kill()
        holder.communicate()
