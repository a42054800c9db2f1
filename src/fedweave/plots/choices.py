"""Figures of choices: what searches tried and what mattered, and what ablations changed."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.metrics import higher_is_better, title
from fedweave.plots.style import HEAT, INK, MUTED, SERIES, drawing, panels

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@drawing
def tuning(trials: "pd.DataFrame", names: Sequence[str], best: Mapping[str, Any]) -> "Figure":
    """One slice per hyper-parameter: its values against the validation score.

    The best trial has a ring. The first one, which has the declared values, is a diamond.
    A pruned trial is a hollow dot at the best score that it had reached.

    Args:
        trials: columns "value" (NaN for pruned trials), "reached", and `names`.
    """
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure, axes = panels(236 * columns, 180 * rows, rows, columns, sharey=True)
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    pruned, height = trials["value"].isna().to_numpy(), trials["value"].fillna(trials["reached"]).to_numpy(dtype=float)
    ring = np.all([trials[name].astype(object) == best.get(name) for name in names], axis=0) & ~pruned
    for axis, name in zip(axes.flat, names, strict=False):
        x, dot = _axis_positions(axis, trials[name]), {"marker": "o", "linestyle": "", "markersize": 5, "alpha": 0.7}
        axis.plot(x[pruned], height[pruned], markerfacecolor="none", markeredgecolor=MUTED, **dot)
        axis.plot(x[~pruned], height[~pruned], color=SERIES[5], markeredgewidth=0, **dot)
        axis.plot(x[:1], height[:1], "D", color=SERIES[1], markersize=6, markeredgewidth=0)
        axis.plot(x[ring], height[ring], "o", markerfacecolor="none", markeredgecolor=INK, markersize=11)
        axis.set_xlabel(f"{name} = {_format_value(best[name])}" if name in best else name)
    axes[0, 0].set_title("validation score")
    return figure


@drawing
def importance(shares: Mapping[str, float]) -> "Figure":
    """Share of the spread of validation scores that each hyper-parameter explains, largest first."""
    figure, axes = panels(300, 40 + 24 * len(shares))
    axis, ordered = axes[0, 0], sorted(shares.items(), key=lambda item: -item[1])
    axis.barh(range(len(ordered)), [share for _, share in ordered], height=0.55, color=SERIES[5], alpha=0.8)
    look: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 9.5, "color": MUTED}
    for row, (_, share) in enumerate(ordered):
        axis.annotate(f"{100 * share:.0f} %", (share, row), (4, 0), **look)
    axis.set_yticks(range(len(ordered)), [name for name, _ in ordered], color=INK)
    axis.set(ylim=(len(ordered) - 0.5, -0.5), xlim=(0, 1.12), xticks=[0, 0.5, 1], xticklabels=["0", "50 %", "100 %"])
    axis.grid(axis="y", visible=False)
    axis.set_title("explains of the spread")
    return figure


def _axis_positions(axis: "Axes", column: "pd.Series") -> np.ndarray:
    """Numbers to draw a hyper-parameter at: its values, logarithmic if they span decades, or places of its choices."""
    if column.dtype == bool or not np.issubdtype(np.asarray(column.tolist()).dtype, np.number):
        text = column.map(str)
        choices = sorted(text.unique())
        axis.set_xticks(range(len(choices)), choices)
        axis.set_xlim(-0.5, len(choices) - 0.5)
        return text.map(choices.index).to_numpy()
    numbers = column.to_numpy(dtype=float)
    if numbers.size and numbers.min() > 0 and numbers.max() > 30 * numbers.min():
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
    return numbers


def _format_value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


@drawing
def ablation(table: "pd.DataFrame") -> "Figure":
    """One ablation: a curve where one number changes, a map where two settings do, else a row per variant.

    Args:
        table: columns variant, metric, settings (JSON), declared, mean, std.
    """
    factors = factors_of(table)
    if len(factors) == 1:
        ((factor, values),) = factors.items()
        if len(values) > 2 and all(map(is_number, values)):
            return _curve(table, factor)
    return _map(table, *factors) if len(factors) == 2 else _rows(table)


def factors_of(table: "pd.DataFrame") -> dict[str, list[Any]]:
    """Setting -> its values in order of appearance, where the variants are all combinations of them; else nothing."""
    settings = [setting for text in table["settings"] if (setting := json.loads(text))]
    if not settings or any({*setting} != {*settings[0]} for setting in settings):
        return {}
    values: dict[str, list[Any]] = {name: [] for name in settings[0]}
    for setting in settings:
        for name, value in setting.items():
            values[name] += [value] if value not in values[name] else []
    flat = all(not isinstance(value, dict | list) for column in values.values() for value in column)
    return values if flat and int(np.prod([len(v) for v in values.values()])) == len(settings) else {}


def is_number(value: Any) -> bool:
    """Whether a value of a setting is a number; a truth value is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _curve(table: "pd.DataFrame", factor: str) -> "Figure":
    table = table[table["settings"] != "{}"]
    figure, axes = panels(500, 250)
    axis, x = axes[0, 0], [json.loads(text)[factor] for text in table["settings"]]
    order = np.argsort(x, kind="stable")
    mean, std = (table[name].fillna(0.0).to_numpy()[order] for name in ("mean", "std"))
    axis.errorbar(range(len(x)), mean, yerr=std, color=SERIES[5], marker="o", markersize=5)
    for index in np.flatnonzero(table["declared"].to_numpy()[order]):
        _draw_ring(axis, float(index), mean[index])
    axis.set_xticks(range(len(x)), [f"{x[i]:g}" for i in order])
    axis.set(xlabel=factor.rpartition(".")[2], title=title(table["metric"].iloc[0]))
    axis.margins(x=0.06)
    return figure


def _draw_ring(axis: "Axes", x: float, y: float) -> None:
    """A ring around the variant that is as declared."""
    axis.plot(x, y, "o", markerfacecolor="none", markeredgecolor=INK, markersize=12)


def _map(table: "pd.DataFrame", first: str, second: str) -> "Figure":
    from matplotlib.patches import Rectangle

    values = factors_of(table)
    figure, axes = panels(min(500, 150 + 88 * len(values[second])), 70 + 34 * len(values[first]))
    axis, low, high = axes[0, 0], table["mean"].min(), table["mean"].max()
    sign = 1.0 if higher_is_better(table["metric"].iloc[0]) else -1.0
    for row in table[table["settings"] != "{}"].to_dict("records"):
        settings = json.loads(row["settings"])
        x, y = values[second].index(settings[second]), values[first].index(settings[first])
        shade = 0.5 + sign * ((row["mean"] - low) / ((high - low) or 1.0) - 0.5)
        axis.fill_between(
            [x - 0.48, x + 0.48], y - 0.46, y + 0.46, color=HEAT, alpha=float(0.06 + 0.5 * shade), linewidth=0
        )
        axis.text(
            x, y, f"{row['mean']:.4g}", ha="center", va="center", fontweight="bold" if row["declared"] else "normal"
        )
        if row["declared"]:
            axis.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, fill=False, edgecolor=INK))
    axis.set_xticks(range(len(values[second])), map(str, values[second]))
    axis.set_yticks(range(len(values[first])), map(str, values[first]))
    axis.set(xlim=(-0.5, len(values[second]) - 0.5), ylim=(len(values[first]) - 0.5, -0.5), xlabel=second, ylabel=first)
    axis.grid(visible=False)
    return figure


def _rows(table: "pd.DataFrame") -> "Figure":
    figure, axes = panels(500, 44 + 26 * len(table))
    axis, declared = axes[0, 0], table[table["declared"] == 1]["mean"]
    base = declared.iloc[0] if len(declared) else table["mean"].iloc[0]
    axis.axvline(base, color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
    for row, (mean, std) in enumerate(zip(table["mean"], table["std"].fillna(0.0), strict=True)):
        axis.plot([base, mean], [row, row], color=SERIES[5], linewidth=5, alpha=0.35, solid_capstyle="butt")
        axis.errorbar(mean, row, xerr=std, fmt="o", color=SERIES[5], markersize=7, linewidth=1.5)
        if table["declared"].iloc[row]:
            _draw_ring(axis, mean, row)
    axis.set_yticks(range(len(table)), table["variant"].map(str), color=INK)
    axis.set_ylim(len(table) - 0.5, -0.5)
    axis.margins(x=0.08)
    axis.grid(axis="y", visible=False)
    axis.set_xlabel(title(table["metric"].iloc[0]))
    return figure
