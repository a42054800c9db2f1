"""Numbers printed in the papers, as data; they are never compared with a run that had less than the paper's budget.

The tables have the values as printed, with their inconsistencies. `std` is over runs, in `shn` over clients.
"""

import csv
import io
import math
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from fedweave.errors import BadInput, choose, relocate
from fedweave.study.schema import TaskSpec

PAPERS = {
    "fedaghn": "FedAGHN",
    "pfedgat": "pFedGAT",
    "pfedla": "pFedLA",
    "shn": "Sheaf HyperNetworks",
    "fedsheafhn": "FedSheafHN",
}
STD_OVER_CLIENTS = frozenset({"shn"})

# Our metric -> (printed metric, factor from the printed unit to ours).
UNITS = {"accuracy": (("test_acc_pct", 1.0),), "mse": (("test_mse_x1e-3", 1e-3),)}

# Our label -> other labels of the same method in the tables, both in the form of `canonical_label`.
ALIASES = {
    "heurfedamp": ("hfedamp",),
    "directmatrix": ("directweightmatrix",),
    "fedsheafhn": ("+dynamicembeddingours", "wsheafdiffusionours"),
    "fedavg": ("basemodelfedavg",),
    # A variant's label is the method's and, in brackets, the end of its run's key.
    "sflsfllearned": ("sfl*",),
    "fedsheafhnhypernetwork": ("+hypernetwork",),
    "fedsheafhncollaborationgraph": ("+collaborationgraph",),
    "fedsheafhnsheafdiffusion": ("+sheafdiffusion",),
    "fedsheafhnattention": ("+attention",),
    "fedsheafhnwithout": ("wosheafdiffusion",),
    "fedsheafhngcn": ("wgcn",),
    "fedsheafhngat": ("wgat",),
}


class Row(NamedTuple):
    """One printed number; `std` is NaN where none is printed."""

    paper: str
    table: str
    dataset: str
    setting: str
    method: str
    metric: str
    mean: float
    std: float


class Reference(NamedTuple):
    """The printed column that a task is compared with; `full`: the task declares the paper's whole budget."""

    paper: str
    table: str
    dataset: str
    setting: str
    full: bool

    @property
    def title(self) -> str:
        """Name for a caption, e.g. "FedAGHN, table1"."""
        return f"{PAPERS[self.paper]}, {self.table}"


class PrintedValue(NamedTuple):
    """A printed value in the unit of our metric, and a remark on known inconsistencies."""

    mean: float
    std: float
    remark: str


def canonical_label(label: str) -> str:
    """A method's name without case, blanks and punctuation; `+` and `*` make different methods (SFL and SFL*)."""
    return re.sub(r"[^a-z0-9+*]", "", label.lower())


@cache
def rows(paper: str) -> tuple[Row, ...]:
    """All printed rows of `paper`, in the order of its file.

    Raises:
        BadInput: unknown paper.
    """
    choose(paper, PAPERS, "published.paper")
    words = Row._fields[:6]
    return tuple(
        Row._make([*(line[name] for name in words), *(float(line[name] or math.nan) for name in ("mean", "std"))])
        for line in _read(f"{paper}.csv")
    )


def reference(block: Mapping[str, Any], dataset: str, setting: str) -> Reference:
    """The printed column that a task's `published` block names; its dataset and setting default to the task's own.

    Raises:
        BadInput: a paper, table, dataset or setting that no row has, with the choices.
    """
    paper = choose(str(block.get("paper", "")), PAPERS, "published.paper")
    matches = rows(paper)
    filters = {
        "table": block.get("table", ""),
        "dataset": block.get("dataset", dataset),
        "setting": block.get("setting", setting),
    }
    for key, value in filters.items():
        choose(str(value), {getattr(row, key) for row in matches}, f"published.{key}")
        matches = tuple(row for row in matches if getattr(row, key) == str(value))
    budget = choose(str(block.get("budget", "reduced")), ("full", "reduced"), "published.budget")
    return Reference(paper, matches[0].table, matches[0].dataset, matches[0].setting, budget == "full")


def check(tasks: Mapping[str, TaskSpec], where: str) -> None:
    """Refuse tasks whose printed column does not exist, before any training.

    Raises:
        BadInput: as `reference`, naming the task in `where`.
    """
    for key, task in tasks.items():
        if task.published:
            with relocate({"": f"{where}: tasks.{key}."}):
                reference(task.published, task.dataset, task.setting)


def paper_rounds(reference: Reference) -> int:
    """Rounds that the paper trains in this column."""
    for row in _read("budgets.csv"):
        if all(fnmatchcase(getattr(reference, key), row[key]) for key in ("paper", "dataset", "setting")):
            return int(row["rounds"])
    raise BadInput(f"published.paper: {reference.paper!r} has no line in budgets.csv; add its rounds")


def shortfall(reference: Reference, rounds: int) -> str:
    """Why a run of `rounds` must not be compared with the printed column; empty if it may be compared."""
    full = paper_rounds(reference)
    if rounds < full:
        return f"trained {rounds} of the {full} rounds of {reference.title}"
    return "" if reference.full else f"the task does not declare the full budget of {reference.title}"


def column(reference: Reference) -> tuple[Row, ...]:
    """All rows printed in the column, of any method and metric."""
    key = (reference.table, reference.dataset, reference.setting)
    return tuple(row for row in rows(reference.paper) if (row.table, row.dataset, row.setting) == key)


def lookup(reference: Reference, label: str, metric: str) -> PrintedValue | None:
    """The printed value of the method printed as `label`, in the unit of `metric` ("accuracy" or "mse"), if it
    exists.
    """
    for name, factor in UNITS.get(metric, ()):
        for row in column(reference):
            if row.metric == name and is_same_method(label, row.method):
                return PrintedValue(row.mean * factor, row.std * factor, remark(reference, label))
    return None


def is_same_method(label: str, printed: str) -> bool:
    """Whether `label` and the `printed` label are of the same method."""
    ours, theirs = canonical_label(label), canonical_label(printed)
    return ours == theirs or theirs in ALIASES.get(ours, ())


def remark(reference: Reference, label: str) -> str:
    """A remark on known inconsistencies of a method's printed numbers in this table; empty for most methods."""
    for row in _read("remarks.csv"):
        applies = all(row[key] in ("", getattr(reference, key)) for key in ("paper", "table", "dataset"))
        if applies and is_same_method(label, row["method"]):
            return row["remark"]
    return ""


@cache
def _read(name: str) -> tuple[dict[str, str], ...]:
    return tuple(csv.DictReader(io.StringIO((files(__package__) / name).read_text(encoding="utf-8"))))
