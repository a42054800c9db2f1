"""The results of a repetition so far, and the choice of the round that is reported."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedweave.engine.records import EdgeValue, Report
from fedweave.graphs.weights import is_recordable
from fedweave.runs.build import PreparedRun
from fedweave.runs.selection import select
from fedweave.tensors import trees

CELLS = 4_000_000  # most weights of the graphs of a repetition, which decide in how many rounds they are recorded
SPLITS = tuple((point, split) for point in ("pre", "post") for split in ("val", "test"))


class RoundCost(NamedTuple):
    """The cost of one round: a row of rounds.csv.

    Attributes:
        round: from 1.
        bytes_down, bytes_up: traffic over all participants.
        seconds: without evaluation.
        train_loss: mean over the accepted uploads.
        dropped: number of uploads that were not accepted.
    """

    round: int
    bytes_down: int
    bytes_up: int
    seconds: float
    train_loss: float
    dropped: int


class DroppedUpload(NamedTuple):
    """An upload that was not accepted: a row of dropped.csv."""

    round: int
    client: int


class Diagnostic(NamedTuple):
    """A number about the server after a round: a row of diagnostics.csv."""

    round: int
    name: str
    value: float


ROWS: dict[str, Any] = {"ledger": RoundCost, "dropped": DroppedUpload, "diagnostics": Diagnostic, "edges": EdgeValue}


@dataclass(frozen=True)
class History:
    """The results of a repetition so far; `to_plain` gives them as lists and tensors, for a checkpoint.

    Attributes:
        ledger: the cost of every round.
        dropped: uploads that were not accepted.
        rounds: evaluated rounds.
        scores: "pre/val" etc. -> one list of values per evaluated round, of the evaluated clients in ascending order.
        diagnostics: numbers about the server after evaluated rounds.
        edges: values of edges of the last graph.
        graphs: (round, weights [L, N, N]).
        portrait: (round, vectors [N, D]) of the last evaluated round, or empty.
        snapshot: {"round", "models" [K, ...] of the evaluated clients} of the round that validation selects, and the
            "rows" of `scores` that `_update_snapshot` needs again; empty if neither models nor predictions are kept.
    """

    ledger: list[RoundCost] = field(default_factory=list)
    dropped: list[DroppedUpload] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    scores: dict[str, list[list[float]]] = field(default_factory=lambda: {f"{p}/{s}": [] for p, s in SPLITS})
    diagnostics: list[Diagnostic] = field(default_factory=list)
    edges: list[EdgeValue] = field(default_factory=list)
    graphs: list[list[Any]] = field(default_factory=list)
    portrait: list[Any] = field(default_factory=list)
    snapshot: dict[str, Any] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """The content as dictionaries, lists and tensors."""
        tables = {name: [[*row] for row in getattr(self, name)] for name in ROWS}
        return {**vars(self), **tables}

    @classmethod
    def from_plain(cls, content: dict[str, Any]) -> "History":
        """The inverse of `to_plain`."""
        return cls(
            **{**content, **{name: [kind(*row) for row in content.get(name, [])] for name, kind in ROWS.items()}}
        )


def record(history: History, report: Report, prepared: PreparedRun) -> History:
    """`history` with one more round."""
    dropped_now = [DroppedUpload(report.round, client) for client in report.dropped]
    cost = RoundCost(report.round, report.bytes_down, report.bytes_up, report.seconds, report.loss, len(dropped_now))
    graphs = [*history.graphs, *_record_graph(report, prepared)]
    dropped = [*history.dropped, *dropped_now]
    history = replace(history, ledger=[*history.ledger, cost], dropped=dropped, graphs=graphs, edges=[*report.edges])
    if not report.scores:
        return history
    values = {f"{p}/{s}": report.scores[p][s].tolist() if p in report.scores else [] for p, s in SPLITS}
    scores = {name: [*history.scores[name], values[name]] for name in values}
    numbers = [Diagnostic(report.round, name, value) for name, value in report.diagnostics.items()]
    diagnostics = [*history.diagnostics, *numbers, *(Diagnostic(*point) for point in report.curves)]
    portrait = [] if report.portrait is None else [report.round, report.portrait.detach().float().cpu()]
    rounds = [*history.rounds, report.round]
    history = replace(history, rounds=rounds, scores=scores, diagnostics=diagnostics, portrait=portrait)
    evaluate = prepared.run.evaluate
    if not (evaluate.models or evaluate.predictions):
        return history
    return replace(history, snapshot=_update_snapshot(history, report, prepared))


def select_rows(history: History, prepared: PreparedRun, rows: Sequence[int] | None = None) -> np.ndarray | None:
    """Row of the evaluations so far that is reported for each evaluated client [K], by validation values only.

    None if no round has a finite value of every client that has one in some round.

    Args:
        rows: the evaluations to choose from, ascending; default: all.

    Raises:
        BadInput: as `selection.select`.
    """
    rows = range(len(history.rounds)) if rows is None else rows
    best = select(
        _validation_values(history, prepared, rows),
        rows,
        prepared.run.evaluate.select,
        prepared.method.task.score_metric.higher_is_better,
    )
    return None if best is None else np.array(rows)[best]


def _validation_values(history: History, prepared: PreparedRun, rows: Sequence[int]) -> np.ndarray:
    """Validation values [R, K] of the evaluations `rows`."""
    values = history.scores[f"{prepared.point}/val"]
    return pad_scores([values[row] for row in rows])


def pad_scores(rows: list[list[float]]) -> np.ndarray:
    """Values of clients [K] by round, as [R, K]; NaN for clients that had not joined yet."""
    width = max(len(row) for row in rows)
    return np.array([row + [np.nan] * (width - len(row)) for row in rows])


def _record_graph(report: Report, prepared: PreparedRun) -> list[list[Any]]:
    rounds, cells = prepared.rounds, prepared.federation.clients**2 * len(prepared.method.task.layers)
    interval = max(1, min(-(-rounds * cells // CELLS), rounds // 4))
    if not is_recordable(len(prepared.method.task.layers), prepared.federation.clients):
        return []
    if report.round != 1 and report.round % interval and report.round != rounds:
        return []
    weights = report.method.collaboration(report.state.server)
    return [] if weights is None else [[report.round, weights.detach().float().cpu()]]


def _update_snapshot(history: History, report: Report, prepared: PreparedRun) -> dict[str, Any]:
    """Every evaluated client's model of the round that would be reported if this were the last one.

    Later selections need only few of the evaluations so far: the rows that are selected now, and the first row of each
    client with a finite value.
    """
    snapshot, newest = history.snapshot, len(history.rounds) - 1
    rows = [*snapshot.get("rows", range(newest)), newest]
    has_value = np.isfinite(_validation_values(history, prepared, rows))
    best = select_rows(history, prepared, rows)
    selected = np.full(has_value.shape[1], newest) if best is None else best
    is_newest = torch.from_numpy(selected == newest)
    if snapshot and not is_newest.any():
        return snapshot
    models = trees.to_cpu(report.models[prepared.point])

    def merge_rows(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(trees.column(is_newest, new), new, torch.cat([old, new[len(old) :]]))

    models = trees.tree_map(merge_rows, models, snapshot["models"]) if snapshot and not is_newest.all() else models
    return {
        "round": report.round,
        "models": models,
        "rows": sorted({*selected.tolist(), *np.array(rows)[has_value.argmax(0)].tolist()}),
    }
