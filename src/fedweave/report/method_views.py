"""Tables and figures on the methods of one task: weights, diagnostics, groups of clients, traffic."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedweave import plots
from fedweave.plots import SeriesStyle
from fedweave.results import EMPTY, JOINED, MEANING, Run, format_score
from fedweave.results.marks import CONTROLS, control_column

POINTS = {"pre": "as received", "post": "after local training"}
COHORT_POINTS = {JOINED: "as received in their first round", **POINTS}
KINDS = {"collab_weight_self": "oneself", "collab_weight_similar": "similar", "collab_weight_other": "other"}


class PageFigure(NamedTuple):
    """A drawing with its caption, and a drawing for narrow screens, if there is one."""

    title: str
    svg: str
    caption: str = ""
    narrow: str = ""


class TextTable(NamedTuple):
    """A small table of text; numbers are aligned at the right."""

    title: str
    header: list[str]
    rows: list[list[str]]
    caption: str = ""


def diagnostics(runs: Sequence[Run], styles: Mapping[str, SeriesStyle]) -> list[PageFigure]:
    """One figure for every diagnostic, a line for every run that has it."""
    parts = [run.diagnostics.assign(method=run.label) for run in runs if len(run.diagnostics)]
    if not parts:
        return []
    table = pd.concat(parts).groupby(["name", "method", "round"])["value"].agg(["mean", "std"]).reset_index()
    return [
        PageFigure(str(name), plots.convergence(part, styles, str(name)))
        for name, part in table.groupby("name", sort=False)
    ]


def shares(measures: pd.DataFrame) -> Iterable[TextTable]:
    """Weights of oneself, of similar and of other clients, over time and depth: FedAGHN's Table 4."""
    weights = measures[measures["quantity"].isin(list(KINDS))]
    for method, table in weights.groupby("method", sort=False):
        stages = dict(zip(table["stage"], table["round"], strict=True))
        cells = table.set_index(["part", "quantity", "stage"])[["value", "printed"]].sort_index()
        parts = [part for part in dict.fromkeys(table["part"]) if part == "all" or not _equals_all_layers(cells, part)]
        rows = []
        for part, (quantity, kind) in product(parts, KINDS.items()):
            weights_of_kind = [_format_weight(cells.loc[(part, quantity, stage)]) for stage in stages]
            rows.append([kind if part == "all" else f"{kind}, {part} layers", *weights_of_kind])
        when = f"After {', '.join(f'{round:.3g}' for round in stages.values())} rounds."
        printed = " In brackets what the paper prints." if table["printed"].notna().any() else ""
        yield TextTable(str(method), ["weight of", *stages], rows, when + printed)


def _equals_all_layers(cells: pd.DataFrame, part: str) -> bool:
    return bool(
        np.array_equal(cells.loc[part, "value"].to_numpy(), cells.loc["all", "value"].to_numpy(), equal_nan=True)
    )


def _format_weight(cell: pd.Series) -> str:
    text = f"{cell['value']:.4f}" if np.isfinite(cell["value"]) else EMPTY
    return text + (f" ({cell['printed']:.4f})" if np.isfinite(cell["printed"]) else "")


def printed_quantities(measures: pd.DataFrame) -> TextTable | None:
    """Traffic and sizes next to the printed ones."""
    table = measures[~measures["quantity"].isin([*KINDS, *MEANING])]
    if table.empty:
        return None
    rows = [
        [f"{r['quantity']} {r['method']}".strip(), f"{r['value']:,.6g}", f"{r['printed']:,.6g}"]
        for r in table.to_dict("records")
    ]
    return TextTable("Also printed", ["quantity", "ours", "paper"], rows)


def cohorts(table: pd.DataFrame) -> TextTable | None:
    """Scores of newcomers, attackers and the rest, at every point, and outcomes of newcomers against the controls."""
    if table.empty:
        return None
    points = {point: title for point, title in COHORT_POINTS.items() if point in set(table["point"])}
    outcomes = {f"vs {control}": control_column(control) for control in CONTROLS}
    outcomes = {title: column for title, column in outcomes.items() if (table[column] != "").any()}
    rows = []
    for (method, cohort, clients), part in table.groupby(["method", "cohort", "clients"], sort=False):
        scores = {row["point"]: format_score(row["mean"], row["std"], row["metric"]) for row in part.to_dict("records")}
        words = [" ".join(sorted({*part[column]} - {""})) or EMPTY for column in outcomes.values()]
        rows.append([f"{method}: {clients} {cohort}", *(scores.get(point, EMPTY) for point in points), *words])
    return TextTable("Groups of clients", ["clients", *points.values(), *outcomes], rows)


def leak_notes(table: pd.DataFrame, task: str) -> list[str]:
    """A line for every run of the task that trained on test rows."""
    rows = table[(table["leak"] == "training") & (table["task"] == task)]
    start = "trained on test rows and is compared with nothing"
    scores = [format_score(row["mean"], row["std"], row["metric"]) for row in rows.to_dict("records")]
    return [f"{method} {start}: {score}." for method, score in zip(rows["method"], scores, strict=True)]
