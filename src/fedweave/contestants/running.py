"""The repetitions of a contestant: it runs once a seed, and its predictions are scored as those of a model are."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedweave.contestants import checks
from fedweave.contestants.entry import ANSWERS, GRAPH, Contestant
from fedweave.contestants.rows import ContestAnswers, hand_out
from fedweave.engine.evaluation import evaluate
from fedweave.engine.executors import Loop
from fedweave.engine.records import Report, State
from fedweave.engine.schedule import evaluation_cohort
from fedweave.errors import ContestantFailed
from fedweave.files.atomic import check_writable
from fedweave.runs.build import PreparedRun
from fedweave.runs.checkpoints import restore, save
from fedweave.runs.history import Diagnostic, History, record

LOG = "log-{}.txt"  # what a program printed, by seed; in the folder of the run


def prepare(prepared: PreparedRun) -> PreparedRun:
    """The objects of the run of a contestant: rows of a table are looked up one client after the other."""
    split = prepared.split and (lambda seed: prepare(prepared.for_seed(seed)))
    return replace(prepared, executor=Loop(), split=split)


def run_repetitions(
    prepared: PreparedRun,
    folder: Path,
    checkpoints: Path,
    progress: Callable[[int, Report], Any] = lambda seed, report: None,
    classes: tuple[str, ...] = (),
    categories: Sequence[int] = (),
) -> dict[int, History]:
    """Every repetition, one after the other; what an interrupted call has finished is read from its checkpoint.

    Args:
        folder: of the run, where what programs print is stored.
        progress: called with the report of each repetition.
        classes, categories: as of `ContestTask`.

    Raises:
        ContestantFailed: it ended with an error, or gave predictions that cannot be scored.
    """
    check_writable(checkpoints)
    histories = {}
    for seed in prepared.run.seeds:
        own = prepared.for_seed(seed)
        _, history = restore(checkpoints, own, seed)
        if not history.rounds:
            report, curves = _run(own, seed, folder / LOG.format(seed), classes, categories)
            history = record(History(), report, own)
            history = replace(history, diagnostics=[*history.diagnostics, *curves])
            save(checkpoints, own, seed, report.state, history)
            progress(seed, report)
        histories[seed] = history
    return histories


def _run(
    prepared: PreparedRun, seed: int, log: Path, classes: tuple[str, ...], categories: Sequence[int]
) -> tuple[Report, list[Diagnostic]]:
    """One repetition as a round of the engine, and the curves that the contestant gave."""
    method = prepared.method
    assert isinstance(method, Contestant)
    task, start, label = hand_out(prepared, seed, classes, categories), time.perf_counter(), type(method).own_name
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        answers = method.runner.run(task, log)
    except ContestantFailed as error:
        raise ContestantFailed(f"{label}: {error.place}", error.problem) from error
    seconds = time.perf_counter() - start
    outputs = checks.check_answers(task, answers, label)
    answers = answers if isinstance(answers, ContestAnswers) else ContestAnswers(answers)
    server: dict[str, Any] = {ANSWERS: _tables(prepared, outputs)}
    if (graph := checks.check_graph(task, answers.graph, label)) is not None:
        layers = len(prepared.method.task.layers)
        server[GRAPH] = torch.from_numpy(graph).float().expand(layers, -1, -1).clone()
    state = State(1, server, {})
    settings = replace(prepared.settings, seed=seed)
    scores, models = evaluate(method, state, prepared.federation, settings, prepared.executor)
    traffic = (checks.check_bytes(answers.bytes_down, label), checks.check_bytes(answers.bytes_up, label))
    report = Report(1, *traffic, seconds, math.nan, (), scores, models, {}, state, method)
    return report, [Diagnostic(*row) for row in checks.check_curves(answers.curves, label)]


def _tables(prepared: PreparedRun, outputs: dict[int, tuple[np.ndarray, np.ndarray]]) -> dict[str, Tensor]:
    """ "rows" [N, R] and "outputs" [N, R, K] of all clients; clients without predictions have padding alone."""
    federation, device = prepared.federation, prepared.device
    cohort, dtype = evaluation_cohort(federation, 0, 0), prepared.method.task.dtype
    width = next(iter(outputs.values()))[0].shape[1]
    parts = {}
    for i in range(federation.clients):
        data = cohort.client_data(i)
        rows = torch.cat([part[part >= 0] for part in (data.val, data.test)])
        values = torch.from_numpy(np.concatenate(outputs[i])) if i in outputs else torch.zeros(len(rows), width)
        parts[i] = (rows, values.to(device, dtype))
    longest = max(len(rows) for rows, _ in parts.values())
    padded = [
        (F.pad(rows, (0, longest - len(rows)), value=-1), F.pad(values, (0, 0, 0, longest - len(rows))))
        for rows, values in parts.values()
    ]
    return {"rows": torch.stack([rows for rows, _ in padded]), "outputs": torch.stack([values for _, values in padded])}
