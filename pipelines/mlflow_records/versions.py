"""Current and superseded runs in MLflow.

A current run shows the results as they are now. A run whose results were replaced stays, with the value "superseded" of
the tag `record`, the reason and the commit. It becomes current again when its files are restored.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import mlflow
import numpy as np
from mlflow.entities import Run as Logged

from fedweave.processes.parallel import gather

from . import owner, stamp, writer
from .writer import COMMIT, CURRENT, DIGEST, PARENT, RECORD, RUN, SUPERSEDED, Store, Unit

REASON_TAGS = ("superseded.reason", "superseded.commit", "superseded.at")  # tags of a superseded run
MAX_LISTED = 3  # most changed settings in a reason


class SynchronisationResult(NamedTuple):
    """The id of the current run of every unit, and how many runs were new, restored and superseded."""

    ids: Mapping[str, str]
    new: int
    restored: int
    superseded: int


def synchronise(store: Store, units: Sequence[Unit]) -> SynchronisationResult:
    """Make one current run for each of `units`, whatever was there before; it can be repeated after an interruption.

    Args:
        units: everything that the experiment shows: runs of other units are superseded.
    """
    units_by_name = {unit.name: unit for unit in units}
    current = _match(_run_trees(store), units_by_name)
    new = [unit for unit in units if unit.name not in current]
    for unit in new[:1]:
        writer.log(store, unit)  # here, so that the processes of the others inherit MLflow's caches
    gather([partial(writer.log, store, unit) for unit in new[1:]])
    trees = _run_trees(store)
    current = _match(trees, units_by_name)
    restored = superseded = 0
    for tree in trees:
        name = tree.parent.data.tags[RUN]
        if not tree.is_whole:
            _delete(store, tree)
        elif name in current and tree.parent.info.run_id == current[name].parent.info.run_id:
            restored += _restore(store, tree)
            _refresh(store, tree.parent, units_by_name[name])
            if stamp.is_lost(str(tree.parent.info.artifact_uri)):
                units_by_name[name].finish(store, str(tree.parent.info.run_id))
        else:
            superseded += _supersede(store, tree, current.get(name))
    ids = {name: str(tree.parent.info.run_id) for name, tree in current.items()}
    return SynchronisationResult(ids, len(new), restored, superseded)


class _RunTree(NamedTuple):
    """A run and its children."""

    parent: Logged
    children: list[Logged]

    @property
    def is_whole(self) -> bool:
        """Whether it was logged to its end."""
        return DIGEST in self.parent.data.tags and self.parent.info.status == "FINISHED"

    @property
    def is_current(self) -> bool:
        """Whether all of its runs have the tag "current"."""
        return all(run.data.tags.get(RECORD) == CURRENT for run in (self.parent, *self.children))

    @property
    def ids(self) -> list[str]:
        """The ids of all its runs, the parent first."""
        return [str(run.info.run_id) for run in (self.parent, *self.children)]


def _run_trees(store: Store) -> list[_RunTree]:
    """The runs of this project in the experiment, oldest first; a child without its parent is an incomplete tree."""
    conditions, order = owner.project_filter(store.project), ["attributes.start_time ASC"]
    found = mlflow.search_runs([store.experiment], conditions, order_by=order, output_format="list")
    runs = [run for run in found if RUN in run.data.tags]
    children: dict[str, list[Logged]] = {}
    for run in runs:
        children.setdefault(run.data.tags.get(PARENT, ""), []).append(run)
    parents = children.pop("", [])
    trees = [_RunTree(run, children.pop(run.info.run_id, [])) for run in parents]
    return trees + [_RunTree(run, []) for orphans in children.values() for run in orphans]


def _match(trees: Sequence[_RunTree], units: Mapping[str, Unit]) -> dict[str, _RunTree]:
    """Name -> the tree that shows the files as they are now; a current tree before a superseded one."""
    matching: dict[str, _RunTree] = {}
    for tree in trees:
        tags = tree.parent.data.tags
        unit = units.get(tags[RUN])
        is_match = unit is not None and tree.is_whole and tags[DIGEST] == unit.digest
        if is_match and (tags[RUN] not in matching or (tree.is_current and not matching[tags[RUN]].is_current)):
            matching[tags[RUN]] = tree
    return matching


def _delete(store: Store, tree: _RunTree) -> None:
    for model in store.client.search_logged_models([store.experiment], f"source_run_id = '{tree.parent.info.run_id}'"):
        store.client.delete_logged_model(model.model_id)
    for run in reversed(tree.ids):  # the parent is last, because children without their parent are not found
        store.client.delete_run(run)


def _restore(store: Store, tree: _RunTree) -> bool:
    if tree.is_current:
        return False
    for run in (*tree.children, tree.parent):
        writer.set_tags(store, run.info.run_id, {RECORD: CURRENT})
        for tag in REASON_TAGS:
            if tag in run.data.tags:
                store.client.delete_tag(run.info.run_id, tag)
    return True


def _supersede(store: Store, tree: _RunTree, successor: _RunTree | None) -> bool:
    if tree.parent.data.tags.get(RECORD) == SUPERSEDED:
        return False
    reason = _reason(tree.parent, successor.parent if successor else None)
    superseded_at = datetime.now(UTC).isoformat(timespec="seconds")
    tags = dict(zip(REASON_TAGS, (reason, store.provenance.get(COMMIT, "unknown"), superseded_at), strict=True))
    for run in reversed(tree.ids):  # the parent is last: its tag says that the whole tree is superseded
        writer.set_tags(store, run, {RECORD: SUPERSEDED, **tags})
    return True


def _reason(old: Logged, new: Logged | None) -> str:
    """A text that says which settings changed."""
    if new is None:
        return "not among the results any more"
    before, after = old.data.params, new.data.params
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    changed = [f"{name}: {before.get(name, 'none')} -> {after.get(name, 'none')}" for name in names[:MAX_LISTED]]
    rest = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(changed) + rest if changed else "made again with the same settings"


def _refresh(store: Store, run: Logged, unit: Unit) -> None:
    """Update numbers and tags that also depend on other runs, such as the rank; a missing number becomes NaN."""
    stored = run.data.metrics
    changed = {
        name: value
        for name, value in unit.numbers.items()
        if not np.array_equal(value, stored.get(name, np.nan), equal_nan=True)
    }
    milliseconds = int(time.time() * 1000)
    if changed:
        store.client.log_batch(
            run.info.run_id, [writer.metric(name, value, 0, milliseconds) for name, value in changed.items()]
        )
    tags = {name: text for name, text in unit.tags.items() if run.data.tags.get(name) != text}
    if tags:
        writer.set_tags(store, run.info.run_id, tags)
