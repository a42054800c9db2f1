"""`fedweave ui` and `fedweave flow`: the commands `make ui` and `make flow` of a checkout, for every project."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedweave.errors import BadInput

from ..scheduling.pool_names import Place

CORES = os.cpu_count() or 1

app = typer.Typer()


@app.command()
def ui() -> None:
    """Run MLflow's UI and Prefect's server on loopback (or on the address UI_HOST), until Ctrl-C.

    MLFLOW_PORT and PREFECT_PORT are their ports.
    """
    if not Path("dvc.yaml").is_file():
        raise BadInput(
            "ui: this folder is not a project (it has no dvc.yaml); go to one, or make one: fedweave init FOLDER"
        )
    os.execv(sys.executable, [sys.executable, "-m", "fedweave.pipelines.ui"])


Study = Annotated[
    str, typer.Option(help="a name of `fedweave list studies`, or a .yaml file; default: the one in params.yaml")
]
Targets = Annotated[
    list[str] | None,
    typer.Option(help="only this stage and what it depends on, such as tune; repeat for more; default: all"),
]
Where = Annotated[
    Place,
    typer.Option(help="training runs here, on the workers of the project's pool, by ray or by slurm (cluster.yaml)"),
]
Parallel = Annotated[
    int,
    typer.Option(
        min=0,
        show_default="the cores of this host",
        help="stages at once; 0: one per GPU, at least two; with workers the pool's limit",
    ),
]
Retries = Annotated[
    int, typer.Option(min=0, help="how often a failed stage is tried again; training goes on from its last checkpoint")
]
Gpus = Annotated[
    list[str] | None,
    typer.Option(help="value of CUDA_VISIBLE_DEVICES for one training stage; repeat for more; default: all GPUs"),
]
Share = Annotated[
    float, typer.Option(help="with ray, the part of a GPU that a training stage takes; 0.25 packs four onto one")
]


@app.command()
def flow(
    study: Study = "",
    targets: Targets = None,
    where: Where = "here",
    parallel: Parallel = CORES,
    retries: Retries = 1,
    gpus: Gpus = None,
    share: Share = 1.0,
) -> None:
    """Reproduce a study, scheduled by Prefect: every stale stage of its DVC graph, as a task.

    Example: fedweave flow --study quick --targets tune --parallel 2
    """
    if not 0 < share <= 1:
        raise BadInput(f"--share: {share:g} is not a share of a GPU; give one above 0 and at most 1, such as 0.25")
    from ..scheduling import flows  # with Prefect, which takes seconds

    flows.start(study=study, targets=targets, where=where, parallel=parallel, retries=retries, gpus=gpus, share=share)
