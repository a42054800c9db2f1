"""How often `fedweave.recommend` is correct on data with a known answer: `python -m benchmarks.recommend_truth`.

Options: --seeds N (default 20), --workers N (default 1), --only CASE, --out FILE (default
docs/guides/recommend_truth.csv).

Twelve clients, ten standard normal features, three classes. A class is the largest of three linear scores plus noise.

    common     all clients have the same scores: one common model is correct
    unrelated  every client has its own scores: no client should collaborate
    groups     two sets of six clients: models that learn within these two groups are correct
    noise      like common, but one client has 80 % of its labels shifted to the next class, in all of its rows: the
               others should collaborate, and this client loses by one common model
    short      like common, but a few rounds with a small learning rate: nothing can be said about collaboration
    pooling    numbers: a common linear score, a shift of each client's own, and noise, all of variance 1; ten training
               rows: partial pooling is correct

Every seed draws new scores, rows and noise. A finished seed is in the file and does not run again.
"""

import argparse
import csv
import multiprocessing
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import fedweave as fw

CLIENTS, FEATURES, CLASSES = 12, 10, 3
ROWS = {"train": 40, "val": 100, "test": 200}  # of a client
NOISE = 0.5  # standard deviation of the noise of scores, whose own is 1
FLIPPED = 0.8  # share of the labels of the client with noise
VICTIM = 7
ARGUMENTS: dict[str, Any] = {
    "methods": ["local", "fedavg", "fedavg_ft", "ditto", "pfedgraph"],
    "budget": None,
    "rounds": 15,
    "seeds": 3,
    "settings": 2,
    "model": {"name": "mlp", "hidden": 16},
    "lr": 0.3,
    "epochs": 2,
    "batch_size": 20,
    "progress": False,
}
CASES = ("common", "unrelated", "groups", "noise", "short", "pooling")
FEW_ROWS = 10  # training rows of a client where partial pooling is correct
OTHERS: dict[str, dict[str, Any]] = {  # case -> other arguments
    "short": {"rounds": 4, "lr": 0.003},
    "pooling": {"methods": [*ARGUMENTS["methods"], "partial_pooling"], "lr": 0.05},
}
COLUMNS = (
    "case",
    "seed",
    "right",
    "answer",
    "method",
    "leader",
    "equal",
    "pays",
    "gain",
    "groups",
    "own",
    "losing",
    "losing_common",
    "seconds",
)


def federation(case: str, seed: int) -> fw.Federation:
    """The clients of a case."""
    rng = np.random.default_rng([CASES.index(case), seed])
    sizes = {**ROWS, "train": FEW_ROWS} if case == "pooling" else ROWS
    count = sum(sizes.values())
    x = rng.normal(size=(CLIENTS, count, FEATURES))
    scores = x @ weights(case, rng) + NOISE * rng.normal(size=(CLIENTS, count, CLASSES))
    y = scores.argmax(-1)
    if case == "noise":
        flipped = rng.random(count) < FLIPPED
        y[VICTIM] = np.where(flipped, (y[VICTIM] + 1) % CLASSES, y[VICTIM])
    if case == "pooling":
        y = x @ weights(case, rng)[0, :, 0] + rng.normal(size=(CLIENTS, 1)) + rng.normal(size=(CLIENTS, count))
    parts = np.repeat([*sizes], [*sizes.values()])
    return fw.Federation.from_arrays(
        x.reshape(-1, FEATURES),
        y.reshape(-1),
        client=np.repeat(names(), count).tolist(),
        split=np.tile(parts, CLIENTS),
        group={name: f"group {i % 2}" for i, name in enumerate(names())} if case == "groups" else None,
        name=case,
    )


def names() -> list[str]:
    """Names of the clients, in their order."""
    return [f"site {i:02d}" for i in range(CLIENTS)]


def weights(case: str, rng: np.random.Generator) -> np.ndarray:
    """The linear scores of each client [N, F, C], of unit variance."""
    count = {"unrelated": CLIENTS, "groups": 2}.get(case, 1)
    scores = rng.normal(size=(count, FEATURES, CLASSES)) / np.sqrt(FEATURES)
    return np.asarray(scores[np.arange(CLIENTS) % count])


def is_correct(case: str, advice: fw.Recommendation) -> bool:
    """Whether the recommendation is the correct one for the case."""
    if case == "common":
        return advice.answer == "common"
    if case == "unrelated":
        return advice.answer == "local"
    if case == "groups":
        truth = [[name for i, name in enumerate(names()) if i % 2 == group] for group in (0, 1)]
        return advice.answer == "groups" and sorted(map(sorted, advice.groups)) == truth
    if case == "short":
        return bool(advice.facts["under_trained"])
    if case == "pooling":
        return advice.method == "partial_pooling"
    return advice.answer != "local" and losing_common(advice) == [names()[VICTIM]]


def losing_common(advice: fw.Recommendation) -> list[str]:
    """Clients that lose by the best of the methods with one model for all."""
    common = advice.board[advice.board["models"] == 1]["method"]
    return advice.losing(common.iloc[0]) if len(common) else []


def outcome(case: str, seed: int) -> dict[str, Any]:
    """One row of the file."""
    start = time.process_time()
    advice = fw.recommend(federation(case, seed), **ARGUMENTS | OTHERS.get(case, {}))
    pays = advice.facts["pays"]
    return {
        "case": case,
        "seed": seed,
        "right": int(is_correct(case, advice)),
        "answer": advice.answer,
        "method": advice.method,
        "leader": advice.facts["leader"],
        "equal": " ".join(advice.equal_methods),
        "pays": {"better": "yes", "worse": "no"}.get(pays["verdict"], pays["verdict"] or "no verdict"),
        "gain": round(pays["difference"], 2),
        "groups": "|".join(" ".join(group) for group in advice.groups),
        "own": "|".join(advice.local_clients),
        "losing": "|".join(advice.losing()),
        "losing_common": "|".join(losing_common(advice)),
        "seconds": round(time.process_time() - start, 1),
    }


def _bind_to_core(counter: Any) -> None:
    """Bind a worker to a core of its own, so that it trains repetitions in sequence and not in further processes."""
    with counter.get_lock():
        number, counter.value = counter.value, counter.value + 1
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    warnings.simplefilter("ignore")


def _run_job(job: tuple[str, int]) -> dict[str, Any]:
    return outcome(*job)


def finished(path: Path) -> list[dict[str, str]]:
    """The rows that are in the file."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


RIGHT = {
    "common": "one distribution: one common model",
    "unrelated": "unrelated clients: each its own model",
    "groups": "two groups: learn within them, and exactly these groups are shown",
    "noise": "one client with label noise: collaborate, and exactly this client is said to lose by one common model",
    "short": "four rounds with a small learning rate: under-trained, no statement about collaboration",
    "pooling": "a common score and a shift of each client, ten training rows: partial pooling",
}


def table(rows: list[dict[str, str]]) -> str:
    """The rates as a table of Markdown, for the guide."""
    lines = ["| truth and right answer | right | seeds |", "|---|--:|--:|"]
    for case, description in RIGHT.items():
        right_seeds = [int(row["right"]) for row in rows if row["case"] == case]
        lines.append(f"| {description} | {sum(right_seeds)} | {len(right_seeds)} |")
    return "\n".join(lines) + "\n"


def rates(rows: list[dict[str, str]]) -> Iterator[str]:
    """One line per case: for how many seeds the recommendation was correct."""
    for case in CASES:
        of_case = [row for row in rows if row["case"] == case]
        if of_case:
            yield f"{case:10} {sum(int(row['right']) for row in of_case)} of {len(of_case)} right"


def main() -> None:
    """Run the missing seeds, and print the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("docs/guides/recommend_truth.csv"))
    parser.add_argument("--only", choices=CASES)
    arguments = parser.parse_args()
    present = {(row["case"], int(row["seed"])) for row in finished(arguments.out)}
    cases = [arguments.only] if arguments.only else CASES
    jobs = [(case, seed) for seed in range(arguments.seeds) for case in cases if (case, seed) not in present]
    context = multiprocessing.get_context("spawn")
    with (
        context.Pool(arguments.workers, _bind_to_core, (context.Value("i", 0),)) as pool,
        arguments.out.open("a", newline="") as file,
    ):
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not present:
            writer.writeheader()
        for row in pool.imap_unordered(_run_job, jobs):
            writer.writerow(row)
            file.flush()
            print(*row.values(), flush=True)
    print("\n".join(rates(finished(arguments.out))))


if __name__ == "__main__":
    main()
