"""What a user must know before believing a comparison."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedweave.api.board import named
from fedweave.api.federation import Federation
from fedweave.metrics import unit
from fedweave.results import RULE, by_task, format_score, sampled, statistics, unfinished, without_score
from fedweave.results.selection import progress
from fedweave.results.verdicts import listed

if TYPE_CHECKING:
    from fedweave.api.comparison import Comparison


def findings(done: "Comparison", federation: Federation) -> list[str]:
    """One line each: training was too short, no method is above a control, clients are too small or too few."""
    return [*_unfinished(done), *_controls(done), *federation.notes, *federation.small_clients(), *_few(done)]


def _unfinished(done: "Comparison") -> list[str]:
    """Methods that have not converged, by the rule of the report."""
    rows = [{"name": name, "seeds": len(run.seeds), **progress(run)} for name, run in done.runs.items()]
    late = unfinished(pd.DataFrame(rows)).to_dict("records")
    names = [f"{row['name']} ({row['at_last']} of {row['seeds']} seeds)" for row in late]
    if not names:
        return []
    return [f"the best validation round is the last one for {', '.join(names)}; more rounds may change the result"]


def _controls(done: "Comparison") -> list[str]:
    """The controls that no other method is above."""
    board = named(done.board, done.runs)
    order = 1.0 if bool(done[next(iter(done.methods))].run.higher_is_better) else -1.0
    lines = _rules(done, board, order)
    others = board[board["method"] != "local"]["mean"]
    local = board[board["method"] == "local"]["mean"]
    if len(local) and len(others) and order * local.iloc[0] >= np.nanmax(order * others):
        lines.append("no method is above local training: collaboration does not pay here")
    return lines


def _rules(done: "Comparison", board: pd.DataFrame, order: float) -> list[str]:
    """The best rule without a model, where methods are below it, and the clients that have no score."""
    lines = []
    rules = done.controls()
    for rule in rules[rules["mean"].notna() & (rules["kind"] == RULE)].to_dict("records")[:1]:
        below = board[order * board["mean"] <= order * rule["mean"]]["method"].tolist()
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
    """A line where not even agreement of all clients would be significant."""
    clients = len(done.study.runs[0].evaluated)
    # Where repetitions have splits of their own, they are what the test is over.
    over_splits = any(run.splits for run in done.study.runs)
    if len(done.methods) < 2 or over_splits or 2.0 ** (1 - clients) < statistics.ALPHA:
        return []
    return [f"with {clients} clients no test can call a difference significant; it takes 6 or more"]
