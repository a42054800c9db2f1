"""Ablations as the page shows them: one card each, and one figure for methods that vary the same number."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedweave import plots
from fedweave.plots import SeriesStyle
from fedweave.report import optional_files
from fedweave.report.board import CSS_CLASSES, describe_comparison
from fedweave.report.method_views import PageFigure
from fedweave.results import Study, format_score
from fedweave.results.formats import format_change
from fedweave.results.marks import SYMBOLS
from fedweave.results.verdicts import join_names


class Ablations(NamedTuple):
    """All ablations of a study: a card for each, and figures over several methods."""

    cards: list[dict[str, Any]]
    sweeps: list[PageFigure]


def views(study: Study, styles: Mapping[str, SeriesStyle]) -> Ablations:
    """The ablations of `study`."""
    table = optional_files.ablations(study.folder)
    cards = [_card(study, str(name), part) for name, part in table.groupby("ablation", sort=False)]
    return Ablations(cards, list(_sweep_figures(table, styles)))


def _card(study: Study, name: str, part: pd.DataFrame) -> dict[str, Any]:
    """One ablation: its figure, its rows, whether any was compared, why there is no verdict, and the margin."""
    first, metric = part.iloc[0], str(part["metric"].iloc[0])
    declared = str(part.loc[part["declared"] == 1, "variant"].iloc[0]) if part["declared"].any() else ""
    over = [word for word in part["over"].unique() if word]
    has_verdict = (part["verdict"] != "").any()
    figure = PageFigure(f"{name}: {first['method']} on {first['task']}", plots.ablation(part))
    return {
        "figure": figure,
        "rows": [_row(row, declared) for row in part.to_dict("records")],
        "compared": bool(part["difference"].notna().any()),
        "reason": "" if has_verdict or not over else f"{join_names(over)}: no verdict",
        "margin": study.margin(metric).describe(metric) if has_verdict else "",
    }


def _row(row: Mapping[str, object], declared: str) -> dict[str, Any]:
    """A variant: scores, difference to the declared run, and its mark with style and title."""
    number = {name: float(str(row[name])) for name in optional_files.NUMBERS}
    metric, word = str(row["metric"]), str(row["verdict"])
    compared = np.isfinite(number["difference"])
    test = {**number, "method": row["variant"], "other": declared, "verdict": word, "over": row["over"]}
    return {
        "name": str(row["variant"]),
        "declared": bool(row["declared"]),
        "score": format_score(number["mean"], number["std"], metric),
        "worst10": format_score(number["worst10"], np.nan, metric),
        "difference": format_change(number["difference"], metric),
        "mark": SYMBOLS[word],
        "style": CSS_CLASSES[word],
        "title": describe_comparison(test, str(row["variant"]), metric) if compared else "",
    }


def _sweep_figures(table: pd.DataFrame, styles: Mapping[str, SeriesStyle]) -> Iterable[PageFigure]:
    """A figure for every task and number that at least two methods vary."""
    parts: dict[tuple[str, str], list[pd.DataFrame]] = {}
    for _, part in table.groupby("ablation", sort=False):
        part = part[part["settings"] != "{}"]
        factors = plots.factors_of(part)
        if len(factors) != 1:
            continue
        ((name, values),) = factors.items()
        if all(map(plots.is_number, values)):
            x = [float(json.loads(text)[name]) for text in part["settings"]]
            parts.setdefault((str(part["task"].iloc[0]), name), []).append(part.assign(x=x))
    for (task, name), frames in parts.items():
        points = pd.concat(frames).drop_duplicates(["method", "x"])
        if points["method"].nunique() > 1 and {*points["method"]} <= {*styles}:
            metric, short = str(points["metric"].iloc[0]), name.rpartition(".")[2]
            yield PageFigure(f"{short} on {task}", plots.sweep(points, styles, metric, short))
