"""Which runs in MLflow show what results/ says now. A run that was replaced is kept, with the tag `record`
"superseded", the reason and the commit; it is current again as soon as its files are back.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import numpy as np
from mlflow.entities import Run as Logged

from fedweave.pipelines.mlflow_records import owner, writer
from fedweave.pipelines.mlflow_records.writer import (
    COMMIT,
    CURRENT,
    DIGEST,
    PARENT,
    RECORD,
    RUN,
    SUPERSEDED,
    Store,
    Unit,
)
from fedweave.runs.parallel import gather

WHY = ("superseded.reason", "superseded.commit", "superseded.at")  # tags of a superseded run
LISTED = 3  # most changed settings in a reason


class SynchronisationResult(NamedTuple):
    """What a synchronisation did: the current run of every unit, and how many were new, taken back, and superseded."""

    ids: Mapping[str, str]
    new: int
    restored: int
    superseded: int


def synchronise(store: Store, units: Sequence[Unit], whole: bool) -> SynchronisationResult:
    """One current run for each of `units`, whatever was there before; safe to repeat after it was cut off.

    Args:
        whole: `units` are all that the experiment shows; runs of anything else are superseded.
    """
    wanted = {unit.name: unit for unit in units}
    current = _match(_run_trees(store), wanted)
    missing = [unit for unit in units if unit.name not in current]
    gather([partial(writer.log, store, unit) for unit in missing])
    families = _run_trees(store)
    current = _match(families, wanted)
    restored = superseded = 0
    for family in families:
        name = family.parent.data.tags[RUN]
        if not family.is_whole:
            _delete(store, family)
        elif name in current and family.parent.info.run_id == current[name].parent.info.run_id:
            restored += _restore(store, family)
            _refresh(store, family.parent, wanted[name])
        elif name in current or whole:
            superseded += _supersede(store, family, current.get(name))
    ids = {name: str(family.parent.info.run_id) for name, family in current.items()}
    return SynchronisationResult(ids, len(missing), restored, superseded)


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
        """Whether all of it is tagged so."""
        return all(run.data.tags.get(RECORD) == CURRENT for run in (self.parent, *self.children))

    @property
    def ids(self) -> list[str]:
        """Of all its runs."""
        return [str(run.info.run_id) for run in (self.parent, *self.children)]


def _run_trees(store: Store) -> list[_RunTree]:
    """The runs of this project in the experiment, oldest first; a child without its parent counts as one cut off."""
    runs = [run for run in _search_runs(store) if RUN in run.data.tags]
    children: dict[str, list[Logged]] = {}
    for run in runs:
        children.setdefault(run.data.tags.get(PARENT, ""), []).append(run)
    parents = children.pop("", [])
    families = [_RunTree(run, children.pop(run.info.run_id, [])) for run in parents]
    return families + [_RunTree(run, []) for lost in children.values() for run in lost]


def _search_runs(store: Store) -> list[Logged]:
    """All runs of the experiment but those of other projects."""
    runs: list[Logged] = []
    page: str | None = ""
    while page is not None:
        answer = store.client.search_runs(
            [store.experiment],
            owner.project_filter(store.project),
            order_by=["attributes.start_time ASC"],
            page_token=page or None,
            max_results=5000,
        )
        runs += answer
        page = answer.token or None
    return runs


def _match(families: Sequence[_RunTree], wanted: Mapping[str, Unit]) -> dict[str, _RunTree]:
    """Name -> the family that shows the files as they are now; a current one before one that was superseded."""
    matching: dict[str, _RunTree] = {}
    for family in families:
        tags = family.parent.data.tags
        unit = wanted.get(tags[RUN])
        same = unit is not None and family.is_whole and tags[DIGEST] == unit.mark
        if same and (tags[RUN] not in matching or (family.is_current and not matching[tags[RUN]].is_current)):
            matching[tags[RUN]] = family
    return matching


def _delete(store: Store, family: _RunTree) -> None:
    for model in store.client.search_logged_models(
        [store.experiment], f"source_run_id = '{family.parent.info.run_id}'"
    ):
        store.client.delete_logged_model(model.model_id)
    for run in reversed(family.ids):  # the parent is last: its children would not be found without it
        store.client.delete_run(run)


def _restore(store: Store, family: _RunTree) -> bool:
    if family.is_current:
        return False
    for run in (*family.children, family.parent):
        writer.set_tags(store, run.info.run_id, {RECORD: CURRENT})
        for tag in WHY:
            if tag in run.data.tags:
                store.client.delete_tag(run.info.run_id, tag)
    return True


def _supersede(store: Store, family: _RunTree, successor: _RunTree | None) -> bool:
    if family.parent.data.tags.get(RECORD) == SUPERSEDED:
        return False
    reason = _reason(family.parent, successor.parent if successor else None)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    why = dict(zip(WHY, (reason, store.provenance.get(COMMIT, "unknown"), now), strict=True))
    for run in reversed(family.ids):  # the parent is last: it says that all of it is done
        writer.set_tags(store, run, {RECORD: SUPERSEDED, **why})
    return True


def _reason(old: Logged, new: Logged | None) -> str:
    """Which settings changed, in words."""
    if new is None:
        return "not among the results any more"
    before, after = old.data.params, new.data.params
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    changed = [f"{name}: {before.get(name, 'none')} -> {after.get(name, 'none')}" for name in names[:LISTED]]
    rest = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(changed) + rest if changed else "made again with the same settings"


def _refresh(store: Store, run: Logged, unit: Unit) -> None:
    """Bring numbers and tags up to date that depend on other runs too; a number that is no more becomes NaN."""
    stored = run.data.metrics
    changed = {
        name: value
        for name, value in unit.numbers.items()
        if not np.array_equal(value, stored.get(name, np.nan), equal_nan=True)
    }
    at = int(time.time() * 1000)
    if changed:
        store.client.log_batch(run.info.run_id, [writer.metric(name, value, 0, at) for name, value in changed.items()])
    tags = {name: text for name, text in unit.tags.items() if run.data.tags.get(name) != text}
    if tags:
        writer.set_tags(store, run.info.run_id, tags)
