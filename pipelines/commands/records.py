"""Commands for the results of studies: reports, searches, and the record in MLflow."""

from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def report(
    study: Annotated[str, typer.Argument(help="default: the study of params.yaml")] = "",
    metric: Annotated[str, typer.Option(help="another metric, from stored predictions: report-METRIC.html")] = "",
) -> None:
    """Build results/<study>/report.html and print the leaderboard."""
    import fedweave as fw
    from fedweave.pipelines import paths
    from fedweave.pipelines.stages import leaderboard
    from fedweave.pipelines.stages import report as stage

    folder = paths.RESULTS / study
    if study and (folder / "partitions").is_dir():  # a folder of `fedweave run`, for which no stage makes the tables
        fw.load(folder).save(folder)
    if metric:
        stage.build_with_metric(study, metric)
    else:
        stage.main(study)
        leaderboard.main(study)


@app.command()
def search(task: Annotated[str, typer.Argument(help="a task of params.yaml")]) -> None:
    """Work on the searches of TASK beside the stage that runs them: start one of these per core or machine."""
    from fedweave.pipelines.stages import tune

    keys = tune.run_searches(task)
    print(f"{task}: {len(keys)} searches are complete; next: dvc repro")


@app.command()
def dashboard(port: Annotated[int, typer.Option(help="on loopback")] = 8080) -> None:
    """Optuna's dashboard over every search of the study, live, until Ctrl-C."""
    from fedweave.pipelines.searching import dashboard as server

    server.main(port)


@app.command()
def log(study: Annotated[list[str] | None, typer.Argument(help="default: every study under results/")] = None) -> None:
    """Log studies to MLflow from their result files; after its database was deleted this brings everything back."""
    from fedweave.pipelines.mlflow_records import tracking

    tracking.main(*(study or []))
