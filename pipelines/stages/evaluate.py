"""Stage `evaluate`: the tables of a study."""

import json
import shutil
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from fedweave import results
from fedweave.files import write_atomic
from fedweave.pipelines import paths
from fedweave.pipelines.processes import run_main
from fedweave.study import spec


def main() -> None:
    """Write leaderboard, curves, significance and metrics of the study."""
    study = spec.load()
    folder = paths.RESULTS / study.name
    remove_undeclared_folders(study)
    tables = results.write(folder, paths.PARTITIONS)
    # The stage `report` depends on this folder, which DVC must be able to restore where there is no ablation too.
    write_atomic(folder / "ablations" / "declared.json", json.dumps([*study.ablate]))
    print(f"{folder / 'leaderboard.csv'}: {len(tables.board)} rows")


def remove_undeclared_folders(study: spec.Study) -> None:
    """Remove what params.yaml does not name, which the tables must not have; what DVC has not stored is moved."""
    declared: dict[str, Mapping[str, Any]] = {"runs": study.runs, "ablations": study.ablate}
    lock = Path("dvc.lock")
    stored = lock.read_text(encoding="utf-8").splitlines() if lock.is_file() else []
    for part, named in declared.items():
        parent = paths.RESULTS / study.name / part
        parent.mkdir(parents=True, exist_ok=True)
        for folder in parent.glob("*/"):
            if folder.name in named:
                continue
            if f"- path: {folder}" in map(str.strip, stored):
                shutil.rmtree(folder)
            else:
                _move_away(folder)


def _move_away(folder: Path) -> None:
    """Move a folder that no stage has made out of the results, and say where it is."""
    names = (f"{folder}{number or ''}" for number in count())
    place = next(place for name in names if not (place := paths.STATE / "removed" / name).exists())
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(folder, place)
    print(f"{folder}: is not in params.yaml; moved to {place}")


if __name__ == "__main__":
    run_main(main)
