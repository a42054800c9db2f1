"""The three answers for a task, each in a line: which method is best, whether collaboration pays, what to deploy."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.errors import format_count
from fedweave.metrics import Margin, higher_is_better, unit
from fedweave.results import Study, Tables, format_interval, format_score
from fedweave.results.formats import name_score
from fedweave.results.gains import LOCAL
from fedweave.results.marks import GRAPH_CONTROL, NOTHING_SHOWN, control_tests
from fedweave.results.references import POOLED
from fedweave.results.verdicts import describe_needed, join_names, short_reason
from fedweave.runs.control_names import BOOSTED, LINEAR

PER_CLIENT = (LINEAR, BOOSTED)  # controls that learn from the rows of one client, as Local does
UNDER_TRAINED = "Under-trained: no statement about collaboration"


class Answer(NamedTuple):
    """A question, its answer in a word or two, the reason, and a class of the style sheet."""

    question: str
    word: str
    reason: str
    style: str


class TaskAnswers(NamedTuple):
    """The answers for one task.

    Attributes:
        method: what to deploy; empty where nothing can be said.
    """

    best: Answer
    pays: Answer
    deploy: Answer
    method: str


def answer(study: Study, tables: Tables, task: str) -> TaskAnswers:
    """The answers for a task, which claim no more than its tests do.

    Collaboration pays if a method is better than Local, by the tests against controls. Of the leader and the methods
    that are equivalent to it, each shown to be better than Local, the one that sends the fewest bytes is deployed. If
    the leader itself is not shown to be better than Local, it is the first method that is. If none is, it is Local.
    """
    board, tests = (table[table["task"] == task] for table in (tables.board, tables.significance))
    board = board[board["mean"].notna() & (board["mark"] != GRAPH_CONTROL)]
    if board.empty:
        why = "no method reached a finite score"
        pays, deploy = Answer("Does collaboration pay?", "Open", why, "open"), Answer("Deploy", "Nothing", why, "loss")
        return TaskAnswers(Answer("Best", "None", why, "loss"), pays, deploy, "")
    reason = short_reason(results.by_task(study)[task], tests)
    controls = tables.controls[tables.controls["task"] == task]
    margin = study.margin(str(board["metric"].iloc[0]))
    pays = _pays(board, tests, reason, explain_under_training(board, controls, margin))
    deploy = _deploy(board, pays.word, reason)
    best = _name_unbeaten_controls(_best(board, reason), board, controls)
    return TaskAnswers(best, pays, deploy, deploy.word if deploy.style else "")


def _name_unbeaten_controls(best: Answer, board: pd.DataFrame, controls: pd.DataFrame) -> Answer:
    """The answer `best` after the control that is better than every method, and before one that is not federated."""
    if found := results.unbeaten_control(board, controls):
        word = f"No method is better than the control {found[0]}"
        best = best._replace(word=word, reason=f"it has {found[1]}; {best.word} {best.reason}", style="loss")
    if found := results.unbeaten_control(board, controls, POOLED):
        best = best._replace(reason=f"{best.reason}; {found[0]}, not federated, has {found[1]}")
    return best


def _best(board: pd.DataFrame, reason: str) -> Answer:
    """The leader, and which methods are not shown to be worse."""
    row = board.iloc[0]
    score = name_score(format_score(row["mean"], np.nan, row["metric"]), str(row["metric"]))
    others = {word: list(board[board["mark"] == word]["method"]) for word in ("equivalent", "open")}
    if row["mark"] == "alone":
        text, style = f"{score}; there is nothing to compare it with", ""
    elif reason:
        text, style = f"has the best mean, {score}; {reason}", "open"
    elif row["mark"] == "best":
        text, style = f"{score}, better than every other method", "win"
    else:
        words = [f"{join_names(others['equivalent'])} equivalent"] if others["equivalent"] else []
        words += [f"open against {join_names(others['open'])}"] if others["open"] else []
        rest = "; ".join(words) or "not shown to be better than every other method"
        text, style = f"leads with {score}; {rest}", "open"
    return Answer("Best", str(row["method"]), text, style)


def _pays(board: pd.DataFrame, tests: pd.DataFrame, reason: str, under_trained: str) -> Answer:
    """Whether a method is better than Local.

    Args:
        reason: why there is no verdict.
        under_trained: why the scores say nothing.
    """
    question, local = "Does collaboration pay?", board[board["method"] == LOCAL]
    words = board[board["vs_local"] != ""]
    if local.empty:
        return Answer(question, "Not measured", "Local was not run, or has no finite score", "open")
    if under_trained:
        return Answer(question, UNDER_TRAINED, under_trained, "open")
    if reason or words.empty:
        return Answer(question, "Open", reason or "nothing was compared with Local", "open")
    against = control_tests(tests, LOCAL)
    better = words[words["vs_local"] == "better"]
    if len(better):
        row = better.iloc[0]
        text = f"{row['method']} is {_difference(against[row['method']], row)}{_clients(row)}"
        return Answer(question, "Yes", text, "win")
    undecided = words[words["vs_local"] == "open"]
    if len(undecided):
        row = undecided.iloc[0]
        needed = describe_needed([against[row["method"]]])
        return Answer(question, "Open", f"{row['method']}: {NOTHING_SHOWN}; {needed}", "open")
    counts = [f"{count} {word}" for word, count in words["vs_local"].value_counts().items()]
    return Answer(question, "No", f"no method is better than Local: {join_names(counts)}", "loss")


def explain_under_training(board: pd.DataFrame, controls: pd.DataFrame, margin: Margin) -> str:
    """Why the scores of a task say nothing about collaboration; empty if they do.

    Local itself would have gained from more rounds, or it is worse, by more than the margin of equivalence, than what
    an analyst would fit to each client alone. A gain over such a Local may be a gain over bad training.

    Args:
        board, controls: of the task.
    """
    local = board[board["method"] == LOCAL]
    if local.empty:
        return ""
    row = local.iloc[0]
    if len(results.unconverged_rows(local)):
        seeds = f"{row['at_last']:.0f} of {format_count(int(row['seeds']), 'seed')}"
        return f"the best validation score of Local was in the last round in {seeds}; train longer"
    alone = controls[controls["control"].isin(PER_CLIENT) & controls["mean"].notna()]
    if alone.empty or not np.isfinite(row["mean"]):
        return ""
    control, metric = alone.iloc[0], str(row["metric"])  # the best one is the first
    sign = 1.0 if higher_is_better(metric) else -1.0
    if sign * (control["mean"] - row["mean"]) <= margin.of(control["mean"], row["mean"]):
        return ""
    pair = " against ".join(format_score(mean, np.nan, metric) for mean in (row["mean"], control["mean"]))
    scores = name_score(pair, metric)
    return f"Local is worse than {control['control']!r} ({scores}); search the learning rate, train longer"


def _deploy(board: pd.DataFrame, pays: str, reason: str) -> Answer:
    """The method to deploy, and why."""
    if pays == UNDER_TRAINED:
        return Answer("Deploy", "Nothing yet", "the methods are under-trained", "")
    if pays == "Not measured" or reason:
        return Answer("Deploy", "Open", reason or "without Local, nothing shows what collaboration is worth", "")
    if pays != "Yes":
        return Answer("Deploy", LOCAL, "no method is shown to be better, and it sends nothing", "open")
    is_better, as_good = board["vs_local"] == "better", board["mark"].isin(["best", "lead", "equivalent"])
    better, equal = board[is_better], board[is_better & as_good]
    if equal.empty:
        which = "the only method" if len(better) == 1 else f"the first of {len(better)} methods"
        return Answer("Deploy", str(better["method"].iloc[0]), f"{which} that is shown to be better than Local", "win")
    sent = equal["bytes_up"] + equal["bytes_down"]
    row = equal.loc[sent.idxmin()]
    traffic = f"{results.format_mib(sent.min() / results.MIB)} MiB a seed"
    if len(equal) > 1:
        why = f"the least traffic ({traffic}) of {len(equal)} equivalent methods"
    elif as_good.sum() > 1:
        only = f"the only one of {as_good.sum()} equivalent methods"
        why = f"{only} that is shown to be better than Local; it sends {traffic}"
    else:
        why = f"no other method is shown to be as good; it sends {traffic}"
    return Answer("Deploy", str(row["method"]), why, "win")


def _difference(test: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """A difference from Local in words: "9.44 points better than Local (95 % interval 3.20 to 15.7)"."""
    metric, sign = row["metric"], np.sign(test["difference"])
    low, high = sorted((sign * test["low"], sign * test["high"]))
    size = format_score(abs(test["difference"]), np.nan, metric)
    direction = "lower" if test["difference"] < 0 else "higher"
    words = f"{size} points better than Local" if unit(metric) else f"better than Local, {size} {direction} in {metric}"
    return f"{words} (95 % interval {format_interval(low, high, metric)})"


def _clients(row: Mapping[str, Any]) -> str:
    """How many clients score better and worse, untested; empty where clients are not the same in every split."""
    if not np.isfinite(row["gain"]):
        return ""
    clients = format_count(int(row["clients"]), "client")
    return f"; {int(row['gain'])} of {clients} score better, {int(row['loss'])} worse"
