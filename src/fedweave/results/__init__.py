"""Reading a results folder and building its leaderboard."""

from fedweave.results.kept import Graphs, Portrait, graphs, portrait
from fedweave.results.measured import AUC, VARIATION, cohorts, measures, reported_graphs
from fedweave.results.runs import Run, Study, by_task, load_run, load_study
from fedweave.results.selection import chosen, clients, matrix, unfinished
from fedweave.results.stored import current
from fedweave.results.tables import (
    COLUMNS,
    EMPTY,
    MIB,
    Tables,
    board,
    curves,
    dvc_metrics,
    interval,
    leaderboard_rows,
    shown,
    significance,
    tables,
    values,
    write,
)

__all__ = [
    "AUC",
    "COLUMNS",
    "EMPTY",
    "MIB",
    "VARIATION",
    "Graphs",
    "Portrait",
    "Run",
    "Study",
    "Tables",
    "board",
    "by_task",
    "chosen",
    "clients",
    "cohorts",
    "current",
    "curves",
    "dvc_metrics",
    "graphs",
    "interval",
    "leaderboard_rows",
    "load_run",
    "load_study",
    "matrix",
    "measures",
    "portrait",
    "reported_graphs",
    "shown",
    "significance",
    "tables",
    "unfinished",
    "values",
    "write",
]
