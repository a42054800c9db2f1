"""Figures of scores over deliveries: of all clients together, and of each client."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.metrics import title
from fedweave.plots.style import MUTED, SeriesStyle, drawing, name_below, panels

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = 205, 130  # width and height in points of the panel of a client
COLUMNS = 4  # of panels; two on the screen of a phone


@drawing
def over_deliveries(
    scores: "pd.DataFrame", styles: Mapping[str, SeriesStyle], metric: str, moves: Sequence[int], narrow: bool = False
) -> "Figure":
    """Mean over clients by delivery: a line for each role, with a band of the 95 % interval.

    Args:
        scores: columns role, delivery, version, score, low, high.
        styles: of the roles.
        moves: deliveries after which the champion moved.
        narrow: for the screen of a phone.
    """
    figure, axes = panels(*(340, 280) if narrow else (860, 300))
    axis = axes[0, 0]
    _draw(axis, scores, styles, moves)
    axis.set(title=title(metric), xlabel="delivery")
    name_below(axis, [(role, style) for role, style in styles.items() if (scores["role"] == role).any()])
    return figure


@drawing
def clients_over_deliveries(
    scores: "pd.DataFrame", styles: Mapping[str, SeriesStyle], metric: str, moves: Sequence[int], narrow: bool = False
) -> "Figure":
    """A panel for each client: its scores by delivery, with their 95 % intervals by rows.

    Args:
        scores: columns client, role, delivery, version, score, low, high; panels have the order of clients in it.
        styles, moves, narrow: as of `over_deliveries`.
    """
    names = [*dict.fromkeys(scores["client"])]
    columns = min(len(names), 2 if narrow else COLUMNS)
    rows = -(-len(names) // columns)
    width, height = (160, 120) if narrow else PANEL
    figure, axes = panels(columns * width, rows * height + 20, rows, columns, sharex=True, sharey=True)
    for axis, name in zip(axes.flat, names, strict=False):
        _draw(axis, scores[scores["client"] == name], styles, moves)
        axis.set_title(name if len(name) <= 24 else f"{name[:23]}…")
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    return figure


def _draw(axis: "Axes", scores: "pd.DataFrame", styles: Mapping[str, SeriesStyle], moves: Sequence[int]) -> None:
    """Lines and bands of the roles; a dotted line where the champion moved."""
    for move in moves:
        axis.axvline(move + 0.5, color=MUTED, linestyle=":", linewidth=1.1)
    for role, part in scores.groupby("role", sort=True):
        style, ordered = styles[str(role)], part.sort_values("delivery")
        x, low, middle, high = (ordered[name].to_numpy(dtype=float) for name in ("delivery", "low", "score", "high"))
        is_other = np.diff(ordered["version"].to_numpy()) != 0
        gaps = np.flatnonzero((np.diff(x) > 1) | is_other) + 1  # no line to other models, or where there are no scores
        options: dict[str, Any] = {"color": style.color}
        for one in np.split(np.arange(len(x)), gaps):
            axis.plot(x[one], middle[one], linestyle=style.dash, marker="o", markersize=2.6, **options)
            axis.fill_between(x[one], low[one], high[one], alpha=0.16, linewidth=0, **options)
            if len(one) == 1:
                axis.vlines(x[one], low[one], high[one], alpha=0.3, linewidth=3, **options)
    axis.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
