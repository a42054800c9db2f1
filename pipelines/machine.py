"""Load of the machine while a stage trains, in at most `MAX_ROWS` rows for any duration."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from fedweave.files.atomic import write_table

MAX_ROWS = 256  # with more rows, every second one is removed, and the pause between new ones is doubled
FIRST_PAUSE = 1.0  # seconds between the first rows
MIB = 2.0**20


@contextmanager
def record_load() -> Iterator[list[dict[str, float]]]:
    """Rows of `sample`, taken by a thread while the block runs, and one at its end."""
    rows: list[dict[str, float]] = []
    stop = threading.Event()
    _read_safely(_cpu)  # psutil measures since the previous call, so that the first call returns nothing useful
    thread = threading.Thread(target=_watch, args=(rows, stop), daemon=True)
    thread.start()
    try:
        yield rows
    finally:
        stop.set()
        thread.join()
        rows.append(sample())


def _watch(rows: list[dict[str, float]], stop: threading.Event) -> None:
    pause = FIRST_PAUSE
    while not stop.wait(pause):
        rows.append(sample())
        if len(rows) > MAX_ROWS:
            del rows[::2]
            pause *= 2


def sample() -> dict[str, float]:
    """The moment [s since 1970], and the load under MLflow's names for system metrics."""
    row = {"time": time.time()}
    for read in (_cpu, _memory, _process, _disk, _network, _gpus):
        row |= _read_safely(read)
    return row


def _read_safely(read: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What `read` returns, or nothing where it fails: no training may end because of its record."""
    try:
        return read()
    except Exception:  # psutil's, NVIDIA's and CUDA's errors have no class in common
        return {}


def _cpu() -> dict[str, float]:
    return {"cpu_utilization_percentage": psutil.cpu_percent()}


def _memory() -> dict[str, float]:
    memory = psutil.virtual_memory()
    return {"system_memory_usage_megabytes": memory.used / MIB, "system_memory_usage_percentage": memory.percent}


def _process() -> dict[str, float]:
    """Memory of this process and its children."""
    root, total = psutil.Process(), 0
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return {"process_memory_usage_megabytes": total / MIB}


def _disk() -> dict[str, float]:
    return {"disk_usage_percentage": psutil.disk_usage(".").percent}


def _network() -> dict[str, float]:
    counters = psutil.net_io_counters()  # None on a machine without a network
    received = {"network_receive_megabytes": counters.bytes_recv / MIB}
    return {**received, "network_transmit_megabytes": counters.bytes_sent / MIB}


def _gpus() -> dict[str, float]:
    """Memory and load of the GPUs that this process uses; a measurement must not initialise CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    metrics: dict[str, float] = {}
    for number in range(torch.cuda.device_count()):
        metrics |= _read_safely(partial(_gpu_memory, torch, number))
        # Without NVIDIA's Python bindings, and on a part of a GPU, the load is not known.
        metrics |= _read_safely(partial(_gpu_load, torch, number))
    return metrics


def _gpu_memory(torch: Any, number: int) -> dict[str, float]:
    free, total = torch.cuda.mem_get_info(number)
    used = total - free
    return {
        f"gpu_{number}_memory_usage_megabytes": used / MIB,
        f"gpu_{number}_memory_usage_percentage": 100.0 * used / total,
    }


def _gpu_load(torch: Any, number: int) -> dict[str, float]:
    return {f"gpu_{number}_utilization_percentage": float(torch.cuda.utilization(number))}


def write(path: Path, rows: list[dict[str, float]]) -> None:
    """Write rows of `sample` as a table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    write_table(path, names, ([f"{row[name]:.3f}" if name in row else "" for name in names] for row in rows))
