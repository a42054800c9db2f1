"""One repetition of a run: drive the engine, keep what is worth keeping, survive a kill."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedweave.data import Dataset, Partition
from fedweave.errors import BadInput, Diverged
from fedweave.federation.engine import run as rounds_of
from fedweave.federation.executors import exact
from fedweave.federation.federation import Federation
from fedweave.federation.protocol import Method
from fedweave.federation.records import Report, State
from fedweave.files import check_writable, load_tensors, save_tensors
from fedweave.models import ClientModel
from fedweave.runs import assembly, federations
from fedweave.runs.checkpoints import stored
from fedweave.runs.parallel import Inbox, keep_memory, share, side_by_side
from fedweave.runs.selection import select
from fedweave.study.spec import Run
from fedweave.tensors import trees

CELLS = 4_000_000  # numbers kept of the collaboration graphs of a repetition: those of every round, or as many as fit
HOSTILE = 1000  # scale of an attack from which on it is to blame for a training that diverges
VERSION = 3  # of a checkpoint's content
CHECKPOINTS = 2  # of a repetition that stay: the newest, and the one before it in case the disk damages that
SPLITS = tuple((point, split) for point in ("pre", "post") for split in ("val", "test"))


@dataclass(frozen=True)
class History:
    """What a repetition has produced so far; plain tensors and lists, so that it can be checkpointed.

    Attributes:
        ledger: rows (round, bytes_down, bytes_up, seconds, train_loss, dropped uploads).
        dropped: rows (round, client) of uploads that were not accepted.
        rounds: evaluated rounds.
        scores: "pre/val" etc. -> one list of per-client values per evaluated round.
        diagnostics: rows (round, name, value).
        graphs: (round, weights [L, N, N]).
        portrait: (round, vectors [N, D]) of the last evaluated round, or empty.
        snapshot: {"round", "models" [N, ...]} of the round that validation selects, and the "rows" of `scores` that
            `_snapshot` needs again; empty where no models are kept.
    """

    ledger: list[list[float]] = field(default_factory=list)
    dropped: list[list[int]] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    scores: dict[str, list[list[float]]] = field(default_factory=lambda: {f"{p}/{s}": [] for p, s in SPLITS})
    diagnostics: list[list[Any]] = field(default_factory=list)
    graphs: list[list[Any]] = field(default_factory=list)
    portrait: list[Any] = field(default_factory=list)
    snapshot: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PreparedRun:
    """A run's objects: the method and its data on their device; the names of clients and of groups, or none."""

    run: Run
    method: Method
    federation: Federation
    note: str
    device: str
    names: tuple[str, ...] = ()
    group_names: tuple[str, ...] = ()

    @property
    def rounds(self) -> int:
        """Of one repetition, all stages of the method together."""
        return sum(stage.rounds for stage in self.method.stages(self.run.train.rounds))


def prepare(
    run: Run, dataset: Dataset, partition: Partition, model: Callable[[], ClientModel] | None = None
) -> PreparedRun:
    """Build the objects of `run`, and set this process up for it; everything that can be refused is refused here.

    Args:
        model: makes client models, in place of the one that the task names.

    Raises:
        BadInput: as the functions of `assemble`.
    """
    device = assembly.device(run.train.device)
    exact(device, run.train.precision == "tf32")
    keep_memory()
    task = assembly.build_task(run, dataset, partition, model=model)
    federation = federations.attacked(federations.build_federation(dataset, partition, run.task.normalize), run.task)
    method, names = assembly.build_method(run, task), (partition.names, partition.group_names)
    return PreparedRun(run, method, federation.to(device), dataset.note, device, *names)


def repeat(prepared: PreparedRun, seed: int, resume: State | None = None) -> Iterator[Report]:
    """The reports of one repetition.

    Raises:
        Diverged: when no client of a round got anywhere, so that the training loss is no number.
    """
    executor = assembly.executor(prepared.run, prepared.method)
    for report in rounds_of(
        prepared.method, prepared.federation, assembly.settings(prepared.run, seed), executor, resume
    ):
        if not math.isfinite(report.loss):
            raise Diverged(
                f"runs.{prepared.run.key}: seed {seed}, round {report.round}: training diverged, "
                "every upload was dropped; "
                f"{_way_out(prepared.run)}"
            )
        yield report


def _way_out(run: Run) -> str:
    """What to change after training has diverged: noise that outweighs every weight of a model, or the step size."""
    privacy, attack = run.train.privacy or {}, run.task.attack or {}
    if (deviation := privacy.get("noise", 0.0) * privacy.get("clip", 0.0)) >= 1:
        settings = f"train.privacy.noise ({privacy['noise']}) or train.privacy.clip ({privacy['clip']})"
        return f"lower {settings}: noise {deviation:g} is added"
    if (attack.get("scale") or 0.0) >= HOSTILE:
        return f"lower tasks.{run.name}.attack.scale ({attack['scale']}), or set train.robust"
    return f"lower train.lr ({run.train.lr}) or set train.clip"


def record(history: History, report: Report, prepared: PreparedRun) -> History:
    """`history` with one more round."""
    row = [report.round, report.bytes_down, report.bytes_up, report.seconds, report.loss, len(report.dropped)]
    dropped = [*history.dropped, *([report.round, client] for client in report.dropped)]
    history = replace(
        history, ledger=[*history.ledger, row], dropped=dropped, graphs=[*history.graphs, *_graph(report, prepared)]
    )
    if not report.scores:
        return history
    values = {f"{p}/{s}": report.scores[p][s].tolist() if p in report.scores else [] for p, s in SPLITS}
    scores = {name: [*history.scores[name], values[name]] for name in values}
    noted = [*history.diagnostics, *([report.round, name, value] for name, value in report.diagnostics.items())]
    vectors = report.method.portrait(report.state.server)
    portrait = [] if vectors is None else [report.round, vectors.detach().float().cpu()]
    rounds = [*history.rounds, report.round]
    history = replace(history, rounds=rounds, scores=scores, diagnostics=noted, portrait=portrait)
    return replace(history, snapshot=_snapshot(history, report, prepared)) if prepared.run.evaluate.models else history


def chosen(history: History, prepared: PreparedRun, rows: Sequence[int] | None = None) -> np.ndarray:
    """Row of the evaluations so far that is reported, of each client [N]: from validation only.

    Args:
        rows: ascending, the evaluations that are looked at; default: all.

    Raises:
        BadInput: as `metrics.select`.
    """
    rows = range(len(history.rounds)) if rows is None else rows
    best = select(
        _val(history, prepared, rows), rows, prepared.run.evaluate.select, prepared.method.task.higher_is_better
    )
    return np.array(rows)[best]


def _val(history: History, prepared: PreparedRun, rows: Sequence[int]) -> np.ndarray:
    """Validation values [R, N] of the evaluations `rows`."""
    values = history.scores[f"{assembly.point(prepared.run)}/val"]
    return table([values[row] for row in rows])


def table(rows: list[list[float]]) -> np.ndarray:
    """Values of clients [N] by round, as [R, N]; NaN for who was not there yet."""
    width = max(len(row) for row in rows)
    return np.array([row + [np.nan] * (width - len(row)) for row in rows])


def _graph(report: Report, prepared: PreparedRun) -> list[list[Any]]:
    total, cells = prepared.rounds, prepared.federation.clients**2 * len(prepared.method.task.layers)
    every = max(1, min(-(-total * cells // CELLS), total // 4))
    if report.round != 1 and report.round % every and report.round != total:
        return []
    weights = report.method.collaboration(report.state.server)
    return [] if weights is None else [[report.round, weights.detach().float().cpu()]]


def _snapshot(history: History, report: Report, prepared: PreparedRun) -> dict[str, Any]:
    """Every client's model of the round that would be reported if this were the last one.

    Later selections need few "rows" of the evaluations so far: the current selection, and the first with a finite
    value.
    """
    last, newest = history.snapshot, len(history.rounds) - 1
    rows = [*last.get("rows", range(newest)), newest]
    has_value = np.isfinite(_val(history, prepared, rows))
    try:
        picked = chosen(history, prepared, rows)
    except BadInput:  # no round is fit to be chosen yet
        picked = np.full(has_value.shape[1], newest)
    now = torch.from_numpy(picked == newest)
    if last and not now.any():
        return last
    models = assembly.to_cpu(report.models[assembly.point(prepared.run)])

    def merged(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(trees.column(now, new), new, torch.cat([old, new[len(old) :]]))

    models = trees.tree_map(merged, models, last["models"]) if last and not now.all() else models
    return {
        "round": report.round,
        "models": models,
        "rows": sorted({*picked.tolist(), *np.array(rows)[has_value.argmax(0)].tolist()}),
    }


def perform(
    prepared: PreparedRun,
    seed: int,
    checkpoints: Path | None = None,
    progress: Callable[[Report], None] = lambda report: None,
) -> History:
    """Run one repetition to its end, continuing from a checkpoint of the same specification where there is one."""
    state, history = _restore(checkpoints, prepared, seed) if checkpoints else (None, History())
    total = prepared.rounds
    for report in repeat(prepared, seed, state):
        history = record(history, report, prepared)
        progress(report)
        every = prepared.run.train.checkpoint
        if checkpoints and (report.round == total or (every and report.round % every == 0)):
            _save(checkpoints, prepared, seed, report.state, history)
    return history


def perform_all(
    prepared: PreparedRun,
    checkpoints: Path,
    progress: Callable[[int, Report], Any] = lambda seed, report: None,
    receive: Callable[[Any], None] = lambda message: None,
    most_threads: int | None = None,
) -> dict[int, History]:
    """Every repetition, in parallel where cores allow; a finished repetition is read from its checkpoint.

    Args:
        progress: called with every report, in the process that trains.
        receive: called in this process with what `progress` returns, unless that is None.
        most_threads: of each of several processes. A process forks safely into ones with several threads only while it
            has not used several itself.
    """
    check_writable(checkpoints)
    workers, threads = share(
        prepared.method.network, len(prepared.run.seeds), prepared.device, prepared.federation.clients
    )
    torch.set_num_threads(min(threads, most_threads or threads) if workers > 1 else threads)
    inbox = Inbox(receive)

    def one(seed: int) -> History:
        return perform(prepared, seed, checkpoints, lambda report: inbox.post(progress(seed, report)))

    if workers > 1:
        side_by_side(one, prepared.run.seeds, workers, inbox=inbox)
    return {seed: one(seed) for seed in prepared.run.seeds}


def _save(checkpoints: Path, prepared: PreparedRun, seed: int, state: State, history: History) -> None:
    """Write a checkpoint; that of a finished repetition has no state, and the ones before it go."""
    finished = state.round == prepared.rounds
    state = State(state.round, {}, {}) if finished else state
    content = {"version": VERSION, "fingerprint": prepared.run.fingerprint(), "seed": seed}
    path = checkpoints / f"{prepared.run.fingerprint()}-{seed}-{state.round:09d}.pt"
    save_tensors(path, {**content, "state": assembly.to_cpu(tuple(state)), "history": vars(history)})
    for old in stored(checkpoints, prepared.run, seed)[1 if finished else CHECKPOINTS :]:
        old.unlink(missing_ok=True)


def _restore(checkpoints: Path, prepared: PreparedRun, seed: int) -> tuple[State | None, History]:
    """The newest readable checkpoint of a repetition; one that the disk has damaged gives way to the one before it.

    Raises:
        BadInput: none can be read, or one is of another version, specification or seed.
    """
    files = stored(checkpoints, prepared.run, seed)
    for path in files:
        try:
            content = load_tensors(path)
            header = [content["version"], content["fingerprint"], content["seed"]]
        except Exception as error:  # a damaged file can raise nearly anything
            reason = type(error).__name__
            continue
        if header != (expected := [VERSION, prepared.run.fingerprint(), seed]):
            raise BadInput(
                f"{path}: is of (version, specification, seed) {header}, not {expected}; "
                "delete it to start this repetition again"
            )
        moved = torch.utils._pytree.tree_map(
            lambda t: t.to(prepared.device) if isinstance(t, Tensor) else t, content["state"]
        )
        return State(*moved), History(**content["history"])
    if files:
        raise BadInput(f"{files[0]}: not a readable checkpoint ({reason}); delete it to start this repetition again")
    return None, History()
