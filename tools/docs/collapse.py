"""The tables of collapsed graphs in docs/graphs.md: every method with a learned graph, on five tasks each.

python -m tools.docs.collapse STUDY...    measure the graphs in results/<study>, then rewrite the page
python -m tools.docs.collapse             rewrite the page

docs/boards/<study>.csv has the quantities of collapse after the first and the last recorded round, averaged over
seeds and layers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from fedweave import results
from fedweave.graphs.quality import FROM_SELF, FROM_UNIFORM, SOURCES, VARIATION, collapse, quality
from fedweave.pipelines import paths
from fedweave.pipelines.processes import run_main
from tools.pages import markdown, read_stored, rewrite, store

PAGE = Path("docs/graphs.md")
QUANTITIES = (SOURCES, FROM_UNIFORM, FROM_SELF, VARIATION)
NO_BREAK = "\N{NO-BREAK SPACE}"
WHEN = {"first": 0, "last": -1}  # of the recorded rounds


def main(*studies: str) -> None:
    """Store the quantities of collapse of the graphs of `studies`, and rewrite the page."""
    for study in studies:
        store(pd.DataFrame(_rows(results.load_study(paths.RESULTS / study))), stored(study), 4)
    rewrite(PAGE, collapse=table)


def stored(study: str) -> Path:
    """The file behind the table of a study."""
    return Path(f"docs/boards/{study}.csv")


def _rows(study: results.Study) -> Iterator[dict[str, Any]]:
    for run in study.runs:
        by_seed = [*results.graphs_by_seed(run).values()]
        for when, index in WHEN.items() if by_seed else ():
            measured = pd.DataFrame([quality(graphs.weights[index], None, None) for graphs in by_seed])
            means = measured.reindex(columns=[*QUANTITIES]).mean()
            yield {
                "task": run.task,
                "method": run.label,
                "clients": by_seed[0].weights.shape[-1],
                "when": when,
                "round": by_seed[0].rounds[index],
                **means.to_dict(),
                "collapsed": collapse(means[VARIATION], means[FROM_SELF]),
            }


def table(study: str) -> str:
    """A row for each method, a column for each task: effective sources after the first and the last round, and how
    the last graph has collapsed.
    """
    needed = ("task", "method", "when", *QUANTITIES)
    rows = read_stored(stored(study), needed)
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
    numbers = NO_BREAK.join((_count(first[SOURCES]), "→", _count(last[SOURCES])))
    return f"{numbers} **{word}**" if isinstance(word, str) and word else numbers


def _count(sources: float) -> str:
    return f"{sources:.1f}" if round(sources, 1) < 10 else f"{sources:.0f}"


if __name__ == "__main__":
    run_main(main)
