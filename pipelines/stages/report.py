"""Stage `report`: one page that shows the study, and the leaderboard as text."""

import io
from pathlib import Path

from fedweave import report, results
from fedweave.files.atomic import write_atomic
from fedweave.study import spec

from .. import paths
from ..processes import run_main

WIDTH = 120  # columns of leaderboard.txt


def main(study: str = "") -> None:
    """Build the page of `study` (default: that of params.yaml) and the leaderboard; see `build`."""
    build(study)


def build(study: str = "") -> tuple[str, results.Study, results.Tables]:
    """Build the page and the leaderboard of `study`, and return its name, its runs and its tables.

    At the same time a forked process brings MLflow up to date.
    """
    from ..mlflow_records import synchronise
    from . import leaderboard

    name = study or spec.load().name
    folder = paths.RESULTS / name
    with synchronise.run_in_fork(folder, name):
        loaded, partitions = results.load_study(folder), partition_folder(folder)
        tables = results.compute_tables(loaded, partitions)
        report.write_page(loaded, tables, partitions, leaderboard.stale_runs(loaded))
        report.draw_curves(loaded, tables)
        write_board(name, loaded, tables)
    return name, loaded, tables


def build_with_metric(study: str, metric: str) -> None:
    """Build the page of `study` by another metric and print its leaderboard; nothing is trained or logged."""
    from . import leaderboard

    folder = paths.RESULTS / (study or spec.load().name)
    path = report.build(folder, partition_folder(folder), metric=metric)
    leaderboard.show(results.rescore(results.load_study(folder), metric))
    print(f"{path} shows everything")


def partition_folder(folder: Path) -> Path:
    """The folder with descriptions of the clients' data: in `folder` itself if `fedweave run` or Python wrote it."""
    inside = folder / "partitions"
    return inside if inside.is_dir() else paths.PARTITIONS


def write_board(name: str, study: results.Study, tables: results.Tables) -> None:
    """Write leaderboard.txt in the folder of `study`: what the terminal shows of it, without styles."""
    from rich.console import Console

    from . import leaderboard

    text = io.StringIO()
    leaderboard.show_stored(name, study, tables, Console(file=text, width=WIDTH, force_terminal=False, markup=False))
    lines = (line.rstrip() for line in text.getvalue().split("\n"))
    write_atomic(study.folder / "leaderboard.txt", "\n".join(lines))


if __name__ == "__main__":
    run_main(main)
