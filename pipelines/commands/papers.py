"""`fedweave paper`: the tables of a paper as printed, with our numbers beside them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from fedweave.results.published.ledger import PrintedNumber

LEAST_COLUMN, FIRST_COLUMN = 18, 24  # characters of a column of numbers, and of the names in front of them


def paper(
    name: Annotated[str, typer.Argument(help="fedaghn, pfedgat, pfedla, shn or fedsheafhn")],
    table: Annotated[str, typer.Argument(help="one of its tables, such as table1; default: all")] = "",
) -> None:
    """The tables of a paper as printed, with our numbers in brackets where its whole budget was trained."""
    from fedweave.results import published
    from fedweave.results.published import ledger

    entries = ledger.read(name, table)
    out = Console(highlight=False)
    for title in dict.fromkeys(entry.table for entry in entries):
        columns, cells = ledger.arrange(entry for entry in entries if entry.table == title)
        count = max(1, (out.width - FIRST_COLUMN) // LEAST_COLUMN)  # as many as the terminal has room for
        for start in range(0, len(columns), count):
            out.print(_build(f"{published.PAPERS[name]}, {title}", columns[start : start + count], cells))
    out.print(_legend())


def _build(title: str, columns: Sequence[str], cells: Mapping[str, Mapping[str, "PrintedNumber"]]) -> Table:
    table = Table(title=title, box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.add_column("", style="cyan")
    for column in columns:
        table.add_column(column, justify="right")
    for row, values in cells.items():
        table.add_row(row, *(_format(values[column]) if column in values else Text() for column in columns))
    return table


def _format(entry: "PrintedNumber") -> Text:
    """The printed number, and ours in brackets: green where the two agree, red where they differ, else yellow."""
    printed, ours, mark = entry.numbers
    color = {"agrees": "green", "differs": "red"}.get(entry.verdict, "yellow")
    return Text(printed).append(f" [{ours}{mark}]", style=color) if ours else Text(printed + mark, style="dim")


def _legend() -> Text:
    return Text.assemble(
        ("[green]", "green"),
        ": agrees, ",
        ("[red]", "red"),
        ": differs by more than two standard deviations, or a size by half a percent, ",
        ("[yellow]¹", "yellow"),
        ": one seed, no verdict. ᶜ: set-up of public code. r: run with a smaller budget. –: data not at hand. "
        "Without brackets: not run.",
    )
