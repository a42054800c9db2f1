"""Results: runs in a folder, their tables, tests and leaderboard."""

from fedweave.graphs.quality import AUC, MEANING, VARIATION
from fedweave.results.cohorts import JOINED, cohorts
from fedweave.results.formats import AS_WRITTEN, EMPTY, format_interval, format_mib, format_score
from fedweave.results.parts import average_parts, part_numbers, scores_by_method
from fedweave.results.quantities import reported_graphs
from fedweave.results.references import (
    POOLED,
    RULE,
    control_rows,
    controls,
    methods_not_above,
    name_unbeaten_control,
    pooling_note,
    unbeaten_control,
)
from fedweave.results.rescoring import rescore
from fedweave.results.runs import Run, Study, by_task, load_run, load_study
from fedweave.results.selection import (
    best_first,
    clients,
    drop_unscored_clients,
    evaluated_rounds,
    reported_curves,
    score_matrix,
    select_scores,
    unconverged_rows,
    validation_means,
    validation_scores,
)
from fedweave.results.server_records import Graphs, graphs, graphs_by_seed, portrait
from fedweave.results.tables import (
    COLUMNS,
    MIB,
    Tables,
    board,
    compute_tables,
    curves,
    dvc_metrics,
    leaderboard_rows,
    significance,
    write,
)
