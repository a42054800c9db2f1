"""Warnings: reasons why the numbers of a comparison may mislead."""

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.comparison.leaderboard import rename_methods
from fedweave.comparison.origin import Origin
from fedweave.comparison.results_folder import notes
from fedweave.errors import format_count, format_value
from fedweave.graphs.quality import COLLAPSES, FROM_SELF, VARIATION, collapse, quality
from fedweave.graphs.setting import is_control
from fedweave.prediction.input_description import read_description
from fedweave.report.answers import UNDER_TRAINED, explain_under_training
from fedweave.results import RULE, format_score, methods_not_above, name_unbeaten_control, unconverged_rows
from fedweave.results.contestants import contestant_notes
from fedweave.results.formats import name_score
from fedweave.results.nonfinite import client_notes
from fedweave.results.selection import progress
from fedweave.results.verdicts import describe_parts, join_names, reason_without_power


def collect_warnings(comparison: Origin) -> list[str]:
    """One line each: no method is above a control, training was too short, clients are too small or too few.

    Args:
        comparison: of one task.
    """
    runs, scores = [*comparison.study.runs], comparison.selected_scores
    lines = [
        *_compare_with_controls(comparison),
        *name_class(comparison.study),
        *_find_unconverged_methods(comparison),
        *_find_collapsed_graphs(comparison),
        *contestant_notes(runs),
        *_find_own_training(comparison),
        *_notes(comparison),
        reason_without_power(runs, scores) or describe_parts(runs, scores),
    ]
    return [line for line in lines if line]


def name_class(study: results.Study) -> list[str]:
    """Whose F1 it is: the second of two names is not always the class that is looked for, such as "stayed"."""
    run = study.runs[0]
    about = read_description(study.folder, run.task)
    names = about.get("classes", ())
    if run.info["metric"] != "f1" or len(names) != 2 or about.get("class_type"):
        return []
    return [
        f"f1 is that of {names[1]!r}; for that of {names[0]!r}, use a label of true and false, or f1_macro for both"
    ]


def _find_own_training(comparison: Origin) -> list[str]:
    """Settings of the training that not all methods share; learning rates, which are tuned, are on the board."""
    training = {name: run.info["spec"]["train"] for name, run in comparison.runs.items()}
    keys = dict.fromkeys(key for settings in training.values() for key in settings if key != "lr")
    lines = []
    for key in keys:
        shown = {name: format_value(settings.get(key)) for name, settings in training.items()}
        if len({*shown.values()}) > 1:
            lines.append(f"terms are not equal: {key} is {', '.join(f'{v} of {n}' for n, v in shown.items())}")
    return lines


def _notes(comparison: Origin) -> list[str]:
    """Warnings about the data; none where the stages of DVC wrote the results, whose report has them."""
    if comparison.federation is not None:
        return notes(comparison.federation)
    return [*read_description(comparison.study.folder, comparison.study.runs[0].task).get("notes", ())]


def _find_unconverged_methods(comparison: Origin) -> list[str]:
    """Methods that have not converged, by the rule of the report."""
    rows = [{"name": name, "seeds": len(run.seeds), **progress(run)} for name, run in comparison.runs.items()]
    unconverged = unconverged_rows(pd.DataFrame(rows)).to_dict("records")
    names = [f"{row['name']} ({row['at_last']} of {format_count(row['seeds'], 'seed')})" for row in unconverged]
    if not names:
        return []
    return [f"the best validation round is the last one for {', '.join(names)}; more rounds may change the result"]


def _find_collapsed_graphs(comparison: Origin) -> list[str]:
    """Methods whose graph has collapsed, by the rule of the report."""
    words = {name: _collapse(run) for name, run in comparison.runs.items()}
    return [f"the graph of {name} has collapsed: {COLLAPSES[word]}" for name, word in words.items() if word]


def _collapse(run: results.Run) -> str:
    graphs = results.graphs(run)
    if graphs is None or is_control(str(run.info["spec"]["method"].get("graph", ""))):
        return ""
    numbers = quality(graphs.weights[-1], None, None)
    return collapse(numbers.get(VARIATION, np.nan), numbers.get(FROM_SELF, np.nan))


def _compare_with_controls(comparison: Origin) -> list[str]:
    """The controls that no method is better than, and the clients that have no score."""
    runs, rules = comparison.study.runs, results.controls(comparison.study)
    board, higher = rename_methods(comparison.board, comparison.runs), runs[0].higher_is_better
    lines = []
    for rule in rules[rules["mean"].notna() & (rules["kind"] == RULE)].to_dict("records")[:1]:
        metric = str(rule["metric"])
        value = name_score(format_score(rule["mean"], np.nan, metric), metric)
        if line := name_unbeaten_control(rules, comparison.board):
            lines.append(line)
        elif below := methods_not_above(board, rule, higher):
            lines.append(f"not better than the control {rule['control']!r} ({value}): {join_names(below)}")
    lines += client_notes(runs, comparison.selected_scores)
    is_local = board["run"].isin([run.name for run in runs if run.info["method"] == "local"])
    order = 1.0 if higher else -1.0
    local, others = (order * board[rows]["mean"].dropna() for rows in (is_local, ~is_local))
    if line := describe_under_training(comparison, rules):
        lines.append(line)
    elif len(local) and len(others) and local.max() >= others.max():
        lines.append("no method is better than local training: collaboration is not shown to pay here")
    return lines


def describe_under_training(comparison: Origin, rules: pd.DataFrame) -> str:
    """Why the methods of one task say nothing about collaboration, with the words of the report; empty if they do."""
    others = [run.name for run in comparison.study.runs if run.info["method"] != "local"]
    if comparison.board.loc[comparison.board["run"].isin(others), "mean"].isna().all():
        return ""
    margin = comparison.study.margin(str(comparison.study.runs[0].info["metric"]))
    reason = explain_under_training(comparison.board, rules, margin)
    return reason and f"{UNDER_TRAINED[0].lower()}{UNDER_TRAINED[1:]}: {reason}"
