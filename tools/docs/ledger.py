"""The ledger of the five papers: every printed number once, with ours beside it and how far it was run.

The package has ledger.csv (`results.published.ledger`). The page docs/reproduction/ledger.md shows the papers' tables
as they print them, with our numbers where the whole budget was trained.

python -m tools.docs.ledger    write both again
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.files.atomic import write_atomic
from fedweave.pipelines.processes import run_main
from fedweave.results import published
from fedweave.results.published.ledger import (
    ABSENT,
    CSV,
    DIFFERS,
    FULL,
    NOT_RUN,
    ONE_SEED,
    OTHER,
    REDUCED,
    SIZE,
    STATES,
    PrintedNumber,
    arrange,
)
from fedweave.results.quantities import WEIGHTS
from fedweave.study import catalogue
from tools.docs.stored_numbers import FOLDER, METRICS, QUANTITIES, WEIGHTS_FILE, size_key
from tools.pages import markdown, store

PAGE = FOLDER / "ledger.md"
COSTS = FOLDER / "costs.csv"  # by benchmarks.paper_costs: FedAvg on each column that was not run
SHARES = FOLDER / "shares.csv"  # by the same: the time of each method on digits divided by FedAvg's
MEAN = "avg"  # the setting of a printed mean over the others
ALL_LAYERS = "-all"  # ends the name of a method where weights are printed by layers; elsewhere they are over all layers
# Data that were not at hand for our runs. The readers exist; the pages of the data sets say where the data come from.
MISSING_DATA = frozenset({"tinyimagenet-resnet18", "emnist", "ogbn-arxiv", "compcars", "pems-bay"})


class Candidate(NamedTuple):
    """A stored row that may stand beside a printed number."""

    study: str
    state: str
    row: Mapping[str, Any]


def main() -> None:
    """Write the ledger and its page."""
    entries = build()
    frame = pd.DataFrame(entries)
    store(frame, CSV)
    write_atomic(PAGE, page(entries))


def build() -> list[PrintedNumber]:
    """All printed numbers in the order of the papers' files."""
    return [_entry(row) for paper in published.PAPERS for row in published.rows(paper)]


def _entry(row: published.Row) -> PrintedNumber:
    best = _mean_of_columns(row) if row.setting == MEAN else _best(row)
    state = best.state
    if state in (REDUCED, NOT_RUN) and row.dataset in MISSING_DATA:
        state = ABSENT
    shown = best.row if state in (FULL, ONE_SEED, OTHER, SIZE) else {}
    ours, std = float(shown.get("mean", np.nan)), float(shown.get("std", np.nan))
    return PrintedNumber(
        *row[:6],
        row.mean,
        row.std,
        state,
        ours,
        std,
        float(shown.get("seeds", np.nan)),
        _verdict(row, state, ours, std),
        _core_minutes(best.row),
        _estimate(row) if state == NOT_RUN else np.nan,
        "" if state == ABSENT else best.study,
    )


def _best(row: published.Row) -> Candidate:
    return min(_candidates(row), key=_preference(row), default=Candidate("", NOT_RUN, {}))


def _mean_of_columns(row: published.Row) -> Candidate:
    """The mean over the printed settings of a data set, if each has a full number; its state is that of the worst."""
    same = [other for other in published.rows(row.paper) if other._replace(setting=MEAN)[:6] == row[:6]]
    parts = [_best(other) for other in same if other.setting != MEAN]
    if not all(part.state in (FULL, ONE_SEED) for part in parts):
        return Candidate("", NOT_RUN, {})
    worst = max(parts, key=lambda part: STATES.index(part.state))
    means, seeds = zip(*((part.row["mean"], part.row["seeds"]) for part in parts), strict=True)
    return Candidate(worst.study, worst.state, {"mean": np.mean(means), "seeds": min(seeds)})


def _preference(row: published.Row) -> Any:
    """A key that sorts candidates: the better state, then the study that is named as the table."""
    return lambda one: (STATES.index(one.state), one.study != f"{row.paper}/{row.table}", one.study)


def _candidates(row: published.Row) -> Iterator[Candidate]:
    """Stored rows of the printed number: in its column, of its method and quantity."""
    if row.metric not in METRICS:
        yield from _weights(row) if row.metric in WEIGHTS else _sizes(row)
        return
    columns = {(table, row.dataset, row.setting) for table in _tables(row)}
    for study in _studies(row.paper):
        column = printed_columns(study)
        for stored in _scores(study):
            reference = column.get((stored["dataset"], stored["setting"]))
            in_column = reference and reference[1:4] in columns
            if in_column and published.is_same_method(stored["method"], row.method):
                yield _candidate(study, stored, row)


@cache
def _tables(row: published.Row) -> set[str]:
    """The tables in which the paper prints the same number for the same data, setting and method: one experiment."""
    return {other.table for other in published.rows(row.paper) if _experiment(other) == _experiment(row)}


def _experiment(row: published.Row) -> tuple[object, ...]:
    """Data, setting, method and quantity of a number, and the number."""
    return (*row[2:4], row.method.removesuffix(ALL_LAYERS), row.metric, row.mean)


def _candidate(study: str, stored: Mapping[str, Any], row: published.Row) -> Candidate:
    factor = dict(published.UNITS[stored["metric"]])[row.metric]
    spread = "client_std" if row.paper in published.STD_OVER_CLIENTS else "std"
    scaled = {**stored, "mean": stored["mean"] / factor, "std": stored[spread] / factor}
    if np.isnan(stored["published_mean"]):
        return Candidate(study, REDUCED, scaled)
    if study.rpartition("/")[2] not in _tables(row):
        return Candidate(study, OTHER, scaled)
    return Candidate(study, FULL if stored["seeds"] > 1 else ONE_SEED, scaled)


def _weights(row: published.Row) -> Iterator[Candidate]:
    """The stored weights of a graph at the printed stage, which ends the name of the printed setting."""
    setting, _, stage = row.setting.rpartition("/")
    wanted = {(table, setting) for table in _tables(row)}
    keys = [f"{stage} {name} {row.metric}" for name in (row.method, row.method + ALL_LAYERS)]
    for file in sorted((FOLDER / row.paper).glob(f"*{WEIGHTS_FILE}")):
        study = f"{row.paper}/{file.name.removesuffix(WEIGHTS_FILE)}"
        columns = {(column.table, column.setting.rpartition("/")[0]) for column in printed_columns(study).values()}
        if wanted & columns:
            for _, ours in _table(file).reindex(keys).dropna(subset="ours").rename(columns={"ours": "mean"}).iterrows():
                yield Candidate(study, FULL if ours["seeds"] > 1 else ONE_SEED, ours)


def _sizes(row: published.Row) -> Iterator[Candidate]:
    """The stored size of a data set or of a model, or the traffic; of a reduced study, too, because it is the same."""
    column, key = QUANTITIES.get(row.metric), size_key(row.dataset, row.setting, row.method)
    for file in sorted((FOLDER / row.paper).glob(f"{row.table}*.sizes.csv")):
        table = _table(file)
        if key in table.index and column in table and np.isfinite(value := float(table.loc[key, column])):
            yield Candidate(f"{row.paper}/{file.name.partition('.')[0]}", SIZE, {"mean": value})


@cache
def _table(file: Path) -> pd.DataFrame:
    """A stored table, read once for all its numbers."""
    return pd.read_csv(file, index_col="key", na_values=results.EMPTY)


@cache
def _studies(paper: str) -> tuple[str, ...]:
    """The studies of a paper with stored rows."""
    names = (name for name in catalogue.studies() if name.startswith(f"{paper}/"))
    return tuple(name for name in names if (FOLDER / f"{name}.csv").is_file())


@cache
def printed_columns(study: str) -> Mapping[tuple[str, str], published.Reference]:
    """(data set, setting) of a task -> the printed column that it names."""
    tasks = catalogue.expand(study)["tasks"].values()
    return {
        (task["dataset"], task["setting"]): published.reference(task["published"], task["dataset"], task["setting"])
        for task in tasks
        if task.get("published")
    }


@cache
def _scores(study: str) -> list[dict[str, Any]]:
    return [{str(k): v for k, v in row.items()} for row in pd.read_csv(FOLDER / f"{study}.csv").to_dict("records")]


def _verdict(row: published.Row, state: str, ours: float, std: float) -> str:
    """Whether our score is within two standard deviations of the printed one, or our size within half a percent."""
    if state == SIZE:
        return "agrees" if abs(ours - row.mean) <= 0.005 * abs(row.mean) else DIFFERS
    if state not in (FULL, OTHER) or not np.isfinite(std):
        return ""
    return DIFFERS if abs(ours - row.mean) > 2 * np.hypot(std, np.nan_to_num(row.std)) else "agrees"


def _core_minutes(row: Mapping[str, Any]) -> float:
    """Of all seeds, on one core; NaN where nothing was trained."""
    return float(row.get("seconds", np.nan)) * float(row.get("seeds", np.nan)) / 60


def _estimate(row: published.Row) -> float:
    """Core-minutes of one seed: those of FedAvg on the column, times the method's share of FedAvg's time on digits."""
    if row.setting == MEAN:
        return 0.0  # the mean of the other columns
    minutes = _costs().get((row.paper, row.table, row.dataset, row.setting), np.nan)
    shares = [share for label, share in _shares().items() if published.is_same_method(label, row.method)]
    return minutes * (shares or [1.0])[0]


@cache
def _costs() -> Mapping[tuple[str, ...], float]:
    table = pd.read_csv(COSTS, index_col=["paper", "table", "dataset", "setting"])
    return {(*map(str, column),): float(minutes) for column, minutes in table["minutes"].items()}


@cache
def _shares() -> Mapping[str, float]:
    """Label of a method -> its time on digits divided by FedAvg's."""
    table = pd.read_csv(SHARES, index_col="method")["share"]
    return {str(label): float(share) for label, share in table.items()}


def counts(entries: list[PrintedNumber]) -> pd.DataFrame:
    """Printed numbers by state (rows) and paper (columns), with their sums."""
    frame = pd.DataFrame(entries)
    table = pd.crosstab(frame["state"], frame["paper"]).reindex([*STATES], fill_value=0)[[*published.PAPERS]]
    table["all"] = table.sum(axis=1)
    table.loc["all"] = table.sum()
    return table


def page(entries: list[PrintedNumber]) -> str:
    """The page as Markdown."""
    table = counts(entries).rename(columns=published.PAPERS)
    lines = [["state", *map(str, table.columns)]]
    lines += [[str(state), *map(str, row)] for state, row in zip(table.index, table.to_numpy(), strict=True)]
    text = INTRODUCTION + markdown(lines)
    text += "\n" + REMAINING + _remaining(entries)
    for paper, name in published.PAPERS.items():
        text += f"\n## {name}\n"
        of_paper = [entry for entry in entries if entry.paper == paper]
        for title in dict.fromkeys(entry.table for entry in of_paper):
            text += f"\n### {name}, {title}\n\n" + _matrix([entry for entry in of_paper if entry.table == title])
    return text


def _remaining(entries: list[PrintedNumber]) -> str:
    """What was not run and is at hand, by table: how many numbers, and the core-hours of one seed."""
    text = "| paper | table | not run | core-hours |\n| --- | --- | --: | --: |\n"
    frame = pd.DataFrame([entry for entry in entries if entry.state == NOT_RUN])
    for (paper, table), group in frame.groupby(["paper", "table"], sort=False):
        hours = group["estimate"].sum(min_count=len(group)) / 60
        known = f"{hours:,.0f}" if hours >= 1 else "less than 1"
        text += f"| {published.PAPERS[paper]} | {table} | {len(group)} | {known if np.isfinite(hours) else ''} |\n"
    return text


def _matrix(entries: list[PrintedNumber]) -> str:
    columns, cells = arrange(entries)
    rows = ([row, *(_cell(values.get(column)) for column in columns)] for row, values in cells.items())
    return markdown([["", *columns], *rows])


def _cell(entry: PrintedNumber | None) -> str:
    """The printed number, and ours in brackets where the whole budget was trained; bold where they differ."""
    if entry is None:
        return ""
    printed, ours, mark = entry.numbers
    number = f"**{ours}**" if entry.verdict == DIFFERS else ours
    return f"{printed} [{number}{mark}]" if ours else printed + mark


INTRODUCTION = """# Ledger: every printed number

Each of the numbers that the five papers print stands here once, as printed. Ours are in brackets where the paper's
whole budget was trained, and **bold** where they differ: a mean over seeds by more than two standard deviations, a size
by more than half a percent. ¹: one seed, so no verdict. ᶜ: the set-up of public code. r: trained with a smaller budget,
whose numbers stand on the pages of the papers and never beside printed ones. –: the data were not at hand. No mark: not
run. A number that a paper prints in several tables, for the same data, setting and method, is one experiment, and has
the same number of ours in each. `fedweave paper fedsheafhn` prints these tables in a terminal.
`src/fedweave/results/published/ledger.csv` has the same rows with the study, the seeds and the cost, which is an
estimate where nothing was trained. `python -m tools.docs.ledger` writes both again.

"""

REMAINING = """What was not run would take so many core-hours for one seed, on an AMD EPYC with AVX-512: local steps of
the client model, times the processor time of a round of the method on digits divided by FedAvg's. Both are measured by
`python -m benchmarks.paper_costs`. Evaluation is not in it. A mean over columns costs nothing more.

"""


if __name__ == "__main__":
    run_main(main)
