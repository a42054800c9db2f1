"""Results in MLflow: what a results folder says, as runs to browse and compare.

The files are the truth: the database may be deleted at any time, and `main` writes it again.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import mlflow
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from fedweave import results
from fedweave.errors import BadInput
from fedweave.pipelines import addresses, project
from fedweave.pipelines.mlflow_records import entries, registry, stamp, synchronise, versions, views, writer
from fedweave.pipelines.paths import RESULTS, STATE
from fedweave.pipelines.processes import run_main
from fedweave.results import Study


class StudyRecord(NamedTuple):
    """A study in MLflow: the parents' run ids of its methods in the order of the runs' names, and what was done."""

    ids: list[str]
    new: int
    restored: int
    superseded: int

    def __str__(self) -> str:
        counts = (f"{count} {word}" for word, count in self._asdict().items() if word != "ids" and count)
        return f"{len(self.ids)} runs of methods; with searches and ablations {', '.join(counts) or 'nothing new'}"


def main(*studies: str) -> None:
    """Bring MLflow up to date with `studies` (default: every one under results/), for example after the database was
    deleted.

    Raises:
        BadInput: a study that is not there, or has no finished run, or MLflow does not take it, or does not answer.
    """
    addresses.check_store(mlflow.get_tracking_uri(), " ".join(studies))
    folders = [RESULTS / name for name in studies] or sorted(
        {path.parents[2] for path in RESULTS.rglob("runs/*/run.json")}
    )
    project.load_plugins()  # they define methods and models that are stored too
    if not folders:
        raise BadInput(f"{RESULTS}: no study with a finished run; reproduce one with: dvc repro")
    for folder in folders:
        try:
            record = log_study(folder)
        except (MlflowException, SQLAlchemyError) as error:
            store, reason = mlflow.get_tracking_uri(), str(error).partition("\n")[0]
            way = "see what the server says" if store.startswith("http") else "repair it or move it away"
            raise BadInput(f"{store}: not logged ({reason}); {way}, then: fedweave log") from error
        print(f"MLflow has {folder.relative_to(RESULTS)}: {record}", flush=True)


def try_log_study(folder: Path) -> None:
    """Bring MLflow up to date with results/<study>; a failure is one line only, because this can be repeated."""
    try:
        print(f"MLflow: {log_study(folder)}", flush=True)
    except (BadInput, MlflowException, SQLAlchemyError, OSError) as error:
        synchronise.report_failure(folder.relative_to(RESULTS).as_posix(), error)


def log_study(folder: Path | str, uri: str | None = None) -> StudyRecord:
    """Let MLflow show what results/<study> says now: its finished runs, searches and ablations, and the models of the
    leaders with their alias. What was replaced is kept and tagged as superseded.

    Args:
        folder: results/<study>.
        uri: of the tracking store; default: MLflow's own rules, above all MLFLOW_TRACKING_URI.

    Raises:
        BadInput: no finished run, or a broken one.
    """
    with _lock():
        before, study = stamp.results_digest(Path(folder)), results.load_study(folder)
        store = writer.connect(study.name, uri)
        tables = results.load_tables(study)
        outcome = versions.synchronise(store, [*entries.units(study, tables)], whole=True)
        ids = {run.name: outcome.ids[run.name] for run in study.runs}
        registry.register_best_models(store, tables, study, ids)
        views.describe(store, study, tables.board)
        links = {task: views.link(store, task) for task in results.by_task(study)}
        stamp.write(before, study.name, mlflow.get_tracking_uri(), links)
    return StudyRecord([*ids.values()], outcome.new, outcome.restored, outcome.superseded)


def log_run(folder: Path | str, uri: str | None = None) -> str:
    """Log one finished run; returns the parent's run id.

    Raises:
        BadInput: a missing or broken file.
    """
    run = results.load_run(folder)
    alone = Study(str(run.info["study"]), run.folder, (run,), ())
    store = writer.connect(alone.name, uri)
    unit = entries.run_unit(run, results.compute_tables(alone))
    return versions.synchronise(store, [unit], whole=False).ids[run.name]


@contextmanager
def _lock() -> Iterator[None]:
    """One synchronisation at a time: two would log everything twice."""
    STATE.mkdir(parents=True, exist_ok=True)
    with (STATE / "mlflow.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    run_main(main)
