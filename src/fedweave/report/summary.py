"""A study in five lines of words, for the terminal and for the top of the page. They say nothing that the tables do not say."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.report import extras
from fedweave.results import AUC, VARIATION, Study, Tables, shown
from fedweave.results.marks import REFERENCES, outcome, to_control
from fedweave.results.verdicts import listed

SPELLED = 4  # most tasks that are described one by one
FOUND, PARTLY = 0.9, 0.6  # least AUC of a graph that found the groups, and of one that found them in part
ALIKE = 0.05  # variation between rows below which every client gets nearly the same mixture, which is no graph


class Line(NamedTuple):
    """One line: what it is about, its text, and whether it is a warning."""

    topic: str
    text: str
    warning: bool = False


def summary(study: Study, made: Tables) -> list[Line]:
    """The study in five lines: who leads, what collaboration is worth, which graphs found the groups, tuning, convergence."""
    parts = {str(task): part.reset_index(drop=True) for task, part in made.board.groupby("task", sort=False)}
    tests = {task: made.significance[made.significance["task"] == task] for task in parts}
    loud = [said for task, part in parts.items() if (said := _control_as_good(task, part, tests[task]))]
    return [
        Line("Who leads", " ".join([*_joined(loud, len(parts)), *_leaders(parts, tests)]), bool(loud)),
        Line("Against Local", _against_local(parts, tests)),
        Line("True groups", _groups(study, made.measures)),
        Line("Tuning", _tuning(study)),
        _convergence(made.board),
    ]


def _joined(loud: Sequence[str], tasks: int) -> list[str]:
    """What must be said first: that a control does as well; a count where there are many tasks."""
    if len(loud) <= SPELLED:
        return list(loud)
    return [f"CONTROL AS GOOD on {len(loud)} of {tasks} tasks: no method is significantly better than a control there."]


def _control_as_good(task: str, board: pd.DataFrame, tests: pd.DataFrame) -> str:
    """A sentence where no method is significantly better than a control; the controls themselves are no methods here."""
    methods = [name for name in board[board["mean"].notna()]["method"] if name not in REFERENCES]
    scores = board.set_index("method")["mean"]
    for control in board["method"]:  # the best control first
        if control not in REFERENCES or not methods or not np.isfinite(scores[control]):
            continue
        words = {name: word for name, word in _words_against(tests, control).items() if name in methods}
        if not words or "better" in words.values():
            continue
        metric = str(board["metric"].iloc[0])
        numbers = f"{control} {shown(scores[control], np.nan, metric)}, {methods[0]} {shown(scores[methods[0]], np.nan, metric)}"
        open_to = [name for name, word in words.items() if word == "undecided"]
        still = f"; undecided for {listed(open_to)}" if open_to else ""
        return f"CONTROL AS GOOD on {task}: no method is significantly better than {control} ({numbers}{still})."
    return ""


def _words_against(tests: pd.DataFrame, control: str) -> dict[str, str]:
    """Method -> outcome against `control`: in the family of the controls, where it is one of them, else among all pairs."""
    if found := to_control(tests, control):
        return {method: outcome(test, method) for method, test in found.items()}
    pairs = tests[(tests["family"] == "pairs") & ((tests["method"] == control) | (tests["other"] == control))]
    others = (t["other"] if t["method"] == control else t["method"] for t in pairs.to_dict("records"))
    return {other: outcome(test, other) for other, test in zip(others, pairs.to_dict("records"), strict=True)}


def _leaders(parts: dict[str, pd.DataFrame], tests: dict[str, pd.DataFrame]) -> Iterator[str]:
    if len(parts) > SPELLED:
        first = Counter(part["method"].iloc[0] for part in parts.values() if np.isfinite(part["mean"].iloc[0]))
        yield f"Of {len(parts)} tasks, {listed([f'{name} leads on {count}' for name, count in first.most_common()])}."
        return
    for task, part in parts.items():
        row = part.iloc[0]
        if not np.isfinite(row["mean"]):
            yield f"On {task} no method reached a finite score."
            continue
        unit = " %" if row["metric"] == "accuracy" else ""
        led = tests[task][tests[task]["family"] == "leader"]
        behind = [t["other"] for t in led.to_dict("records") if outcome(t, t["method"]) == "better"]
        if len(led):
            ahead = f"significantly ahead of {_counted(behind, len(led))}" if behind else "not significantly ahead of any other method"
        else:
            ahead = "with nothing to compare it with"
        yield f"On {task}, {row['method']} leads with {shown(row['mean'], row['std'], row['metric'])}{unit}, {ahead}."


def _counted(names: Sequence[str], total: int) -> str:
    """All of them, or how many and which."""
    return f"all {total} others" if len(names) == total > 1 else f"{len(names)} of {total} ({listed(names)})"


def _against_local(parts: dict[str, pd.DataFrame], tests: dict[str, pd.DataFrame]) -> str:
    said = [_gain(task, part, tests[task]) for task, part in parts.items() if part["gain"].notna().any()]
    if not said:
        return "Local was not run, so nothing shows whether collaboration helps a client."
    if len(parts) > SPELLED:
        words = [word for part in parts.values() for word in part["vs_local"] if word]
        return (
            f"{words.count('better')} of {len(words)} runs are significantly better than Local, {words.count('worse')} significantly worse."
        )
    return " ".join(said) + " A client gains or loses by its mean over seeds."


def _gain(task: str, board: pd.DataFrame, tests: pd.DataFrame) -> str:
    words = [word for word in board["vs_local"] if word]
    measured = board[board["gain"].notna()]
    best = measured.iloc[0]
    count = int(best["clients"])
    said = [f"{words.count('better')} of {len(words)} methods are significantly better than Local"]
    said += [f"{words.count('worse')} significantly worse"] if "worse" in words else []
    said += [f"{words.count('undecided')} undecided"] if "undecided" in words else []
    text = f"On {task}, {', '.join(said)}; {best['method']}: gain for {int(best['gain'])} of {count} clients, loss for {int(best['loss'])}"
    worst = measured.loc[measured["loss"].idxmax()]
    return text + (f"; most losses: {worst['method']}, {int(worst['loss'])}." if worst["loss"] > best["loss"] else ".")


def _groups(study: Study, measures: pd.DataFrame) -> str:
    rows = measures[measures["quantity"] == AUC]
    if rows.empty:
        return "No task has both known groups and a method with a collaboration graph."
    varied = measures[measures["quantity"] == VARIATION].set_index("run")["value"]
    said = [_found(str(task), part, varied, study) for task, part in rows.groupby("task", sort=False)]
    return " ".join(said[:SPELLED]) + (f" {len(said) - SPELLED} more tasks are in measures.csv." if len(said) > SPELLED else "")


def _found(task: str, rows: pd.DataFrame, varied: pd.Series, study: Study) -> str:
    """Which graphs of a task found its groups; a graph with nearly identical rows is none, whatever its AUC."""
    kinds: dict[str, list[str]] = {"found": [], "partly": [], "missed": [], "alike": []}
    for row in rows.sort_values("value", ascending=False, kind="stable").to_dict("records"):
        auc = row["value"]
        kind = "found" if auc >= FOUND else "partly" if auc >= PARTLY else "missed"
        alike = varied.get(row["run"], np.nan) < ALIKE
        kinds["alike" if alike else kind].append(f"{row['method']} {auc:.2f}")
    sentences = {"found": "found by {}", "partly": "partly by {}", "missed": "not by {}", "alike": "rows nearly identical, so no graph: {}"}
    said = "; ".join(sentences[kind].format(listed(names)) for kind, names in kinds.items() if names)
    return f"On {task}, {_named(study, task)}: {said} (AUC, 0.5 is chance)."


def _named(study: Study, task: str) -> str:
    """The groups of a task by name, if there are few."""
    run = next(run for run in study.runs if run.task == task)
    names = [] if run.group is None else run.group_names(run.group)
    return f"the groups {listed(names)}" if 1 < len(names) <= SPELLED else f"the {len(names)} groups" if names else "the groups"


def _tuning(study: Study) -> str:
    runs = {run.name: run for run in study.runs}
    searches = [found for found in extras.tuning(study.folder) if found.run in runs]
    if not searches:
        return "Untuned: every run has its declared values."
    trials = sorted({len(found.trials) for found in searches})
    each = f"{trials[0]} trials" if len(trials) == 1 else f"{trials[0]} to {trials[-1]} trials"
    changes = {True: [], False: []}  # type: dict[bool, list[float]]
    for found in searches:
        declared = float(found.trials["value"].iloc[0])
        accuracy = runs[found.run].info["metric"] == "accuracy"
        changes[accuracy].append(found.value - declared if accuracy else 100 * (found.value - declared) / declared)
    said = [f"{_median(values):+.1f} {unit}" for kind, unit in ((True, "points"), (False, "% of the error")) if (values := changes[kind])]
    by = f"by a median of {' and '.join(said)}".replace("-", "\N{MINUS SIGN}")
    return f"{each} each for {len(searches)} of {len(runs)} runs; the best trial changed the validation score of the declared values {by}."


def _median(values: Sequence[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return float(np.median(finite)) + 0.0 if finite else 0.0


def _convergence(board: pd.DataFrame) -> Line:
    """A warning that names every method whose best validation round is the last one."""
    late = results.unfinished(board)
    if late.empty:
        return Line("Convergence", "No run had its best validation round at the end in half of its seeds.")
    several = board["task"].nunique() > 1
    if len(late) > 3 * SPELLED:
        names = f"{len(late)} of {len(board)} runs ({listed(list(late['run']))})"
    else:
        named = ((str(task), list(part["method"])) for task, part in late.groupby("task", sort=False))
        names = "; ".join((f"{task}: " if several else "") + ", ".join(methods) for task, methods in named)
    return Line(
        "Convergence", f"NOT CONVERGED, best at the last round in at least half of the seeds: {names}. More rounds may help them.", True
    )
