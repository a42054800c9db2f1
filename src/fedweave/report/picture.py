"""The picture of a task: methods and controls as points with intervals on one axis, with the margin of equivalence."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedweave.metrics import Margin
from fedweave.report.board import BoardRow, score_range
from fedweave.results import format_score
from fedweave.results.marks import REFERENCES

MOST_ROWS = 14  # most methods that the picture shows before a fold
BEST_ROWS = 10  # best methods of a larger task that it shows, in addition to the controls


class ControlPoint(NamedTuple):
    """A control without seeds: its position in percent of the width, its score, and the side on which it lies outside
    of the axis ("left", "right", or "").
    """

    name: str
    position: float
    score: str
    outside: str


class Picture(NamedTuple):
    """The rows of a picture and its axis, with positions in percent of the width.

    Attributes:
        rows: the methods that are shown at once, best first.
        folded: the others.
        controls: rules without a model, and models that are not federated.
        ticks: (position, number) of the axis.
        band: (left, width) of the scores within the margin of the leader's; empty without a margin.
        leader: the position of the leader's score; NaN without a score.
    """

    rows: Sequence[BoardRow]
    folded: Sequence[BoardRow]
    controls: Sequence[ControlPoint]
    ticks: Sequence[tuple[float, str]]
    band: Sequence[float]
    leader: float


def draw(
    board: pd.DataFrame, rows: Sequence[BoardRow], controls: pd.DataFrame, margin: Margin, leader: float | None = None
) -> Picture:
    """The picture of a task.

    Args:
        board: of the task, best first.
        rows: the rows of the leaderboard, in the same order.
        controls: of the task, as in `Tables.controls`.
        leader: score of the leader; default: the first one.
    """
    metric, (low, high) = str(board["metric"].iloc[0]), score_range(board)
    scale, leader = 100 / (high - low), float(board["mean"].iloc[0]) if leader is None else leader
    half = margin.of(leader, leader) if np.isfinite(leader) else 0.0
    left, right = (np.clip((leader + side * half - low) * scale, 0, 100) for side in (-1, 1))
    shown = [row for n, row in enumerate(rows) if len(rows) <= MOST_ROWS or n < BEST_ROWS or row.method in REFERENCES]
    points = []
    for row in controls[controls["mean"].notna()].to_dict("records"):
        place = (row["mean"] - low) * scale
        outside = "left" if place < 0 else "right" if place > 100 else ""
        score, place = format_score(row["mean"], np.nan, metric), float(np.clip(place, 0, 100))
        points.append(ControlPoint(f"{row['control']}", place, score, outside))
    folded, band = [row for row in rows if row not in shown], (left, right - left) if half else ()
    return Picture(shown, folded, points, _ticks(low, high), band, (leader - low) * scale)


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    """A few round numbers from `low` to `high`, and their positions."""
    from matplotlib.ticker import MaxNLocator

    values = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [((value - low) * 100 / (high - low), f"{value:.6g}") for value in values if low <= value <= high]
