"""What a user must know before believing a comparison."""

from typing import TYPE_CHECKING

import numpy as np

from fedweave.api.federation import Federation
from fedweave.results import statistics

if TYPE_CHECKING:
    from fedweave.api.comparison import Comparison


def findings(done: "Comparison", federation: Federation) -> list[str]:
    """One line each: training was too short, no method is above a control, clients are too small or too few."""
    return [*_unfinished(done), *_controls(done), *federation.notes, *federation.small_clients(), *_few(done)]


def _unfinished(done: "Comparison") -> list[str]:
    """Methods whose validation was best in the last round of most repetitions."""
    found = []
    for name in done.methods:
        run = done[name].run
        if run.info["select"] == "last" or run.trained_rounds < 2:
            continue
        last = run.evaluations["round"].max()
        rounds = done[name].chosen().groupby("seed")["round"].max()
        late = int((rounds == last).sum())
        if 2 * late > len(rounds):
            found.append(f"{name} ({late} of {len(rounds)} seeds)")
    if not found:
        return []
    return [f"the best validation round is the last one for {', '.join(found)}; more rounds may change the result"]


def _controls(done: "Comparison") -> list[str]:
    """The controls that no other method is above."""
    board = done.leaderboard()
    order = 1.0 if bool(done[next(iter(done.methods))].run.higher_is_better) else -1.0
    lines = []
    majority = done.majority()
    if majority is not None and board["metric"].iloc[0] == "accuracy":
        best = board["mean"].max()
        if best <= majority:
            lines.append(
                f"no method is above always naming a client's most frequent class: {best:.2f} against {majority:.2f} %"
            )
    others = board[board["method"] != "local"]["mean"]
    local = board[board["method"] == "local"]["mean"]
    if len(local) and len(others) and order * local.iloc[0] >= np.nanmax(order * others):
        lines.append("no method is above local training: collaboration does not pay here")
    return lines


def _few(done: "Comparison") -> list[str]:
    """A line where not even agreement of all clients would be significant."""
    clients = len(done.clients)
    if len(done.methods) < 2 or 2.0 ** (1 - clients) < statistics.ALPHA:
        return []
    return [f"with {clients} clients no test can call a difference significant; it takes 6 or more"]
