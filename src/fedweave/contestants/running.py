"""The repetition of a contestant: it runs once a seed, and its predictions are scored as those of a model are."""

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedweave.contestants import checks
from fedweave.contestants.rows import ContestAnswers, ContestTask, hand_out
from fedweave.engine.evaluation import evaluate
from fedweave.engine.records import Report, State
from fedweave.engine.schedule import evaluation_cohort
from fedweave.errors import ContestantFailed
from fedweave.runs.build import LOG, PreparedRun

ANSWERS, GRAPH = "answers", "graph"  # of the server's state


def play(answer: Callable[[ContestTask, Path], Any], label: str, prepared: PreparedRun, seed: int) -> Report:
    """One repetition of a contestant as a round of the engine.

    Args:
        answer: called with a task and a file for what is printed; gives predictions, which are not checked yet.
        label: of the contestant, for messages.

    Raises:
        ContestantFailed: it ended with an error, or gave predictions that cannot be scored.
    """
    task = hand_out(prepared, seed)
    with tempfile.TemporaryDirectory(prefix="fedweave-log-") as temporary:
        folder = prepared.logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        start = time.perf_counter()
        try:
            answers = answer(task, folder / LOG.format(seed))
        except ContestantFailed as error:
            raise ContestantFailed(f"{label}: {error.place}", error.problem) from error
        seconds = time.perf_counter() - start
    outputs = checks.check_answers(task, answers, label)
    answers = answers if isinstance(answers, ContestAnswers) else ContestAnswers(answers)
    server: dict[str, Any] = {ANSWERS: _tables(prepared, outputs)}
    if (graph := checks.check_graph(task, answers.graph, label)) is not None:
        layers = len(prepared.method.task.layers)
        server[GRAPH] = torch.from_numpy(graph).float().expand(layers, -1, -1).clone()
    state, settings = State(1, server, {}), replace(prepared.settings, seed=seed)
    scores, models = evaluate(prepared.method, state, prepared.federation, settings, prepared.executor)
    traffic = (checks.check_bytes(answers.bytes_down, label), checks.check_bytes(answers.bytes_up, label))
    curves = tuple(checks.check_curves(answers.curves, label))
    return Report(1, *traffic, seconds, math.nan, (), scores, models, {}, state, prepared.method, curves=curves)


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
