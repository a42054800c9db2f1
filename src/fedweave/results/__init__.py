"""Reading a results folder and building its leaderboard."""

from fedweave.federation.graph_quality import AUC, MEANING, VARIATION
from fedweave.results.cached_tables import current, stored
from fedweave.results.formats import AS_WRITTEN, EMPTY, format_score, interval
from fedweave.results.parts import independent, sharing, values
from fedweave.results.quantities import cohorts, measures, reported_graphs
from fedweave.results.references import (
    POOLED,
    RULE,
    control_rows,
    controls,
    not_above,
    sampled,
    unpooled,
    without_score,
)
from fedweave.results.rescoring import rescored
from fedweave.results.runs import Run, Study, by_task, load_run, load_study
from fedweave.results.selection import (
    best_first,
    chosen,
    clients,
    matrix,
    unfinished,
    validation,
    validation_means,
    with_score,
)
from fedweave.results.server_records import Graphs, Portrait, graphs, portrait
from fedweave.results.tables import (
    COLUMNS,
    MIB,
    Tables,
    board,
    curves,
    dvc_metrics,
    leaderboard_rows,
    significance,
    tables,
    write,
)

__all__ = [
    "AS_WRITTEN",
    "AUC",
    "COLUMNS",
    "EMPTY",
    "MEANING",
    "MIB",
    "POOLED",
    "RULE",
    "VARIATION",
    "Graphs",
    "Portrait",
    "Run",
    "Study",
    "Tables",
    "best_first",
    "board",
    "by_task",
    "chosen",
    "clients",
    "cohorts",
    "control_rows",
    "controls",
    "current",
    "curves",
    "dvc_metrics",
    "format_score",
    "graphs",
    "independent",
    "interval",
    "leaderboard_rows",
    "load_run",
    "load_study",
    "matrix",
    "measures",
    "not_above",
    "portrait",
    "reported_graphs",
    "rescored",
    "sampled",
    "sharing",
    "significance",
    "stored",
    "tables",
    "unfinished",
    "unpooled",
    "validation",
    "validation_means",
    "values",
    "with_score",
    "without_score",
    "write",
]
