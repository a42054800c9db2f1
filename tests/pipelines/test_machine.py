"""The machine's load while a stage trains: read from the system, with few rows, written as a table."""

import mmap
import sys
import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from fedweave.pipelines import machine


def test_allocated_memory_is_measured(tmp_path: Path) -> None:
    block = mmap.mmap(-1, 2**27)  # not from the heap, which may have as much free
    block.write(b"x" * len(block))
    with machine.record_load() as rows:
        pass
    block.close()
    # Compared with the memory after it: meanwhile the system may take memory away, for example of unused code
    assert rows[-1]["process_memory_usage_megabytes"] - machine.sample()["process_memory_usage_megabytes"] > 100
    machine.write(tmp_path / "system.csv", rows)
    table = pd.read_csv(tmp_path / "system.csv")
    assert len(table) == len(rows)
    assert table["time"].iloc[-1] == pytest.approx(rows[-1]["time"], abs=1e-3)
    assert table["cpu_utilization_percentage"].between(0, 100).all()


def test_rows_are_few_and_cover_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(machine, "sample", lambda: {"time": float(next(clock))})
    rows: list[dict[str, float]] = []

    class Over(threading.Event):
        """Ends after 5000 calls, without waiting."""

        calls = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.calls += 1
            return self.calls > 5000

    machine._watch(rows, Over())
    assert machine.MAX_ROWS // 2 <= len(rows) <= machine.MAX_ROWS
    assert rows[-1]["time"] > 4800
    assert all(a["time"] < b["time"] for a, b in pairwise(rows))


BROKEN = {
    "psutil.cpu_percent": "cpu_utilization_percentage",
    "psutil.virtual_memory": "system_memory_usage_megabytes",
    "psutil.Process": "process_memory_usage_megabytes",
    "psutil.disk_usage": "disk_usage_percentage",
    "psutil.net_io_counters": "network_receive_megabytes",
    "torch.cuda.mem_get_info": "gpu_0_memory_usage_megabytes",
    "torch.cuda.utilization": "gpu_0_utilization_percentage",
}


class Unavailable(Exception):
    """An error of an unexpected class, such as that of NVIDIA's Python bindings."""


@pytest.mark.parametrize("name", BROKEN)
def test_a_reading_that_fails_is_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any exception: the training result is not lost, and the other readings are there."""
    cuda = SimpleNamespace(
        is_initialized=lambda: True, device_count=lambda: 1, mem_get_info=lambda _: (1, 2), utilization=lambda _: 50
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    whole = machine.sample()

    def fail(*_: object) -> None:
        raise Unavailable

    where = machine.psutil if name.startswith("psutil") else cuda
    monkeypatch.setattr(where, name.rpartition(".")[2], fail)
    with machine.record_load() as rows:
        pass
    lost = whole.keys() - rows[-1].keys()
    assert BROKEN[name] in lost
    assert len(lost) <= 2


def test_a_machine_without_a_network_has_no_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.psutil, "net_io_counters", lambda: None)
    assert "disk_usage_percentage" in machine.sample()
