"""`python -m benchmarks [WORKLOAD ...]`: seconds a round, ours and the peers', as ratios to the raw limit.

Every contestant runs in its own process with the same number of threads, one after the other, and all of them several
times, so that other load on the machine affects all equally; the figure is the median round. The first round of a
process is not counted. The longest first round is printed next to the median: steps are compiled there (each time from
nothing), and a peer starts its workers there. The peers have their own environment, because they pin other versions:
`make peers`.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

WORKLOADS = ("cnn", "lenet16", "mlp", "tpt", "gcn", "gru")
PEERED = {"cnn", "lenet16", "mlp"}  # workloads that the peers' simulators take unchanged
STACKED = {"mlp", "tpt", "gcn", "gru"}  # convolutions are never stacked on a CPU: about twice the loop's time
COMPILED = {"mlp", "tpt", "gru"}
CONVOLUTIONAL = {"cnn", "lenet16"}  # `train.precision: bfloat16`, one client after the other
PEERS_PYTHON = Path(".peers/bin/python")
ROOT = Path(__file__).resolve().parent.parent


def contestants(workload: str) -> Iterator[tuple[str, str]]:
    """(name, interpreter) of every contestant."""
    ours = {
        "loop": True,
        "batched": workload in STACKED,
        "compiled": workload in COMPILED,
        "bfloat16": workload in CONVOLUTIONAL,
    }
    enabled = {"raw": True, **ours}
    yield from ((name, sys.executable) for name, takes_part in enabled.items() if takes_part)
    if (ROOT / PEERS_PYTHON).exists() and workload in PEERED:
        yield "pfl", str(ROOT / PEERS_PYTHON)
        yield "flwr", str(ROOT / PEERS_PYTHON)


def measured(python: str, name: str, workload: str, rounds: int, threads: int, cache: str) -> dict | str:
    """Seconds of the first round and of the later rounds of one new process; or the reason of its failure."""
    paths = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "TORCHINDUCTOR_CACHE_DIR": cache}
    command = [python, "-m", "benchmarks.contestant", name, workload, str(rounds), str(threads)]
    environment = os.environ | paths | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    return (
        json.loads(lines[-1])
        if done.returncode == 0 and lines
        else (done.stderr.strip().splitlines() or ["no output"])[-1]
    )


def compared(workload: str, repeats: int, rounds: int, threads: int) -> list[dict]:
    """Rows of the table of one workload."""
    times: dict[str, list[float]] = {}
    first: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(repeats):
            for name, python in contestants(workload):
                result = measured(python, name, workload, rounds, threads, cache)
                if isinstance(result, str):
                    print(f"{workload} {name}: {result}", file=sys.stderr)
                else:
                    times.setdefault(name, []).extend(result["seconds"])
                    first[name] = max(first.get(name, 0.0), result["first"])
    raw = statistics.median(times["raw"])
    return [
        {
            "workload": workload,
            "who": name,
            "milliseconds": 1e3 * statistics.median(t),
            "ratio": statistics.median(t) / raw,
            "first": first[name],
            "rounds": len(t),
        }
        for name, t in times.items()
    ]


def machine(threads: int) -> str:
    """What the figures were measured on."""
    import torch

    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return f"{cpu}, {os.cpu_count()} cores, {threads} thread(s), PyTorch {torch.__version__}"


def main() -> None:
    """Print the table, and keep it as JSON."""
    parser = argparse.ArgumentParser(
        description="Seconds a round of FedAvg, compared with the raw limit and the peers."
    )
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--repeats", type=int, default=3, help="processes of every contestant")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of every process; the first one is not counted")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict] = []
    print(machine(options.threads))
    print(f"{'workload':10} {'who':10} {'ms/round':>10} {'x raw':>7} {'first, s':>9}")
    for workload in options.workloads:
        for row in compared(workload, options.repeats, options.rounds, options.threads):
            rows.append(row)
            print(
                f"{row['workload']:10} {row['who']:10} {row['milliseconds']:10.1f} "
                f"{row['ratio']:7.2f} {row['first']:9.1f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(options.threads), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
