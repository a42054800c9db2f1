"""`fedweave federate`: a run of this project as a federation of real hosts, with Flower."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedweave.errors import BadInput, choose, format_count
from fedweave.study import plugins

from .studies import Uses

if TYPE_CHECKING:
    from fedweave.data import Dataset, Partition
    from fedweave.study.spec import RunSpec

app = typer.Typer(help="Run a method on separate hosts, with Flower.", no_args_is_help=True)
out = Console(markup=False)
ENVIRONMENT = Path(".flower/bin/python")  # of `make flower`, here or in the checkout that this package comes from

To = Annotated[Path, typer.Option("--to", help="folder of the app")]
Data = Annotated[Path | None, typer.Option(help="folder for a file with each client's data; default: not written")]


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="a run of params.yaml, such as digits-fedavg")],
    to: To,
    data: Data = None,
    seed: Annotated[int | None, typer.Option(help="seed of the federation; default: the first one of the run")] = None,
    secure: Annotated[
        bool,
        typer.Option("--secure-aggregation", help="the server learns the mean of the uploads, and no single upload"),
    ] = False,
    uses: Uses = None,
) -> None:
    """Write a run, with the settings that tuning chose, as a Flower app; it holds no row of the data.

    Example: fedweave federate export digits-ditto --to app --data app-data
    """
    from fedweave.deployment import export as exporting
    from fedweave.deployment.wire import support
    from fedweave.runs.inputs import load_inputs
    from fedweave.study import validate

    from ..stages.train import tuned_values

    plugins.load_option(uses)
    study = validate.load()
    choose(run, study.runs, "params.yaml: runs")
    support.check_method(run, study.runs[run].method)
    chosen = study.run(run, tuned_values(study, run) if study.tune.trials else {})
    support.check_code(chosen)
    exporting.check_seed(chosen, seed)
    exporting.check_target(to, data)
    dataset, partition = load_inputs(chosen)
    check_partition(chosen, dataset, partition)
    result = exporting.export(chosen, dataset, partition, to, seed, secure)
    description = f"{format_count(len(result.clients), 'client')}, specification {result.hash}"
    out.print(f"{to}: {result.run.method} on {result.run.name}, {description}", soft_wrap=True)
    if data is not None:
        exporting.write_client_files(exporting.prepare(chosen, dataset, partition, seed).federation, data)
        out.print(f"{data}: one file for each client, which belongs on its host alone", soft_wrap=True)


def check_partition(run: "RunSpec", dataset: "Dataset", partition: "Partition") -> None:
    """Refuse a partition that was made with other settings than params.yaml has now, or from other data."""
    from fedweave import data

    from ..stages.partition import digest

    settings = data.splits(run.task.partition)[0]
    expected = data.partition(dataset, **settings)
    if digest(expected) == digest(partition):
        return
    if partition.clients == expected.clients:
        difference = f"{format_count(partition.clients, 'client')} with other rows than params.yaml asks for"
    else:
        difference = f"{format_count(partition.clients, 'client')}, but params.yaml asks for {expected.clients}"
    raise BadInput(f"data/partitions/{run.name}: {difference}; make it again: dvc repro partition@{run.name}")


@app.command()
def simulate(
    folder: Annotated[Path, typer.Argument(help="an exported app")],
    data: Annotated[Path | None, typer.Option(help="folder of the clients' files; default: FOLDER-data")] = None,
    to: Annotated[Path, typer.Option("--out", help="folder of keys, logs, states and results")] = Path("federation"),
) -> None:
    """Run an app on this machine: a SuperLink, and a SuperNode of its own for each client.

    Example: fedweave federate simulate app
    """
    from fedweave.deployment.export import PACKAGE
    from fedweave.deployment.wire import spec

    spec.read(folder / PACKAGE / spec.FILE)
    named = folder.resolve() if folder.name in ("", "..") else folder
    files = named.with_name(f"{named.name}-data") if data is None else data
    arguments = ["simulate", str(folder), "--data", str(files), "--out", str(to)]
    command = [str(flower_python()), "-m", "fedweave.deployment", *arguments]
    sys.stdout.flush()
    os.execv(command[0], command)  # it replaces this process, so that signals reach it and it can end its programs


def flower_python() -> Path:
    """The interpreter that has Flower: this one, or that of `make flower`; refused if neither has it."""
    if find_spec("flwr"):
        return Path(sys.executable)
    checkout = Path(__file__).resolve().parents[2]
    python = next((folder / ENVIRONMENT for folder in (Path(), checkout) if (folder / ENVIRONMENT).is_file()), None)
    if python is None:
        way = "make flower in a checkout, or python -m fedweave.deployment simulate where fedweave[flower] is installed"
        raise BadInput(f"{ENVIRONMENT}: not found; Flower has an environment of its own: {way}")
    return python.absolute()
