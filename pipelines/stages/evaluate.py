"""Stage `evaluate`: the tables of a study."""

import json
import shutil
from collections.abc import Mapping
from typing import Any

from fedweave import results
from fedweave.files import write_atomic
from fedweave.pipelines import paths
from fedweave.pipelines.processes import stage
from fedweave.study import spec


def main() -> None:
    """Write leaderboard, curves, significance and metrics of the study."""
    study = spec.load()
    folder = paths.RESULTS / study.name
    drop_strangers(study)
    tables = results.write(folder, paths.PARTITIONS)
    # The stage `report` depends on this folder, which DVC must be able to restore where there is no ablation too.
    write_atomic(folder / "ablations" / "declared.json", json.dumps([*study.ablate]))
    print(f"{folder / 'leaderboard.csv'}: {len(tables.board)} rows")


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
