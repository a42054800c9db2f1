"""One repetition of a run: drive the engine, keep what is worth keeping, survive a kill, write plain files."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedweave import assemble
from fedweave.data import Dataset, Partition
from fedweave.engine import Report, State
from fedweave.engine import run as rounds_of
from fedweave.errors import BadInput
from fedweave.federation import Federation
from fedweave.files import atomic_path, write_atomic
from fedweave.metrics import select, summarise
from fedweave.models import parameter_count
from fedweave.parallel import share, side_by_side
from fedweave.protocol import Method
from fedweave.spec import Run

GRAPHS = 16  # collaboration graphs kept per repetition, evenly over the rounds
SPLITS = tuple((point, split) for point in ("pre", "post") for split in ("val", "test"))


class Diverged(RuntimeError):
    """Training left the finite numbers; the message names run, seed, round and the way out."""


@dataclass(frozen=True)
class History:
    """What a repetition has produced so far; plain tensors and lists, so that it can be checkpointed.

    Attributes:
        ledger: rows (round, bytes_down, bytes_up, seconds, train_loss).
        rounds: evaluated rounds.
        scores: "pre/val" etc. -> one list of per-client values per evaluated round.
        graphs: (round, weights [L, N, N]).
        kept: {"round", "score" [N], "models" [N, ...]} of the round that validation selects, or empty.
    """

    ledger: list[list[float]] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    scores: dict[str, list[list[float]]] = field(default_factory=lambda: {f"{p}/{s}": [] for p, s in SPLITS})
    graphs: list[list[Any]] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """A run's objects: the method and its data on their device."""

    run: Run
    method: Method
    federation: Federation
    note: str
    device: str


def prepare(run: Run, dataset: Dataset, partition: Partition) -> Bench:
    """Build the objects of `run`; everything that can be refused is refused here.

    Raises:
        BadInput: as the functions of `assemble`.
    """
    device = assemble.device(run.train.device)
    task = assemble.build_task(run, dataset, partition)
    federation = assemble.build_federation(dataset, partition, run.task.normalize)
    if run.train.newcomers >= federation.clients:
        raise BadInput(f"runs.{run.key}: train.newcomers: {run.train.newcomers} of {federation.clients} clients; leave at least one")
    return Bench(run, assemble.build_method(run, task), federation.to(device), dataset.note, device)


def repeat(bench: Bench, seed: int, resume: State | None = None) -> Iterator[Report]:
    """The reports of one repetition.

    Raises:
        Diverged: when the training loss is not finite.
    """
    executor = assemble.executor(bench.run, bench.method.task)
    for report in rounds_of(bench.method, bench.federation, assemble.settings(bench.run, seed), executor, resume):
        if not np.isfinite(report.loss):
            raise Diverged(
                f"runs.{bench.run.key}: seed {seed}, round {report.round}: the training loss is {report.loss}; "
                f"lower train.lr ({bench.run.train.lr}) or set train.clip"
            )
        yield report


def record(history: History, report: Report, bench: Bench) -> History:
    """`history` with one more round."""
    ledger = [*history.ledger, [report.round, report.bytes_down, report.bytes_up, report.seconds, report.loss]]
    graphs = [*history.graphs, *_graph(report, bench)]
    if not report.scores:
        return replace(history, ledger=ledger, graphs=graphs)
    values = {f"{p}/{s}": report.scores[p][s].tolist() if p in report.scores else [] for p, s in SPLITS}
    scores = {name: [*history.scores[name], values[name]] for name in values}
    return History(ledger, [*history.rounds, report.round], scores, graphs, _keep(history.kept, report, bench))


def _graph(report: Report, bench: Bench) -> list[list[Any]]:
    total = bench.run.train.rounds
    every = max(1, total // GRAPHS)
    if report.round != 1 and report.round % every and report.round != total:
        return []
    weights = report.method.collaboration(report.state.server)
    return [] if weights is None else [[report.round, weights.detach().float().cpu()]]


def _keep(kept: dict[str, Any], report: Report, bench: Bench) -> dict[str, Any]:
    """The models that validation selects so far: of one round for all, or of each client's own best round."""
    point, rule = assemble.point(bench.run), bench.run.evaluate.select
    sign = 1.0 if bench.method.task.higher_is_better else -1.0
    score, models = sign * report.scores[point]["val"].cpu(), assemble.to_cpu(report.models[point])
    fresh = {"round": report.round, "score": score, "models": models}
    if not kept or rule == "last" or len(score) != len(kept["score"]):
        return fresh
    if rule == "best_val_round":
        return fresh if torch.nanmean(score) > torch.nanmean(kept["score"]) else kept
    better = score > kept["score"]
    merged = torch.utils._pytree.tree_map(lambda new, old: torch.where(_column(better, new), new, old), models, kept["models"])
    return {"round": report.round, "score": torch.where(better, score, kept["score"]), "models": merged}


def _column(mask: Tensor, like: Tensor) -> Tensor:
    return mask.reshape(-1, *[1] * (like.ndim - 1))


def perform(bench: Bench, seed: int, checkpoints: Path | None = None, progress: Callable[[Report], None] = lambda report: None) -> History:
    """Run one repetition to its end, continuing from a checkpoint of the same specification where there is one."""
    path = checkpoints / f"{bench.run.fingerprint()}-{seed}.pt" if checkpoints else None
    state, history = _restore(path, bench) if path and path.is_file() else (None, History())
    total = sum(stage.rounds for stage in bench.method.stages(bench.run.train.rounds))
    for report in repeat(bench, seed, state):
        history = record(history, report, bench)
        progress(report)
        every = bench.run.train.checkpoint
        if path and (report.round == total or (every and report.round % every == 0)):
            _save(path, bench, report.state, history)
    return history


def perform_all(bench: Bench, checkpoints: Path, progress: Callable[[int, Report], None] = lambda seed, report: None) -> dict[int, History]:
    """Every repetition, side by side where cores allow; a repetition that finished before is taken from its checkpoint."""
    workers, threads = share(bench.method.task.template, len(bench.run.seeds), bench.device)
    torch.set_num_threads(threads)

    def one(seed: int) -> History:
        return perform(bench, seed, checkpoints, partial(progress, seed))

    if workers > 1:
        side_by_side(one, bench.run.seeds, workers)
    return {seed: one(seed) for seed in bench.run.seeds}


def forget(checkpoints: Path, run: Run) -> None:
    """Remove the checkpoints of a run whose results are written."""
    for path in checkpoints.glob(f"{run.fingerprint()}-*.pt"):
        path.unlink()


def _save(path: Path, bench: Bench, state: State, history: History) -> None:
    content = {"fingerprint": bench.run.fingerprint(), "state": assemble.to_cpu(tuple(state)), "history": vars(history)}
    with atomic_path(path) as temporary:
        torch.save(content, temporary)


def _restore(path: Path, bench: Bench) -> tuple[State, History]:
    try:
        content = torch.load(path, weights_only=True)
        matches = content["fingerprint"] == bench.run.fingerprint()
    except Exception as error:
        raise BadInput(f"{path}: not a readable checkpoint ({type(error).__name__}); delete it to start this repetition again") from error
    if not matches:
        raise BadInput(f"{path}: belongs to another specification ({content['fingerprint']}); delete it")
    moved = torch.utils._pytree.tree_map(lambda t: t.to(bench.device) if isinstance(t, Tensor) else t, content["state"])
    return State(*moved), History(**content["history"])


# Plain files.


def write(folder: Path, bench: Bench, histories: dict[int, History]) -> None:
    """Write a finished run: run.json, evaluations.parquet, rounds.csv, graphs, selected models and metrics.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, history in histories.items():
        _write_graphs(folder / f"collaboration-{seed}.npz", history, bench)
        with atomic_path(folder / f"models-{seed}.pt") as temporary:
            torch.save({"round": history.kept["round"], "models": history.kept["models"]}, temporary)
    _write_evaluations(folder / "evaluations.parquet", histories)
    write_atomic(
        folder / "rounds.csv",
        _table(
            ["seed", "round", "bytes_down", "bytes_up", "seconds", "train_loss"],
            [[seed, *row] for seed, h in histories.items() for row in h.ledger],
        ),
    )
    write_atomic(folder / "metrics.json", json.dumps(headline(bench, histories), indent=2) + "\n")
    write_atomic(folder / "run.json", json.dumps(_facts(bench, histories), indent=2, default=str) + "\n")


def selected(bench: Bench, history: History, split: str = "test") -> np.ndarray:
    """The reported value of every client [N]: the round is chosen from validation only."""
    point = assemble.point(bench.run)
    width = max(len(v) for v in history.scores[f"{point}/val"])
    val, values = (np.array([v + [np.nan] * (width - len(v)) for v in history.scores[f"{point}/{s}"]]) for s in ("val", split))
    rows = select(val, history.rounds, bench.run.evaluate.select, bench.method.task.higher_is_better)
    return values[rows, np.arange(width)]


def headline(bench: Bench, histories: dict[int, History]) -> dict[str, Any]:
    """The few numbers that `dvc metrics` shows."""
    higher = bench.method.task.higher_is_better
    each = [summarise(selected(bench, h), higher) for h in histories.values()]
    means = np.array([s.mean for s in each])
    ledger = np.array([np.sum([row[1:4] for row in h.ledger], axis=0) for h in histories.values()]).mean(0)
    spread = float(means.std(ddof=1)) if len(means) > 1 else 0.0
    return {
        bench.method.task.metric: {"mean": float(means.mean()), "std": spread},
        "worst10": float(np.mean([s.worst10 for s in each])),
        "seconds": float(ledger[2]),
        "mib": float(ledger[0] + ledger[1]) / 2**20,
    }


def _facts(bench: Bench, histories: dict[int, History]) -> dict[str, Any]:
    run, task = bench.run, bench.method.task
    spec = run.resolved()
    spec["method"] = {"name": run.method, **assemble.hyperparameters(bench.method)}
    return {
        "study": run.study,
        "run": run.key,
        "task": run.name,
        "dataset": run.task.dataset,
        "setting": run.task.setting,
        "method": run.method,
        "label": _label(bench),
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "point": assemble.point(run),
        "select": run.evaluate.select,
        "clients": bench.federation.clients,
        "parameters": parameter_count(task.template),
        "device": bench.device,
        "executor": type(assemble.executor(run, task)).__name__.lower(),
        "note": bench.note,
        "published": run.task.published,
        "spec": spec,
        "spec_hash": run.fingerprint(),
        "layers": [*task.layers],
        "seeds": [*histories],
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
        "threads": torch.get_num_threads(),
    }


def _label(bench: Bench) -> str:
    """The method's printed name; a variant says so, and so never joins the method's published row."""
    return bench.method.label + (f" [{bench.run.variant}]" if bench.run.variant else "")


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
        )


def _table(header: list[str], rows: list[list[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
