"""Memory of a large table: `python -m benchmarks.large_table` imports a file and trains on it.

Options: --rows N (default 1,000,000), --columns N (default 50, a fifth of them categories), --clients N (default 200),
--format csv or parquet, --limit GIB (default 4): the exit status is 1 where the peak is above it.

A process writes the file. Another one reads it, trains Local and FedAvg for one round, with the pooled control and all
results on disk, and prints the peak of its resident memory after each step. Workers of the training count too.
"""

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

GIB, CATEGORIES = 2**20, 5  # ru_maxrss counts KiB; one column in so many is a category


def write(path: Path, rows: int, columns: int, clients: int) -> None:
    """Write a table with a client, a class, numbers with missing values, and categories of ten values."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    rng = np.random.default_rng(0)
    table = {"client": pa.array([f"site {i:03d}" for i in range(clients)]).take(pa.array(np.arange(rows) % clients))}
    levels = pa.array([f"level {i}" for i in range(10)])
    for i in range(columns):
        if i % CATEGORIES == 0:
            table[f"category {i}"] = levels.take(pa.array(rng.integers(10, size=rows)))
        else:
            values = rng.normal(size=rows).round(3)
            table[f"number {i}"] = pa.array(values, mask=rng.random(rows) < 0.02)
    table["label"] = pa.array(["no", "yes"]).take(pa.array(rng.integers(2, size=rows)))
    whole = pa.table(table)
    if path.suffix == ".csv":
        csv.write_csv(whole, path)
    else:
        parquet.write_table(whole, path)


def peak() -> float:
    """Peak of resident memory [GiB]: of this process, plus that of its largest child."""
    return sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / GIB


def train(path: Path, out: Path, limit: float) -> None:
    """Import the file and train on it; exits with 1 above `limit` GiB."""
    import fedweave as fw

    start = time.process_time()

    def say(step: str) -> None:
        print(f"{step:28} {peak():6.2f} GiB {time.process_time() - start:7.1f} s of CPU", flush=True)

    say("start")
    federation = fw.Federation.from_file(path, client="client", label="label")
    say(f"{len(federation)} clients, {federation.dataset.x.shape[1]} inputs")
    fw.compare(federation, ["local", "fedavg"], rounds=1, seeds=1, batch_size=256, tune=0, out=out, progress=False)
    say("trained")
    sys.exit(int(peak() > limit))


def main() -> None:
    """Write the file, then import it and train in a process of their own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--format", choices=("csv", "parquet"), default="csv")
    parser.add_argument("--limit", type=float, default=4.0)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"table.{arguments.format}"
        steps = [
            context.Process(target=write, args=(path, arguments.rows, arguments.columns, arguments.clients)),
            context.Process(target=train, args=(path, Path(folder) / "out", arguments.limit)),
        ]
        for step in steps:
            step.start()
            step.join()
            if step.exitcode:
                sys.exit(step.exitcode)


if __name__ == "__main__":
    main()
