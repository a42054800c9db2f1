"""The leaderboard of one task as the page shows it: scores, intervals, results of tests, and costs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.errors import format_count
from fedweave.graphs.quality import AUC, EDGES, MASS, PRECISION, SIMILARITY, SOURCES, VARIATION
from fedweave.plots import SeriesStyle
from fedweave.results import EMPTY, Run, format_interval, format_mib, format_score, published, statistics
from fedweave.results.formats import format_change, format_change_interval, format_p, with_minus_sign
from fedweave.results.marks import CONTROLS, MEANING, SYMBOLS, assign_marks, control_column, control_tests, outcome
from fedweave.results.verdicts import describe_needed

POINTS = {"pre": "as received", "post": "after training"}
GRAPHS = {
    AUC: "groups, AUC",
    PRECISION: "groups, AP",
    MASS: "weight on group",
    SIMILARITY: "weight ~ likeness",
    VARIATION: "rows differ",
    SOURCES: "sources",
    EDGES: "weight ~ gain",
}
CSS_CLASSES = {"better": "win", "worse": "loss", "equivalent": "tie", "open": "open", "": ""}


class Cell(NamedTuple):
    """One cell: its text, its key for sorting, its CSS class and its tooltip."""

    text: str
    key: float | str = ""
    style: str = ""
    title: str = ""


class BoardRow(NamedTuple):
    """One method on one task, ready to print."""

    method: str
    series: int
    mark: str
    score: Cell
    interval: Mapping[str, float]
    span: Cell
    cells: Mapping[str, Cell]
    remark: str


def leader_tests(significance: pd.DataFrame) -> pd.DataFrame:
    """The tests of a task's leader, by the other method."""
    return significance[significance["family"] == "leader"].set_index("other", drop=False)


def columns_of(board: pd.DataFrame, runs: Sequence[Run], significance: pd.DataFrame) -> list[tuple[str, str]]:
    """Key and title of every column with content, in addition to method, score and interval.

    Args:
        significance: the tests of the task.
    """
    columns = [
        (control_column(control), f"vs {control}")
        for control in CONTROLS
        if (board[control_column(control)] != "").any()
    ]
    columns += [("gain", "gain / loss")] if board["gain"].notna().any() else []
    columns += [("pooled", "pooled")] if board["pooled"].notna().any() else []
    columns += [(name, title) for name, title in POINTS.items() if board[name].notna().any()]
    columns += [("worst10", "worst 10 %"), ("spread", "± clients")]
    columns += [("gap", "against leader")] if len(runs) > 1 else []
    columns += [("p", "p")] if (leader_tests(significance)["p_adjusted"].notna()).any() else []
    columns += [(name, title) for name, title in GRAPHS.items() if board[name].notna().any()]
    columns += [("best", "best round")]
    if board["published_mean"].notna().any():
        columns += [("printed", "paper"), ("off", "against paper")]
    columns += [("point", "evaluated")] if len({run.info["point"] for run in runs}) > 1 else []
    return [*columns, ("mib", "MiB"), ("seconds", "seconds")]


def rows_of(
    board: pd.DataFrame, runs: Sequence[Run], significance: pd.DataFrame, styles: Mapping[str, SeriesStyle]
) -> Iterator[BoardRow]:
    """A row for every run of `board`, in its order; `significance` has the tests of the task."""
    marks, unconverged = assign_marks(board, significance), {*results.unconverged_rows(board)["run"]}
    low, high = score_range(board)
    scale, leader = 100 / (high - low), float(board["mean"].iloc[0])
    tests = {str(test["other"]): test for test in leader_tests(significance).to_dict("records")}
    controls = {control: control_tests(significance, control) for control in CONTROLS}
    for run, row in zip(runs, board.to_dict("records"), strict=True):
        method, a, b = row["method"], row["low"], row["high"]
        bar = {"left": (a - low) * scale, "width": (b - a) * scale, "at": (row["mean"] - low) * scale}
        bar = bar if np.isfinite(a) else {}
        test = tests.get(method)
        numbers = _numbers(row, leader) | {"p": float(test["p_adjusted"]) if test else np.nan}
        title = describe_comparison(test, method, row["metric"]) if test else ""
        cells = {
            key: Cell(_text(key, value, row), value, title=title * (key in ("gap", "p")))
            for key, value in numbers.items()
        }
        cells |= {
            control_column(control): _control_cell(tests_of.get(method), row["metric"])
            for control, tests_of in controls.items()
        }
        cells |= {"gain": _gain_cell(row), "best": _best_round_cell(row, row["run"] in unconverged)}
        cells["point"] = Cell({"pre": "received", "post": "trained"}.get(run.info["point"], ""))
        has_printed = pd.notna(row["published_mean"])
        remark = published.remark(run.reference, run.printed_label) if run.reference and has_printed else ""
        text = format_score(row["mean"], row["std"], row["metric"]) if marks[method] != "diverged" else "diverged"
        score, interval = Cell(text, row["mean"], title=title), Cell(format_interval(a, b, row["metric"]))
        yield BoardRow(method, styles[method].series, marks[method], score, bar, interval, cells, remark)


def score_range(board: pd.DataFrame) -> tuple[float, float]:
    """The lowest and the highest end of the intervals of a task, or of the scores where there are no intervals."""
    ends = board[["low", "high", "mean"]].to_numpy(dtype=float)
    ends = ends[np.isfinite(ends)]
    low, high = (float(ends.min()), float(ends.max())) if ends.size else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def describe_comparison(test: Mapping[str, Any], method: str, metric: str) -> str:
    """A test in words, from the side of `method`: verdict, difference, interval, p, margin; of an open one also how
    many seeds would decide.
    """
    word, side = outcome(test, method), 1 if method == test["method"] else -1
    low, high = sorted((side * test["low"], side * test["high"]))
    over = " over clients" if test["over"] in (statistics.ONE_SEED, statistics.CLIENTS) else ""
    parts = [
        f"{method} against {test['other'] if side == 1 else test['method']}: "
        f"{format_change(side * test['difference'], metric)}",
        f"95 % interval{over} {format_change_interval(low, high, metric)}",
    ]
    if word:
        parts += [f"p = {test['p_adjusted']:.2g}", f"margin {format_score(test['margin'], np.nan, metric)}"]
    reason = f": {test['over']}" if not word else ""
    needed = f"; {describe_needed([test])}" if word == statistics.OPEN else ""
    return f"{MEANING[word]}{reason}; {', '.join(parts)}{needed}"


def _numbers(row: Mapping[str, Any], leader: float) -> dict[str, float]:
    """Key of a column -> its number."""
    return {
        "pooled": row["pooled"],
        "pre": row["pre"],
        "post": row["post"],
        "worst10": row["worst10"],
        "spread": row["client_std"],
        "gap": row["mean"] - leader,
        "printed": row["published_mean"],
        "off": row["mean"] - row["published_mean"],
        "mib": (row["bytes_up"] + row["bytes_down"]) / results.MIB,
        "seconds": row["seconds"],
        **{name: row[name] for name in GRAPHS},
    }


def _text(key: str, value: float, row: Mapping[str, Any]) -> str:
    if not np.isfinite(value) or (key == "gap" and value == 0):
        return EMPTY
    if key == "p":
        return format_p(value)
    if key in GRAPHS:
        return with_minus_sign(f"{value:.2f}")
    if key == "mib":
        return format_mib(value)
    if key == "seconds":
        return f"{value:,.1f}"
    if key == "printed":
        return format_score(value, row["published_std"], row["metric"])
    if key in ("gap", "off"):
        return format_change(value, row["metric"])
    return with_minus_sign(format_score(value, np.nan, row["metric"]))


def _control_cell(test: Mapping[str, Any] | None, metric: str) -> Cell:
    """A test against a control: mark and difference; the rest in the tooltip."""
    word = outcome(test, test["method"]) if test else ""
    if not test or not word:
        return Cell("")
    title = f"{describe_comparison(test, test['method'], metric)} (corrected over the tests against controls)"
    text = f"{SYMBOLS[word]} {format_change(test['difference'], metric)}"
    return Cell(text, float(test["difference"]), CSS_CLASSES[word], title)


def _gain_cell(row: Mapping[str, Any]) -> Cell:
    if not np.isfinite(row["gain"]):
        return Cell("")
    clients = format_count(int(row["clients"]), "client")
    title = f"of {clients}; a client gains where its mean over seeds is better than with Local"
    return Cell(f"{row['gain']:.0f} / {row['loss']:.0f}", row["gain"] - row["loss"], "", title)


def _best_round_cell(row: Mapping[str, Any], is_unconverged: bool) -> Cell:
    if not np.isfinite(row["best_round"]):
        return Cell(EMPTY)
    text, seeds = f"{row['best_round']:.0f}", f"{row['at_last']:.0f} of {format_count(int(row['seeds']), 'seed')}"
    if not is_unconverged:
        return Cell(text, row["best_round"])
    title = f"not converged: validation was best at the last round in {seeds}"
    return Cell(f"{text} (last)", row["best_round"], "loss", title)
