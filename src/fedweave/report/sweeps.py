"""Settings that differ in one number, as curves: depth, neighbours, thresholds, clients, shares of attackers or
newcomers.
"""

import re
from collections.abc import Iterable, Mapping

import pandas as pd

from fedweave import plots
from fedweave.plots import SeriesStyle
from fedweave.report.method_views import PageFigure

NUMBER = re.compile(r"(?P<factor>.*?)(?P<x>\d+(?:\.\d+)?)(?: \[.*)?")
MIN_SETTINGS = 3  # settings that make a curve


def sweeps(board: pd.DataFrame, cohorts: pd.DataFrame, styles: Mapping[str, SeriesStyle]) -> list[PageFigure]:
    """A figure for every data set and factor with enough settings: over all clients, and over separate groups of
    them.
    """
    parts = [board.assign(who="")]
    if len(cohorts):
        reported = cohorts[cohorts["reported"]]
        parts.append(reported.assign(who=", " + reported["cohort"]))
    return list(_curves(pd.concat(parts, ignore_index=True), styles))


def _curves(table: pd.DataFrame, styles: Mapping[str, SeriesStyle]) -> Iterable[PageFigure]:
    split = table["setting"].map(NUMBER.fullmatch)
    table = table[split.notna()].assign(
        factor=split.dropna().map(lambda m: m["factor"]), x=split.dropna().map(lambda m: float(m["x"]))
    )
    table = table[table["mean"].notna()]
    for (dataset, factor, metric, who), part in table.groupby(["dataset", "factor", "metric", "who"], sort=False):
        part = part.drop_duplicates(["method", "x"])
        if part["x"].nunique() >= MIN_SETTINGS:
            *prefix, name = str(factor).rstrip("/").split("/")
            title = " ".join([str(dataset), "/".join(prefix)]).strip()
            yield PageFigure(
                f"{title}: {name or 'setting'}{who}", plots.sweep(part, styles, str(metric), name or "setting")
            )
