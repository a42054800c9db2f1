"""Stage `evaluate`: the tables of a study."""

import json
import shutil
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from fedweave import results
from fedweave.errors import format_count
from fedweave.files.atomic import write_atomic
from fedweave.study import spec

from .. import paths
from ..processes import run_main


def main() -> None:
    """Write leaderboard, curves, significance and metrics of the study."""
    study = spec.load()
    folder = paths.RESULTS / study.name
    remove_undeclared_folders(study)
    tables = results.write(folder, paths.PARTITIONS, study.margins)
    # The stage `report` depends on this folder, which DVC must be able to restore also where there is no ablation.
    write_atomic(folder / "ablations" / "declared.json", json.dumps([*study.ablate]))
    print(f"{folder / 'leaderboard.csv'}: {format_count(len(tables.board), 'row')}")


def remove_undeclared_folders(study: spec.StudySpec) -> None:
    """Remove results of runs and ablations that params.yaml does not name, as the tables must not contain them.

    A folder that DVC has not stored is moved instead.
    """
    declared: dict[str, Mapping[str, Any]] = {"runs": study.runs, "ablations": study.ablate}
    lock = Path("dvc.lock")
    stored = lock.read_text(encoding="utf-8").splitlines() if lock.is_file() else []
    for part, names in declared.items():
        parent = paths.RESULTS / study.name / part
        parent.mkdir(parents=True, exist_ok=True)
        for folder in parent.glob("*/"):
            if folder.name in names:
                continue
            if f"- path: {folder}" in map(str.strip, stored):
                shutil.rmtree(folder)
            else:
                _move_away(folder)


def _move_away(folder: Path) -> None:
    """Move a folder that no stage has made out of the results, and print where it is."""
    names = (f"{folder}{number or ''}" for number in count())
    target = next(target for name in names if not (target := paths.STATE / "removed" / name).exists())
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(folder, target)
    print(f"{folder}: is not in params.yaml; moved to {target}")


if __name__ == "__main__":
    run_main(main)
