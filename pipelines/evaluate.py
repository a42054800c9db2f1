"""Stage `evaluate`: the tables of a study, and its record in MLflow."""

import json
import shutil
import sys

from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from fedweave import results, spec
from fedweave.files import write_atomic
from pipelines import paths, tracking
from pipelines.processes import stage


def main() -> None:
    """Write leaderboard, curves, significance and metrics of the study, and log its runs."""
    study = spec.load()
    folder = paths.RESULTS / study.name
    drop_strangers(study)
    tables = results.write(folder)
    for run, numbers in results.dvc_metrics(tables.board).items():
        write_atomic(folder / "metrics" / f"{run}.json", json.dumps(flat(numbers), indent=2) + "\n")
    print(f"{folder / 'leaderboard.csv'}: {len(tables.board)} rows")
    try:
        logged = tracking.log_study(folder)
    except (MlflowException, SQLAlchemyError, OSError) as error:
        # The record can be made at any time; the results do not wait for it.
        print(f"not logged to MLflow ({str(error).splitlines()[0]}); later: python -m pipelines.tracking", file=sys.stderr)
    else:
        print(f"MLflow holds {len(logged)} runs of {study.name}")


def flat(numbers: dict[str, object]) -> dict[str, object]:
    """{"accuracy": {"mean", "std"}, ...} -> {"accuracy", "std", ...}: one line per run in `dvc metrics show`."""
    row: dict[str, object] = {}
    for name, value in numbers.items():
        row |= {name: value["mean"], "std": value["std"]} if isinstance(value, dict) else {name: value}
    return row


def drop_strangers(study: spec.Study) -> None:
    """Remove what params.yaml no longer names: DVC's cache keeps it, the tables must not."""
    for part, named in {"runs": study.runs, "ablations": study.ablate}.items():
        parent = paths.RESULTS / study.name / part
        parent.mkdir(parents=True, exist_ok=True)
        for folder in parent.glob("*/"):
            if folder.name not in named:
                shutil.rmtree(folder)


if __name__ == "__main__":
    stage(main)
