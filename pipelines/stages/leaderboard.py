"""The leaderboard in the terminal."""

from collections.abc import Iterable, Iterator, Sequence

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedweave import results
from fedweave.errors import BadInput
from fedweave.report import method_views
from fedweave.report.summary import SummaryLine, summary
from fedweave.results import verdicts
from fedweave.results.marks import NOTHING_SHOWN
from fedweave.study import validate

from .. import addresses, paths
from . import terminal
from .train import tuned_values

COLUMNS = {
    "rank": "",
    "method": "method",
    "score": "mean ± std",
    "interval": "95 % interval",
    "pooled": "pooled",
    "pre": "as\nreceived",
    "post": "after\ntraining",
    "worst10": "worst\n10 %",
    "vs_local": "vs\nLocal",
    "vs_fedavg_ft": "vs\nFedAvg-FT",
    "gain": "gain /\nloss",
    "mib": "MiB",
    "seconds": "seconds",
    "published": "published",
}
OPTIONAL = ("pooled", "pre", "post", "vs_local", "vs_fedavg_ft", "gain", "published")  # left out if they are empty
# A narrow terminal omits these columns, in this order. Both evaluation points come last: they say which scores can be
# compared.
LEAST_IMPORTANT = (
    "seconds",
    "mib",
    "pooled",
    "gain",
    "published",
    "vs_fedavg_ft",
    "vs_local",
    "worst10",
    "interval",
    "post",
    "pre",
)
TESTED = "tested"  # there is a verdict
# (subjects, line): the line explains columns, marks, rows or tests, and is printed if one of its subjects is shown.
LEGEND = (
    ((), "mean over clients, std over seeds, at the round that validation data select"),
    (
        ("interval",),
        "interval: over seeds and clients, by Student's t of a linear mixed model; of one seed over clients",
    ),
    (
        ("pre", "post"),
        "as received / after training: the means at both evaluation points of that round, before and after local "
        "training; the mean of a method is that of the point which its paper reports",
    ),
    (
        ("equivalent", "open", "behind"),
        "before the mean, against the leader (corrected over all pairs): ≈ equivalent (margin: {margins}), "
        f"? open ({NOTHING_SHOWN}), no mark: worse, or no verdict",
    ),
    (
        (results.RULE,),
        "[control]: rules, and models that an analyst would fit; they have no seeds, no rank and no test",
    ),
    (
        (results.POOLED,),
        "[not federated]: controls that train one model on the pooled rows of all clients; no rank and no test",
    ),
    ((TESTED,), "one test decides, over seeds and clients: a verdict is about new seeds and new clients"),
    (
        ("vs_local", "vs_fedavg_ft"),
        "vs a control (corrected over the tests against controls): ▲ better, ▽ worse, ≈ equivalent (margin: "
        "{margins}), ? open",
    ),
    (("gain",), "gain / loss: clients with a better / worse mean over seeds than with Local"),
)

MAX_NAMED_RUNS = 6  # in one line


def show_stored(name: str, study: results.Study, tables: results.Tables, console: Console | None = None) -> None:
    """Print the leaderboard of the study `name`, its summary and paths of its results; default: to the terminal."""
    console = console or terminal.console()
    for note in notes(study):
        console.print(note, soft_wrap=True)
    _print(console, study, tables)
    console.print(f"study {name}: {study.folder / 'report.html'} shows everything", soft_wrap=True)
    ui = addresses.start_command("ui")
    console.print(f"runs and curves: {ui}; plots: dvc plots show; changes: dvc metrics diff", style="dim")


def notes(study: results.Study) -> list[str]:
    """Messages about runs of params.yaml that are outdated, and about those without results."""
    changed, missing = stale_runs(study), missing_runs(study)
    lines = [_outdated_message(changed)] if changed else []
    return [*lines, f"without results, and left out: {_name(missing)}; run them with: dvc repro"] if missing else lines


def _name(runs: Sequence[str]) -> str:
    """The names of the first runs, and the number of the others."""
    more = len(runs) - MAX_NAMED_RUNS
    return ", ".join(runs[:MAX_NAMED_RUNS]) + (f" and {more} more" if more > 0 else "")


def _outdated_message(runs: Sequence[str]) -> str:
    """A message about outdated `runs`, with the commands that train them again.

    Where dvc.lock agrees with params.yaml, `dvc repro` alone trains none of them.
    """
    targets = "train" if len(runs) > MAX_NAMED_RUNS else " ".join(f"train@{run}" for run in runs)
    return (
        f"trained with other settings than params.yaml has now: {_name(runs)}; bring up to date with: dvc repro; "
        f"where that trains nothing: dvc repro -f -s {targets} && dvc repro"
    )


def show(study: results.Study) -> None:
    """Print the leaderboard and the summary of a loaded `study`, such as one by another metric."""
    _print(terminal.console(), study, results.compute_tables(study, paths.PARTITIONS))


def _print(console: Console, loaded: results.Study, tables: results.Tables) -> None:
    print_boards(console, loaded, tables)
    for grid in extra_grids(tables):
        console.print("", grid_table(grid))
    print_summary(console, summary(loaded, tables))


def print_boards(console: Console, study: results.Study, tables: results.Tables, reasons: bool = True) -> None:
    """Print the leaderboard of every task, and the legend.

    Args:
        reasons: whether to print below a leaderboard why its test has no power, or which clients count as one. Callers
            that print warnings set it to False, because the warnings say the same.
    """
    boards_by_task = boards(console, tables)
    for task, board in boards_by_task.items():
        console.print(board)
        runs = results.by_task(study)[task]
        if splits := verdicts.describe_splits(runs):
            console.print(splits, soft_wrap=True, highlight=False)
        if fixed := verdicts.describe_fixed(tables.significance[tables.significance["task"] == task]):
            console.print(fixed, soft_wrap=True, highlight=False)
        reason = verdicts.reason_without_power(runs, tables.clients) or verdicts.describe_parts(runs, tables.clients)
        if reasons and reason:
            console.print(reason, soft_wrap=True)
        console.print("")
    print_legend(console, study, tables, boards_by_task.values())


def boards(console: Console, tables: results.Tables) -> dict[str, Table]:
    """Task -> its leaderboard, with the columns that fit into the terminal."""
    controls = tables.controls
    parts = tables.board.groupby("task", sort=False)
    return {str(task): fit_board(console, part, controls[controls["task"] == task]) for task, part in parts}


def print_legend(console: Console, study: results.Study, tables: results.Tables, shown: Iterable[Table]) -> None:
    """Print the lines of the legend that are about the tables `shown`."""
    headers = {column.header for table in shown for column in table.columns}
    present = {key for key, header in COLUMNS.items() if any(str(shown).startswith(header) for shown in headers)}
    present |= {*tables.board["mark"], *tables.controls["kind"]}
    present |= {TESTED} if (tables.significance["verdict"] != "").any() else set()
    margins = verdicts.describe_margins(study)
    for subjects, line in LEGEND:
        if not subjects or present.intersection(subjects):
            console.print(line.format(margins=margins), style="dim", soft_wrap=True, highlight=False)


def fit_board(console: Console, part: pd.DataFrame, controls: pd.DataFrame | None = None) -> Table:
    """The leaderboard of one task with as many columns as the terminal has room for."""
    unlimited = console.options.update(width=10 * terminal.WIDE)  # else the measure is at most the terminal's width
    tables = (board(part, LEAST_IMPORTANT[:count], controls) for count in range(len(LEAST_IMPORTANT) + 1))
    fitting = (table for table in tables if console.measure(table, options=unlimited).maximum <= console.width)
    return next(fitting, board(part, LEAST_IMPORTANT, controls))


def board(part: pd.DataFrame, without: Sequence[str] = (), controls: pd.DataFrame | None = None) -> Table:
    """The leaderboard of one task, `without` some columns; below it the scores of `controls`, by their kind."""
    rows = list(results.leaderboard_rows(part))
    table = Table(title=f"{rows[0]['task']}, {rows[0]['metric']}", title_justify="left", box=None, header_style="bold")
    present = {
        key for key in COLUMNS if key not in OPTIONAL or any(row[key] not in ("", results.EMPTY) for row in rows)
    }
    keys = [key for key in COLUMNS if key in present and key not in without]
    for key in keys:
        header = COLUMNS[key] + "\nover clients" * (key == "interval" and bool(part["seeds"].max() == 1))
        table.add_column(header, justify="left" if key == "method" else "right", vertical="bottom", no_wrap=True)
    for row, mark in zip(rows, part["mark"], strict=True):
        table.add_row(*(row[key] for key in keys), style="bold" if mark == "best" else "")
    for kind, group in () if controls is None else controls.groupby("kind"):
        table.add_row("", Text(f"[{kind}]"), style="dim")  # a row of its own: the names of controls are long
        for name, row in zip(group["control"], results.control_rows(group), strict=True):
            table.add_row(*({**row, "method": name}.get(key, "") for key in keys), style="dim")
    return table


def print_summary(console: Console, lines: Sequence[SummaryLine]) -> None:
    """Print the summary in five lines; the sentences of a line that has several are below its title."""
    console.print("")
    for line in lines:
        several = len(line.sentences) > 1
        text = "".join(f"\n  {sentence}" for sentence in line.sentences) if several else f" {line.text}"
        console.print(f"{line.topic}:{text}", style="bold" if line.warning else "", soft_wrap=True, highlight=False)
    console.print("")


def stale_runs(study: results.Study) -> list[str]:
    """The runs whose settings or seeds differ from the current ones of params.yaml and of tuning."""
    try:
        declared = validate.load()
    except BadInput:  # params.yaml may be in the middle of a change; results are shown nevertheless
        return []
    runs = [run for run in study.all_runs if declared.name == study.name and run.name in declared.runs]
    tuned = [
        run for run in runs if paths.tuning_result(declared.name, declared.runs[run.name].task, run.name).is_file()
    ]
    return [
        run.name
        for run in tuned
        if run.info.get("spec_hash") != declared.run(run.name, tuned_values(declared, run.name)).fingerprint()
        or {*run.seeds} != {*declared.seeds}
    ]


def missing_runs(study: results.Study) -> list[str]:
    """The runs of params.yaml without results, such as those whose training failed."""
    try:
        declared = validate.load()
    except BadInput:
        return []
    finished = {run.name for run in study.all_runs}
    return [name for name in declared.runs if declared.name == study.name and name not in finished]


def extra_grids(tables: results.Tables) -> Iterator[method_views.TextTable]:
    """Tables of other quantities that papers print, and of separate groups of clients; none for most studies."""
    measures, cohorts = tables.measures[tables.measures["table"] != ""], tables.cohorts
    for task in dict.fromkeys([*measures["task"], *cohorts["task"]]):
        task_measures, groups = (table[table["task"] == task] for table in (measures, cohorts))
        grids = [
            method_views.cohorts(groups),
            method_views.printed_quantities(task_measures),
            *method_views.shares(task_measures),
        ]
        yield from (grid._replace(title=f"{task}: {grid.title}") for grid in grids if grid)


def grid_table(grid: method_views.TextTable) -> Table:
    table = Table(
        title=grid.title,
        title_justify="left",
        box=None,
        header_style="bold",
        caption=grid.caption,
        caption_justify="left",
    )
    for position, name in enumerate(grid.header):
        table.add_column(name, justify="left" if position == 0 else "right", no_wrap=True)
    for row in grid.rows:
        table.add_row(*row)
    return table
