"""The table of collapsed graphs in docs/graphs.md: every method with a learned graph, on five tasks.

python -m tools.docs.collapse take    measure the graphs in results/collapse, then rewrite the page
python -m tools.docs.collapse         rewrite the page

docs/boards/collapse.csv has the quantities of collapse after the first and the last recorded round, averaged over
seeds and layers.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from fedweave import results
from fedweave.files.atomic import read_table
from fedweave.graphs.quality import FROM_SELF, FROM_UNIFORM, SOURCES, VARIATION, collapse, quality
from fedweave.pipelines import paths
from fedweave.pipelines.processes import run_main
from tools.pages import markdown, refresh, rewrite, store

STUDY = "collapse"
TABLE, PAGE = Path(f"docs/boards/{STUDY}.csv"), Path("docs/graphs.md")
BLOCK = re.compile(r"(<!-- collapse -->\n).*?(<!-- end -->)", re.DOTALL)
QUANTITIES = (SOURCES, FROM_UNIFORM, FROM_SELF, VARIATION)
WHEN = {"first": 0, "last": -1}  # of the recorded rounds


def main(action: str = "") -> None:
    """Rewrite the page; with "take", first measure the graphs."""
    refresh(action, take, lambda: rewrite(PAGE, lambda page: BLOCK.sub(lambda m: m[1] + table() + m[2], page)))


def take() -> None:
    """Store the quantities of collapse of the study's graphs."""
    store(pd.DataFrame(_rows(results.load_study(paths.RESULTS / STUDY))), TABLE, 4)


def _rows(study: results.Study) -> Iterator[dict[str, Any]]:
    for run in study.runs:
        stored = [*results.graphs_by_seed(run).values()]
        for when, index in WHEN.items() if stored else ():
            measured = pd.DataFrame([quality(graphs.weights[index], None, None) for graphs in stored])
            means = measured.reindex(columns=[*QUANTITIES]).mean()
            yield {
                "task": run.task,
                "method": run.label,
                "clients": stored[0].weights.shape[-1],
                "when": when,
                "round": stored[0].rounds[index],
                **means.to_dict(),
                "collapsed": collapse(means[VARIATION], means[FROM_SELF]),
            }


def table() -> str:
    """A row for each method, a column for each task: effective sources after the first and the last round, and how
    the last graph has collapsed.
    """
    needed = ("task", "method", "when", *QUANTITIES)
    rows = read_table(TABLE, needed, "git restore brings it back", **results.AS_WRITTEN)
    cells = rows.set_index(["method", "task", "when"])
    tasks = dict(zip(rows["task"], rows["clients"], strict=True))
    methods = sorted(set(rows["method"]), key=str.casefold)
    header = ["method", *(f"{task} ({clients})" for task, clients in tasks.items())]
    return markdown([header, *([method, *(_cell(cells, method, task) for task in tasks)] for method in methods)])


def _cell(cells: pd.DataFrame, method: str, task: str) -> str:
    if (method, task, "last") not in cells.index:
        return results.EMPTY
    first, last = (cells.loc[(method, task, when)] for when in WHEN)
    word = last["collapsed"]
    numbers = f"{first[SOURCES]:.1f} → {last[SOURCES]:.1f}"
    return f"{numbers}, **{word}**" if isinstance(word, str) and word else numbers


if __name__ == "__main__":
    run_main(main)
