"""What a user must know before believing a comparison."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.api.board import named
from fedweave.api.federation import Federation
from fedweave.federation.graph_words import is_control
from fedweave.metrics import unit
from fedweave.results import RULE, by_task, format_score, not_above, sampled, unfinished, without_score
from fedweave.results.selection import progress
from fedweave.results.verdicts import listed, reason_without_power

ALIKE = 1e-6  # largest difference of weights that are called identical

if TYPE_CHECKING:
    from fedweave.api.comparison import Comparison


def findings(done: "Comparison", federation: Federation) -> list[str]:
    """One line each: training was too short, no method is above a control, clients are too small or too few."""
    lines = [*_unfinished(done), *_controls(done), *_graphless(done)]
    return [*lines, *federation.notes, *federation.small_clients(), *_few(done)]


def _unfinished(done: "Comparison") -> list[str]:
    """Methods that have not converged, by the rule of the report."""
    rows = [{"name": name, "seeds": len(run.seeds), **progress(run)} for name, run in done.runs.items()]
    late = unfinished(pd.DataFrame(rows)).to_dict("records")
    names = [f"{row['name']} ({row['at_last']} of {row['seeds']} seeds)" for row in late]
    if not names:
        return []
    return [f"the best validation round is the last one for {', '.join(names)}; more rounds may change the result"]


def _graphless(done: "Comparison") -> list[str]:
    """The methods whose graph has one row for all clients."""
    names = [name for name, run in done.runs.items() if _is_one_row(run)]
    return [f"the rows of the graph of {name} are identical: every client gets the same mixture" for name in names]


def _is_one_row(run: results.Run) -> bool:
    stored = results.graphs(run)
    if stored is None or is_control(str(run.info["spec"]["method"].get("graph", ""))):
        return False
    return bool(np.ptp(stored.weights[-1], axis=-2).max() < ALIKE)


def _controls(done: "Comparison") -> list[str]:
    """The controls that no other method is above."""
    board, higher = named(done.board, done.runs), done.study.runs[0].higher_is_better
    lines = _rules(done, board, higher)
    is_local = board["run"].isin([run.name for run in done.study.runs if run.info["method"] == "local"])
    order = 1.0 if higher else -1.0
    local, others = (order * board[rows]["mean"].dropna() for rows in (is_local, ~is_local))
    if len(local) and len(others) and local.max() >= others.max():
        lines.append("no method is above local training: collaboration does not pay here")
    return lines


def _rules(done: "Comparison", board: pd.DataFrame, higher: bool) -> list[str]:
    """The best rule without a model, where methods are not above it, and the clients that have no score."""
    lines = []
    rules = done.controls()
    for rule in rules[rules["mean"].notna() & (rules["kind"] == RULE)].to_dict("records")[:1]:
        below = not_above(board, rule, higher)
        metric = str(rule["metric"])
        best, value = (
            f"{format_score(score, np.nan, metric)}{unit(metric)}" for score in (board["mean"].iloc[0], rule["mean"])
        )
        if len(below) == len(board):
            lines.append(f"no method is above the control {rule['control']!r}: {best} against {value}")
        elif below:
            lines.append(f"not above the control {rule['control']!r} ({value}): {listed(below)}")
    for task, runs in by_task(done.study).items():
        lines += [line for line in (sampled(task, runs), without_score(task, runs)) if line]
    return lines


def _few(done: "Comparison") -> list[str]:
    """A line for each task where not even agreement of all clients would be significant."""
    tasks = by_task(done.study).values()
    reasons = [reason_without_power(runs, results.values(runs, done.chosen)) for runs in tasks]
    return [line for line in reasons if line]
