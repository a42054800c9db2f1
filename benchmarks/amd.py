"""`python -m benchmarks.amd [WORKLOAD ...]`: a round on an AMD processor, with MKL's own choice of kernels and Intel's.

MKL, which multiplies matrices for PyTorch, selects slower kernels where the processor is not Intel's. A library of one
function that is loaded first answers that it is. Both run in turn, in new processes; the figure is the median round.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.__main__ import STACKED, WORKLOADS, check_workloads, describe_machine, measure

SOURCE = "int mkl_serv_intel_cpu_true(void) { return 1; }"
COMPILER = ("cc", "-shared", "-fPIC", "-x", "c", "-o")


def build(folder: Path) -> Path:
    """The library for LD_PRELOAD, compiled into `folder`."""
    library = folder / "mkl_on_amd.so"
    subprocess.run([*COMPILER, str(library), "-"], input=SOURCE, text=True, check=True)
    return library


def main() -> None:
    """Print milliseconds for a round of each workload, and the ratio."""
    parser = argparse.ArgumentParser(description="A round with MKL's own choice of kernels and with Intel's.")
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each kind")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of every process; the first one is not counted")
    options = parser.parse_args()
    check_workloads(parser, options.workloads)
    print(describe_machine(1))
    print(f"{'workload':10} {'own, ms':>10} {'Intel, ms':>10} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as folder:
        library = str(build(Path(folder)))
        for workload in options.workloads:
            own, intel = compare(workload, options.repeats, options.rounds, library, folder)
            print(f"{workload:10} {own:10.1f} {intel:10.1f} {intel / own:6.2f}", flush=True)


def compare(workload: str, repeats: int, rounds: int, library: str, cache: str) -> tuple[float, float]:
    """Milliseconds per round without and with `library`."""
    executor = "batched" if workload in STACKED else "loop"
    times: dict[str, list[float]] = {"": [], library: []}
    for _ in range(repeats):
        for preload, seconds in times.items():
            variables = {"LD_PRELOAD": preload}
            result = measure(sys.executable, executor, workload, rounds, 1, cache, variables)
            if isinstance(result, str):
                sys.exit(f"{workload}: {result}")
            seconds += result["seconds"]
    own, intel = (1e3 * statistics.median(seconds) for seconds in times.values())
    return own, intel


if __name__ == "__main__":
    main()
