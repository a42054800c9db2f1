"""Commands for the results of studies: reports, searches, and the record in MLflow."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def report(
    study: Annotated[
        str,
        typer.Argument(
            help="a study, or a folder of `fedweave compare` or `recommend`; default: the study of params.yaml"
        ),
    ] = "",
    metric: Annotated[
        str, typer.Option(help="another metric, computed from stored predictions, in report-METRIC.html")
    ] = "",
) -> None:
    """Build report.html in results/<study>, or in a folder of results, and print the leaderboard."""
    import fedweave as fw

    from .. import paths
    from ..stages import leaderboard
    from ..stages import report as stage

    folder = paths.RESULTS / study
    if study and not folder.is_dir() and (Path(study).is_dir() or Path(study).is_relative_to(paths.RESULTS)):
        folder = Path(study)
    if study:
        place, results = folder.parent.resolve() / folder.name, paths.RESULTS.resolve()
        if not place.is_relative_to(results):
            _report_own(folder, metric)
            return
        study = str(place.relative_to(results))
    if study and (folder / "partitions").is_dir():  # a folder of `fedweave run`, for which no stage makes the tables
        fw.load(folder).save(folder)
    if metric:
        stage.build_with_metric(study, metric)
    else:
        leaderboard.show_stored(*stage.build(study))


def _report_own(folder: Path, metric: str) -> None:
    """The report of a user's own data, as the command printed it that wrote `folder`."""
    import fedweave as fw
    from fedweave.recommendation.result import FACTS, FOLDER

    from . import own_data, recommend

    if (folder / FOLDER / FACTS).is_file() and not metric:
        recommend.show(fw.Recommendation.load(folder))
        return
    comparison = fw.load(folder)
    own_data.show(comparison.with_metric(metric) if metric else comparison)


@app.command()
def verify(
    run: Annotated[str, typer.Argument(help="a run of params.yaml; default: its first one")] = "",
    seed: Annotated[int | None, typer.Option(help="a repetition; default: the first one", show_default=False)] = None,
) -> None:
    """Train one stored repetition again and compare the scores of every client; results stay as they are."""
    from ..stages import verify as stage

    stage.main(run, seed)


@app.command()
def search(task: Annotated[str, typer.Argument(help="a task of params.yaml")]) -> None:
    """Run trials of the searches of TASK, in addition to the stage `tune`. Start one per core or machine."""
    from ..stages import tune

    keys = tune.run_searches(task)
    if not keys:
        print(f"{task}: this study has no search for it (tune.trials in params.yaml, settings to search); nothing ran")
        return
    print(f"{task}: {len(keys)} searches are complete; next: dvc repro")


@app.command()
def dashboard(port: Annotated[int, typer.Option(help="port on loopback")] = 8080) -> None:
    """Optuna's live dashboard of all searches of the study, until Ctrl-C."""
    from .. import search_dashboard as server

    server.main(port)


@app.command()
def log(
    study: Annotated[list[str] | None, typer.Argument(help="a study; default: all under results/")] = None,
    models: Annotated[
        bool, typer.Option("--models", help="copy the models of all runs to MLflow, not only those of the best methods")
    ] = False,
) -> None:
    """Log studies to MLflow from their result files. This also restores a deleted database."""
    from ..mlflow_records import tracking

    tracking.main(*(study or []), models=models)
