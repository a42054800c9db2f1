"""Stage `report`: one page that shows the study."""

from fedweave import report, results, spec
from pipelines import paths
from pipelines.processes import stage


def main(study: str = "") -> None:
    """Build the page of `study` (default: the one that params.yaml names), log its ablations, and print the leaderboard."""
    from pipelines import evaluate, leaderboard

    folder = paths.RESULTS / (study or spec.load().name)
    report.build(folder, paths.PARTITIONS, leaderboard.stale(results.load_study(folder)))
    if any((folder / "ablations").glob("*/table.csv")):  # which are younger than what the stage `evaluate` logged
        evaluate.log(folder)
    leaderboard.main(study)


if __name__ == "__main__":
    stage(main)
