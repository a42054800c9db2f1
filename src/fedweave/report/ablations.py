"""Ablations as the page shows them: one card each, and one figure for methods that vary the same number."""

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedweave import plots
from fedweave.plots import SeriesStyle
from fedweave.report import optional_files
from fedweave.report.board import CSS_CLASSES
from fedweave.report.method_views import Figure
from fedweave.results import EMPTY, Study, format_score, statistics
from fedweave.results.formats import with_minus_sign
from fedweave.results.marks import MEANING, SYMBOLS


class Variant(NamedTuple):
    """A row: name, score, worst tenth, difference to the declared run, and its mark with style and title."""

    name: str
    declared: bool
    score: str
    worst10: str
    difference: str
    mark: str
    style: str
    title: str


class Ablation(NamedTuple):
    """One ablation: its figure, its rows, and whether any of them could be compared."""

    figure: Figure
    rows: list[Variant]
    compared: bool


class Ablations(NamedTuple):
    """All ablations of a study: a card for each, and figures over several methods."""

    cards: list[Ablation]
    sweeps: list[Figure]


def views(study: Study, styles: Mapping[str, SeriesStyle]) -> Ablations:
    """The ablations of `study`."""
    table = optional_files.ablations(study.folder)
    cards = [_card(str(name), part) for name, part in table.groupby("ablation", sort=False)]
    return Ablations(cards, list(_sweep_figures(table, styles)))


def _card(name: str, part: pd.DataFrame) -> Ablation:
    first = part.iloc[0]
    figure = Figure(f"{name}: {first['method']} on {first['task']}", plots.ablation(part))
    return Ablation(figure, [_row(row) for row in part.to_dict("records")], bool(part["p_adjusted"].notna().any()))


def _row(row: Mapping[str, object]) -> Variant:
    number = {name: float(str(row[name])) for name in optional_files.NUMBERS}
    metric, tested = str(row["metric"]), np.isfinite(number["p_adjusted"])
    change = format_score(number["difference"], np.nan, metric)
    sign, word = "+" if number["difference"] > 0 else "", _outcome(str(row["verdict"]), number) if tested else ""
    return Variant(
        str(row["variant"]),
        bool(row["declared"]),
        format_score(number["mean"], number["std"], metric),
        format_score(number["worst10"], np.nan, metric),
        with_minus_sign(sign + change) if tested else EMPTY,
        SYMBOLS[word],
        CSS_CLASSES.get(word, ""),
        f"{MEANING[word]}: [{number['low']:+.3g}, {number['high']:+.3g}], p = {number['p_adjusted']:.2g}"
        if tested
        else "",
    )


def _outcome(verdict: str, number: Mapping[str, float]) -> str:
    """The word for a test. The table has a verdict of decided tests only. Of the others, those are undecided where the
    corrected test or the interval finds a difference.
    """
    finds_difference = number["p_adjusted"] < statistics.ALPHA or number["low"] > 0 or number["high"] < 0
    return verdict or ("undecided" if finds_difference else "same")


def _sweep_figures(table: pd.DataFrame, styles: Mapping[str, SeriesStyle]) -> Iterable[Figure]:
    """A figure for every task and number that at least two methods vary."""
    parts: dict[tuple[str, str], list[pd.DataFrame]] = {}
    for _, part in table.groupby("ablation", sort=False):
        part = part[part["settings"] != "{}"]
        factors = plots.factors_of(part)
        if (
            len(factors) == 1
            and (name := next(iter(factors)))
            and all(isinstance(v, int | float) and not isinstance(v, bool) for v in factors[name])
        ):
            x = [float(json.loads(text)[name]) for text in part["settings"]]
            parts.setdefault((str(part["task"].iloc[0]), name), []).append(part.assign(x=x))
    for (task, name), frames in parts.items():
        points = pd.concat(frames).drop_duplicates(["method", "x"])
        if points["method"].nunique() > 1 and {*points["method"]} <= {*styles}:
            yield Figure(
                f"{name.rpartition('.')[2]} on {task}",
                plots.sweep(points, styles, str(points["metric"].iloc[0]), name.rpartition(".")[2]),
            )
