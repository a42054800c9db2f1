"""Stage `report`: one page that shows the study."""

from pathlib import Path

from fedweave import report, spec
from fedweave.files import write_atomic
from pipelines import paths
from pipelines.processes import stage


def build(study: str) -> Path:
    """Write results/<study>/report.html, with the ablations of the study as one table; returns the page's path."""
    folder = paths.RESULTS / study
    tables = [path.read_text(encoding="utf-8").splitlines() for path in sorted((folder / "ablations").glob("*/table.csv"))]
    if tables:
        rows = [tables[0][0], *(row for table in tables for row in table[1:])]
        write_atomic(folder / "ablations.csv", "\n".join(rows) + "\n")
    return report.build(folder, paths.PARTITIONS)


def main(study: str = "") -> None:
    """Build the page of `study` (default: the one that params.yaml names) and print the leaderboard."""
    from pipelines import leaderboard

    build(study or spec.load().name)
    leaderboard.main(study)


if __name__ == "__main__":
    stage(main)
