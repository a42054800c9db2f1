"""One repetition of a run: drive the engine, keep what is worth keeping, survive a kill."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedweave import assemble
from fedweave.data import Dataset, Partition
from fedweave.engine import Report, State
from fedweave.engine import run as rounds_of
from fedweave.errors import BadInput, Diverged
from fedweave.federation import Federation
from fedweave.files import atomic_path
from fedweave.parallel import share, side_by_side
from fedweave.protocol import Method
from fedweave.spec import Run

CELLS = 4_000_000  # numbers kept of the collaboration graphs of a repetition: those of every round, or as many as fit
SPLITS = tuple((point, split) for point in ("pre", "post") for split in ("val", "test"))


@dataclass(frozen=True)
class History:
    """What a repetition has produced so far; plain tensors and lists, so that it can be checkpointed.

    Attributes:
        ledger: rows (round, bytes_down, bytes_up, seconds, train_loss).
        rounds: evaluated rounds.
        scores: "pre/val" etc. -> one list of per-client values per evaluated round.
        diagnostics: rows (round, name, value).
        graphs: (round, weights [L, N, N]).
        portrait: (round, vectors [N, D]) of the last evaluated round, or empty.
        kept: {"round", "score" [N], "models" [N, ...]} of the round that validation selects, or empty.
    """

    ledger: list[list[float]] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    scores: dict[str, list[list[float]]] = field(default_factory=lambda: {f"{p}/{s}": [] for p, s in SPLITS})
    diagnostics: list[list[Any]] = field(default_factory=list)
    graphs: list[list[Any]] = field(default_factory=list)
    portrait: list[Any] = field(default_factory=list)
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
    federation = assemble.attacked(assemble.build_federation(dataset, partition, run.task.normalize), run.task)
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
        if not math.isfinite(report.loss):
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
    noted = [*history.diagnostics, *([report.round, name, value] for name, value in report.diagnostics.items())]
    vectors = report.method.portrait(report.state.server)
    portrait = [] if vectors is None else [report.round, vectors.detach().float().cpu()]
    return History(ledger, [*history.rounds, report.round], scores, noted, graphs, portrait, _keep(history.kept, report, bench))


def _graph(report: Report, bench: Bench) -> list[list[Any]]:
    total, cells = _rounds(bench), bench.federation.clients**2 * len(bench.method.task.layers)
    every = max(1, min(-(-total * cells // CELLS), total // 4))
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


def _rounds(bench: Bench) -> int:
    return sum(stage.rounds for stage in bench.method.stages(bench.run.train.rounds))


def _column(mask: Tensor, like: Tensor) -> Tensor:
    return mask.reshape(-1, *[1] * (like.ndim - 1))


def perform(bench: Bench, seed: int, checkpoints: Path | None = None, progress: Callable[[Report], None] = lambda report: None) -> History:
    """Run one repetition to its end, continuing from a checkpoint of the same specification where there is one."""
    path = checkpoints / f"{bench.run.fingerprint()}-{seed}.pt" if checkpoints else None
    state, history = _restore(path, bench) if path and path.is_file() else (None, History())
    total = _rounds(bench)
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
