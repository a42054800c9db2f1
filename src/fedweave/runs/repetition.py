"""Repetitions of a run: run the engine, record each round, continue from a checkpoint after an interruption."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from fedweave.engine.engine import run as rounds_of
from fedweave.engine.records import Report, State
from fedweave.errors import Diverged
from fedweave.files.atomic import check_writable
from fedweave.processes.parallel import Inbox, run_processes
from fedweave.runs.build import PreparedRun
from fedweave.runs.build import prepare as prepare  # its callers go on with a repetition
from fedweave.runs.checkpoints import open_storage, restore, save
from fedweave.runs.history import History, record
from fedweave.study.spec import RunSpec
from fedweave.tensors import native
from fedweave.tensors.storage import Storage


@runtime_checkable
class Outsider(Protocol):
    """A method whose code fedweave does not know: it gives the report of a whole repetition itself."""

    def play(self, prepared: PreparedRun, seed: int) -> Report:
        """The report of the one round of the repetition `seed`."""


LARGE_SCALE = 1000  # of an attack, from which on the attack is taken as the reason of a training that diverges


def iterate_reports(
    prepared: PreparedRun, seed: int, resume: State | None = None, tables: Storage | None = None
) -> Iterator[Report]:
    """The reports of one repetition.

    Args:
        tables: the storage of the tables of all clients; by default memory, or temporary files if they are large.

    Raises:
        Diverged: no upload of a round was accepted, so that the training loss is not a number.
    """
    prepared = prepared.for_seed(seed)
    if isinstance(prepared.method, Outsider):
        if resume is None:
            yield prepared.method.play(prepared, seed)
        return
    with nullcontext(tables) if tables else open_storage(None, prepared, seed) as tables:
        settings = replace(prepared.settings, seed=seed, storage=tables)
        for report in rounds_of(prepared.method, prepared.federation, settings, prepared.executor, resume):
            if not math.isfinite(report.loss):
                raise Diverged(
                    f"runs.{prepared.run.key}",
                    f"seed {seed}, round {report.round}: training diverged, every upload was dropped",
                    suggest_change(prepared.run),
                )
            yield report


def suggest_change(run: RunSpec, block: str = "train.") -> str:
    """What to change after training has diverged: too much noise, a strong attack, or the step size.

    Args:
        block: stands before a setting of the training.
    """
    privacy, attack = run.train.privacy or {}, run.task.attack or {}
    if (deviation := privacy.get("noise", 0.0) * privacy.get("clip", 0.0)) >= 1:
        settings = f"{block}privacy.noise ({privacy['noise']}) or {block}privacy.clip ({privacy['clip']})"
        return f"lower {settings}: noise {deviation:g} is added"
    if (attack.get("scale") or 0.0) >= LARGE_SCALE:
        return f"lower tasks.{run.name}.attack.scale ({attack['scale']}), or set {block}robust"
    return f"lower {block}lr ({run.train.lr}) or set {block}clip"


def run_repetition(
    prepared: PreparedRun,
    seed: int,
    checkpoints: Path | None = None,
    progress: Callable[[Report], None] = lambda report: None,
) -> History:
    """Run one repetition to its end, continuing from a checkpoint of the same specification where there is one."""
    prepared = prepared.for_seed(seed)
    total, every = prepared.rounds, prepared.run.train.checkpoint
    with open_storage(checkpoints, prepared, seed) as tables:
        state, history = restore(checkpoints, prepared, seed, tables) if checkpoints else (None, History())
        for report in iterate_reports(prepared, seed, state, tables):
            history = record(history, report, prepared)
            progress(report)
            if checkpoints and (report.round == total or (every and report.round % every == 0)):
                save(checkpoints, prepared, seed, report.state, history, tables)
    return history


def _load_kernel(prepared: PreparedRun) -> None:
    """Build and load the kernel in this process, before repetitions or clients fork that would each build it."""
    if prepared.executor.kernel:
        native.load(prepared.method.task.dtype)


def run_repetitions(
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
        most_threads: most threads of each of several processes. A process may fork into processes with several threads
            only while it has used one thread itself.
    """
    check_writable(checkpoints)
    prepared, workers, threads = prepared.share_cores(len(prepared.run.seeds))
    torch.set_num_threads(min(threads, most_threads or threads) if workers > 1 else threads)
    inbox = Inbox(receive)

    def run_seed(seed: int) -> History:
        return run_repetition(prepared, seed, checkpoints, lambda report: inbox.post(progress(seed, report)))

    _load_kernel(prepared)
    if workers > 1:
        run_processes(run_seed, prepared.run.seeds, workers, inbox=inbox)
    return {seed: run_seed(seed) for seed in prepared.run.seeds}
