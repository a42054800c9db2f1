"""The command line `fedweave`: its commands, and how errors end them."""

import gc
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from fedweave import __version__
from fedweave.errors import BadInput, Diverged, choose, exit_code
from fedweave.files.atomic import user_errors
from fedweave.study import plugins

from ..processes import exit_after, restore_interrupts
from ..scheduling import workers
from . import (
    boards,
    cluster,
    federate,
    importing,
    lifecycle,
    listing,
    own_data,
    papers,
    projects,
    recommend,
    records,
    servers,
    single_run,
    studies,
)
from .answers import recall
from .repeated_options import refuse_repeated_options

# Parts of `fedweave --help`, with their commands in the order in which one needs them.
PANELS = {
    "Your own data": ("recommend", "compare", "predict", "export", "run"),
    "Studies of a project": (
        "init",
        "import",
        "list",
        "study",
        "flow",
        "report",
        "verify",
        "search",
        "log",
        "submit",
        "paper",
    ),
    "A model that lives on with new data": (
        "refresh",
        "lifecycle",
        "evaluate",
        "challenge",
        "rollback",
        "serve",
        "forget",
    ),
    "Servers, workers and separate hosts": ("ui", "dashboard", "deploy", "worker", "cluster", "federate"),
}


class CommandsInPanels(TyperGroup):
    """The commands, of which the help shows each in its part of `PANELS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order of the help."""
        return [name for names in PANELS.values() for name in names]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name; None if there is none."""
        command = super().get_command(ctx, cmd_name)
        if isinstance(command, TyperCommand | TyperGroup):
            command.rich_help_panel = next(panel for panel, names in PANELS.items() if cmd_name in names)
        return command


app = typer.Typer(
    cls=CommandsInPanels,
    help="Personalized federated learning methods, trained, tuned and compared on equal terms.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(studies.app, name="study")
app.add_typer(cluster.app, name="cluster")
app.add_typer(federate.app, name="federate")
app.add_typer(records.app)
app.add_typer(own_data.app)
app.add_typer(recommend.app)
app.add_typer(boards.app)
app.add_typer(lifecycle.app)
app.add_typer(servers.app)
app.command()(single_run.run)
app.command("import")(importing.import_)
app.command()(projects.init)
app.command()(papers.paper)
app.command()(workers.deploy)
app.command()(workers.worker)
out = Console(markup=False)  # labels have [brackets]


def _print_version(requested: bool) -> None:
    if requested:
        out.print(f"fedweave {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""


OBJECTS = 20_000  # new objects after which Python searches for garbage; with its 700, a fifth of the imports' time
CALLS = {"compare()": "", "fit()": ""}  # places of messages about arguments in Python, which nobody called here


SHOW_WITH_CODE = warnings.showwarning


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
    """A warning about the input is a line without the code that gave it; others are shown as Python does."""
    if category is UserWarning:
        print(f"warning: {message}", file=sys.stderr)
    else:
        SHOW_WITH_CODE(message, category, *place, **options)


def program() -> NoReturn:
    """Entry point: `main` in a process of its own, which starts and ends fast."""
    gc.set_threshold(OBJECTS)
    warnings.showwarning = _show_warning
    exit_after(main)


def main() -> None:
    """The command line: bad input is one line on stderr and exit code 2, another active run 1."""
    run_command(app)


def run_command(command: Callable[[], Any]) -> None:
    """Run `command`; a `BadInput` becomes one line on stderr and exit code 2 (`Busy`: 1), a diverged training 3.

    Ctrl-C ends it with 130.
    """
    try:
        with user_errors(), restore_interrupts():
            command()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BadInput as error:
        sys.exit(_print_error(str(error.move(CALLS)), exit_code(error)))
    except Diverged as error:
        sys.exit(_print_error(str(error), 3))


def _print_error(message: str, code: int) -> int:
    Console(stderr=True, soft_wrap=True).print(Text.assemble(("error:", "bold red"), " ", message), highlight=False)
    return code


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="methods, datasets, models, partitions or studies")],
    name: Annotated[str, typer.Argument(help="a method, model or partition, to list its settings")] = "",
    uses: studies.Uses = None,
) -> None:
    """List what can be used; outside of a terminal, such as in a pipe, one line each."""
    used = plugins.resolve_paths(uses or [], "--uses")
    listings = {
        "methods": listing.methods,
        "datasets": listing.datasets,
        "models": listing.models,
        "partitions": listing.partitions,
        "studies": listing.studies,
    }
    listing_function = listings[choose(what, listings, "fedweave list")]

    def work_out() -> tuple[list[list[str]], list[Path]]:
        if what != "studies":
            plugins.load(used.values())
        rows = listing.settings(what, name) if name else listing_function()
        return [[str(cell) for cell in row] for row in rows], listing.files(what)

    listing.show(out, recall(("list", what, name, used), work_out))


refuse_repeated_options(app)

if __name__ == "__main__":
    program()
