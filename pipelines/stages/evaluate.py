"""Stage `evaluate`: the tables of a study, and its record in MLflow."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedweave import results
from fedweave.errors import BadInput
from fedweave.pipelines import paths
from fedweave.pipelines.processes import stage
from fedweave.study import spec


def main() -> None:
    """Write leaderboard, curves, significance and metrics of the study, and log its runs."""
    study = spec.load()
    folder = paths.RESULTS / study.name
    drop_strangers(study)
    tables = results.write(folder, paths.PARTITIONS)
    print(f"{folder / 'leaderboard.csv'}: {len(tables.board)} rows")
    log(folder, ablations=False)  # which are made after this; the stage `report` logs them


def log(folder: Path, ablations: bool = True) -> None:
    """Log the study in `folder`; a failure is only reported, because logging can be repeated at any time."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    from fedweave.pipelines.mlflow_records import tracking

    try:
        logged = tracking.log_study(folder, ablations=ablations)
    except (BadInput, MlflowException, SQLAlchemyError, OSError) as error:
        print(
            f"not logged to MLflow ({str(error).splitlines()[0]}); "
            f"later: fedweave log {folder.relative_to(paths.RESULTS)}",
            file=sys.stderr,
        )
    else:
        print(f"MLflow holds {len(logged)} runs of {folder.name}")


def drop_strangers(study: spec.Study) -> None:
    """Remove what params.yaml no longer names: DVC's cache keeps it, the tables must not."""
    declared: dict[str, Mapping[str, Any]] = {"runs": study.runs, "ablations": study.ablate}
    for part, named in declared.items():
        parent = paths.RESULTS / study.name / part
        parent.mkdir(parents=True, exist_ok=True)
        for folder in parent.glob("*/"):
            if folder.name not in named:
                shutil.rmtree(folder)


if __name__ == "__main__":
    stage(main)
