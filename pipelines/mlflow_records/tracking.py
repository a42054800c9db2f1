"""Results in MLflow: the content of a results folder as runs to browse and compare.

The files are authoritative: the database may be deleted at any time, and `main` writes it again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import mlflow

from fedweave import results
from fedweave.errors import BadInput, format_count
from fedweave.files.atomic import hold_lock
from fedweave.results import Study

from .. import addresses, project
from ..paths import RESULTS, STATE
from ..processes import run_main
from . import database, entries, registry, stamp, versions, views, writer


class StudyRecord(NamedTuple):
    """A study in MLflow: ids of the parent runs of its methods, ordered by run names, and counts of what was done.

    `models` is the number of runs whose models MLflow can load.
    """

    ids: list[str]
    models: int
    new: int
    restored: int
    superseded: int

    def __str__(self) -> str:
        words = ("new", "restored", "superseded")
        counts = ", ".join(f"{getattr(self, word)} {word}" for word in words if getattr(self, word)) or "nothing new"
        runs, models = format_count(len(self.ids), "run"), f"models of {format_count(self.models, 'run')} can be loaded"
        return f"{runs} of methods; with searches and ablations {counts}; {models}"


def main(*studies: str, models: bool = False) -> None:
    """Bring MLflow up to date with `studies`, by default every study under results/.

    Args:
        models: copy the models of all runs, not only those of the best method of each task.

    Raises:
        BadInput: a study is missing or has no finished run, or MLflow does not answer or refuses the study.
    """
    addresses.check_store(mlflow.get_tracking_uri(), " ".join(studies))
    folders = [RESULTS / name for name in studies] or sorted(
        {path.parents[2] for path in RESULTS.rglob("runs/*/run.json")}
    )
    project.load_plugins()  # they define methods and models whose trained models are logged too
    if not folders:
        raise BadInput(f"{RESULTS}: no study with a finished run; reproduce one with: dvc repro")
    for folder in folders:
        print(f"MLflow has {folder.relative_to(RESULTS)}: {log_study(folder, models=models)}", flush=True)


def try_log_study(folder: Path) -> None:
    """Bring MLflow up to date with results/<study>; a failure is one line only, because it can be repeated later."""
    try:
        print(f"MLflow: {log_study(folder)}", flush=True)
    except (BadInput, OSError) as error:
        stamp.report_failure(str(error))


def log_study(folder: Path | str, uri: str | None = None, models: bool = False) -> StudyRecord:
    """Bring MLflow up to date with results/<study>: finished runs with their models, searches and ablations.

    Runs that were replaced stay, with the tag "superseded".

    Args:
        uri: of the tracking store; default: MLflow's own rules, above all MLFLOW_TRACKING_URI.
        models: copy the models of all runs, not only those of the best method of each task.

    Raises:
        BadInput: no finished run, or a broken one; or the folder is a copy of another study's; or the database or an
            artifact cannot be written; or, when all else is done, the name of a registered model belongs to another
            study.
    """
    with locked():
        digest, study = stamp.results_digest(Path(folder)), results.load_study(folder)
        _check_folder(study)
        with database.store_errors(uri or mlflow.get_tracking_uri(), study.name):
            store = writer.connect(study.name, uri)
            tables = results.compute_tables(study)
            outcome = versions.synchronise(store, [*entries.units(study, tables)])
            model_ids = registry.log_models(store, study, tables, outcome.ids, models)
            refusals = registry.register_best_models(store, study, tables, outcome.ids, model_ids)
            views.describe(store, study)
            links = {task: views.link(store, task) for task in results.by_task(study)}
            artifacts = store.client.get_experiment(store.experiment).artifact_location
            stamp.write(digest, study.name, mlflow.get_tracking_uri(), links, artifacts)
    if refusals:
        raise BadInput(refusals[0])
    ids = [outcome.ids[run.name] for run in study.runs]
    return StudyRecord(ids, len(model_ids), outcome.new, outcome.restored, outcome.superseded)


def _check_folder(study: Study) -> None:
    """Refuse a copy of another folder's results: in MLflow its runs would take the place of that folder's runs."""
    own_folder = RESULTS / study.name
    if own_folder.resolve() != study.folder.resolve() and any(own_folder.glob("runs/*/run.json")):
        raise BadInput(
            f"{study.folder}: its runs are of the study {study.name!r}, and would take the place of {own_folder} in "
            f"MLflow; move it out of {RESULTS}"
        )


@contextmanager
def locked() -> Iterator[None]:
    """Allow one synchronisation at a time: two would log everything twice. It leaves no connection open."""
    with hold_lock(STATE / "mlflow.lock"):
        try:
            yield
        finally:
            writer.close_connections()


if __name__ == "__main__":
    run_main(main)
