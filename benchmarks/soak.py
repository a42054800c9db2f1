"""Endurance of the Prefect server: one flow of 200 stages, four at a time. `python -m benchmarks.soak [STAGES]`.

The stages of a DVC project only write a file, so that only DVC, Prefect and their server are measured. It prints the
states of all tasks and the number of stale stages afterwards, then the memory of the server and its database.
"""

import os
import socket
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.request import urlopen

MIB = 2**20
PIPELINE = """stages:
  make:
    foreach: ${names}
    do:
      cmd: echo ${item} > made-${item}
      outs: ["made-${item}"]
  join:
    cmd: cat made-* > joined
    deps: [ALL]
    outs: [joined]
"""


def main(stages: str = "200") -> None:
    """Run the flow in a temporary folder, on a temporary server."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ |= {"PREFECT_HOME": f"{folder}/.prefect", "PREFECT_API_DATABASE_TIMEOUT": "60"}
        os.environ |= {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
        _project([f"{number:04d}" for number in range(int(stages))])
        soak(port)
        os.chdir("/")


def _project(names: list[str]) -> None:
    from dvc.repo import Repo

    Path("params.yaml").write_text(f"study: soak\nnames: {names}\n", encoding="utf-8")
    Path("dvc.yaml").write_text(PIPELINE.replace("ALL", ", ".join(f"made-{name}" for name in names)), encoding="utf-8")
    Repo.init(no_scm=True).close()


def soak(port: int) -> None:
    """Run the flow, record the memory of the server, and query the server and DVC afterwards."""
    from prefect.client.orchestration import get_client

    from fedweave.pipelines.processes import ChildProcesses
    from fedweave.pipelines.scheduling.dvc_graph import stale_stages
    from fedweave.pipelines.scheduling.flows import reproduce

    server = ChildProcesses()
    with server.start([sys.executable, "-m", "prefect", "server", "start", "--port", str(port)], {}) as process:
        threading.Thread(target=lambda: list(process.stdout or ()), daemon=True).start()
        _await(f"http://127.0.0.1:{port}/api/health")
        memory, end = [_resident(process.pid)], threading.Event()

        def record_memory() -> None:
            while not end.wait(5):
                memory.append(_resident(process.pid))

        threading.Thread(target=record_memory, daemon=True).start()
        start = time.perf_counter()
        print(reproduce(parallel=4, retries=0))
        duration = time.perf_counter() - start
        end.set()
        with get_client(sync_client=True) as client:
            start = time.perf_counter()
            runs = [*client.read_task_runs(limit=200), *client.read_task_runs(limit=200, offset=200)]
            listing = time.perf_counter() - start
        states = Counter(run.state_name for run in runs)
        size = sum(
            Path(file[2]).stat().st_size
            for file in sqlite3.connect(".prefect/prefect.db").execute("PRAGMA database_list")
        )
        print(
            f"{len(runs)} tasks {dict(states)} in {duration:.0f} s, {duration / len(runs):.2f} s each; "
            f"stale after it: {len(stale_stages())}"
        )
        print(
            f"server: {memory[0]:.0f} MiB at first, {max(memory):.0f} at most, {memory[-1]:.0f} at the end; "
            f"database {size / MIB:.1f} MiB; "
            f"all tasks listed in {listing:.2f} s"
        )


def _await(address: str) -> None:
    for _ in range(600):
        try:
            with urlopen(address, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    sys.exit(f"{address}: no answer")


def _resident(pid: int) -> float:
    """Resident memory of a process and its children at this moment [MiB]."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / MIB + sum(_resident(int(child)) for child in children)


if __name__ == "__main__":
    main(*sys.argv[1:])
