"""`python -m benchmarks [WORKLOAD ...]`: seconds per round of this engine and of the peers, as ratios to the raw limit.

Every contestant runs in its own process with the same number of threads. They run in sequence, and all of them several
times, so that other load on the machine affects all equally. The figure is the median round, without the first round of
a process. The longest first round is printed next to the median: it includes the compilation of steps (each time from
the beginning) and the start of a peer's workers. The peers have their own environment, because they pin other versions:
`make peers`.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

WORKLOADS = ("cnn", "lenet16", "mlp", "tpt", "gcn", "gru")
PEERED = {"cnn", "lenet16", "mlp"}  # workloads that the peers' simulators take unchanged
# Convolutions are never stacked on a CPU: stacked ones take about twice the loop's time.
STACKED = {"mlp", "tpt", "gcn", "gru"}
SMALL = {"mlp", "tpt", "gru"}  # whose rounds JAX has, too
COVERED = {*SMALL, "lenet16"}  # whose steps the kernel takes
ELSEWHERE = {"pfl", "flwr"}  # whose rounds are timed by the clock alone
CONVOLUTIONAL = {"cnn", "lenet16"}  # `train.precision: bfloat16`, clients in sequence
PEERS_PYTHON = Path(".peers/bin/python")
ROOT = Path(__file__).resolve().parent.parent


def contestants(workload: str, threads: int = 1) -> Iterator[tuple[str, str]]:
    """(name, interpreter) of every contestant."""
    executors = {
        "loop": True,
        "processes": threads > 1 and workload not in STACKED,
        "batched": workload in STACKED,
        "kernel": workload in COVERED,
        "bfloat16": workload in CONVOLUTIONAL,
    }
    enabled = {"raw": True, **executors}
    yield from ((name, sys.executable) for name, is_run in enabled.items() if is_run)
    if (ROOT / PEERS_PYTHON).exists() and workload in PEERED:
        yield "pfl", str(ROOT / PEERS_PYTHON)
        yield "flwr", str(ROOT / PEERS_PYTHON)
    if (ROOT / PEERS_PYTHON).exists() and workload in SMALL:
        yield "jax", str(ROOT / PEERS_PYTHON)


def measure(python: str, name: str, workload: str, rounds: int, threads: int, processor: bool = False) -> dict | str:
    """Seconds of the first round and of the later rounds of one new process, or the reason of its failure.

    Args:
        processor: seconds of the processor, not of the clock.
    """
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [python, "-m", "benchmarks.contestant", name, workload, str(rounds), str(threads)]
    command += ["processor"] if processor else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads)}
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = process.stdout.strip().splitlines()
    if process.returncode == 0 and lines:
        return json.loads(lines[-1])
    return (process.stderr.strip().splitlines() or ["no output"])[-1]


def compare(workload: str, repeats: int, rounds: int, threads: int, processor: bool = False) -> list[dict]:
    """Rows of the table of one workload."""
    times: dict[str, list[float]] = {}
    first: dict[str, float] = {}
    for _ in range(repeats):
        for name, python in contestants(workload, threads):
            if processor and name in ELSEWHERE:
                continue
            result = measure(python, name, workload, rounds, threads, processor)
            if isinstance(result, str):
                print(f"{workload} {name}: {result}", file=sys.stderr)
            else:
                times.setdefault(name, []).extend(result["seconds"])
                first[name] = max(first.get(name, 0.0), result["first"])
    if "raw" not in times:
        sys.exit(f"{workload}: the raw limit was not measured, with which all others are compared")
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


def check_workloads(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """End the program with an error of `parser` if a name is none of a workload."""
    if unknown := [name for name in names if name not in WORKLOADS]:
        parser.error(f"{unknown[0]} is not a workload; choices: {', '.join(WORKLOADS)}")


def describe_machine(threads: int) -> str:
    """The processor, threads and version of PyTorch of the measurements."""
    import torch

    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return f"{cpu}, {os.cpu_count()} cores, {threads} thread(s), PyTorch {torch.__version__}"


def main() -> None:
    """Print the table, and write it as JSON."""
    parser = argparse.ArgumentParser(
        description="Seconds a round of FedAvg, compared with the raw limit and the peers."
    )
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--repeats", type=int, default=3, help="processes of every contestant")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of every process; the first one is not counted")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processor", action="store_true", help="processor time, for a machine with other work")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    check_workloads(parser, options.workloads)
    rows: list[dict] = []
    print(describe_machine(options.threads))
    print(f"{'workload':10} {'who':10} {'ms/round':>10} {'x raw':>7} {'first, s':>9}")
    for workload in options.workloads:
        for row in compare(workload, options.repeats, options.rounds, options.threads, options.processor):
            rows.append(row)
            print(
                f"{row['workload']:10} {row['who']:10} {row['milliseconds']:10.1f} "
                f"{row['ratio']:7.2f} {row['first']:9.1f}",
                flush=True,
            )
    if options.json:
        content = {"machine": describe_machine(options.threads), "rows": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
