"""`fedweave cluster`: a study on SLURM, from the login node, where no process stays between the commands."""

import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedweave.errors import BadInput, choose, format_count

from .. import paths
from ..launching import reproduce
from . import studies

if TYPE_CHECKING:
    from ..scheduling.submissions import Submission

POLL = 10.0  # seconds between two queries of the queue
STYLES = {"finished": "green", "failed": "red", "ended": "red", "running": "cyan", "waiting": ""}

app = typer.Typer(help="A study on a SLURM cluster: submit, status, collect, cancel.", no_args_is_help=True)
out = Console(markup=False, highlight=False)

Study = Annotated[str, typer.Argument(help="a study; default: the one that params.yaml holds")]


@app.command()
def submit(study: Study = "", force: studies.Force = False) -> None:
    """Prepare the data of STUDY here, and submit its searches, its training and its ablations as array jobs.

    cluster.yaml says what they ask for.
    """
    from ..scheduling import resources, submissions

    cluster = resources.load()
    if study:
        submissions.check_none_open(study)
        with studies.switch_study(study, None, None, None, force):
            pass  # the lock ends here: the stages that run on this machine take locks of their own
    submission = submissions.submit(cluster)
    name = submission.study if submission else study or paths.current_study()
    if submission is None:
        out.print(f"{name}: all training is up to date; the rest: dvc repro", soft_wrap=True)
        return
    arrays = Counter(job.job.partition("_")[0] for job in submission.jobs)
    place = "SLURM" if submission.executor == "slurm" else "this machine"
    jobs = "one job" if len(arrays) == 1 else f"{len(arrays)} jobs"
    out.print(
        f"{name}: {len(submission.jobs)} stages in {jobs} of {place}: {', '.join(sorted(arrays))}", soft_wrap=True
    )
    out.print(f"next: fedweave cluster status {name}; then: fedweave cluster collect {name}", soft_wrap=True)


@app.command()
def status(study: Study = "") -> None:
    """How far every stage of STUDY is; without STUDY, of all that is submitted."""
    from ..scheduling import collection, submissions

    names = [study] if study else submissions.studies() or [""]
    for submission in list(map(_open_submission, names)):
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("stage", "job", "state", "detail"):
            table.add_column(name, no_wrap=name != "detail", overflow="fold")
        rows = collection.progress(submission)
        for row in rows:
            table.add_row(row.job.task.stage, row.job.job, row.state, row.detail, style=STYLES[row.state])
        out.print(table)
        counts = Counter(row.state for row in rows)
        out.print(f"{submission.study}: {', '.join(f'{n} {state}' for state, n in counts.items())}", soft_wrap=True)


@app.command()
def collect(
    study: Study = "",
    wait: Annotated[bool, typer.Option("--wait", help="wait first until all jobs have ended")] = False,
) -> None:
    """Commit what has come back to DVC; when all has, also compare, and print the leaderboard."""
    from ..scheduling import collection, submissions

    submission = _open_submission(study)
    if wait:
        submissions.wait(submission, POLL)
    result = collection.collect(submission)
    out.print(f"{submission.study}: {format_count(len(result.committed), 'stage')} committed", soft_wrap=True)
    if result.active:
        out.print(f"{len(result.active)} still wait or run: fedweave cluster status {submission.study}", soft_wrap=True)
    if result.failed:
        hint = f"see above; what to do next: fedweave cluster submit {submission.study}"
        for line in result.failed:
            print(line, file=sys.stderr)
        raise BadInput(f"{submission.study}: {format_count(len(result.failed), 'stage')} did not succeed; {hint}")
    if not result.active:
        _finish(submission.study)


def _finish(study: str) -> None:
    """Run the remaining stages here, unless one of them trains: it became stale after the submission."""
    from fedweave.study.config import read_yaml
    from fedweave.study.spec import PARAMS

    from ..scheduling import planning
    from ..scheduling.dvc_graph import stale_stages

    stages = planning.split(stale_stages(), read_yaml(PARAMS))[1]
    if stages:
        out.print(
            f"{format_count(len(stages), 'stage')} left to train; next: fedweave cluster submit {study}", soft_wrap=True
        )
        return
    if exit_code := reproduce.reproduce():
        raise typer.Exit(exit_code)


@app.command()
def cancel(study: Study = "") -> None:
    """End the jobs of STUDY; what has finished can still be collected, and checkpoints stay."""
    submission = _open_submission(study)
    stages = submission.cancel()
    count = f"{len(stages)} of {len(submission.jobs)} stages cancelled"
    out.print(f"{submission.study}: {count}; their jobs end within a minute", soft_wrap=True)
    out.print(f"next: fedweave cluster collect {submission.study}, then submit again", soft_wrap=True)


def _open_submission(study: str) -> "Submission":
    """The open submission of `study`; refused if it has none."""
    from ..scheduling import submissions

    name = study or paths.current_study()
    submission = submissions.load(name)
    if submission is None:
        open_studies = submissions.studies()
        if open_studies and study:
            choose(study, open_studies, "fedweave cluster: submitted studies")
        raise BadInput(f"{name}: nothing is submitted; submit it: fedweave cluster submit {name}")
    return submission
