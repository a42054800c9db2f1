"""The pages of an experiment in MLflow's UI: a saved view for each task, with the columns of a leaderboard."""

import json
import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from fedweave import metrics, results
from fedweave.results import Run, Study

from .. import addresses
from . import owner
from .writer import CURRENT, RECORD, Store

ABOUT = """\
The methods on each task, best first: {links}.

`kind` says what a run is: `method` (a method on a task, all seeds), `seed`, `tuning`, `trial`, `ablation`, `variant`,
`leaky` (a method that trains on test rows). `verdict` is against the leader: `best` (better than all others), `lead`,
`equivalent` (within the margin), `open` (neither a difference nor equivalence is shown), `behind`, `no verdict` (as
with two seeds), or the reason why a run has no rank (`not federated`, `trained on test rows`).
`pre` is the score of the models as received, `post` after local training; a method's score is one of the two: {scores}.
`std` is over seeds, `worst10` the mean of the worst tenth of the clients. `bytes` (in both directions) and `seconds` of
training are those of one seed.
What a method's graph shows, if you choose it under Columns: `group_auc`, `group_precision`, `group_mass` (true groups),
`similarity_correlation` (targets that are alike), `edge_value_correlation` (the gain by a source), and whether it has
collapsed: `row_variation` (0: one mixture for all), `effective_sources`, `distance_to_uniform`, `distance_to_self`, as
in leaderboard.csv.
`record` says whether it shows the results of now (`current`) or earlier ones (`superseded`, with reason and commit).
Across studies: choose several experiments, then filter by `tags.kind = 'method' AND tags.record = 'current' AND
tags.dataset = '{dataset}'` and sort by `metrics.{metric}`.
"""
VIEW_TAG = "mlflow.sharedViewState."  # prefix of the tags of an experiment that hold saved views
PROJECT_SUFFIX = re.compile("-[0-9a-f]{8}$")  # distinguishes views of projects from views that users save in the UI
KIND_TAG = "mlflow.experimentKind"
COLUMNS = ("std", "worst10", "rank", "bytes", "seconds", "pre", "post")  # in addition to score and verdict
MAX_TAG_LENGTH = 5000  # characters of a tag of an experiment


def describe(store: Store, study: Study) -> None:
    """Bring the experiment's description and the saved views of its tasks up to date."""
    tasks = results.by_task(study)
    stored = store.client.get_experiment(store.experiment).tags
    views = {task: link(store, task) for task in tasks} | other_views(store, stored)
    links = ", ".join(f"[{name}]({address})" for name, address in views.items())
    first = study.runs[0]
    names = dict.fromkeys(str(run.info["metric"]) for run in study.runs)
    scores = "; ".join(f"`{name}` ({metrics.title(name)})" for name in names)
    about = ABOUT.format(links=links, scores=scores, dataset=first.info["dataset"], metric=first.info["metric"])
    tags = {KIND_TAG: "custom_model_development", "mlflow.note.content": about[:MAX_TAG_LENGTH]}
    tags |= {VIEW_TAG + key(store, task): saved_view(store, runs) for task, runs in tasks.items()}
    for name, text in tags.items():
        if stored.get(name) != text:
            store.client.set_experiment_tag(store.experiment, name, text)


def key(store: Store, task: str) -> str:
    """The name of the task's view in addresses; projects in a shared store have different ones."""
    return quote("-".join(filter(None, (task, store.project))), safe="")


def link(store: Store, task: str) -> str:
    """The page with all current runs of a task, relative to MLflow's address."""
    return _page(store, key(store, task))


def other_views(store: Store, stored: Mapping[str, str]) -> dict[str, str]:
    """Name -> address of the views of other projects, from the tags `stored` of an experiment that they share."""
    keys = [name.removeprefix(VIEW_TAG) for name in stored if store.project and name.startswith(VIEW_TAG)]
    return {
        unquote(key): _page(store, key)
        for key in keys
        if PROJECT_SUFFIX.search(key) and not key.endswith(store.project)
    }


def _page(store: Store, view: str) -> str:
    return f"{addresses.page(store.experiment)}&viewStateShareKey={view}"


def saved_view(store: Store, runs: list[Run]) -> str:
    """The view of a task as MLflow stores it: filter, order, and columns.

    MLflow orders columns by name: measures of graphs among them would push the score and the rank out of sight.
    """
    metric = str(runs[0].info["metric"])
    own = owner.project_filter(store.project)
    conditions = ("tags.kind = 'method'", f"tags.{RECORD} = '{CURRENT}'", f"tags.task = '{runs[0].task}'", own)
    score, *others = (f"metrics.`{name}`" for name in (metric, *COLUMNS))
    state = {
        "searchFilter": " AND ".join(filter(None, conditions)),
        "orderByKey": score,
        "orderByAsc": not runs[0].higher_is_better,
        "selectedColumns": [score, "tags.`verdict`", *others],
        "runsHiddenMode": "SHOW_ALL",
    }
    milliseconds = max(int((run.folder / "run.json").stat().st_mtime * 1000) for run in runs)
    suffix = f", {store.project}" if store.project else ""
    view = {
        "name": f"methods on {runs[0].task}{suffix}",
        "createdAt": milliseconds,
        "updatedAt": milliseconds,
        "state": json.dumps(state),
    }
    return json.dumps(view)
