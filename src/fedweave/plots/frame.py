"""The frame of a figure: the marks of its axes, and margins that all texts fit into.

A mark of matplotlib has five objects, and its layouts measure all of them several times: most of the time of a
drawing. Here the grid of an axis is one line, a number or name on it is one text, and texts are measured once.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.layout_engine import LayoutEngine
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import ScaledTranslation

from fedweave.plots.style import GRID, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

PAD, APART = 3.5, 4.0  # points between an axis and its numbers, and between those and the name of the axis
BELOW, BESIDE = "below", "beside"  # ids of the names of axes
GUESS = (40.0, 32.0, 8.0, 20.0)  # margins before any text is known: left, below, right, above


class Frame(LayoutEngine):
    """Draws the marks of all axes in a figure, and makes its panels as large as their texts leave room for.

    Args:
        gaps: paddings around each panel, vertical and horizontal, in points; None leaves the panels where they are.
    """

    _adjust_compatible = _colorbar_gridspec = False

    def __init__(self, gaps: tuple[float, float] | None) -> None:
        super().__init__()
        self.gaps = gaps

    def execute(self, fig: "Figure") -> None:
        """Called by matplotlib before it draws."""
        renderer = fig._get_renderer()  # type: ignore[attr-defined]  # as matplotlib's own layouts do
        if self.gaps is not None:
            _place(fig, [_guess(axes) for axes in fig.axes], self.gaps)
        for axes in fig.axes:
            axes.apply_aspect()
            for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
                _mark(axes, axis, renderer)
        if self.gaps is not None:
            _place(fig, [_needed(axes, renderer) for axes in fig.axes], self.gaps)


def _guess(axes: "Axes") -> np.ndarray:
    """Margins before any text is known; the number of marks depends on what they leave."""
    labelled = axes.yaxis.get_tick_params().get("labelleft", True)
    return np.array(GUESS) * axes.axison * (labelled, 1, 1, 1)


def _mark(axes: "Axes", axis: "Axis", renderer: Any) -> None:
    """The grid, numbers and name of an axis, in place of matplotlib's."""
    across, style, formatter = axis is axes.xaxis, axis.get_tick_params(), axis.get_major_formatter()
    places = axis.get_majorticklocs()
    low, high = sorted(axis.get_view_interval())
    slack = 1e-9 * (high - low)
    names = formatter.format_ticks(list(places))
    shown = [(at, name) for at, name in zip(places, names, strict=True) if low - slack <= at <= high + slack]
    if style.get("gridOn") and shown:
        _grid(axes, [at for at, _ in shown], across)
    depth = 0.0
    if style.get("labelbottom" if across else "labelleft", True):
        texts = [_number(axes, at, name, across, style) for at, name in shown if name]
        depth = max((_beyond(axes, text, renderer)[1 if across else 0] for text in texts), default=0.0)
        if power := formatter.get_offset():
            _power(axes, power, across, depth)
    if name := axis.get_label_text():
        _name(axes, name, across, depth + APART)
    axis.set_visible(False)


def _grid(axes: "Axes", places: Sequence[float], across: bool) -> None:
    """Lines at `places`, as one."""
    along, ends = np.repeat(places, 3), np.tile([0.0, 1.0, np.nan], len(places))
    x, y = (along, ends) if across else (ends, along)
    transform = axes.get_xaxis_transform() if across else axes.get_yaxis_transform()
    axes.add_artist(Line2D(x, y, color=GRID, linewidth=0.8, transform=transform, zorder=0.5))


def _number(axes: "Axes", at: float, name: str, across: bool, style: dict[str, Any]) -> Text:
    """What stands at a mark."""
    look: dict[str, Any] = {"rotation": style.get("rotation", 0), "fontsize": style.get("labelsize")}
    look["color"] = style.get("labelcolor", MUTED)
    if across:
        place = axes.get_xaxis_transform() + _shift(axes, 0, -PAD)
        return axes.text(at, 0, name, transform=place, ha="center", va="top", **look)
    place = axes.get_yaxis_transform() + _shift(axes, -PAD, 0)
    return axes.text(0, at, name, transform=place, ha="right", va="center_baseline", **look)


def _power(axes: "Axes", text: str, across: bool, depth: float) -> None:
    """What all numbers of an axis are multiplied by: below the last one, or above the highest one."""
    if across:
        axes.text(1, 0, text, transform=axes.transAxes + _shift(axes, 0, -depth), ha="right", va="top", color=MUTED)
    else:
        axes.text(0, 1, text, transform=axes.transAxes + _shift(axes, 0, PAD), ha="right", va="bottom", color=MUTED)


def _name(axes: "Axes", name: str, across: bool, depth: float) -> None:
    if across:
        place = axes.transAxes + _shift(axes, 0, -depth)
        axes.text(0.5, 0, name, transform=place, ha="center", va="top", color=MUTED, gid=BELOW)
    else:
        place = axes.transAxes + _shift(axes, -depth, 0)
        axes.text(0, 0.5, name, transform=place, ha="right", va="center", rotation=90, color=MUTED, gid=BESIDE)


def _shift(axes: "Axes", x: float, y: float) -> ScaledTranslation:
    """To the right and up by points."""
    return ScaledTranslation(x / 72, y / 72, axes.figure.dpi_scale_trans)


def _beyond(axes: "Axes", part: Any, renderer: Any) -> np.ndarray:
    """How far a text or legend reaches beyond the axes: left, below, right, above, in points."""
    box, own = axes.bbox, part.get_window_extent(renderer)
    return np.array([box.x0 - own.x0, box.y0 - own.y0, own.x1 - box.x1, own.y1 - box.y1]).clip(0.0)


def _needed(axes: "Axes", renderer: Any) -> np.ndarray:
    """The margins that all texts around a panel fit into."""
    parts = [part for part in axes.get_children() if isinstance(part, Text) and part.get_text()]
    around = [*parts, *filter(None, [axes.get_legend()])]
    return np.max([np.zeros(4), *(_beyond(axes, part, renderer) * _sides(axes, part) for part in around)], axis=0)


def _sides(axes: "Axes", part: Any) -> tuple[int, int, int, int]:
    """Which margins a text gets: a title or the name of an axis may be longer than its panel."""
    if part.get_gid() == BESIDE:
        return 1, 0, 1, 0
    is_title = part.get_transform().contains_branch(axes.titleOffsetTrans)  # type: ignore[attr-defined]
    return (0, 1, 0, 1) if is_title or part.get_gid() == BELOW else (1, 1, 1, 1)


def _place(figure: "Figure", margins: Sequence[np.ndarray], gaps: tuple[float, float]) -> None:
    """Panels of one size; each row and column has the margins that one of its panels needs most."""
    (width, height), needed = figure.bbox.size, np.array(margins)
    spots: Any = [axes.get_subplotspec() for axes in figure.axes]
    row, column = (np.array([span.start for span in spans]) for spans in zip(*map(_spans, spots), strict=True))
    left, right = (_most(needed[:, side] + gaps[1], column) for side in (0, 2))
    below, above = (_most(needed[:, side] + gaps[0], row) for side in (1, 3))
    above[0] += max((legend.get_window_extent().height + 2 * APART for legend in figure.legends), default=0.0)
    wide = max(1.0, (width - left.sum() - right.sum()) / len(left))
    high = max(1.0, (height - below.sum() - above.sum()) / len(above))
    for axes, i, j in zip(figure.axes, row, column, strict=True):
        x = left[: j + 1].sum() + right[:j].sum() + j * wide
        y = height - above[: i + 1].sum() - below[:i].sum() - (i + 1) * high
        axes.set_position((x / width, y / height, wide / width, high / height))


def _spans(spot: Any) -> tuple[range, range]:
    return spot.rowspan, spot.colspan


def _most(needed: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The largest of `needed` at each place."""
    return np.array([needed[places == place].max() for place in range(places.max() + 1)])
