"""`fedweave submit`: a contestant enters a board, or the board is judged again."""

from pathlib import Path
from typing import Annotated

import typer

from .interrupts import explain_interrupt
from .own_data import show

app = typer.Typer()


@app.command()
def submit(
    board: Annotated[Path, typer.Argument(help="folder of a board, with its board.yaml")],
    contestant: Annotated[
        Path | None,
        typer.Argument(
            help="a script, a folder with contestant.yaml, or a copy of the board with new contestants; "
            "without one, the board is judged as it is"
        ),
    ] = None,
) -> None:
    """Judge a contestant on a board, and enter it: seeds, limits and hidden targets are those of the board.

    Example: fedweave submit board/ mine.py
    """
    from fedweave import boards

    with explain_interrupt(board, resume=True):
        place = boards.read(board)
        comparison = boards.judge(place) if contestant is None else boards.submit(board, contestant)
    if comparison is None:
        typer.echo(f"entered, and not judged: {place.file} is not here, and whoever has it judges")
        return
    show(comparison)
    typer.echo(f"{board / 'README.md'} is the page of the board; commit it with contestants.yaml and contestants/")
