"""The picture of a study over many federations, docs/images/STUDY.png, and docs/boards/STUDY.gains.csv behind it.

python -m tools.docs.gains take    copy the tests against Local and FedAvg-FT from results/natural, then draw
python -m tools.docs.gains         draw

A row is a federation. Differences are parts of the control's error (100 minus the accuracy, or the squared error), so
that federations have one axis; to the right the method has less error.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedweave import results
from fedweave.metrics import METRICS
from fedweave.pipelines import paths
from fedweave.pipelines.processes import run_main
from fedweave.plots.style import LIGHT
from fedweave.results.marks import CONTROLS, control_tests
from fedweave.results.server_records import graphs
from tools.pages import read_stored, refresh, store

STUDY = "natural"
TABLE, PICTURE = Path(f"docs/boards/{STUDY}.gains.csv"), Path(f"docs/images/{STUDY}.png")
LEARNED = "Learned graph"  # the method with a learned graph that has the best validation score
SERIES = {"FedAvg-FT": LIGHT[0], "Partial pooling": LIGHT[2], LEARNED: LIGHT[1]}
MARKS = {"better": "o", "worse": "o", "equivalent": "s", "open": "o"}
FILLED = ("better", "worse")
NUMBERS = ("difference", "low", "high")
GREY = "#555555"
HEIGHT, WIDTH = 0.62, 9.6  # inches of a row and of the picture


def main(action: str = "") -> None:
    """Draw the picture; with "take", first copy what it shows."""
    refresh(action, take, lambda: draw(read()).savefig(PICTURE, dpi=150, metadata={"Software": None}))


def take() -> None:
    """Store the tests of the study against both controls."""
    store(pd.DataFrame(_rows(results.load_study(paths.RESULTS / STUDY))), TABLE)


def read() -> pd.DataFrame:
    """The stored tests."""
    needed = ("task", "method", "control", *NUMBERS)
    return read_stored(TABLE, needed)


def _rows(study: results.Study) -> Iterator[dict[str, Any]]:
    """Every method against both controls on every task: method minus control with its interval, and the verdict.

    `graph` says whether the method learns a graph, and `validation` is its mean validation score.
    """
    tables = results.compute_tables(study)
    for task, runs in results.by_task(study).items():
        board = tables.board[tables.board["task"] == task].set_index("method")
        tests = tables.significance[tables.significance["task"] == task]
        validation = results.validation_means({run.label: run for run in runs})
        learned = {run.label for run in runs if graphs(run) is not None}
        for control in CONTROLS:
            for method, test in control_tests(tests, control).items():
                yield {
                    "task": task,
                    "clients": int(board["clients"].max()),
                    "metric": runs[0].info["metric"],
                    "method": method,
                    "graph": method in learned,
                    "validation": validation[method],
                    "control": control,
                    "control_mean": board["mean"][control],
                    **{name: test[name] for name in (*NUMBERS, "verdict")},
                }


def series(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that are drawn, named as in `SERIES`, with differences in percent of the control's error."""
    higher = rows["metric"].map(lambda metric: METRICS[metric].higher_is_better)
    scores, learned = rows["validation"].where(higher, -rows["validation"]), rows["graph"]
    best = scores[learned].groupby([rows["task"], rows["control"]]).idxmax()
    own = rows["method"].where(rows["method"].isin([*SERIES]))
    drawn = pd.concat([rows.assign(series=own), rows.loc[best].assign(series=LEARNED)]).dropna(subset="series")
    error = drawn["control_mean"].where(~higher, 100 - drawn["control_mean"])
    scale = 100 / error.where(higher, -error)
    return drawn.assign(**{name: drawn[name] * scale for name in NUMBERS})


def draw(rows: pd.DataFrame) -> Figure:
    """A panel for each control: one line for each federation, with the drawn methods one below the other."""
    drawn = series(rows)
    left = drawn[(drawn["control"] == "Local") & (drawn["series"] == "FedAvg-FT")].set_index("task")
    tasks = [*left["difference"].sort_values().index]
    with matplotlib.rc_context({"font.size": 11, "svg.fonttype": "none"}):
        figure = Figure(figsize=(WIDTH, HEIGHT * len(tasks) + 1.3), facecolor="white", layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for axis, control in zip(axes, CONTROLS, strict=True):
            _draw_panel(axis, drawn[drawn["control"] == control], tasks, control)
        axes[0].set_yticks(range(len(tasks)), [f"{task} ({left['clients'][task]})" for task in tasks])
        figure.legend(handles=_legend(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def _draw_panel(axis: Axes, rows: pd.DataFrame, tasks: list[str], control: str) -> None:
    names = [name for name in SERIES if name != control]
    for row in rows[rows["series"].isin(names)].to_dict("records"):
        y = tasks.index(row["task"]) + 0.22 * ((len(names) - 1) / 2 - names.index(row["series"]))
        color = SERIES[row["series"]]
        axis.plot([row["low"], row["high"]], [y, y], color=color, linewidth=1.8, solid_capstyle="round")
        axis.plot([row["difference"]], [y], **_mark(row["verdict"], color))
    axis.axvline(0, color="#444444", linewidth=1)
    axis.set_title(f"Less error than {control}, %", loc="left", fontsize=11)
    axis.grid(axis="x", color="#dddddd", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(length=0)


def _mark(verdict: str, color: str) -> dict[str, Any]:
    face = color if verdict in FILLED else "white"
    return {"marker": MARKS[verdict], "linestyle": "", "color": color, "markerfacecolor": face, "markersize": 7}


def _legend() -> list[Line2D]:
    titles = {name: name for name in SERIES} | {LEARNED: "learned graph, the best of six on validation rows"}
    lines = [Line2D([], [], color=color, label=titles[name]) for name, color in SERIES.items()]
    words = {"better": "better or worse", "equivalent": "equivalent", "open": "open"}
    return [*lines, *(Line2D([], [], label=word, **_mark(verdict, GREY)) for verdict, word in words.items())]


if __name__ == "__main__":
    run_main(main)
