"""Artifacts of a flow run in Prefect's UI: progress, the leaderboard, figures, links to MLflow."""

import base64
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast
from uuid import UUID

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from .. import addresses, paths
from ..mlflow_records import stamp

if TYPE_CHECKING:
    from fedweave.results import Study, Tables

SVG = "image/svg+xml"
# Prefect cuts a table that is wider than its page, and a description at the end of its line.
ABOUT = "verdict: against the leader of the task; ▲ better, ▽ worse, ≈ equivalent (margin: {margins}), ? open: {open}"
VERDICTS = {
    "best": "leads, better than all",
    "lead": "leads",
    "equivalent": "≈ equivalent",
    "open": "? open",
    "behind": "▽ worse",
    "no verdict": "no verdict",
    "diverged": "diverged",
    "alone": "nothing to compare with",
    "graph control": "control with another graph",
}


class FlowProgress:
    """A progress bar that appears with its first value."""

    def __init__(self, key: str, description: str) -> None:
        self._key, self._description = _key(key), description
        self._id: UUID | None = None

    def update(self, share: float) -> None:
        """Move the bar to `share` of the whole, between 0 and 1."""
        if self._id is None:
            self._id = cast(UUID, create_progress_artifact(100.0 * share, self._key, self._description))
        else:
            update_progress_artifact(self._id, progress=100.0 * share)


class RoundProgress:
    """The rounds of a training stage as a bar, read from the lines that it prints."""

    LINE = re.compile(r"seed (\d+): round (\d+)/(\d+)")

    def __init__(self, stage: str, seeds: int) -> None:
        self._bar = FlowProgress(f"rounds-{stage}", f"rounds of {stage}, all seeds")
        self._seeds, self._done = seeds, dict[str, float]()

    def update(self, line: str) -> None:
        """Move the bar if `line` reports a round."""
        match = self.LINE.search(line)
        if match:
            seed, done, total = match.groups()
            self._done[seed] = int(done) / int(total)
            self._bar.update(min(1.0, sum(self._done.values()) / self._seeds))


def publish(study: str, failure: str = "") -> None:
    """Create artifacts of results/<study>, if it has results: the leaderboard, figures, and links to MLflow.

    Args:
        failure: how many stages failed; the results may be those of an earlier run.
    """
    folder = paths.RESULTS / study
    pages = {f"the runs on {task}": page for task, page in stamp.links(study).items()} or {f"the runs of {study}": ""}
    links = [f"- [{text} in MLflow]({addresses.mlflow_address()}/{page})" for text, page in pages.items()]
    create_markdown_artifact("\n".join(links), key="mlflow", description=f"the runs of {study}, best method first")
    if not (folder / "leaderboard.csv").is_file():
        return
    from fedweave import results
    from fedweave.results import verdicts
    from fedweave.results.marks import NOTHING_SHOWN

    from ..stages.leaderboard import notes

    loaded = results.load_study(folder)
    tables = results.compute_tables(loaded)
    about = ABOUT.format(margins=verdicts.describe_margins(loaded), open=NOTHING_SHOWN)
    earlier = [f"{failure}: what they had to change here is missing or of an earlier run"] if failure else []
    warnings = [*earlier, *notes(loaded)]
    description = f"{study}: {'; '.join([*warnings, about, *_designs(loaded, tables)])}"
    create_table_artifact([*_rows(tables)], key="leaderboard", description=description)
    pictures = [
        f"**{description}**\n\n![{description}]({content})" for content, description in _figures(loaded, tables)
    ]
    of_figures = "; ".join([f"figures of {study}", *warnings, "the report has more"])
    create_markdown_artifact("\n\n".join(pictures), key="figures", description=of_figures)


def _rows(tables: "Tables") -> Iterator[dict[str, str]]:
    """A row for every run, best first on each task, with the results of the tests.

    The page has room for no more columns; the report has them.
    """
    from fedweave import metrics, results
    from fedweave.results.marks import CONTROLS, SYMBOLS, control_column

    for _, part in tables.board.groupby("task", sort=False):
        for text, row in zip(results.leaderboard_rows(part), part.to_dict("records"), strict=True):
            yield {
                "task": f"{row['task']}, {row['metric']}{metrics.unit(row['metric'])}",
                "#": text["rank"],
                "method": text["method"],
                "mean ± std": results.format_score(row["mean"], row["std"], row["metric"]),
                "verdict": VERDICTS[row["mark"]],
                **{f"vs {control}": SYMBOLS[row[control_column(control)]] for control in CONTROLS},
            }


def _designs(study: "Study", tables: "Tables") -> Iterator[str]:
    """A text for each task whose design allows no verdict, and for each with several splits, with its test."""
    from fedweave import results
    from fedweave.results import verdicts

    for task, runs in results.by_task(study).items():
        tests = tables.significance[tables.significance["task"] == task]
        for words in filter(None, (verdicts.short_reason(runs, tests), verdicts.describe_splits(runs))):
            yield f"{task}: {words}"


def _key(name: str) -> str:
    """`name` as a key of an artifact: in lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _figures(study: "Study", tables: "Tables") -> Iterator[tuple[str, str]]:
    """(picture as a data URL, description): convergence, clients and labels of every task."""
    from fedweave import plots, results
    from fedweave.plots.style import standalone
    from fedweave.report import page, task_view

    styles = plots.assign_styles([run.label for run in study.runs], page.emphasised_methods(tables.board))
    runs = {run.name: run for run in study.runs}
    for task, board in tables.board.groupby("task"):
        metric = board["metric"].iloc[0]
        curves = results.reported_curves(tables.curves, [runs[name] for name in board["run"]], "test")
        figure = plots.convergence(curves, styles, metric, bold=task_view.coloured_methods(board))
        yield _data_url(SVG, standalone(figure).encode()), f"{task}: test {metric} by round, as reported"
        ticks = task_view.client_ticks([runs[name] for name in board["run"]], tables.clients)
        figure = plots.client_spread(ticks, styles, metric)
        yield _data_url(SVG, standalone(figure).encode()), f"{task}: {metric} of every client"
        labels = paths.PARTITIONS / str(task) / "labels.png"
        if labels.is_file():
            yield _data_url("image/png", labels.read_bytes()), f"{task}: rows of each label that a client holds"


def _data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
