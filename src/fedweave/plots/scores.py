"""Figures of scores: over rounds, over clients, against cost, across tasks."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.metrics import higher_is_better, title
from fedweave.plots.style import GAIN, INK, LOSS, MUTED, SeriesStyle, drawing, name_below, name_ends, panels

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedweave.results.ranking import Ranking

ROW_HEIGHT = 13.5  # height in points of a method's name next to its line
MOST_NAMES = 16  # most methods whose names all fit next to their lines
MOST_NAMED_CLIENTS = 40  # most clients whose names fit below their dots
LOG_RATIO = 10  # errors have a logarithmic axis if the largest is so many times the smallest


@drawing
def convergence(
    curves: "pd.DataFrame",
    styles: Mapping[str, SeriesStyle],
    metric: str,
    against: str = "round",
    bold: Collection[str] | None = None,
    narrow: bool = False,
) -> "Figure":
    """Mean over clients by round, one line per method with a band of one std over seeds. The names are at the ends of
    the lines; a dotted line joins the name and a run that had fewer rounds.

    Args:
        curves: columns method, round, mean, std of ONE task, point and split.
        against: another column to draw against, which grows with the rounds.
        bold: methods in colour, the rest is grey (default: all); grey lines are named where there is room for it.
        narrow: for the screen of a phone, with the names of the methods in colour below.
    """
    methods = list(curves["method"].unique())
    grey = set() if bold is None else {*methods} - {*bold}
    named = [method for method in methods if method not in grey or (len(methods) <= MOST_NAMES and not narrow)]
    figure, axes = panels(340, 300) if narrow else panels(860, max(360, 50 + ROW_HEIGHT * len(named)))
    axis, ends, last = axes[0, 0], [], float(curves[against].max())
    for method, part in curves.groupby("method"):
        ordered, style = part.sort_values("round"), styles[method]
        _draw_line(axis, ordered, style, against, method in grey)
        if method in named:
            end, mean = ordered[[against, "mean"]].iloc[-1]
            ends.append((method, mean, style))
            if end < last and not narrow:  # to the right edge, where its name is
                color = MUTED if method in grey else style.color
                (lead,) = axis.plot([end, last], [mean, mean], ":", color=color, linewidth=0.9, alpha=0.6)
                lead.set_gid(f"series-{style.series}-lead")
    axis.set(xlabel=against, title=title(metric))
    axis.xaxis.get_major_locator().set_params(integer=True)
    _set_y_axis(axis, *_value_range(curves, metric), metric)
    axis.margins(x=0)
    if narrow:
        name_below(axis, [(method, styles[method]) for method in bold or methods if method in named])
    else:
        name_ends(axis, ends, grey=grey)
    return figure


def _draw_line(axis: "Axes", part: "pd.DataFrame", style: SeriesStyle, against: str, grey: bool) -> None:
    """One method over its rounds: a line with a band, or a thin grey line."""
    x, mean, std = (part[c].to_numpy(dtype=float) for c in (against, "mean", "std"))
    muted: dict[str, Any] = {"color": MUTED, "linewidth": 0.9, "alpha": 0.55, "zorder": 1.5}
    options = muted if grey else {"color": style.color}
    (line,) = axis.plot(x, mean, linestyle="-" if grey else style.dash, **options)
    line.set_gid(f"series-{style.series}-line")
    if not grey:
        low, high = mean - np.nan_to_num(std), mean + np.nan_to_num(std)
        band = axis.fill_between(x, low, high, color=style.color, alpha=0.13, linewidth=0)
        band.set_gid(f"series-{style.series}-band")
    if x[-1] == x[0]:
        axis.plot(x[-1:], mean[-1:], "o", markersize=5, **options)


def _value_range(curves: "pd.DataFrame", metric: str) -> tuple[float, float]:
    """Lowest and highest value after the first fifth of 20 rounds or more; a diverging error does not flatten the
    other curves.
    """
    rounds = np.unique(curves["round"])
    first = rounds[len(rounds) // 5 if len(rounds) >= 20 else 0]
    values = curves[curves["round"] >= first]["mean"].to_numpy(dtype=float)
    values = values[np.isfinite(values)]
    if not values.size:
        return 0.0, 1.0
    low, high = values.min(), values.max()
    if not higher_is_better(metric):
        high = max(low, min(high, 3 * np.quantile(values, 0.75)))
    return low, high


def _set_y_axis(axis: "Axes", low: float, high: float, metric: str) -> None:
    """Limits of the heights from `low` to `high`; logarithmic for an error that falls so far that the differences at
    the end would look like one line.
    """
    if higher_is_better(metric) or low <= 0 or high < LOG_RATIO * low:
        pad = 0.04 * (high - low) or 0.01 * abs(high) or 1.0
        axis.set_ylim(low - pad, high + pad)
        return
    from matplotlib.ticker import LogLocator

    factor = (high / low) ** 0.04
    axis.set(yscale="log", ylim=(low / factor, high * factor), title=f"{title(metric)}, logarithmic axis")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter("{x:g}")  # by default an exponent in TeX
    axis.yaxis.set_minor_formatter("")


@drawing
def client_spread(values: Mapping[str, np.ndarray], styles: Mapping[str, SeriesStyle], metric: str) -> "Figure":
    """Distribution over clients, one row per method: violin above, one tick per client below, the mean as a dot.

    Args:
        values: method -> [N] (mean over seeds), in the order of the rows.
    """
    figure, axes = panels(500, 46 + 32 * len(values))
    axis = axes[0, 0]
    for row, (method, scores) in enumerate(values.items()):
        style, scores = styles[method], scores[np.isfinite(scores)]
        if scores.size == 0:
            continue
        if scores.size > 3 and np.ptp(scores) > 0:
            _draw_violin(axis, scores, row, style)
        ticks = np.stack([scores, scores, np.full_like(scores, np.nan)], axis=1).ravel()
        heights = np.tile([row + 0.08, row + 0.3, np.nan], scores.size)
        (rug,) = axis.plot(ticks, heights, color=style.color, linewidth=1.3, alpha=0.75)
        (dot,) = axis.plot(scores.mean(), row + 0.02, "o", color=style.color, markersize=6)
        rug.set_gid(f"series-{style.series}-rug")
        dot.set_gid(f"series-{style.series}-dot")
    axis.set_yticks(range(len(values)), list(values), color=INK)
    axis.set_ylim(len(values) - 0.5, -0.62)
    axis.set_xlabel(f"{title(metric)}, per client")
    axis.grid(axis="y", visible=False)
    return figure


@drawing
def client_gains(differences: np.ndarray, names: Sequence[str], metric: str, narrow: bool = False) -> "Figure":
    """Who gains and who loses: one dot a client, sorted, its score minus that of Local.

    Args:
        differences: [N], in the unit of the score; clients without a score are left out.
        names: of the clients; shown where they are few.
        narrow: for the screen of a phone.
    """
    finite = np.flatnonzero(np.isfinite(differences))
    order = finite[np.argsort(differences[finite], kind="stable")]
    values, sign = differences[order], 1.0 if higher_is_better(metric) else -1.0
    named = len(order) <= (MOST_NAMED_CLIENTS // 2 if narrow else MOST_NAMED_CLIENTS)
    figure, axes = panels(*(340, 260) if narrow else (560, 300))
    axis, places = axes[0, 0], np.arange(len(order))
    axis.axhline(0.0, color=MUTED, linewidth=1.2)
    size = 6 if len(order) <= 60 else 3
    for side, color in ((sign * values > 0, GAIN), (sign * values < 0, LOSS), (values == 0, MUTED)):
        axis.vlines(places[side], 0.0, values[side], color=color, linewidth=1.2, alpha=0.5)
        axis.plot(places[side], values[side], "o", color=color, markersize=size)
    axis.set_xticks(places if named else [], [names[client] for client in order] if named else [], rotation=60)
    for text in axis.get_xticklabels():
        text.set(ha="right", rotation_mode="anchor")
    direction = "above 0: better" if sign > 0 else "below 0: better"
    axis.set(title=f"{title(metric)} minus that of Local; {direction}", xlabel="" if named else "clients, sorted")
    axis.margins(x=0.03)
    axis.grid(axis="x", visible=False)
    return figure


def _draw_violin(axis: "Axes", scores: np.ndarray, row: int, style: SeriesStyle) -> None:
    from scipy.stats import gaussian_kde

    x = np.linspace(scores.min(), scores.max(), 80)
    density = gaussian_kde(scores)(x)
    body = axis.fill_between(x, row, row - 0.45 * density / density.max(), color=style.color, alpha=0.3, linewidth=0)
    body.set_gid(f"series-{style.series}-violin")


@drawing
def cost(board: "pd.DataFrame", styles: Mapping[str, SeriesStyle], metric: str) -> "Figure":
    """Score, traffic and time, a row for each method in the order of `board`: so every dot has its name, also where
    methods send the same. Costs are logarithmic where their range is large.
    """
    figure, axes = panels(500, 56 + 18 * len(board), 1, 3, gaps=(3.0, 7.0), sharey=True)
    traffic = (board["bytes_up"] + board["bytes_down"]).to_numpy(dtype=float) / 2**20
    score, seconds = (board[name].to_numpy(dtype=float) for name in ("mean", "seconds"))
    std = np.nan_to_num(board["std"].to_numpy(dtype=float))
    _draw_dots(axes[0, 0], score, board["method"], styles, std)
    for axis, x in ((axes[0, 1], traffic), (axes[0, 2], seconds)):
        _draw_dots(axis, x, board["method"], styles, np.zeros(len(x)))
        _set_cost_axis(axis, x)
    for axis, label in zip(axes[0], (title(metric), "MiB sent, both ways", "seconds"), strict=True):
        axis.set_xlabel(label)
    axes[0, 0].set_yticks(range(len(board)), list(board["method"]), color=INK)
    axes[0, 0].set_ylim(len(board) - 0.5, -0.5)
    return figure


def _draw_dots(
    axis: "Axes", x: np.ndarray, methods: "pd.Series", styles: Mapping[str, SeriesStyle], std: np.ndarray
) -> None:
    """A dot at `x` for each method, in its row, with a bar of `std` to both sides."""
    for row, (method, value, spread) in enumerate(zip(methods, x, std, strict=True)):
        style = styles[method]
        bar = axis.errorbar(value, row, xerr=spread or None, fmt="o", color=style.color, markersize=7, linewidth=1)
        for part, artist in enumerate(a for a in (bar[0], *bar[2]) if a is not None):
            artist.set_gid(f"series-{style.series}-{part}")
    axis.margins(x=0.1)


def _set_cost_axis(axis: "Axes", x: np.ndarray) -> None:
    """The axis of a cost: from zero, or logarithmic."""
    positive = x[x > 0]
    if positive.size and positive.max() > 30 * positive.min():
        axis.set_xscale("symlog", linthresh=float(positive.min()))
        axis.xaxis.set_major_formatter("{x:g}")  # by default an exponent in TeX
    else:
        axis.set_xlim(left=-0.06 * float(np.nanmax(x, initial=0.0)))


@drawing
def sweep(points: "pd.DataFrame", styles: Mapping[str, SeriesStyle], metric: str, factor: str) -> "Figure":
    """Score against a number that settings differ in, one line per method with its std over seeds.

    Args:
        points: columns method, x, mean, std; x is drawn in order, evenly spaced, because factors double or halve.
    """
    figure, axes = panels(500, 290)
    axis, values = axes[0, 0], np.unique(points["x"])
    for method, part in points.groupby("method"):
        style, part = styles[method], part.sort_values("x")
        positions = np.searchsorted(values, part["x"])
        look: dict[str, Any] = {"color": style.color, "linestyle": style.dash, "marker": "o", "markersize": 5}
        bar = axis.errorbar(positions, part["mean"], yerr=part["std"].fillna(0.0), **look)
        for number, artist in enumerate((bar[0], *bar[2])):
            artist.set_gid(f"series-{style.series}-sweep{number}")
    axis.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    axis.set(xlabel=factor, title=title(metric))
    axis.margins(x=0.04)
    last = points.loc[points.groupby("method")["x"].idxmax()]
    name_ends(axis, [(row["method"], row["mean"], styles[row["method"]]) for row in last.to_dict("records")])
    return figure


@drawing
def critical_difference(ranking: "Ranking") -> "Figure":
    """Average ranks on a line; a bar joins those that differ by less than Nemenyi's critical difference (Demsar, 2006,
    Fig. 1).
    """
    order = np.argsort(ranking.ranks, kind="stable")
    count, half = len(order), (len(order) + 1) // 2
    cliques = cliques_of(ranking.ranks[order], ranking.critical_difference)
    figure, axes = panels(760, 92 + 22 * half + 9 * len(cliques))
    axis, depth = axes[0, 0], 0.9 + 0.36 * len(cliques)
    axis.set(xlim=(0.4, count + 0.6), ylim=(depth + half, -1.5))
    axis.axis("off")
    axis.plot([1, count], [0, 0], color=MUTED, linewidth=1)
    for tick in range(1, count + 1):
        axis.text(tick, -0.35, str(tick), ha="center", va="bottom", color=MUTED, fontsize=10)
        axis.plot([tick, tick], [0, -0.2], color=MUTED, linewidth=1)
    for position, index in enumerate(order):
        left = position < half
        y, edge = depth + (position if left else count - 1 - position), 0.9 if left else count + 0.1
        axis.plot([ranking.ranks[index]] * 2 + [edge], [0, y, y], color=MUTED, linewidth=1)
        name = f"{ranking.methods[index]}  {ranking.ranks[index]:.2f}"
        shift, side = (-5, "right") if left else (5, "left")
        axis.annotate(name, (edge, y), (shift, 0), textcoords="offset points", ha=side, va="center")
    for level, (first, last) in enumerate(cliques):
        ends = ranking.ranks[order[first]] - 0.04, ranking.ranks[order[last]] + 0.04
        axis.plot(ends, [0.45 + 0.36 * level] * 2, color=INK, linewidth=3.5, solid_capstyle="round")
    width = min(ranking.critical_difference, count - 1)
    axis.plot([1, 1 + width], [-1.25, -1.25], color=INK, linewidth=1.5)
    note = f"critical difference {ranking.critical_difference:.2f}"
    axis.annotate(note, (1 + width, -1.25), (6, 0), textcoords="offset points", va="center", fontsize=10)
    return figure


def cliques_of(ranks: np.ndarray, difference: float) -> list[tuple[int, int]]:
    """Longest runs (first, last) of two or more sorted `ranks` that span at most `difference`."""
    runs = [(i, int(np.searchsorted(ranks, rank + difference, side="right")) - 1) for i, rank in enumerate(ranks)]
    maximal = [run for i, run in enumerate(runs) if i == 0 or run[1] > runs[i - 1][1]]
    return [run for run in maximal if run[1] > run[0]]
