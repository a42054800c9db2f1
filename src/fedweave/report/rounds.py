"""Scores of one task over rounds, traffic and time."""

from collections.abc import Collection, Mapping, Sequence

import pandas as pd

from fedweave import plots, results
from fedweave.metrics import higher_is_better
from fedweave.plots import SeriesStyle
from fedweave.report.method_views import POINTS, PageFigure
from fedweave.results import Run

COSTS = {
    "Test against traffic": "MiB sent so far, both ways",
    "Test against time": "seconds so far, without evaluation",
}


def round_figures(
    curves: pd.DataFrame, runs: Sequence[Run], styles: Mapping[str, SeriesStyle], metric: str, bold: Collection[str]
) -> list[PageFigure]:
    """Scores as reported (each run at its own point), on validation, at all other points, and against costs; the first
    also for narrow screens.

    Args:
        bold: methods that are drawn in colour.
    """
    titles = {"Test, as reported": "test", "Validation: what selection sees": "val"}
    parts = {title: results.reported_curves(curves, runs, split) for title, split in titles.items()}
    for point, title in POINTS.items():
        if {run.info["point"] for run in runs} != {point}:
            parts[f"Test, {title}"] = curves[(curves["split"] == "test") & (curves["point"] == point)]
    grey = " In colour the best methods and the controls, in grey the others." if {*curves["method"]} - {*bold} else ""
    cut = "" if higher_is_better(metric) else " An error far above the others is cut off at the top."
    caption = f"Mean over clients; the band is one standard deviation over seeds.{grey}{cut}"
    first = parts["Test, as reported"]
    tests = first.merge(pd.concat([_cumulative_cost(run) for run in runs]), on=["run", "round"])
    series = [(title, part, "round") for title, part in parts.items()]
    series += [(title, tests, name) for title, name in COSTS.items()]
    narrow = plots.convergence(first, styles, metric, bold=bold, narrow=True) if len(first) else ""
    return [
        PageFigure(title, plots.convergence(part, styles, metric, x, bold), caption, narrow if part is first else "")
        for title, part, x in series
        if len(part)
    ]


def _cumulative_cost(run: Run) -> pd.DataFrame:
    """Traffic and time of a run up to each round, averaged over seeds."""
    totals = run.rounds.groupby("round")[["bytes_up", "bytes_down", "seconds"]].mean().cumsum()
    traffic = (totals["bytes_up"] + totals["bytes_down"]) / results.MIB
    columns = dict(zip(COSTS.values(), (traffic, totals["seconds"]), strict=True))
    return pd.DataFrame(columns).reset_index().assign(run=run.name)
