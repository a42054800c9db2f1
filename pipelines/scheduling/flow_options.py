"""The command line of `fedweave flow`."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import typer

from .pool import Place

CORES = os.cpu_count() or 1

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


def run(action: Callable[..., None]) -> None:
    """Call `action` with the arguments of the flow `reproduce`, from the command line; then exit."""
    app(prog_name="fedweave flow", obj=action)


def _count(text: object) -> int:
    """A whole number from 0 on."""
    word = str(text)  # of a default, the number itself
    if not (word.isascii() and word.isdecimal()):
        raise typer.BadParameter(f"{word} is not a whole number from 0 on")
    return int(word)


def _gpu_share(text: object) -> float:
    """A part of a GPU."""
    with suppress(ValueError):
        if 0 < float(str(text)) <= 1:
            return float(str(text))
    raise typer.BadParameter(f"{text} is not a share of a GPU; give one above 0 and at most 1, such as 0.25")


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
        parser=_count,
        metavar="<int>",
        show_default="the cores of this host",
        help="stages at once; 0: one per GPU, at least two; with workers the pool's limit",
    ),
]
Retries = Annotated[
    int,
    typer.Option(
        parser=_count,
        metavar="<int>",
        help="how often a failed stage is tried again; training goes on from its last checkpoint",
    ),
]
Gpus = Annotated[
    list[str] | None,
    typer.Option(help="value of CUDA_VISIBLE_DEVICES for one training stage; repeat for more; default: all GPUs"),
]
Share = Annotated[
    float,
    typer.Option(
        parser=_gpu_share,
        metavar="<float>",
        help="with ray, the part of a GPU that a training stage takes; 0.25 packs four onto one",
    ),
]


@app.command()
def flow(
    context: typer.Context,
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
    action: Callable[..., Any] = context.obj
    action(study=study, targets=targets, where=where, parallel=parallel, retries=retries, gpus=gpus, share=share)
