"""The tables of `fedweave list`: each is a header and a row for each name."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedweave.errors import BadInput, choose
from fedweave.settings import REQUIRED
from fedweave.study import catalogue

from ..paths import RAW


def _summary(documented: object) -> str:
    """The first line of a docstring, without its full stop; a dash where there is none."""
    return ((documented.__doc__ or "").strip().splitlines() or ["-"])[0].rstrip(".")


def methods() -> list[tuple[Any, ...]]:
    """Every method."""
    from fedweave.methods import METHODS

    return [
        ("name", "label", "reported", "needs", "what it is"),
        *(
            (name, cls.label, cls.point, ", ".join(sorted(cls.needs)) or "-", _summary(cls))
            for name, cls in METHODS.items()
        ),
    ]


def settings(what: str, name: str) -> list[tuple[Any, ...]]:
    """The settings of a method, a model or a partition.

    Raises:
        BadInput: `name` is unknown, or `what` has no settings.
    """
    from fedweave import data, models
    from fedweave.methods import METHODS

    if what == "methods":
        entries = METHODS[choose(name, METHODS, "fedweave list methods")].settings()
    elif what == "models":
        entries = models.settings(choose(name, models.MODELS, "fedweave list models"))
    elif what == "partitions":
        entries = data.partitions.registry.settings(choose(name, data.PARTITIONS, "fedweave list partitions"))
    else:
        raise BadInput(
            f"fedweave list {what}: {name!r}: only methods, models and partitions have settings to list; leave it out"
        )
    return [
        ("name", "default", "values", "search", "meaning"),
        *(
            (s.name, "required" if s.default is REQUIRED else s.default, s.range or "-", s.space or "-", s.meaning)
            for s in entries
        ),
    ]


def datasets() -> list[tuple[Any, ...]]:
    """Every data set, and whether its files are in data/raw."""
    from fedweave import data
    from fedweave.data.sources.packaged import is_installed

    def place(name: str) -> str:
        if not is_installed(name):
            return "not installed"
        return "here" if data.find_intact_files(name, RAW) else "fetched on use"

    loaders = {n: getattr(f, "func", f) for n, f in data.DATASETS.items()}
    return [("name", "files", "what it is"), *((n, place(n), _summary(f)) for n, f in sorted(loaders.items()))]


def models() -> list[tuple[Any, ...]]:
    """Every client model."""
    from fedweave.models import MODELS, options

    def line(name: str) -> tuple[str, str, str]:
        return name, ", ".join(f"{k}={v}" for k, v in options(name).items()) or "-", _summary(MODELS[name])

    return [("name", "options", "what it is"), *map(line, sorted(MODELS))]


def partitions() -> list[tuple[Any, ...]]:
    """Every rule that distributes rows over clients."""
    from fedweave import data

    def documented(name: str) -> object:
        """The function that explains a rule: of those that share the code for labels, the one that differs."""
        rule = data.PARTITIONS[name]
        return rule.args[0] if isinstance(rule, partial) and rule.args else rule

    return [
        ("name", "options", "what it is"),
        *((n, ", ".join(data.default_options(n)) or "-", _summary(documented(n))) for n in data.PARTITIONS),
    ]


def studies() -> list[tuple[Any, ...]]:
    """Every study of the catalogue."""
    overlays = {name: catalogue.overlay(name) for name in catalogue.studies()}
    return [("name", "tasks", "about"), *((n, ", ".join(s["tasks"]), s.get("about", "")) for n, s in overlays.items())]


def files(what: str) -> list[Path]:
    """What the list of `what` comes from besides code."""
    if what == "studies":
        folders = [catalogue.STUDIES, *(path for path in catalogue.STUDIES.rglob("*") if path.is_dir())]
        return [*folders, *{file for name in catalogue.studies() for file in catalogue.list_files(name)}]
    return [RAW, *RAW.rglob("*")] if what == "datasets" else []


def show(out: Console, rows: Sequence[Sequence[str]]) -> None:
    """Print `rows`, of which the first is the header: as a table in a terminal, elsewhere one line each, for grep."""
    header, *body = rows
    if not out.is_terminal:
        out.print(*_lines([header, *body]), sep="\n", soft_wrap=True, highlight=False)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, title in enumerate(header):
        table.add_column(title, style="cyan" if i == 0 else None, no_wrap=i == 0)
    for row in body:
        table.add_row(*row)
    out.print(table)


def _lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
