"""`fedweave study`: show, select and run a study, or a part of it, by writing params.yaml."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedweave.errors import BadInput, format_count
from fedweave.files.atomic import write_atomic
from fedweave.study import catalogue, outside, plugins, spec

from .. import addresses, signed_files
from ..launching import locking, reproduce
from ..paths import RESULTS
from . import projects
from .answers import recall
from .params_file import dump

app = typer.Typer(help="Studies: what is trained on what, and how long.", no_args_is_help=True)
out = Console()

Name = Annotated[str, typer.Argument(help="a name from `fedweave list studies`, or the path of a study file (.yaml)")]
Uses = Annotated[list[str] | None, typer.Option("--uses", help="a file or folder with plug-ins; repeat for more")]
Force = Annotated[bool, typer.Option("--force", help="overwrite changes made to params.yaml by hand")]
Tasks = Annotated[list[str] | None, typer.Option("--task", "-t", help="only this task of the study; repeat for more")]
Methods = Annotated[
    list[str] | None, typer.Option("--method", "-m", help="only this method of every task; repeat for more")
]


@app.command()
def show(name: Name, task: Tasks = None, method: Methods = None, uses: Uses = None) -> None:
    """Check a study and print it as the params.yaml it would write; into a file or a pipe, that file."""
    text = recall(("study show", name, task, method, uses), lambda: _check_shown(name, task, method, uses))
    if out.is_terminal:
        from rich.syntax import Syntax

        out.print(Syntax(text, "yaml", background_color="default", word_wrap=True))
    else:
        typer.echo(text, nl=False)


def _check_shown(
    name: str, tasks: list[str] | None, methods: list[str] | None, uses: list[str] | None
) -> tuple[str, list[Path]]:
    """The params.yaml of a study, and the files that it comes from."""
    content = check_study(name, tasks, methods, uses)
    graphs = map(Path, content.get("graphs", {}).values())
    inside = (file for graph in graphs for file in (graph, *graph.rglob("*")))
    return dump(content), [catalogue.STUDIES / "base.yaml", *catalogue.list_files(name), *inside]


@app.command()
def use(name: Name, task: Tasks = None, method: Methods = None, uses: Uses = None, force: Force = False) -> None:
    """Make NAME, or a part of it, the study that `dvc repro` reproduces, by writing params.yaml."""
    with switch_study(name, task, method, uses, force) as (content, _):
        runs = len(content["runs"])
    _warn_of_results(name, content)
    out.print(
        f"params.yaml now holds [bold]{content['study']}[/]: {format_count(runs, 'run')}; reproduce it with: dvc repro",
        soft_wrap=True,
    )


@app.command()
def run(name: Name, task: Tasks = None, method: Methods = None, uses: Uses = None, force: Force = False) -> None:
    """Write params.yaml for NAME, or a part of it, bring its results up to date, and print the leaderboard."""
    addresses.mlflow_address()  # refuse a wrong port now; the link to MLflow is printed at the end only
    if not Path("dvc.yaml").is_file():
        raise BadInput(
            "study run: this folder is not a project (it has no dvc.yaml); go to one, or make one: fedweave init FOLDER"
        )
    with switch_study(name, task, method, uses, force) as (content, lock):
        _warn_of_results(name, content)
        _warn_of_store(str(content["study"]))
        exit_code = reproduce.reproduce(lock)
    if exit_code:
        raise typer.Exit(exit_code)


def _warn_of_results(name: str, content: dict[str, Any]) -> None:
    """Print a warning where the study has results of runs that params.yaml does not name any more."""
    study = str(content["study"])
    others = {file.parent.name for file in (RESULTS / study / "runs").glob("*/run.json")} - {*content["runs"]}
    if others:
        typer.echo(
            f"warning: results/{study} has {format_count(len(others), 'run')} that params.yaml leaves out now: tables "
            "lose them, and MLflow marks them as superseded; they come back without training by: "
            f"fedweave study use {name} && dvc repro",
            err=True,
        )


def _warn_of_store(study: str) -> None:
    """Print a warning before hours of work if its results cannot be logged; the study runs nevertheless."""
    try:
        addresses.check_store(os.environ.get("MLFLOW_TRACKING_URI", ""), study)
    except BadInput as error:
        typer.echo(f"warning: {error}", err=True)


@contextmanager
def switch_study(
    name: str, tasks: list[str] | None, methods: list[str] | None, uses: list[str] | None, force: bool
) -> Iterator[tuple[dict[str, Any], int]]:
    """Write params.yaml; gives its content and the handle of the folder's lock, which is held during the block.

    Raises:
        BadInput: the study is not valid, or params.yaml has changes that would be lost.
        Busy: another run is active here.
    """
    content = check_study(name, tasks, methods, uses)
    with locking.hold() as lock:
        _write(content, force)
        yield content, lock


def _write(content: dict[str, Any], force: bool) -> None:
    if spec.PARAMS.is_file() and not force:
        before, text = spec.read_yaml(spec.PARAMS), spec.PARAMS.read_text(encoding="utf-8")
        if before != content and not signed_files.is_unchanged(text) and not _is_from_catalogue(before):
            raise BadInput(
                "params.yaml: has changes made by hand, which would be lost; save it as studies/<name>.yaml, or add "
                "--force to overwrite it"
            )
    write_atomic(spec.PARAMS, dump(content))
    if projects.is_separate():
        projects.write_packages(uses=content.get("uses") or ())


def check_study(
    name: str, tasks: list[str] | None, methods: list[str] | None, uses: list[str] | None
) -> dict[str, Any]:
    """What `select_study` returns, after every check that needs no data.

    Raises:
        BadInput: as `select_study`, or for the first part of the study that cannot run.
    """
    content, where = select_study(name, tasks, methods, uses), str(catalogue.find_file(name))
    # After that, because they import PyTorch, which takes seconds: a wrong name is refused at once.
    from fedweave.contestants.checks import check_terms
    from fedweave.results import published
    from fedweave.study import validate

    from ..stages import graphs

    study = validate.check(spec.parse(content, where), where)
    graphs.check(study, where)
    published.check(study.tasks, where)
    for key, item in study.runs.items():
        if item.method in study.contestants:
            check_terms(study.run(key), where)
    return content


def select_study(
    name: str, tasks: list[str] | None, methods: list[str] | None, uses: list[str] | None = None
) -> dict[str, Any]:
    """The study `name`, or the part of it that `tasks` and `methods` name (all, where none are named).

    Raises:
        BadInput: an unknown study, task or method, or nothing is left.
    """
    catalogue.find_file(name)
    from ..stages.graphs import graph_paths

    content = catalogue.expand(name, uses=uses or ())
    content |= _packages(content)
    if tasks or methods:
        spec.parse(content, str(catalogue.find_file(name)))  # a file may be a full params.yaml
        content = catalogue.restrict_runs(content, catalogue.select_runs(content, tasks or (), methods or ()))
    outside.enter(outside.split(content["methods"])[0], str(catalogue.find_file(name)))
    graphs = graph_paths(content)
    return {**content, **({"graphs": graphs} if graphs else {})}


def _packages(content: dict[str, Any]) -> dict[str, Any]:
    """In a checkout, the block `uses` with the packages with plug-ins; else `projects.write_packages` names them."""
    packages = {name: str(path) for name, path in plugins.find_installed().items()}
    return {"uses": {**packages, **content.get("uses", {})}} if packages and not projects.is_separate() else {}


def _is_from_catalogue(content: dict[str, Any]) -> bool:
    """Whether `content`, of params.yaml, is that of a study of the catalogue or of a part of one."""
    if content.get("study") not in catalogue.studies() or not isinstance(content.get("runs"), dict):
        return False
    study = catalogue.expand(content["study"])
    return content in (study, catalogue.restrict_runs(study, content["runs"]))
