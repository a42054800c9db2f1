"""The machine's load while a stage trains: taken from the system, kept short, written as a table."""

import mmap
import threading
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from fedweave.pipelines import machine


def test_memory_that_is_taken_shows(tmp_path: Path) -> None:
    before = machine.sample()["process_memory_usage_megabytes"]
    block = mmap.mmap(-1, 2**27)  # not from the heap, which may have as much to spare
    block.write(b"x" * len(block))
    with machine.watched() as rows:
        pass
    assert rows[-1]["process_memory_usage_megabytes"] - before > 100
    block.close()
    machine.write(tmp_path / "system.csv", rows)
    table = pd.read_csv(tmp_path / "system.csv")
    assert len(table) == len(rows)
    assert table["time"].iloc[-1] == pytest.approx(rows[-1]["time"], abs=1e-3)
    assert table["cpu_utilization_percentage"].between(0, 100).all()


def test_rows_stay_few_and_span_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(machine, "sample", lambda: {"time": float(next(clock))})
    rows: list[dict[str, float]] = []

    class Over(threading.Event):
        """Ends after 5000 looks, without waiting."""

        calls = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.calls += 1
            return self.calls > 5000

    machine._watch(rows, Over())
    assert machine.MOST // 2 <= len(rows) <= machine.MOST
    assert rows[-1]["time"] > 4800
    assert all(a["time"] < b["time"] for a, b in pairwise(rows))
