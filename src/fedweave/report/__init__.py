"""One self-contained page that shows a study: no network, light and dark, readable without scripts."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from fedweave.files.atomic import write_atomic

if TYPE_CHECKING:
    from fedweave.results import Study, Tables


def build(
    folder: Path | str, partitions: Path | str | None = None, stale: Collection[str] = (), metric: str = ""
) -> Path:
    """Write `folder`/report.html from the study's runs and return its path.

    Args:
        folder: results/<study>.
        partitions: folder with <task>/labels.csv and summary.json; by default data/partitions next to results/.
        stale: names of runs whose settings differ from those of params.yaml; the page lists them.
        metric: of the scores, from stored predictions; the page is report-METRIC.html. Default: that of the runs.

    Raises:
        BadInput: no finished run, or a file that cannot be read.
    """
    from fedweave import results

    study = results.load_study(folder)
    default_root = study.folder.resolve().parent.parent / "data" / "partitions"
    root = Path(partitions or default_root)
    study = results.rescore(study, metric) if metric else study
    tables = results.compute_tables(study, root)
    return write_page(study, tables, root, stale, f"report-{metric}.html" if metric else "report.html")


def write_page(
    study: "Study", tables: "Tables", partitions: Path, stale: Collection[str] = (), name: str = "report.html"
) -> Path:
    """Write the page of a loaded study under a name in its folder and return its path; see `build`.

    Raises:
        BadInput: a file that cannot be read.
    """
    from fedweave.report import html, page

    text = html.render("fedweave.report", "page.html", lambda: page.context(study, tables, partitions, stale))
    write_atomic(study.folder / name, text)
    return study.folder / name


def draw_curves(study: "Study", tables: "Tables") -> Path:
    """Write curves/<task>.svg in the folder of a loaded study, test scores as reported by round, for `dvc plots show`;
    returns the folder of the curves.
    """
    from fedweave import plots, results
    from fedweave.report import page, task_view

    styles = plots.assign_styles([run.label for run in study.runs], page.emphasised_methods(tables.board))
    curves = results.reported_curves(tables.curves, study.runs, "test")
    target = study.folder / "curves"
    target.mkdir(exist_ok=True)
    for task, part in curves.groupby("task"):
        bold = task_view.coloured_methods(tables.board[tables.board["task"] == task])
        metric = str(part["metric"].iloc[0])
        plots.save(target / f"{task}.svg", plots.convergence(part, styles, metric, bold=bold))
    return target
