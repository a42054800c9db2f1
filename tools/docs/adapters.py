"""The tables and the picture of docs/adapters-study.md: score against bytes, what adapters cost, and their graphs.

python -m tools.docs.adapters take    copy the groups that graphs show from results/adapters to docs/boards, then
rewrite the page and draw the picture
python -m tools.docs.adapters         rewrite and draw

Take the boards first: python -m tools.docs.boards adapters
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedweave import results
from fedweave.graphs.quality import group_auc
from fedweave.pipelines import paths
from fedweave.pipelines.processes import run_main
from fedweave.plots.style import LIGHT
from fedweave.results import statistics
from fedweave.results.marks import SYMBOLS
from fedweave.results.server_records import graphs_by_seed
from tools.docs.boards import FOLDER
from tools.docs.stored_numbers import CLIENTS
from tools.pages import markdown, read_stored, refresh, rewrite, store

STUDY = "adapters"
BOARD, SCORES, GRAPHS = FOLDER / f"{STUDY}.csv", FOLDER / f"{STUDY}{CLIENTS}", FOLDER / f"{STUDY}.graphs.csv"
PAGE, PICTURE = Path(f"docs/{STUDY}-study.md"), Path(f"docs/images/{STUDY}.png")
DATA = {"names": "names-pieces", "digits": "digits-sites"}
ARMS = {"whole": "whole", "lora": "LoRA", "product": "LoRA, products mixed", "head": "head"}
PAIRS = (("lora", "whole"), ("head", "whole"), ("product", "lora"))
COLORS = dict(zip(ARMS, (LIGHT[0], LIGHT[1], LIGHT[2], LIGHT[3]), strict=True))
METHODS = ("FedAvg", "FedAvg-FT", "FedPer", "FedAGHN", "pFedGraph", "pFedLA", "SHN")
MARKERS = dict(zip(METHODS, "osPD^v*", strict=True))
LOCAL = "Local"
ONE_GRAPH = ("pFedGraph", "SHN")  # for all layers; where a head alone is trained, the graph of another is the head's
COLUMNS = ("data", "arm", "method", "layer", "auc", "std", "chance")
SHUFFLES, CHANCE = 999, 0.95  # of the groups, and the share of them below the number that is given as chance
GREY = "#555555"


def main(action: str = "") -> None:
    """Rewrite the page and draw; with "take", first copy what the graphs show."""
    refresh(action, take, show)


def show() -> None:
    """Rewrite the page and draw its picture."""
    rewrite(PAGE, adapters=table)
    draw(read_board()).savefig(PICTURE, dpi=150, metadata={"Software": None})


def take() -> None:
    """Store how well the graphs of every method and layer show the groups."""
    store(pd.DataFrame(_rate_graphs(results.load_study(paths.RESULTS / STUDY))), GRAPHS)


def table(kind: str, data: str) -> str:
    """A table of the page as Markdown."""
    return {"arms": arms_table, "groups": groups_table}[kind](data)


def read_board() -> pd.DataFrame:
    """The board: a row for each task and method; `data` and `arm` name the task, `mib` is what one seed sends."""
    rows = read_stored(BOARD, ("dataset", "setting", "method", "mean"))
    names = {dataset: name for name, dataset in DATA.items()}
    mib = (rows["bytes_up"] + rows["bytes_down"]) / results.MIB
    method = rows["method"].str.partition(" [")[0]
    return rows.assign(data=rows["dataset"].map(names), arm=rows["setting"], mib=mib, method=method)


def compare_arms(data: str) -> list[statistics.TestedPair]:
    """Every method with one arm against itself with another, over seeds and clients, corrected over all of `PAIRS`."""
    rows = pd.read_csv(SCORES)
    rows = rows[rows["dataset"] == DATA[data]]
    rows = rows.assign(method=rows["method"].str.partition(" [")[0])
    scores = {
        f"{method}|{arm}": part.pivot(index="seed", columns="client", values="value").to_numpy()
        for (arm, method), part in rows.groupby(["setting", "method"], sort=False)
    }
    methods = dict.fromkeys(rows["method"])
    pairs = [(f"{m}|{a}", f"{m}|{b}") for a, b in PAIRS for m in methods if {f"{m}|{a}", f"{m}|{b}"} <= scores.keys()]
    return statistics.compare_pairs(scores, pairs, higher_is_better=True)


def arms_table(data: str) -> str:
    """A row for each method: its score with every arm, and the verdict of each pair of arms."""
    board = read_board()
    board = board[board["data"] == data]
    scores = {(row["method"], row["arm"]): row["mean"] for row in board.to_dict("records")}
    tests = {(test.method, test.other): test for test in compare_arms(data)}
    lines: list[Sequence[str]] = [("method", *ARMS.values(), *(f"{ARMS[a]} vs {ARMS[b]}" for a, b in PAIRS))]
    for method in dict.fromkeys(board["method"]):
        cells = [f"{scores[method, arm]:.1f}" if (method, arm) in scores else "" for arm in ARMS]
        lines.append((method, *cells, *(_verdict(tests.get((f"{method}|{a}", f"{method}|{b}"))) for a, b in PAIRS)))
    return markdown(lines)


def _verdict(test: statistics.TestedPair | None) -> str:
    return f"{SYMBOLS.get(test.verdict, '')} {test.difference:+.1f}" if test else ""


def _rate_graphs(study: results.Study) -> Iterator[dict[str, Any]]:
    """AUC for the own group of every layer of every method with a graph, at the end; and what groups by chance give."""
    for task, runs in results.by_task(study).items():
        data, _, arm = task.rpartition("-")
        for run in runs:
            found = graphs_by_seed(run)
            for i, layer in enumerate(next(iter(found.values())).layers if found else ()):
                name = "fc" if arm == "head" and run.label not in ONE_GRAPH else layer.removesuffix(".lora")
                last = [graph.weights[-1, i] for graph in found.values()]
                group = next(iter(found.values())).group
                if group is not None and all((weights != weights[:1]).any() for weights in last):
                    auc = [group_auc(weights, group) for weights in last]
                    yield dict(
                        zip(COLUMNS, (data, arm, run.label, name, *_spread(auc), _chance(last, group)), strict=True)
                    )


def _spread(values: Sequence[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1))


def _chance(graphs: Sequence[np.ndarray], group: np.ndarray) -> float:
    """The mean AUC over `graphs` that 95 % of shuffled groups stay below."""
    draws = np.random.default_rng(0)
    shuffled = [draws.permutation(group) for _ in range(SHUFFLES)]
    return float(np.quantile([np.mean([group_auc(w, groups) for w in graphs]) for groups in shuffled], CHANCE))


def read_graphs() -> pd.DataFrame:
    """What `take` has stored; `shows` says whether a graph shows the groups better than 95 % of shuffled ones."""
    rows = read_stored(GRAPHS, ("data", "arm", "method", "layer", "auc"))
    return rows.assign(shows=rows["auc"] > rows["chance"])


def groups_table(data: str) -> str:
    """A row for each method and layer: its AUC for the own group with every arm; bold where it is above chance."""
    rows = read_graphs()
    rows = rows[rows["data"] == data]
    arms = [arm for arm in ARMS if arm in {*rows["arm"]}]
    cells = {(row["method"], row["layer"], row["arm"]): _auc(row) for row in rows.to_dict("records")}
    lines: list[Sequence[str]] = [("method", "layer", *(ARMS[arm] for arm in arms))]
    for method, layer in dict.fromkeys(zip(rows["method"], rows["layer"], strict=True)):
        lines.append((method, layer, *(cells.get((method, layer, arm), "") for arm in arms)))
    return markdown(lines)


def _auc(row: Mapping[str, Any]) -> str:
    text = f"{row['auc']:.2f} ± {row['std']:.2f}"
    return f"**{text}**" if row["shows"] else text


def pareto(points: pd.DataFrame) -> pd.DataFrame:
    """The rows of which no other has a better `mean` for as few or fewer `mib`, by `mib`."""
    order = points.sort_values(["mib", "mean"], ascending=[True, False], kind="stable")
    return order[order["mean"] > order["mean"].cummax().shift(fill_value=-np.inf)]


def draw(board: pd.DataFrame) -> Figure:
    """A panel for each data set: score against what all clients send and receive, with the Pareto front."""
    with matplotlib.rc_context({"font.size": 11, "svg.fonttype": "none"}):
        figure = Figure(figsize=(9.6, 5.2), facecolor="white", layout="constrained")
        for axis, data in zip(figure.subplots(1, len(DATA)), DATA, strict=True):
            _draw_panel(axis, board[board["data"] == data], data)
        figure.legend(handles=_legend(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _draw_panel(axis: Axes, board: pd.DataFrame, data: str) -> None:
    sends, local = board[board["mib"] > 0], board[board["method"] == LOCAL]
    for row in local.to_dict("records"):
        axis.axhline(row["mean"], color=COLORS[row["arm"]], linewidth=1, linestyle=":")
    front = pareto(sends)
    axis.step(front["mib"], front["mean"], where="post", color=GREY, linewidth=1, zorder=1)
    for row in sends.to_dict("records"):
        is_best = row["method"] in {*front[front["arm"] == row["arm"]]["method"]}
        color = COLORS[row["arm"]]
        face = color if is_best else "white"
        axis.plot(row["mib"], row["mean"], MARKERS[row["method"]], color=color, markerfacecolor=face, markersize=8)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_title(f"{data}: accuracy, %", loc="left", fontsize=11)
    axis.set_xlabel("MiB sent by and to all clients")
    axis.grid(color="#dddddd", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _legend() -> list[Line2D]:
    arms = [Line2D([], [], color=COLORS[arm], marker="o", linestyle="", label=name) for arm, name in ARMS.items()]
    methods = [
        Line2D([], [], color=GREY, marker=mark, linestyle="", markerfacecolor="white", label=name)
        for name, mark in MARKERS.items()
    ]
    front = Line2D([], [], color=GREY, linestyle="-", label="Pareto front, filled marks")
    local = Line2D([], [], color=GREY, linestyle=":", label="Local, sends nothing")
    return [*arms, *methods, front, local]


if __name__ == "__main__":
    run_main(main)
