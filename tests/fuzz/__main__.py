"""`make fuzz`: damaged files for every reader, for a given time, and a table of the results."""

import argparse
import itertools
import os
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.campaign import Outcome, attack
from tests.fuzz.targets import TARGETS

FINDINGS = Path(".fuzz")
SLICE = 60.0  # seconds of one child: its start takes a few


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9)
    parser.add_argument("targets", nargs="*", default=[*TARGETS], help=f"of {', '.join(TARGETS)}")
    return parser.parse_args()


def _print_finding(outcome: Outcome) -> Outcome:
    """Save and print a finding."""
    if outcome.finding:
        path = outcome.save(FINDINGS)
        print(f"{outcome.target}, seed {outcome.seed}, input {outcome.count}: {path}\n{outcome.finding}", flush=True)
    return outcome


def main() -> int:
    """Run children for all targets in turn until the time is up; returns 1 after a finding."""
    arguments = _arguments()
    end, totals = time.monotonic() + arguments.seconds, defaultdict(list)
    piece = min(SLICE, arguments.seconds * arguments.jobs / len(arguments.targets))
    turns = zip(itertools.cycle(arguments.targets), itertools.count(arguments.seed), strict=False)

    def work() -> None:
        while (left := end - time.monotonic()) > 0:
            target, seed = next(turns)
            totals[target].append(_print_finding(attack(target, seed, min(piece, left))))

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for job in [pool.submit(work) for _ in range(arguments.jobs)]:
            job.result()
    return _report(totals)


def _report(totals: dict[str, list[Outcome]]) -> int:
    print(f"{'target':16}{'inputs':>12}{'a second':>10}{'refused':>10}{'findings':>10}")
    for target, outcomes in sorted(totals.items()):
        count, refused = sum(o.count for o in outcomes), sum(o.refused for o in outcomes)
        pace = count / max(sum(o.seconds for o in outcomes), 1e-9)
        findings = sum(bool(o.finding) for o in outcomes)
        print(f"{target:16}{count:12,}{pace:10,.0f}{refused / max(count, 1):10.0%}{findings:10}")
    print(f"{'':16}{sum(o.count for outcomes in totals.values() for o in outcomes):12,}")
    return int(any(o.finding for outcomes in totals.values() for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
