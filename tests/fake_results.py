"""Result folders with generated numbers, in the format of a study. Nothing here was trained."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedweave.report.optional_files import ABLATION_COLUMNS
from fedweave.report.summary import SummaryLine, summary
from fedweave.results import Study, Tables

SKILL = {"Local": -6.0, "FedAvg": -12.0, "FedAvg-FT": -0.2, "Ditto": -2.5, "FedAMP": -5.0, "FedAGHN": 0.0}
WEAVERS = ("FedAMP", "FedAGHN", "pFedGAT", "SHN")
# 20 clients in two groups, for `clients=20`
ARMS = {
    "client_names": [f"subject {i // 2}, {side}" for i in range(20) for side in [("left", "right")[i % 2]]],
    "group": [i % 2 for i in range(20)],
    "group_names": ["left", "right"],
}
NAMES = (*ARMS, "splits", "units", "sharing", "evaluated")
LAYERS = ("conv1", "conv2", "fc1", "fc2")


def write_study(
    folder: Path,
    tasks: Mapping[str, Mapping[str, Any]] | None = None,
    methods: Mapping[str, float] = SKILL,
    seeds: Sequence[int] = (0, 1, 2),
    clients: int = 12,
    rounds: int = 20,
    extras: bool = True,
    trials: int = 20,
) -> Path:
    """Write runs of every method on every task, and (with `extras`) tuning, ablations, label tables; returns `folder`.

    A task's block may have dataset, setting, metric, points, select, note, published, splits (one for each of `seeds`),
    and the clients' client_names, group, group_names, units, sharing, evaluated.
    """
    for t, (task, block) in enumerate((tasks or {"blobs": {}}).items()):
        for m, (label, skill) in enumerate(methods.items()):
            write_run(folder, task, label, skill, block, seeds, clients, rounds, np.random.default_rng([t, m]))
        if extras:
            _write_labels(folder.parents[1] / "data" / "partitions" / task, clients, np.random.default_rng(t))
    if extras:
        _write_tuning(folder, next(iter(tasks or {"blobs": {}})), methods, trials)
        _write_ablations(folder, next(iter(tasks or {"blobs": {}})))
    return folder


def leaders_line(study: Study, tables: Tables) -> SummaryLine:
    """The line of the summary on who leads."""
    return next(line for line in summary(study, tables) if line.topic == "Who leads")


def slug(label: str) -> str:
    """The part of a run's name for the label."""
    return "".join(c if c.isalnum() else "-" for c in label.lower())


def write_single_run(tmp_path: Path, label: str = "FedAMP", rounds: int = 6, **block: object) -> Path:
    """Write a study with a single run. Returns the run's folder."""
    return write_run(tmp_path / "results" / "s", "t", label, 0.0, block, (0, 1), 8, rounds, np.random.default_rng(0))


def write_run(
    folder: Path,
    task: str,
    label: str,
    skill: float,
    block: Mapping[str, Any],
    seeds: Sequence[int],
    clients: int,
    rounds: int,
    rng: np.random.Generator,
) -> Path:
    """One run folder; values follow a saturating curve that ends `skill` points from 80 % (or from an MSE of 0.02)."""
    path = folder / "runs" / f"{task}-{slug(label)}"
    path.mkdir(parents=True, exist_ok=True)
    metric = block.get("metric", "accuracy")
    info = {
        "study": folder.name,
        "run": path.name,
        "task": task,
        "dataset": block.get("dataset", "blobs"),
        "setting": block.get("setting", task),
        "method": slug(label),
        "label": label,
        "metric": metric,
        "higher_is_better": metric == "accuracy",
        "point": block.get("points", {}).get(label, "post"),
        "select": block.get("select", "best_val_round"),
        "clients": clients,
        **{key: block[key] for key in NAMES if key in block},
        "parameters": 1234,
        "device": "cpu",
        "executor": "loop",
        "note": block.get("note", "made-up numbers"),
        "spec_hash": f"{len(path.name):08x}",
        "layers": LAYERS,
        "seeds": list(seeds),
        "published": block.get("published"),
        "versions": {"torch": "0.0", "numpy": "0.0"},
        "spec": {
            "task": {"model": {"name": "mlp"}},
            "train": {"rounds": rounds, "epochs": 2, "batch_size": 32, "lr": 0.05},
            "method": {"lam": 1.0},
        },
    }
    long, log = [], []
    base = np.random.default_rng(len(task)).normal(0, 6, clients)
    for seed in seeds:
        long.append(_evaluations(metric, skill, seed, base, rounds, rng))
        sent = 0 if label == "Local" else clients * 1234 * 4
        log.append(
            pd.DataFrame(
                {
                    "seed": seed,
                    "round": range(1, rounds + 1),
                    "bytes_down": sent * (2 if label in WEAVERS else 1),
                    "bytes_up": sent,
                    "seconds": rng.uniform(0.1, 0.3, rounds),
                    "train_loss": np.geomspace(2, 0.2, rounds),
                }
            )
        )
        if label in WEAVERS:
            group = np.array(block.get("group") or np.arange(clients) * 4 // clients)
            _write_graph(path / f"collaboration-{seed}.npz", group, rounds, label == "FedAMP", rng)
    pd.concat(long).to_parquet(path / "evaluations.parquet", index=False)
    pd.concat(log).to_csv(path / "rounds.csv", index=False)
    load = pd.DataFrame(
        {
            "time": [1.7e9, 1.7e9 + 1],
            "cpu_utilization_percentage": [50.0, 99.0],
            "process_memory_usage_megabytes": [700.0, 710.5],
        }
    )
    load.to_csv(path / "system.csv", index=False)
    (path / "run.json").write_text(json.dumps(info))
    return path


def _evaluations(
    metric: str, skill: float, seed: int, base: np.ndarray, rounds: int, rng: np.random.Generator
) -> pd.DataFrame:
    axes = [range(1, rounds + 1), ("pre", "post"), ("val", "test"), range(len(base))]
    table = pd.MultiIndex.from_product(axes, names=["round", "point", "split", "client"]).to_frame(index=False)
    score = 80 + skill - 45 * np.exp(-6 * table["round"] / rounds) - 4 * (table["point"] == "pre")
    score += base[table["client"]] + rng.normal(0, 1.0, len(table))
    value = score.clip(0, 100) if metric == "accuracy" else (100 - score).clip(lower=1) * 1e-3
    return table.assign(seed=seed, value=value)[["seed", "round", "point", "split", "client", "value"]]


def _write_graph(path: Path, group: np.ndarray, rounds: int, tied: bool, rng: np.random.Generator) -> None:
    clients = len(group)
    same_group = (group[:, None] == group[None, :]).astype(float)
    at = np.unique(np.linspace(1, rounds, 6).astype(int))
    weights = np.zeros((len(at), len(LAYERS), clients, clients), dtype=np.float32)
    for r, when in enumerate(at):
        for layer in range(len(LAYERS)):
            raw = (
                0.2
                + same_group * 2 * when / rounds
                + rng.uniform(0, 0.3, same_group.shape)
                + np.eye(clients) * (1 + layer)
            )
            weights[r, layer] = raw / raw.sum(1, keepdims=True)
    if tied:
        weights[:] = weights[:, :1]
    np.savez(path, rounds=at, weights=weights, layers=np.array(LAYERS))


def _write_labels(folder: Path, clients: int, rng: np.random.Generator) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    counts = (rng.dirichlet(np.full(10, 0.3), clients) * 400).astype(int)
    table = {"client": range(clients), "train": counts.sum(1), "val": 0, "test": 0}
    table |= {f"class_{c}": column for c, column in enumerate(counts.T)}
    pd.DataFrame(table).to_csv(folder / "labels.csv", index=False)


def _write_tuning(folder: Path, task: str, methods: Mapping[str, float], count: int) -> None:
    (folder / "tuned" / task / "trials").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(5)
    for label in list(methods)[-2:]:
        lrs, lams = 10 ** rng.uniform(-3, 0, count), rng.uniform(0, 1, count)
        value = 78 - 4 * (np.log10(lrs) + 1.2) ** 2 + 2 * lams + rng.normal(0, 0.4, count)
        trials = [
            {
                "params": {"lr": float(a), "lam": float(b), "norm": "bn" if b > 0.5 else "none"},
                "value": float(v),
                "reached": float(v),
                "rounds": 4,
                "curve": {"2": float(v) - 3, "4": float(v)},
                "started": 1.7e9 + 10 * i,
                "seconds": 5.0,
            }
            for i, (a, b, v) in enumerate(zip(lrs, lams, value, strict=True))
        ]
        trials[3] |= {"value": None, "reached": trials[3]["reached"] - 3, "rounds": 2}
        best = max((t for t in trials if t["value"] is not None), key=lambda t: t["value"])
        run = f"{task}-{slug(label)}"
        record = {
            "run": run,
            "trials": trials,
            "best": best["params"],
            "budget": {"trials": count, "share": 0.5, "seeds": [1000]},
            "maximize": True,
            "importance": {"lr": 0.7, "lam": 0.2, "norm": 0.1},
        }
        (folder / "tuned" / task / f"{run}.json").write_text(json.dumps({"run": run, "best": best["params"]}))
        (folder / "tuned" / task / "trials" / f"{run}.json").write_text(json.dumps(record))


def _write_ablations(folder: Path, task: str) -> None:
    parts = {
        "as declared": ({}, 80.1),
        "without p": ({"p": "absent"}, 77.4),
        "frozen p, q": ({"p": "frozen", "q": "frozen"}, 78.9),
    }
    depth = {f"depth = {n}": ({"depth": n}, mean) for n, mean in ((1, 78.0), (3, 80.1), (5, 79.5))}
    roles = {
        f"p = {p}, q = {q}": ({"p": p, "q": q}, 79.0 + len(p) / 10)
        for p in ("trained", "frozen")
        for q in ("trained", "absent")
    }
    for name, label, variants in (
        ("attention", "FedAGHN", parts),
        ("depth", "FedAGHN", depth),
        ("depth-amp", "FedAMP", {name: (settings, mean - 2) for name, (settings, mean) in depth.items()}),
        ("roles", "FedAGHN", roles),
    ):
        rows = []
        for place, (variant, (settings, mean)) in enumerate(variants.items()):
            numbers = {"mean": mean, "std": 0.4, "client_std": 6.0, "worst10": 70.0, "bytes": 1e6, "seconds": 9.0}
            tested = {
                "difference": mean - 80.1,
                "low": mean - 81.0,
                "high": mean - 79.2,
                "p_adjusted": 0.01 if mean < 78 else 0.4,
                "margin": 2.0,
                "over": "seeds and clients",
                "verdict": "worse" if mean < 78 else "equivalent" if mean > 79 else "open",
            }
            tested["seeds_needed"] = 7 if tested["verdict"] == "open" else ""
            about = {
                "ablation": name,
                "variant": variant,
                "run": f"{task}-{slug(label)}",
                "task": task,
                "method": label,
                "metric": "accuracy",
            }
            outcome = {"settings": json.dumps(settings), "declared": int(place == 0), "metric": "accuracy"}
            rows.append({**about, **numbers, **outcome, **(tested if place else {})})
        (folder / "ablations" / name).mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows, columns=list(ABLATION_COLUMNS)).to_csv(
            folder / "ablations" / name / "table.csv", index=False
        )
