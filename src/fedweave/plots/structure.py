"""Figures of structure: who learns from whom, where clients are in the plane, which client has which labels."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.plots.graph import NAMED
from fedweave.plots.style import HEAT, MUTED, SERIES, drawing, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 5  # panels in one row of a figure
QUIET: dict[str, Any] = {"color": MUTED, "linewidth": 0.9, "alpha": 0.7}


def some(count: int, most: int = SHOWN) -> np.ndarray:
    """At most `most` of `count` indices, first and last among them, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


@drawing
def collaboration(weights: np.ndarray, rounds: Sequence[int], layers: Sequence[str]) -> "Figure":
    """Who learns from whom: [R, L, N, N] as heat maps. First row: mean over layers, over rounds; second row: each layer
    in the last round. Row = learner, column = source; the darkest shade is the largest weight between two clients, and
    a client's weight on itself is in the title instead.
    """
    times, depths = some(len(rounds)), some(len(layers)) if len(layers) > 1 else np.empty(0, dtype=int)
    columns = max(len(times), len(depths))
    mean, last = weights.mean(axis=1), weights[-1]
    tops = [_largest(mean[times]), _largest(last[depths]) if len(depths) else 0.0]
    rows = 2 if len(depths) else 1
    figure, axes = panels(500, rows * (440 / max(columns, 4) + 48), rows, columns, gaps=(6.0, 3.0))
    for axis in axes.flat:
        axis.axis("off")
    for axis, r in zip(axes[0], times, strict=False):
        _heat(axis, mean[r], tops[0], f"round {rounds[r]}")
    for axis, layer in zip(axes[-1], depths, strict=False):
        _heat(axis, last[layer], tops[1], str(layers[layer]))
    return figure


def _largest(weights: np.ndarray) -> float:
    """Largest weight between two different clients, as the top of the scale."""
    others = np.where(np.eye(weights.shape[-1], dtype=bool), 0.0, weights)
    return float(others.max(initial=0.0))


def _heat(axis: "Axes", weights: np.ndarray, top: float, title: str) -> None:
    axis.imshow(shade(weights, top), interpolation="none", aspect="equal")
    axis.set_title(title, fontsize=10, pad=3)
    count = len(weights)
    note = f"self {np.diag(weights).mean():.2f}\nother to {_largest(weights):.2g}"
    axis.text(-0.5, count - 0.2, note, fontsize=8.5, color=MUTED, va="top")
    axis.add_patch(_frame(count))


def _frame(count: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((-0.5, -0.5), count, count, fill=False, edgecolor=MUTED, linewidth=0.6)


def shade(values: np.ndarray, top: float) -> np.ndarray:
    """RGBA image [..., 4] of one hue whose opacity is value / top, so that it reads on light and dark."""
    alpha = np.clip(np.nan_to_num(values) / (top or 1.0), 0.0, 1.0)
    return np.concatenate([np.broadcast_to(HEAT, (*alpha.shape, 3)), alpha[..., None]], axis=-1)


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
    depths = some(len(layers), 7) if len(layers) > 1 else np.empty(0, dtype=int)
    panels_of = {"all layers": weights.mean(axis=1), **{str(layers[depth]): weights[:, depth] for depth in depths}}
    columns = min(4, len(panels_of))
    figure, axes = panels(
        860, 210 * -(-len(panels_of) // columns), -(-len(panels_of) // columns), columns, sharex=True, sharey=True
    )
    for axis in axes.flat[len(panels_of) :]:
        axis.axis("off")
    named = _prominent(_lines(panels_of["all layers"], group, names))
    for axis, (name, part) in zip(axes.flat, panels_of.items(), strict=False):
        for label, line in _lines(part, group, names).items():
            style = (
                {"color": SERIES[named.index(label)], "linewidth": 1.8, "label": label, "zorder": 3}
                if label in named
                else QUIET
            )
            axis.plot(rounds, line, **style)
        axis.set_title(name)
        axis.xaxis.get_major_locator().set_params(integer=True)
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside upper right", ncols=len(names), frameon=False, fontsize=10, handlelength=1.2
    )
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


def _prominent(lines: Mapping[str, np.ndarray], most: int = 4) -> list[str]:
    """The first of `lines` and the highest others at the end."""
    first, *others = lines
    return [first, *sorted(others, key=lambda name: -lines[name][-1])[: most - 1]]


@drawing
def atlas(
    places: np.ndarray,
    edges: np.ndarray,
    group: np.ndarray | None = None,
    names: Sequence[str] = (),
    group_names: Sequence[str] = (),
) -> "Figure":
    """Clients as points [N, 2], coloured by group [N] if there are groups; `edges` [2, E] join partners."""
    figure, axes = panels(460, 400)
    axis = axes[0, 0]
    axis.axis("off")
    ends = places[edges]  # [2, E, 2]
    gaps = np.full_like(ends[:1], np.nan)
    axis.plot(*np.concatenate([ends, gaps]).transpose(2, 1, 0).reshape(2, -1), color=MUTED, linewidth=0.5, alpha=0.5)
    colours = [SERIES[5]] * len(places) if group is None else [SERIES[int(g) % 6] for g in group]
    axis.scatter(*places.T, c=colours, s=34, linewidth=0, zorder=3)
    low, high = places[:, 0].min(), places[:, 0].max()
    for client, place in enumerate(places):
        name = names[client] if len(names) == len(places) else str(client)
        shift, side = (
            ((-4, 3), "right") if place[0] > high - 0.15 * (high - low) else ((4, 3), "left")
        )  # no name is cut
        axis.annotate(name, place, shift, textcoords="offset points", ha=side, fontsize=8, color=MUTED)
    axis.margins(x=0.12, y=0.07)
    if group is not None and 1 < len(group_names) <= len(SERIES):
        for number, name in enumerate(group_names):
            axis.plot([], [], "o", color=SERIES[number], label=name)
        figure.legend(loc="outside upper left", ncols=len(group_names), frameon=False, fontsize=10, handletextpad=0.1)
    return figure


@drawing
def labels(counts: np.ndarray, names: Sequence[str], client_names: Sequence[str] = ()) -> "Figure":
    """Rows per client and label: [N, C] as dots whose area is the count, or as a heat map where there are many."""
    clients, classes = counts.shape
    named = len(client_names) == clients <= NAMED
    figure, axes = panels(500, float(np.clip(60 + 17 * classes, 150, 420)) + (70 if named else 0))
    axis = axes[0, 0]
    if counts.size <= 700:
        x, y = np.nonzero(counts)
        axis.scatter(
            x,
            y,
            s=(400 / max(clients, 16)) ** 2 * 0.7 * counts[x, y] / counts.max(),
            color=SERIES[5],
            alpha=0.85,
            linewidth=0,
        )
        axis.set_yticks(range(classes), [str(name) for name in names], fontsize=9)
    else:
        axis.imshow(shade(counts.T, np.quantile(counts[counts > 0], 0.99)), aspect="auto", interpolation="none")
    if named:
        axis.set_xticks(range(clients), client_names, rotation=90, fontsize=min(9.0, 360 / clients))
    else:
        axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set(xlabel="" if named else "client", title="label", xlim=(-0.6, clients - 0.4), ylim=(classes - 0.4, -0.6))
    return figure
