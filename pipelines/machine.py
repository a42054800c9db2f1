"""Load of the machine while a stage trains, in a limited number of rows for any duration."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from fedweave.files import write_table

MOST = 256  # rows: when there are more, every second one goes and the next ones come half as often
FIRST = 1.0  # seconds between the first rows
MIB = 2.0**20


@contextmanager
def watched() -> Iterator[list[dict[str, float]]]:
    """Rows of `sample`, taken by a thread while the block runs, and one at its end."""
    rows: list[dict[str, float]] = []
    over = threading.Event()
    psutil.cpu_percent()  # the first call has nothing to compare with
    thread = threading.Thread(target=_watch, args=(rows, over), daemon=True)
    thread.start()
    try:
        yield rows
    finally:
        over.set()
        thread.join()
        rows.append(sample())


def _watch(rows: list[dict[str, float]], over: threading.Event) -> None:
    pause = FIRST
    while not over.wait(pause):
        rows.append(sample())
        if len(rows) > MOST:
            del rows[::2]
            pause *= 2


def sample() -> dict[str, float]:
    """The moment [s since 1970], and the load under MLflow's names for system metrics."""
    memory, disk, net = psutil.virtual_memory(), psutil.disk_usage("."), psutil.net_io_counters()
    return {
        "time": time.time(),
        "cpu_utilization_percentage": psutil.cpu_percent(),
        "system_memory_usage_megabytes": memory.used / MIB,
        "system_memory_usage_percentage": memory.percent,
        "process_memory_usage_megabytes": _process(),
        "disk_usage_percentage": disk.percent,
        "network_receive_megabytes": net.bytes_recv / MIB,
        "network_transmit_megabytes": net.bytes_sent / MIB,
        **_gpus(),
    }


def _process() -> float:
    """Memory of this process and its children, MiB."""
    mine, total = psutil.Process(), 0
    for process in (mine, *mine.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total / MIB


def _gpus() -> dict[str, float]:
    """Memory and load of the GPUs that this process uses; looking must not be what starts CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    metrics: dict[str, float] = {}
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        metrics[f"gpu_{number}_memory_usage_megabytes"] = (total - free) / MIB
        metrics[f"gpu_{number}_memory_usage_percentage"] = 100.0 * (total - free) / total
        with suppress(ModuleNotFoundError, RuntimeError):  # without NVIDIA's Python bindings the load is not known
            metrics[f"gpu_{number}_utilization_percentage"] = float(torch.cuda.utilization(number))
    return metrics


def write(path: Path, rows: list[dict[str, float]]) -> None:
    """Write rows of `sample` as a table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    write_table(path, names, ([f"{row[name]:.3f}" if name in row else "" for name in names] for row in rows))
