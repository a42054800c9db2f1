"""The leaderboard of one task as the page shows it: scores, intervals, results of tests, and costs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.errors import format_count
from fedweave.federation.graph_quality import AUC, EDGES, MASS, PRECISION, SIMILARITY, VARIATION
from fedweave.plots import SeriesStyle
from fedweave.results import EMPTY, Run, format_interval, format_score, published
from fedweave.results.formats import format_difference, format_difference_interval, with_minus_sign
from fedweave.results.marks import CONTROLS, MEANING, SYMBOLS, assign_marks, control_column, control_tests, outcome

POINTS = {"pre": "as received", "post": "after training"}
GRAPHS = {
    AUC: "groups, AUC",
    PRECISION: "groups, AP",
    MASS: "weight on group",
    SIMILARITY: "weight ~ likeness",
    VARIATION: "rows differ",
    EDGES: "weight ~ gain",
}
CSS_CLASSES = {"better": "win", "worse": "loss", "undecided": "open", "same": "quiet"}


class Cell(NamedTuple):
    """One cell: its text, its key for sorting, its CSS class and its tooltip."""

    text: str
    key: float | str = ""
    style: str = ""
    title: str = ""


class Row(NamedTuple):
    """One method on one task, ready to print."""

    method: str
    series: int
    mark: str
    score: Cell
    interval: Mapping[str, float]
    span: Cell
    cells: Mapping[str, Cell]
    remark: str


def columns_of(board: pd.DataFrame, runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Key and title of every column with content, in addition to method, score and interval."""
    columns = [
        (control_column(control), f"vs {control}")
        for control in CONTROLS
        if (board[control_column(control)] != "").any()
    ]
    columns += [("gain", "gain / loss")] if board["gain"].notna().any() else []
    columns += [("pooled", "pooled")] if board["pooled"].notna().any() else []
    columns += [(name, title) for name, title in POINTS.items() if board[name].notna().any()]
    columns += [("worst10", "worst 10 %"), ("spread", "± clients")]
    columns += (
        [("gap", "to leader"), ("p", "p, splits" if runs[0].has_splits else "p, clients")] if len(runs) > 1 else []
    )
    columns += [("seeds", "p, seeds")] if runs[0].evaluations["seed"].nunique() > 1 and len(runs) > 1 else []
    columns += [(name, title) for name, title in GRAPHS.items() if board[name].notna().any()]
    columns += [("best", "best round")]
    if board["published_mean"].notna().any():
        columns += [("printed", "paper"), ("off", "ours \N{MINUS SIGN} paper")]
    columns += [("point", "evaluated")] if len({run.info["point"] for run in runs}) > 1 else []
    return [*columns, ("mib", "MiB"), ("seconds", "seconds")]


def rows_of(
    board: pd.DataFrame, runs: Sequence[Run], significance: pd.DataFrame, styles: Mapping[str, SeriesStyle]
) -> Iterator[Row]:
    """A row for every run of `board`, in its order; `significance` has the tests of the task."""
    marks, unconverged = assign_marks(board, significance), {*results.unconverged_rows(board)["run"]}
    ends = board[["low", "high"]].to_numpy(dtype=float)
    low, high = (np.nanmin(ends), np.nanmax(ends)) if np.isfinite(ends).any() else (0.0, 1.0)
    scale, leader = 100 / ((high - low) or 1.0), float(board["mean"].iloc[0])
    tests = significance[significance["family"] == "leader"].set_index("other")
    controls = {control: control_tests(significance, control) for control in CONTROLS}
    for run, row in zip(runs, board.to_dict("records"), strict=True):
        method, a, b = row["method"], row["low"], row["high"]
        bar = (
            {"left": (a - low) * scale, "width": (b - a) * scale, "at": (row["mean"] - low) * scale}
            if np.isfinite(a)
            else {}
        )
        cells = {key: Cell(_text(key, value, row), value) for key, value in _numbers(row, leader, tests).items()}
        cells |= {
            control_column(control): _control_cell(tests_of.get(method), row["metric"])
            for control, tests_of in controls.items()
        }
        cells |= {"gain": _gain_cell(row), "best": _best_round_cell(row, row["run"] in unconverged)}
        cells["point"] = Cell({"pre": "received", "post": "trained"}.get(run.info["point"], ""))
        remark = (
            published.remark(run.reference, run.printed_label)
            if run.reference and pd.notna(row["published_mean"])
            else ""
        )
        score = Cell(
            "diverged" if marks[method] == "diverged" else format_score(row["mean"], row["std"], row["metric"]),
            row["mean"],
        )
        interval = Cell(format_interval(a, b, row["metric"]))
        yield Row(method, styles[method].series, marks[method], score, bar, interval, cells, remark)


def _numbers(row: Mapping[str, Any], leader: float, tests: pd.DataFrame) -> dict[str, float]:
    """Key of a column -> its number."""
    p = {
        key: float(tests[name].get(row["method"], np.nan))
        for key, name in (("p", "p_adjusted"), ("seeds", "p_seeds_adjusted"))
    }
    return p | {
        "pooled": row["pooled"], "pre": row["pre"], "post": row["post"],
        "worst10": row["worst10"], "spread": row["client_std"], "gap": row["mean"] - leader,
        "printed": row["published_mean"], "off": row["mean"] - row["published_mean"],
        "mib": (row["bytes_up"] + row["bytes_down"]) / results.MIB, "seconds": row["seconds"],
        **{name: row[name] for name in GRAPHS},
    }  # fmt: skip


def _text(key: str, value: float, row: Mapping[str, Any]) -> str:
    if not np.isfinite(value) or (key == "gap" and value == 0):
        return EMPTY
    if key in ("p", "seeds"):
        return "< 0.001" if value < 0.001 else f"{value:.3f}"
    if key in GRAPHS:
        return with_minus_sign(f"{value:.2f}")
    if key in ("mib", "seconds"):
        return f"{value:,.1f}"
    if key == "printed":
        return format_score(value, row["published_std"], row["metric"])
    return (
        format_difference(value, row["metric"])
        if key in ("gap", "off")
        else with_minus_sign(format_score(value, np.nan, row["metric"]))
    )


def _control_cell(test: Mapping[str, Any] | None, metric: str) -> Cell:
    """A test against a control: mark and difference; interval and p in the tooltip."""
    word = outcome(test, test["method"]) if test else ""
    if not test or not word:
        return Cell("")
    ends = format_difference_interval(test["low"], test["high"], metric)
    title = (
        f"{MEANING[word]}; 95 % interval of the difference {ends}, "
        f"p = {test['p_adjusted']:.2g} among the tests against controls"
    )
    return Cell(
        f"{SYMBOLS[word]} {format_difference(test['difference'], metric)}",
        float(test["difference"]),
        CSS_CLASSES[word],
        title,
    )


def _gain_cell(row: Mapping[str, Any]) -> Cell:
    if not np.isfinite(row["gain"]):
        return Cell("")
    title = (
        f"of {format_count(int(row['clients']), 'client')}; a client gains where its mean over seeds is "
        "better than with Local"
    )
    return Cell(f"{row['gain']:.0f} / {row['loss']:.0f}", row["gain"] - row["loss"], "", title)


def _best_round_cell(row: Mapping[str, Any], is_unconverged: bool) -> Cell:
    if not np.isfinite(row["best_round"]):
        return Cell(EMPTY)
    title = (
        f"not converged: validation was best at the last round in {row['at_last']:.0f} of "
        f"{format_count(int(row['seeds']), 'seed')}"
        if is_unconverged
        else ""
    )
    return Cell(
        f"{row['best_round']:.0f}" + (" (last)" if is_unconverged else ""),
        row["best_round"],
        "loss" if is_unconverged else "",
        title,
    )
