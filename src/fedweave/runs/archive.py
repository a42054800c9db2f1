"""A finished run as plain files, and the value of every client that it reports."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedweave.federation.executors import describe
from fedweave.files import atomic_path, save_tensors, sweep, write_atomic, write_table
from fedweave.models import parameter_count
from fedweave.runs import assembly, federations
from fedweave.runs.repetition import SPLITS, Bench, History, chosen, table
from fedweave.study import checks

PARTS = ("models-*.pt", "collaboration-*.npz", "portrait-*.npz", "dropped.csv")  # files that not every run has


def write(folder: Path, bench: Bench, histories: dict[int, History]) -> None:
    """Write a finished run: evaluations.parquet, rounds.csv, diagnostics.csv, graphs, vectors, models, and last of all run.json.

    A run without run.json is unfinished: one from before is taken away first, so that no mixture of two is ever taken for whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in (folder / "run.json", *(old for pattern in PARTS for old in folder.glob(pattern))):
        old.unlink(missing_ok=True)
    sweep(folder)
    for seed, history in histories.items():
        _write_graphs(folder / f"collaboration-{seed}.npz", history, bench)
        _write_portrait(folder / f"portrait-{seed}.npz", history, bench)
        if history.kept:
            save_tensors(
                folder / f"models-{seed}.pt", {"round": history.kept["round"], "models": history.kept["models"]}
            )
    _write_evaluations(folder / "evaluations.parquet", histories)
    ledger = ([seed, *row] for seed, history in histories.items() for row in history.ledger)
    write_table(
        folder / "rounds.csv", ("seed", "round", "bytes_down", "bytes_up", "seconds", "train_loss", "dropped"), ledger
    )
    lost = [[seed, *row] for seed, history in histories.items() for row in history.dropped]
    if lost:
        write_table(folder / "dropped.csv", ("seed", "round", "client"), lost)
    noted = ([seed, *row] for seed, history in histories.items() for row in history.diagnostics)
    write_table(folder / "diagnostics.csv", ("seed", "round", "name", "value"), noted)
    write_atomic(folder / "run.json", json.dumps(_facts(bench, histories), indent=2, default=str) + "\n")


def selected(bench: Bench, history: History, split: str = "test") -> np.ndarray:
    """The reported value of every client [N]: the round is chosen from validation only."""
    values = table(history.scores[f"{assembly.point(bench.run)}/{split}"])
    return values[chosen(history, bench), np.arange(values.shape[1])]


def _facts(bench: Bench, histories: dict[int, History]) -> dict[str, Any]:
    run, task = bench.run, bench.method.task
    spec = run.resolved()
    spec["method"] = {"name": run.method, **assembly.hyperparameters(bench.method)}
    return {
        "study": run.study,
        "run": run.key,
        "task": run.name,
        "dataset": run.task.dataset,
        "setting": run.task.setting,
        "method": run.method,
        "label": label(bench),
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "point": assembly.point(run),
        "select": run.evaluate.select,
        "clients": bench.federation.clients,
        **_identities(bench),
        "sharing": _sharing(bench),
        "cohorts": federations.cohorts(run, bench.federation),
        "leaks": bench.method.leaks,
        "parameters": parameter_count(task.template),
        "device": bench.device,
        "executor": describe(assembly.executor(run, bench.method)),
        "note": bench.note,
        "dropped": sum(len(history.dropped) for history in histories.values()),
        **_privacy(bench, histories),
        "published": run.task.published,
        "spec": spec,
        "spec_hash": run.fingerprint(),
        "layers": [*task.layers],
        "seeds": [*histories],
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
        "threads": torch.get_num_threads(),
    }


def _sharing(bench: Bench) -> list[int] | None:
    """Per client, the part of the graph from which it has its test nodes, where others have theirs too."""
    group = bench.federation.group
    return None if group is None or bench.run.task.partition["name"] != "metis_overlap" else group.tolist()


def _identities(bench: Bench) -> dict[str, Any]:
    """Names of the clients [N], the group of each and the names of the groups, or null where there are none."""
    group = bench.federation.group
    return {
        "client_names": [*(bench.names or (f"client {i}" for i in range(bench.federation.clients)))],
        "group": None if group is None else group.tolist(),
        "group_names": [*bench.group_names] or None,
    }


def _privacy(bench: Bench, histories: dict[int, History]) -> dict[str, Any]:
    """What the clients' uploads give away of them, in the worst repetition; nothing where none was asked for."""
    wanted = checks.wire(bench.run).privacy
    if wanted is None:
        return {}
    spent = max(value for history in histories.values() for _, name, value in history.diagnostics if name == "epsilon")
    return {"epsilon": spent, "delta": wanted.delta}


def label(bench: Bench) -> str:
    """The method's printed name; a variant and a run that leaks say so, and so never join the method's published row."""
    marks = [bench.run.variant] if bench.run.variant else []
    marks += ["leaky"] if bench.method.leaks and "leaky" not in bench.run.variant else []
    return bench.method.label + (f" [{', '.join(marks)}]" if marks else "")


def _write_evaluations(path: Path, histories: dict[int, History]) -> None:
    """A long table seed, round, point, split, client, value."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        (seed, r, point, split, client, value)
        for seed, h in histories.items()
        for point, split in SPLITS
        for r, values in zip(h.rounds, h.scores[f"{point}/{split}"], strict=True)
        for client, value in enumerate(values)
    ]
    names = ("seed", "round", "point", "split", "client", "value")
    types = (pa.int64(), pa.int64(), pa.string(), pa.string(), pa.int64(), pa.float64())
    columns = zip(*rows, strict=True)
    table = pa.table({n: pa.array(c, t) for n, c, t in zip(names, columns, types, strict=True)})
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary)


def _write_graphs(path: Path, history: History, bench: Bench) -> None:
    if not history.graphs:
        return
    widest = max(w.shape[-1] for _, w in history.graphs)
    same = [(r, w) for r, w in history.graphs if w.shape[-1] == widest]
    with atomic_path(path) as temporary:
        np.savez_compressed(
            temporary,
            rounds=np.array([r for r, _ in same]),
            weights=np.stack([w.numpy() for _, w in same]),
            layers=np.array([*bench.method.task.layers]),
            **_groups(bench),
        )


def _write_portrait(path: Path, history: History, bench: Bench) -> None:
    if not history.portrait:
        return
    seen, vectors = history.portrait
    with atomic_path(path) as temporary:
        np.savez_compressed(temporary, round=np.array(seen), vectors=vectors.numpy(), **_groups(bench))


def _groups(bench: Bench) -> dict[str, Any]:
    group = bench.federation.group
    return {} if group is None else {"group": group.cpu().numpy()}
