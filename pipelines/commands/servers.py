"""`fedweave ui` and `fedweave flow`: the commands `make ui` and `make flow` of a checkout, for every project."""

import os
import sys
from pathlib import Path
from typing import NoReturn

import typer

from fedweave.errors import BadInput

app = typer.Typer()
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command()
def ui() -> None:
    """Run MLflow's UI and Prefect's server on loopback (or on the address UI_HOST), until Ctrl-C.

    MLFLOW_PORT and PREFECT_PORT are their ports.
    """
    if not Path("dvc.yaml").is_file():
        raise BadInput(
            "ui: this folder is not a project (it has no dvc.yaml); go to one, or make one: fedweave init FOLDER"
        )
    _exec_module("fedweave.pipelines.ui")


@app.command(context_settings=PASS_THROUGH)
def flow(context: typer.Context) -> None:
    """Reproduce a study, scheduled by Prefect.

    `fedweave flow --help` shows the options, such as --study and --where.
    """
    _exec_module("fedweave.pipelines.scheduling.flows", *context.args)


def _exec_module(module: str, *words: str) -> NoReturn:
    os.execv(sys.executable, [sys.executable, "-m", module, *words])
