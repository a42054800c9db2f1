"""A study in five lines of text, for the terminal and for the top of the page. All of it is in the tables too."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.errors import format_count
from fedweave.report import answers, tuning
from fedweave.report.baselines import control_warnings, upper_bound
from fedweave.report.graph_summary import MOST_TASKS, SummaryLine, graph_lines
from fedweave.results import Study, Tables, format_score
from fedweave.results.marks import GRAPH_CONTROL, REFERENCES, control_tests, outcome
from fedweave.results.nonfinite import client_notes
from fedweave.results.verdicts import join_names, short_reason, verdict

MOST_UNCONVERGED = 40  # most runs that a warning names one by one
CONVERGED = "No run had its best validation round at the end in half of its seeds."


def summary(study: Study, tables: Tables) -> list[SummaryLine]:
    """The study in five lines: the leader, the gain by collaboration, graphs that show the groups, tuning,
    convergence; and more where runs differ in their rounds, graphs were compared with controls, or runs that were asked
    for the value of edges have none.
    """
    parts = {str(task): part.reset_index(drop=True) for task, part in tables.board.groupby("task", sort=False)}
    tests = {task: tables.significance[tables.significance["task"] == task] for task in parts}
    runs_by_task = results.by_task(study)
    reasons = {task: reason for task in parts if (reason := short_reason(runs_by_task[task], tests[task]))}
    control_sentences = [text for task, part in parts.items() if (text := _control_as_good(task, part, tests[task]))]
    rule_sentences, leader_below_rule = control_warnings(study, tables)
    notes = [line for runs in runs_by_task.values() for line in client_notes(runs, tables.clients)]
    warnings = _summarise_warnings(control_sentences, len(parts))
    unjudged, leaders = _leaders(study, tables, [*parts], reasons)
    first = [*rule_sentences, *unjudged, *warnings, *leaders, *notes, *upper_bound(study, tables)]
    is_warning = bool(control_sentences or reasons) or leader_below_rule
    under_trained = _under_trained(study, tables, parts)
    return [
        *_under_trained_line(under_trained, len(parts)),
        SummaryLine("Who leads", _order_by_task(first, [*parts]), is_warning),
        *_unequal_rounds(study),
        SummaryLine("Against Local", tuple(_local_sentences(parts, reasons, under_trained))),
        *_deployments(study, tables, [*parts]),
        *graph_lines(study, tables),
        SummaryLine("Tuning", _tuning(study)),
        _convergence(study, tables.board),
    ]


def _under_trained(study: Study, tables: Tables, parts: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """Task whose Local is under-trained -> why."""
    reasons = {}
    for task, part in parts.items():
        controls = tables.controls[tables.controls["task"] == task]
        if why := answers.explain_under_training(part, controls, study.margin(str(part["metric"].iloc[0]))):
            reasons[task] = why
    return reasons


def _under_trained_line(reasons: Mapping[str, str], tasks: int) -> list[SummaryLine]:
    """A warning where Local itself is under-trained, so that nothing is known of what collaboration adds."""
    if tasks > MOST_TASKS:
        sentences = [f"{answers.UNDER_TRAINED} on {len(reasons)} of {tasks} tasks."] if reasons else []
    else:
        sentences = [f"{task}: no statement about collaboration: {why}." for task, why in reasons.items()]
    return [SummaryLine("Under-trained", tuple(sentences), True)] if sentences else []


def _deployments(study: Study, tables: Tables, tasks: Sequence[str]) -> list[SummaryLine]:
    """What to deploy on each task, if there are few."""
    if len(tasks) > MOST_TASKS or all(len(part) == 1 for _, part in tables.board.groupby("task")):
        return []
    found = {task: answers.answer(study, tables, task).deploy for task in tasks}
    return [SummaryLine("Deploy", tuple(f"{task}: {one.word}: {one.reason}." for task, one in found.items()))]


def _order_by_task(sentences: Sequence[str], tasks: Sequence[str]) -> tuple[str, ...]:
    """The sentences about all tasks, and then those about each task, in the order of `tasks`."""

    def place(sentence: str) -> int:
        return next((number for number, task in enumerate(tasks) if sentence.startswith(f"{task}: ")), -1)

    return tuple(sorted(sentences, key=place))


def _tuning(study: Study) -> tuple[str, ...]:
    """What tuning changed: a sentence for each task, if there are few tasks, since units differ between them."""
    parts, sentences = results.by_task(study), tuning.changes(study)
    if len(sentences) == 1 or not 1 < len(parts) <= MOST_TASKS:
        return sentences
    changes = {task: tuning.changes(study._replace(runs=tuple(runs))) for task, runs in parts.items()}
    return tuple(f"{task}: {' '.join(lines)}" for task, lines in changes.items())


def _summarise_warnings(sentences: Sequence[str], tasks: int) -> list[str]:
    """Warnings that no method is shown to be better than a control; a count where there are many tasks."""
    if len(sentences) <= MOST_TASKS:
        return list(sentences)
    start = f"On {len(sentences)} of {tasks} tasks"
    return [f"{start} no method is shown to be better than a control (Local, FedAvg or FedAvg-FT)."]


def _control_as_good(task: str, board: pd.DataFrame, tests: pd.DataFrame) -> str:
    """A sentence if no method is shown to be better than a control; the controls themselves do not count as methods."""
    counted = board[board["mean"].notna() & (board["mark"] != GRAPH_CONTROL)]
    methods = [name for name in counted["method"] if name not in REFERENCES]
    scores = board.set_index("method")["mean"]
    for control in board["method"]:  # the best control first
        if control not in REFERENCES or not methods or not np.isfinite(scores[control]):
            continue
        words = {name: word for name, word in _words_against(tests, control).items() if name in methods}
        if not words or "better" in words.values():
            continue
        metric = str(board["metric"].iloc[0])
        numbers = ", ".join(f"{name} {format_score(scores[name], np.nan, metric)}" for name in (control, methods[0]))
        open_to = [name for name, word in words.items() if word == "open"]
        still = f"; open for {join_names(open_to)}" if open_to else ""
        return f"{task}: no method is shown to be better than the control {control} ({numbers}{still})."
    return ""


def _words_against(tests: pd.DataFrame, control: str) -> dict[str, str]:
    """Method -> outcome against `control`: from the family of the controls if it is one of them, else from all
    pairs.
    """
    if tests_of := control_tests(tests, control):
        return {method: outcome(test, method) for method, test in tests_of.items()}
    pairs = tests[(tests["family"] == "pairs") & ((tests["method"] == control) | (tests["other"] == control))]
    others = (t["other"] if t["method"] == control else t["method"] for t in pairs.to_dict("records"))
    return {other: outcome(test, other) for other, test in zip(others, pairs.to_dict("records"), strict=True)}


def _leaders(
    study: Study, tables: Tables, tasks: Sequence[str], reasons: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """(on the tasks whose design allows no verdict, on the leaders of the others), one sentence for each task; counts
    where there are many.

    Args:
        reasons: task -> why its design allows no verdict.
    """
    if len(tasks) <= MOST_TASKS:
        sentences = {task: f"{task}: {verdict(study, tables, task)}" for task in tasks}
        return [sentences[task] for task in reasons], [sentences[task] for task in tasks if task not in reasons]
    scored = tables.board[tables.board["mean"].notna()].drop_duplicates("task")
    first = [f"{name} leads on {count}" for name, count in Counter(scored["method"]).most_common()]
    why = [f"{count} with {reason.partition(':')[0]}" for reason, count in Counter(reasons.values()).most_common()]
    unjudged = f"No verdict on {len(reasons)} of {len(tasks)} tasks: {join_names(why)}." if why else ""
    return [unjudged] if why else [], [f"Of {len(tasks)} tasks, {join_names(first)}."]


def _unequal_rounds(study: Study) -> list[SummaryLine]:
    """A warning if methods of a task trained for different numbers of rounds; a first stage has additional ones.

    A contestant has one round, in which it does what it wants.
    """
    sentences = []
    for task, every in results.by_task(study).items():
        outside = [run.label for run in every if run.info.get("contestant")]
        sentences += [f"{task}: {label} has a budget of its own." for label in outside]
        runs = [run for run in every if run.label not in outside]
        if not runs:
            continue
        usual = Counter(run.trained_rounds for run in runs).most_common(1)[0][0]
        others: dict[int, list[str]] = {}
        for run in runs:
            others.setdefault(run.trained_rounds, []).append(run.label)
        others.pop(usual)
        counts = [
            f"{rounds} rounds for {join_names(labels)}" for rounds, labels in sorted(others.items(), reverse=True)
        ]
        sentences += [f"{task}: {', '.join(counts)}, {usual} for all others."] if counts else []
    return [SummaryLine("Unequal budgets", tuple(sentences), True)] if sentences else []


def _local_sentences(
    parts: Mapping[str, pd.DataFrame], reasons: Mapping[str, str], under_trained: Mapping[str, str]
) -> Iterator[str]:
    measured = {task: part for task, part in parts.items() if part["gain"].notna().any() or part["vs_local"].any()}
    if not measured:
        ran = any("Local" in set(part["method"]) for part in parts.values())
        reason = "No score could be compared with that of Local" if ran else "Local was not run"
        yield f"{reason}, so nothing shows whether collaboration helps a client."
    elif len(parts) > MOST_TASKS:
        words = [word for part in parts.values() for word in part["vs_local"] if word]
        counts = ", ".join(f"{words.count(word)} {word}" for word in ("worse", "equivalent", "open"))
        yield f"Better than Local: {words.count('better')} of {format_count(len(words), 'run')}; {counts}."
    else:
        for task, part in measured.items():
            yield _gain(task, part, reasons.get(task, "no verdict"), task in under_trained)


def _gain(task: str, board: pd.DataFrame, reason: str, under_trained: bool) -> str:
    """How many methods are better than Local, and how many clients the first of them helps and hurts.

    Args:
        reason: what to say where there is no verdict.
        under_trained: whether Local is, so that a gain over it may be one over bad training.
    """
    words = [word for word in board["vs_local"] if word]
    better = words.count("better")
    methods, verb = format_count(len(words), "method"), "is" if 1 in (better, len(words)) else "are"
    counts = [f"{better} of {methods} {verb} better than Local" if words else reason]
    counts += [f"{words.count(word)} {word}" for word in ("worse", "equivalent", "open") if word in words]
    counts += ["but Local is under-trained"] if better and under_trained else []
    return f"{task}: {', '.join(counts)}{_client_counts(board[board['gain'].notna()])}."


def _client_counts(measured: pd.DataFrame) -> str:
    """The clients that a method helps and hurts, by their mean over seeds: the first one that is better than Local,
    else the first one; empty for a task of several splits.
    """
    if measured.empty:
        return ""
    better = measured[measured["vs_local"] == "better"]
    best = (measured if better.empty else better).iloc[0]
    clients = format_count(int(best["clients"]), "client")
    helped = f"{best['method']}: better scores for {int(best['gain'])} of {clients}, worse for {int(best['loss'])}"
    worst = measured.loc[measured["loss"].idxmax()]
    most = f"; most that are worse: {worst['method']}, {int(worst['loss'])}" if worst["loss"] > best["loss"] else ""
    return f"; {helped}{most}"


def _convergence(study: Study, board: pd.DataFrame) -> SummaryLine:
    """A warning that names every method whose best validation round is the last one."""
    unconverged = results.unconverged_rows(board)
    if unconverged.empty:
        known = any(results.evaluated_rounds(run) > 1 or "progress" in run.info for run in study.runs)
        return SummaryLine(
            "Convergence", (CONVERGED if known else "Not known: each run has scores of one round only.",)
        )
    start = "Not converged: validation was best at the last round in at least half of the seeds"
    if len(unconverged) > MOST_UNCONVERGED or board["task"].nunique() == 1:
        many = f"{len(unconverged)} of {len(board)} runs ({join_names(list(unconverged['run']))})"
        names = many if len(unconverged) > MOST_UNCONVERGED else ", ".join(unconverged["method"])
        return SummaryLine("Convergence", (f"{start}: {names}. More rounds may help them.",), True)
    of_tasks = [f"{task}: {', '.join(part['method'])}." for task, part in unconverged.groupby("task", sort=False)]
    return SummaryLine("Convergence", (f"{start}. More rounds may help:", *of_tasks), True)
