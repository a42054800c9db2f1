"""Writes the tables of docs/studies.md from the files in studies/: one row per study.

Run it after a study has changed: `python -m tools.study_gallery`. Text outside of the tables' markers is written by
hand and is kept.
"""

import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from fedweave.errors import BadInput
from fedweave.files.atomic import write_atomic
from fedweave.study import catalogue
from fedweave.study.spec import read_yaml
from tools.pages import fill, find_blocks

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "studies.md"
STUDIES = ROOT / "studies"
HEADER = "| study | about | tasks | methods | runs | budget |\n|---|---|---|---|--:|---|\n"
MAX_NAMED = 3  # the maximum number of tasks or methods in a cell
TOP = "own"  # name of the table of the studies that are in no paper's folder


def main() -> None:
    """Rewrite the page, which must have a place for every folder of studies."""
    write_atomic(PAGE, fill_tables(PAGE.read_text(encoding="utf-8")))


def fill_tables(text: str) -> str:
    """The text of the page with the current tables."""
    base = read_yaml(STUDIES / "base.yaml")
    tables = {folder: table(names, base) for folder, names in folders().items()}
    present = find_blocks(text, "studies")
    if sorted(present) != sorted(tables):
        raise BadInput(f"docs/studies.md: tables of {present}, folders {sorted(tables)}; every folder needs one table")
    return fill(text, studies=tables.__getitem__)


def folders() -> dict[str, list[str]]:
    """Folder -> names of its studies; `own` for those in no folder."""
    by_folder = sorted(catalogue.studies(STUDIES), key=_place)
    return {folder: list(names) for folder, names in groupby(by_folder, key=lambda name: _place(name)[0])}


def table(names: list[str], base: Mapping[str, Any]) -> str:
    """The studies as Markdown, one row each. `base` is the content of studies/base.yaml."""
    return HEADER + "".join(_line(name, catalogue.overlay(name, STUDIES), base) for name in names)


def _place(name: str) -> tuple[str, tuple[tuple[int, str], ...]]:
    """(folder of a study, sort key): numbers in a name are sorted as numbers."""
    folder = name.split("/")[0] if "/" in name else TOP
    return folder, tuple((int(part or 0), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name))


def _line(name: str, study: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """One row: name, subject, tasks, methods, number of runs, budget."""
    entries = [entry for task in study["tasks"].values() for entry in catalogue.list_methods(task, study, base)]
    methods = sorted({_method(entry) for entry in entries})
    description = study.get("about", "").replace("|", "\\|")
    cells = (
        f"`{name}`",
        description,
        _list_or_count(list(study["tasks"])),
        _list_or_count(methods),
        str(len(entries)),
        budget(study, base),
    )
    return f"| {' | '.join(cells)} |\n"


def _method(entry: str | Mapping[str, Any]) -> str:
    """The method of an entry, which is a name, or {variant: its changes}."""
    if isinstance(entry, str):
        return entry
    [(variant, change)] = entry.items()
    return str(change.get("method", variant))


def _list_or_count(names: list[str]) -> str:
    """The names, or their number if there are more than `MAX_NAMED`."""
    return ", ".join(f"`{name}`" for name in names) if len(names) <= MAX_NAMED else str(len(names))


def budget(study: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """Rounds of a run, seeds, and trials of a search per method and task."""
    tasks = [
        catalogue.merge(base["tasks"].get(task.get("base", key), {}), task) for key, task in study["tasks"].items()
    ]
    rounds = sorted({int(task["train"]["rounds"]) for task in tasks})
    round_text = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    seeds = study.get("seeds", base["seeds"])
    trials = catalogue.merge(base.get("tune", {}), study.get("tune", {})).get("trials", 0)
    parts = [_count(round_text, "round"), _count(len(seeds), "seed"), _count(trials, "trial") if trials else ""]
    return ", ".join(filter(None, parts))


def _count(number: int | str, noun: str) -> str:
    return f"{number} {noun}{'' if str(number) == '1' else 's'}"


if __name__ == "__main__":
    main()
