"""Figures of structure: who learns from whom, where clients are in the plane, which client has which labels."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.plots.graph import LETTER_WIDTH, MOST_NAMED
from fedweave.plots.style import MUTED, SERIES, drawing, panels, shade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 5  # panels in one row of a figure
SHAPES = ("o", "^", "s")  # of points on a map, one after every six groups
MOST_STYLES = 6 * len(SHAPES)  # most groups that look different on a map
MAP_SIZE = (450, 330)  # width and height of a map without its legend, in points
FONT_SIZE = 8.0  # of the names on a map, in points
GREY_LINE: dict[str, Any] = {"color": MUTED, "linewidth": 0.9, "alpha": 0.7}


def spaced_indices(count: int, most: int = MOST_PANELS) -> np.ndarray:
    """At most `most` of `count` indices, evenly spaced, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


@drawing
def collaboration(weights: np.ndarray, rounds: Sequence[int], layers: Sequence[str]) -> "Figure":
    """Who learns from whom: [R, L, N, N] as heat maps. First row: mean over layers, over rounds; second row: each layer
    in the last round. Row = learner, column = source; the darkest shade is the largest weight between two clients, and
    a client's weight on itself is in the title instead.
    """
    times = spaced_indices(len(rounds))
    depths = spaced_indices(len(layers)) if len(layers) > 1 else np.empty(0, dtype=int)
    columns = max(len(times), len(depths))
    mean, last = weights.mean(axis=1), weights[-1]
    tops = [_largest_weight(mean[times]), _largest_weight(last[depths]) if len(depths) else 0.0]
    rows = 2 if len(depths) else 1
    figure, axes = panels(500, rows * (440 / max(columns, 4) + 48), rows, columns, gaps=(6.0, 3.0))
    for axis in axes.flat:
        axis.axis("off")
    for axis, r in zip(axes[0], times, strict=False):
        _draw_heat_map(axis, mean[r], tops[0], f"round {rounds[r]}")
    for axis, layer in zip(axes[-1], depths, strict=False):
        _draw_heat_map(axis, last[layer], tops[1], str(layers[layer]))
    return figure


def _largest_weight(weights: np.ndarray) -> float:
    """Largest weight between two different clients, as the top of the scale."""
    others = np.where(np.eye(weights.shape[-1], dtype=bool), 0.0, weights)
    return float(others.max(initial=0.0))


def _draw_heat_map(axis: "Axes", weights: np.ndarray, top: float, title: str) -> None:
    from matplotlib.patches import Rectangle

    axis.imshow(shade(weights, top), interpolation="none", aspect="equal")
    axis.set_title(title, fontsize=10, pad=3)
    count = len(weights)
    note = f"self {np.diag(weights).mean():.2f}\nother to {_largest_weight(weights):.2g}"
    axis.text(-0.5, count - 0.2, note, fontsize=8.5, color=MUTED, va="top")
    axis.add_patch(Rectangle((-0.5, -0.5), count, count, fill=False, edgecolor=MUTED, linewidth=0.6))


@drawing
def evolution(
    weights: np.ndarray,
    rounds: Sequence[int],
    layers: Sequence[str],
    group: np.ndarray | None = None,
    names: Sequence[str] = (),
) -> "Figure":
    """Weights over rounds, [R, L, N, N], one panel for the mean over layers and one for each of some layers.

    With planted groups [N]: the weight that a client gives itself, a client of its group and another one, averaged over
    clients. Without: the row of client 0, with a line for itself and for every source; the three with the largest final
    weight are emphasised.
    """
    depths = spaced_indices(len(layers), 7) if len(layers) > 1 else np.empty(0, dtype=int)
    weights_of = {"all layers": weights.mean(axis=1), **{str(layers[depth]): weights[:, depth] for depth in depths}}
    columns = min(4, len(weights_of))
    rows = -(-len(weights_of) // columns)
    figure, axes = panels(860, 210 * rows, rows, columns, sharex=True, sharey=True)
    for axis in axes.flat[len(weights_of) :]:
        axis.axis("off")
    named = _highest_lines(_lines(weights_of["all layers"], group, names))
    for axis, (name, part) in zip(axes.flat, weights_of.items(), strict=False):
        for label, line in _lines(part, group, names).items():
            style = GREY_LINE
            if label in named:
                style = {"color": SERIES[named.index(label)], "linewidth": 1.8, "label": label, "zorder": 3}
            axis.plot(rounds, line, **style)
        axis.set_title(name)
        axis.xaxis.get_major_locator().set_params(integer=True)
    handles, shown = axes[0, 0].get_legend_handles_labels()
    look: dict[str, Any] = {"frameon": False, "fontsize": 10, "handlelength": 1.2}
    figure.legend(handles, shown, loc="outside upper right", ncols=len(shown), **look)
    return figure


def _lines(weights: np.ndarray, group: np.ndarray | None, names: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Name -> [R] of weights [R, N, N]."""
    count = weights.shape[-1]
    itself = np.eye(count, dtype=bool)
    if group is None:
        sources = names or [f"client {source}" for source in range(count)]
        return {"itself": weights[:, 0, 0]} | {sources[source]: weights[:, 0, source] for source in range(1, count)}
    same = group[:, None] == group
    kinds = {"itself": itself, "similar": same & ~itself, "other": ~same}
    return {name: weights[:, kind].mean(axis=1) for name, kind in kinds.items() if kind.any()}


def _highest_lines(lines: Mapping[str, np.ndarray]) -> list[str]:
    """The first of `lines` and the three others that are highest at the end."""
    first, *others = lines
    return [first, *sorted(others, key=lambda name: -lines[name][-1])[:3]]


@drawing
def client_map(
    places: np.ndarray,
    edges: np.ndarray,
    group: np.ndarray | None = None,
    names: Sequence[str] = (),
    group_names: Sequence[str] = (),
) -> "Figure":
    """Clients as points [N, 2], with colours and shapes by group [N] if there are groups; `edges` [2, E] join
    partners. A name (or a number, without names) is left out where it would cover another one.
    """
    figure, axes = panels(460, 400)
    axis = axes[0, 0]
    axis.axis("off")
    ends = places[edges]  # [2, E, 2]
    gaps = np.full_like(ends[:1], np.nan)
    axis.plot(*np.concatenate([ends, gaps]).transpose(2, 1, 0).reshape(2, -1), color=MUTED, linewidth=0.5, alpha=0.5)
    _draw_points(axis, places, np.full(len(places), len(SERIES) - 1) if group is None else group)
    axis.margins(x=0.12, y=0.07)
    _write_names(axis, places, names if len(names) == len(places) else [str(client) for client in range(len(places))])
    if group is not None and 1 < len(group_names) <= MOST_STYLES:
        for number, name in enumerate(group_names):
            axis.plot([], [], SHAPES[number // 6], color=SERIES[number % 6], markeredgewidth=0, label=name)
        look: dict[str, Any] = {"frameon": False, "fontsize": 9, "handletextpad": 0.1, "columnspacing": 0.8}
        figure.legend(loc="outside upper left", ncols=min(4, len(group_names)), **look)
    return figure


def _draw_points(axis: "Axes", places: np.ndarray, group: np.ndarray) -> None:
    """Clients as points: six colours by group, with another shape after every six groups."""
    for number in np.unique(group):
        style = {"marker": SHAPES[number // 6 % len(SHAPES)], "color": SERIES[number % 6]}
        axis.plot(*places[group == number].T, **style, linestyle="", markersize=6, markeredgewidth=0, zorder=3)


def _write_names(axis: "Axes", places: np.ndarray, names: Sequence[str]) -> None:
    """Names next to their points, as far as they fit."""
    low, span = places.min(0), np.ptp(places, axis=0)
    size = np.array([MAP_SIZE[0] / 1.24, MAP_SIZE[1] / 1.14])  # without the margins
    points = (places - low) / np.where(span > 0, span, 1.0) * size
    widths = [LETTER_WIDTH * FONT_SIZE * len(name) for name in names]
    look: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": FONT_SIZE, "color": MUTED}
    for client, side in place_labels(points, widths, MAP_SIZE[0] / 1.12):
        axis.annotate(names[client], places[client], (-5 if side == "right" else 5, 0), ha=side, **look)


def place_labels(points: np.ndarray, widths: Sequence[float], right: float) -> list[tuple[int, str]]:
    """Clients whose names fit next to their `points` [N, 2], with the side at which a name is aligned.

    A name stands right of its point, or left of it, where it covers no point and no name before it and does not end
    beyond `right`. All lengths are in points of the page.
    """
    spans: list[tuple[float, float, float]] = []  # left and right end, and height
    fits = []
    for client, ((x, y), width) in enumerate(zip(points, widths, strict=True)):
        for side, start in (("left", x + 5), ("right", x - 5 - width)):
            inside = -right * 0.1 <= start and start + width <= right
            is_beside = (points[:, 0] > start - 3) & (points[:, 0] < start + width + 3)
            covered = (abs(points[:, 1] - y) < FONT_SIZE) & is_beside
            is_free = not any(abs(y - h) < 1.1 * FONT_SIZE and start < b and a < start + width for a, b, h in spans)
            if inside and is_free and not covered.any():
                spans.append((start, start + width, y))
                fits.append((client, side))
                break
    return fits


@drawing
def labels(counts: np.ndarray, names: Sequence[str], client_names: Sequence[str] = ()) -> "Figure":
    """Rows per client and label: [N, C] as dots whose area is the count, or as a heat map where there are many."""
    clients, classes = counts.shape
    shows_names = len(client_names) == clients <= MOST_NAMED
    figure, axes = panels(500, float(np.clip(60 + 17 * classes, 150, 420)) + (70 if shows_names else 0))
    axis = axes[0, 0]
    if counts.size <= 700:
        x, y = np.nonzero(counts)
        areas = (400 / max(clients, 16)) ** 2 * 0.7 * counts[x, y] / counts.max()
        axis.scatter(x, y, s=areas, color=SERIES[5], alpha=0.85, linewidth=0)
        axis.set_yticks(range(classes), [str(name) for name in names], fontsize=9)
    else:
        axis.imshow(shade(counts.T, np.quantile(counts[counts > 0], 0.99)), aspect="auto", interpolation="none")
    if shows_names:
        axis.set_xticks(range(clients), client_names, rotation=90, fontsize=min(9.0, 360 / clients))
    else:
        axis.xaxis.get_major_locator().set_params(integer=True)
    title = "number of the class" if all(str(name).isdigit() for name in names) else "class"
    axis.set(xlabel="" if shows_names else "client", title=title)
    axis.set(xlim=(-0.6, clients - 0.4), ylim=(classes - 0.4, -0.6))
    return figure
