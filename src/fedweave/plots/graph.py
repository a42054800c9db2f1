"""One collaboration graph with the clients' names: who learns from whom, ordered by group."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.plots.style import INK, MUTED, drawing, panels, shade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NAMED = 60  # most clients whose names fit next to the rows
LETTER_WIDTH = 0.54  # mean width of a letter, relative to the size of its font
BOLD_FACTOR = 1.3  # width of a bold letter in the widest of the usual fonts, relative to that mean
GROUP_FONT = 10.0


@drawing
def graph(
    weights: np.ndarray, names: Sequence[str], group: np.ndarray | None = None, group_names: Sequence[str] = ()
) -> "Figure":
    """A collaboration graph [N, N] as a heat map. Row: learner; column: source.

    The darkest colour is the largest weight between two clients.

    Clients of one group [N] are next to each other, with a line between groups and the groups' names at the right. The
    weight of a client on itself would hide the others, so the diagonal has crosses instead.
    """
    order = group_order(group, len(weights))
    ordered = weights[np.ix_(order, order)]
    count, has_names = len(weights), len(weights) <= MOST_NAMED
    cell = max(9.6, min(20.0, 330 / count), 150 / count) if has_names else 460 / count
    font = min(9.5, 0.92 * cell)
    labels = [str(names[i]) for i in order] if has_names else []
    spans = [] if group is None else list(spans_of(group[order], group_names))
    group_width = BOLD_FACTOR * _text_width([name for *_, name in spans]) * GROUP_FONT
    figure, axis = _square_axes(cell * count, _text_width(labels) * font, group_width)
    _draw(axis, ordered)
    axis.set_xticks(range(len(labels)), labels, rotation=90, fontsize=font, color=INK)
    axis.set_yticks(range(len(labels)), labels, fontsize=font, color=INK)
    place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
    look: dict[str, Any] = {"fontsize": GROUP_FONT, "fontweight": "bold", "annotation_clip": False}
    for first, last, name in spans:
        axis.annotate(name, (1, (first + last) / 2), (8, 0), **place, **look)
        if first:
            axis.axhline(first - 0.5, color=INK, linewidth=1.0)
            axis.axvline(first - 0.5, color=INK, linewidth=1.0)
    return figure


def group_order(group: np.ndarray | None, count: int) -> np.ndarray:
    """Order [N] in which clients of one group are next to each other, and within a group in the order of their
    numbers.
    """
    return np.arange(count) if group is None else np.argsort(group, kind="stable")


def spans_of(group: np.ndarray, names: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """First and last place and name of every run of equal numbers in `group` [N]."""
    starts = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
    for first, end in zip(starts, [*starts[1:], len(group)], strict=True):
        number = int(group[first])
        yield int(first), int(end) - 1, str(names[number]) if number < len(names) else f"group {number}"


def _text_width(words: Sequence[str]) -> float:
    """Width of the longest of `words`, relative to the size of its font."""
    return LETTER_WIDTH * max(map(len, words), default=0)


def _square_axes(side: float, names: float, groups: float) -> tuple["Figure", "Axes"]:
    """A square of `side` points with room at the left and below for names, and at the right for groups."""
    left, bottom, right, top = names + 12, names + 10, groups + 14, 20
    width, height = left + side + right, bottom + side + top
    figure, axes = panels(width, height)
    figure.set_layout_engine("none")
    axes[0, 0].set_position((left / width, bottom / height, side / width, side / height))
    return figure, axes[0, 0]


def _draw(axis: "Axes", weights: np.ndarray) -> None:
    from matplotlib.patches import Rectangle

    count = len(weights)
    others = np.where(np.eye(count, dtype=bool), 0.0, np.nan_to_num(weights))
    axis.imshow(shade(others, others.max(initial=0.0)), interpolation="none", aspect="auto")
    axis.plot(range(count), range(count), "x", color=MUTED, markersize=min(4.0, 120 / count), markeredgewidth=0.7)
    axis.add_patch(Rectangle((-0.5, -0.5), count, count, fill=False, edgecolor=MUTED, linewidth=0.8))
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
    axis.set_title("learns from", loc="center", fontsize=10, color=MUTED, pad=5)
