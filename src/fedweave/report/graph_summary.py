"""What a study shows about collaboration graphs, in sentences: true groups, collapse, and whether learning helps."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pandas as pd

from fedweave import results
from fedweave.graphs.quality import COLLAPSES, FROM_SELF, collapse
from fedweave.graphs.setting import is_control
from fedweave.results import AUC, VARIATION, Run, Study, Tables
from fedweave.results.formats import format_change, format_change_interval
from fedweave.results.marks import outcome
from fedweave.results.verdicts import join_names

MOST_TASKS = 4  # most tasks that are described one by one
RECOVERED, PARTLY = 0.9, 0.6  # least AUC of a graph that shows the groups, or a part of them
LEARNED = {
    "better": "the learned graph is better than",
    "worse": "the learned graph is worse than",
    "equivalent": "equivalent to",
    "open": "open against",
    "": "no verdict against",
}


class SummaryLine(NamedTuple):
    """One line: its title, its sentences (one per task, if there are few tasks), and whether it is a warning."""

    topic: str
    sentences: tuple[str, ...]
    warning: bool = False

    @property
    def text(self) -> str:
        """All sentences as one text."""
        return " ".join(self.sentences)


def graph_lines(study: Study, tables: Tables) -> list[SummaryLine]:
    """The lines on true groups, collapsed graphs, graphs against their controls, and values of edges not measured."""
    learned = [run.name for run in study.runs if not is_control(_graph(run))]
    measures = tables.measures[(tables.measures["part"] == "all") & tables.measures["run"].isin(learned)]
    collapsed = collapsed_graphs(measures)
    return [
        SummaryLine("True groups", tuple(_groups(study, measures, collapsed))),
        *_collapses(measures, collapsed),
        *_learned_graphs(study, tables),
        *([SummaryLine("Value of edges", unmeasured)] if (unmeasured := missing_edges_note(study)) else []),
    ]


def collapsed_graphs(measures: pd.DataFrame) -> pd.Series:
    """Run -> how its graph has collapsed (`quality.collapse`), of every run with a graph."""
    parts = measures[measures["quantity"].isin([VARIATION, FROM_SELF])]
    table = parts.pivot_table(index="run", columns="quantity", values="value", dropna=False)
    table = table.reindex(columns=[VARIATION, FROM_SELF])
    words = [collapse(variation, from_self) for variation, from_self in table.itertuples(index=False)]
    return pd.Series(words, index=table.index, dtype=object)


def _collapses(measures: pd.DataFrame, collapsed: pd.Series) -> list[SummaryLine]:
    """The learned graphs that are none any more, if there are any."""
    runs = measures.drop_duplicates("run").set_index("run").loc[collapsed.index]
    found = runs.assign(word=collapsed)[collapsed != ""]
    if found.empty:
        return []
    if found["task"].nunique() > MOST_TASKS:
        counts = found["word"].value_counts()
        text = ", ".join(f"{counts[word]} to {word}" for word in COLLAPSES if word in counts)
        return [SummaryLine("Collapsed graphs", (f"{text}, of {len(runs)} learned graphs.",))]
    sentences = []
    for task, part in found.groupby("task", sort=False):
        names = {word: list(part.loc[part["word"] == word, "method"]) for word in COLLAPSES}
        clauses = [f"{COLLAPSES[word]} with {join_names(some)}" for word, some in names.items() if some]
        sentences.append(f"{task}: {'; '.join(clauses)}.")
    return [SummaryLine("Collapsed graphs", tuple(sentences))]


def _groups(study: Study, measures: pd.DataFrame, collapsed: pd.Series) -> Iterator[str]:
    rows = measures[measures["quantity"] == AUC]
    if rows.empty:
        yield "No task has both known groups and a method with a collaboration graph."
    for number, (task, part) in enumerate(rows.groupby("task", sort=False)):
        if number < MOST_TASKS:
            yield _group_recovery(str(task), part, collapsed, study)
    if rows["task"].nunique() > MOST_TASKS:
        yield f"More tasks are in measures.csv: {rows['task'].nunique() - MOST_TASKS}."


def _graph(run: results.Run) -> str:
    """The word for the graph of a run; empty where its method has none."""
    method = (run.info.get("spec") or {}).get("method")
    return str(method.get("graph", "")) if isinstance(method, Mapping) else ""


def _group_recovery(task: str, rows: pd.DataFrame, collapsed: pd.Series, study: Study) -> str:
    """Which graphs of a task show its groups; a graph that has collapsed shows none, at any AUC."""
    kinds: dict[str, list[str]] = {"found": [], "partly": [], "missed": [], "consensus": [], "self": []}
    for row in rows.sort_values("value", ascending=False, kind="stable").to_dict("records"):
        auc = row["value"]
        kind = "found" if auc >= RECOVERED else "partly" if auc >= PARTLY else "missed"
        kinds[collapsed.get(row["run"]) or kind].append(f"{row['method']} {auc:.2f}")
    sentences = {
        "found": "found by {}",
        "partly": "partly by {}",
        "missed": "not by {}",
        "consensus": "no graph, rows nearly identical: {}",
        "self": "no graph, each client learns from itself: {}",
    }
    sentence = "; ".join(sentences[kind].format(join_names(names)) for kind, names in kinds.items() if names)
    return f"{task}, {_describe_groups(study, task)}: {sentence} (AUC; 0.5 is chance)."


def _learned_graphs(study: Study, tables: Tables) -> list[SummaryLine]:
    """Whether learning the graph helps: each method with its graph against itself with a control in its place."""
    tests = tables.significance[tables.significance["family"] == "graph"]
    metrics = tables.board.drop_duplicates("task").set_index("task")["metric"]
    sentences = []
    for task, part in tests.groupby("task", sort=False):
        words: dict[str, list[str]] = {word: [] for word in LEARNED}
        metric = metrics[task]
        for test in part.to_dict("records"):
            change = format_change(test["difference"], metric)
            interval = format_change_interval(test["low"], test["high"], metric)
            numbers = f" ({change}, 95 % interval {interval})" if pd.notna(test["p_adjusted"]) else ""
            words[outcome(test, test["method"])].append(f"{test['other']}{numbers}")
        within = {"equivalent": f" within {study.margin(metric).describe(metric)}"}
        clauses = [f"{LEARNED[word]} {join_names(some)}{within.get(word, '')}" for word, some in words.items() if some]
        sentences.append(f"{task}: {'; '.join(clauses)}.")
    return [SummaryLine("Learned graphs", tuple(sentences))] if sentences else []


def _describe_groups(study: Study, task: str) -> str:
    """The groups of a task by name, if there are few."""
    run = next(run for run in study.runs if run.task == task)
    names = [] if run.group is None else run.group_names(run.group)
    if 1 < len(names) <= MOST_TASKS:
        return f"the groups {join_names(names)}"
    return f"the {len(names)} groups" if names else "the groups"


def missing_edges_note(study: Study) -> tuple[str, ...]:
    """One sentence that names the runs that ask for the value of edges and have none, by task where tasks differ."""
    missing = {task: [run.label for run in runs if _lacks_edges(run)] for task, runs in results.by_task(study).items()}
    if not any(missing.values()):
        return ()
    same_everywhere = len({*map(tuple, missing.values())}) == 1
    phrases = {
        ("" if same_everywhere else f"{task}: ") + ", ".join(labels): None for task, labels in missing.items() if labels
    }
    needed = "at least three clients that receive mixtures of models and have validation rows"
    return (f"evaluate.edges measured nothing for {'; '.join(phrases)}. It needs {needed}.",)


def _lacks_edges(run: Run) -> bool:
    wanted = ((run.info.get("spec") or {}).get("evaluate") or {}).get("edges")
    return bool(wanted) and not (run.folder / "edges.csv").is_file()
