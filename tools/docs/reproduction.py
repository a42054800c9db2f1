"""Our numbers beside the numbers that papers print: by study in docs/reproduction, by method in docs/methods.

The rows are in docs/reproduction/<study>.csv. docs/reproduction.md has the claims of the papers.

python -m tools.docs.reproduction STUDY...    copy results/<study>/leaderboard.csv, or the sizes in
measures.csv where the paper prints sizes and no scores, then rewrite the pages
python -m tools.docs.reproduction             rewrite the pages
"""

import re
from collections.abc import Callable
from os.path import commonpath
from pathlib import Path

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.errors import BadInput, choose
from fedweave.files.atomic import read_table, write_atomic
from fedweave.pipelines import paths
from fedweave.pipelines.processes import run_main
from fedweave.results import marks, published
from fedweave.results.quantities import STAGES, WEIGHTS
from fedweave.study import catalogue
from tools.docs import claims, differences, figures, ledger
from tools.docs.stored_numbers import CLIENTS, QUANTITIES, SIZES, WEIGHTS_FILE, printed_rows, size_key
from tools.pages import markdown, read_stored, rewrite, store

PAGE = Path("docs/reproduction.md")
METHODS = Path("docs/methods")
TABLES = PAGE.with_suffix("")
COLUMNS = (
    "dataset",
    "setting",
    "method",
    "metric",
    "mean",
    "std",
    "client_std",
    "published_mean",
    "published_std",
    "seeds",
)
VERDICTS = ("mark", *map(marks.control_column, marks.CONTROLS), "gain", "loss", "low", "high")
MEASURES = ("task", "dataset", "setting", "quantity", "value", "printed")
HEADER = "| data set, setting | method | ours | printed | difference | seeds |\n|---|---|--:|--:|--:|--:|\n"


def main(*studies: str) -> None:
    """Copy the leaderboards of `studies` to docs/reproduction and rewrite the tables of the pages and the ledger.

    It prints the figures in the sentences of these pages that differ from the files.

    Raises:
        BadInput: a study that belongs to no paper, or whose leaderboard is missing or damaged.
    """
    papers = [name for name in catalogue.studies() if name.split("/")[0] in published.PAPERS]
    for study in studies:
        choose(study, papers, "python -m tools.docs.reproduction")
    for study in studies:
        merge(study)
    for page in (*pages(), *sorted(METHODS.glob("*.md"))):
        rewrite(page, **BLOCKS)
    ledger.main()
    for line in figures.problems(*(page.read_text(encoding="utf-8") for page in pages())):
        print(line)


def pages() -> tuple[Path, ...]:
    """The page of claims, and the page of each paper."""
    return PAGE, *(TABLES / f"{paper}.md" for paper in published.PAPERS)


def merge(study: str) -> None:
    """Merge the results of a study into docs/reproduction: its scores, and what else the paper prints for its tasks.

    Of sizes and weights that stand alone in print the scores are not kept.
    """
    printed = {row.metric for column in ledger.printed_columns(study).values() for row in published.column(column)}
    if printed & {*WEIGHTS}:
        store_weights(study)
    if printed & QUANTITIES.keys():
        merge_sizes(study)
    if not printed or printed - SIZES.keys() - {*WEIGHTS}:
        merge_board(study)


def merge_board(study: str) -> None:
    """Merge the rows of a study's leaderboard into docs/reproduction/<study>.csv; new rows replace old ones."""
    source, target = paths.RESULTS / study / "leaderboard.csv", TABLES / f"{study}.csv"
    if not source.is_file():
        raise BadInput(f"{source}: does not exist yet; make it with: fedweave study use {study} && dvc repro")
    rows = read_table(source, COLUMNS, "make it again with: dvc repro evaluate")
    if target.is_file():
        merged = pd.concat([read_stored(target, COLUMNS), rows])
        rows = merged.drop_duplicates(["dataset", "setting", "method"], keep="last")
    # Verdicts compare the rows of one leaderboard, but these rows may come from several.
    rows = rows.drop(columns=[*VERDICTS], errors="ignore").sort_values(["dataset", "setting", "method"], kind="stable")
    target.parent.mkdir(parents=True, exist_ok=True)
    store(rows, target)
    if (paths.RESULTS / study / "runs").is_dir():
        stored = results.load_study(paths.RESULTS / study)
        claims.store_clients(stored, TABLES / f"{study}{CLIENTS}", ("dataset", "setting", "method"))


def merge_sizes(study: str) -> None:
    """Merge the sizes of data sets and models and the traffic, ours and printed, into docs/reproduction/*.sizes.csv.

    Lines have the names of the printed column and row that their task is compared with.

    Raises:
        BadInput: the study has no measures.
    """
    source, target = paths.RESULTS / study / "measures.csv", TABLES / f"{study}.sizes.csv"
    rows = read_table(source, MEASURES, f"make it with: fedweave study use {study} && dvc repro")
    blocks = {name: task.get("published") or {} for name, task in catalogue.expand(study)["tasks"].items()}
    lines: dict[str, dict[str, str]] = {}
    if target.is_file():
        old = pd.read_csv(target, dtype=str, keep_default_na=False)
        lines = {line["key"]: line for line in old.to_dict("records")}
    for row in rows[rows["quantity"].isin(QUANTITIES) & rows["printed"].notna()].to_dict("records"):
        block, name = blocks[row["task"]], QUANTITIES[row["quantity"]]
        column = published.reference(block, row["dataset"], row["setting"])
        key = size_key(column.dataset, column.setting, block.get("row", ""))
        line = lines.setdefault(key, {"key": key, "data set, setting": key})
        line |= {name: _shorten(row["value"]), f"{name}, printed": _shorten(row["printed"])}
    names = [column for name in QUANTITIES.values() for column in (name, f"{name}, printed")]
    present = [name for name in names if any(name in line for line in lines.values())]
    table = pd.DataFrame([lines[key] for key in sorted(lines, key=_natural_sort_key)])
    table = table[["key", "data set, setting", *present]].fillna(results.EMPTY)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, table.to_csv(index=False, lineterminator="\n"))


def store_weights(study: str) -> None:
    """Write docs/reproduction/<study>.weights.csv: the weights of a graph up to the stage that the study's task names,
    ours and printed ones.

    Raises:
        BadInput: the study has no measures, or its printed setting names no stage.
    """
    source = paths.RESULTS / study / "measures.csv"
    rows = read_table(source, MEASURES, f"make it with: fedweave study use {study} && dvc repro")
    (column,) = ledger.printed_columns(study).values()
    setting, _, last = column.setting.rpartition("/")
    if last not in STAGES:
        raise BadInput(study, f"its printed setting {column.setting!r} does not end in a stage: {', '.join(STAGES)}")
    rows = rows[rows["quantity"].isin(WEIGHTS) & rows["stage"].isin(STAGES[: STAGES.index(last) + 1])]
    names = rows["method"] + "-" + rows["part"] + " " + rows["quantity"]
    board = printed_rows(f"{column.paper}/{column.table}")
    printed = [
        board[f"{column.dataset}, {setting}/{stage}"][name] for stage, name in zip(rows["stage"], names, strict=True)
    ]
    table = pd.DataFrame(
        {
            "key": rows["stage"] + " " + names,
            "stage": rows["stage"],
            "layers": rows["part"],
            "weight of": rows["quantity"].str.rpartition("_")[2],
            "ours": rows["value"].map("{:.4f}".format),
            "std": [f"{std:.4f}" if np.isfinite(std) else results.EMPTY for std in rows["std"]],
            "seeds": rows["seeds"],
            "printed": [f"{row['mean']:.4f}" for row in printed],
        }
    )
    store(table, TABLES / f"{study}{WEIGHTS_FILE}")


def _shorten(number: float) -> str:
    """At most three decimals, as papers print."""
    return f"{number:.3f}".rstrip("0").rstrip(".")


def number_table(name: str) -> str:
    """A table of other numbers than scores, docs/reproduction/<name>.csv, as Markdown, without its column `key`."""
    rows = pd.read_csv(TABLES / f"{name}.csv", dtype=str, keep_default_na=False).drop(columns="key")
    return markdown([rows.columns, *rows.to_numpy()])


def table(study: str) -> str:
    """The rows of a study as Markdown.

    One setting is a list. Several settings are tables as in papers: methods in rows, data sets or settings in columns.
    """
    rows = pd.DataFrame(_rows(study))
    tables, columns = sorted(("dataset", "setting"), key=lambda name: rows[name].nunique())
    if rows[columns].nunique() == 1:
        return HEADER + "".join(map(_line, rows.to_dict("records")))
    return "\n".join(_matrix(str(name), columns, group) for name, group in rows.groupby(tables))


def _matrix(name: str, columns: str, rows: pd.DataFrame) -> str:
    """A table of methods by settings or data sets, with methods in the order of their mean ranks over the columns."""
    ranks = rows.groupby(columns)["order"].rank().groupby(rows["method"]).mean().sort_values(kind="stable")
    rows = rows.assign(cell=[*map(_cell, rows.to_dict("records"))])
    names = sorted(rows[columns].unique(), key=_natural_sort_key)
    cells = rows.pivot(index="method", columns=columns, values="cell").fillna(results.EMPTY).loc[ranks.index, names]
    prefix = f"{commonpath(names)}/" if len(names) > 1 else "/"  # of settings, such as disjoint/clients10
    labels = [column.removeprefix(prefix) for column in names]
    seeds = " to ".join(map(str, sorted({rows["seeds"].min(), rows["seeds"].max()})))
    head = f"{name}{', ' + prefix[:-1] if labels != names else ''} ({seeds} seed{'s' if seeds != '1' else ''})"
    return markdown([(head, *labels), *cells.itertuples(name=None)])


def _natural_sort_key(name: str) -> list[str]:
    """A key that sorts layers8 before layers64."""
    return [part.zfill(9) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _cell(row: dict) -> str:
    """Our score, and the printed one in parentheses."""
    ours = results.format_score(row["mean"], row["spread"], row["metric"])
    if np.isnan(row["published_mean"]):
        return ours
    printed = results.format_score(row["published_mean"], float("nan"), row["metric"])
    return f"{ours} ({f'**{printed}**' if _is_different(row) else printed})"


def method_table(label: str) -> str:
    """The rows of a method and its variants in all studies as Markdown, or a sentence if there are none."""
    stored = [path for path in sorted(TABLES.glob("*/*.csv")) if "." not in path.stem]
    studies = [str(path.relative_to(TABLES).with_suffix("")) for path in stored]
    rows = [row for study in studies for row in _rows(study) if row["method"].partition(" [")[0] == label]
    return HEADER + "".join(map(_line, rows)) if rows else "Not run on a paper's data yet.\n"


def _rows(study: str) -> list[dict]:
    """The rows of a study, best first within a setting; "spread" is the standard deviation that its paper prints."""
    source = TABLES / f"{study}.csv"
    if not source.is_file():
        raise BadInput(
            f"{source}: not there, but a page has its block; run the study, then: "
            f"python -m tools.docs.reproduction {study}"
        )
    rows = read_stored(source, COLUMNS)
    rows["spread"] = rows["client_std" if study.split("/")[0] in published.STD_OVER_CLIENTS else "std"]
    rows["order"] = rows["mean"].where(rows["metric"] == "mse", -rows["mean"])
    return rows.sort_values(["dataset", "setting", "order"], kind="stable").to_dict("records")


def _is_different(row: dict) -> bool:
    """Whether our score differs from the printed one by more than two standard deviations; never with one seed."""
    gap, deviation = row["mean"] - row["published_mean"], np.hypot(row["spread"], np.nan_to_num(row["published_std"]))
    return bool(abs(gap) > 2 * deviation)


def _line(row: dict) -> str:
    """One row; a difference beyond two standard deviations is bold."""
    ours = results.format_score(row["mean"], row["spread"], row["metric"])
    printed = results.format_score(row["published_mean"], row["published_std"], row["metric"])
    gap = row["mean"] - row["published_mean"]
    difference = f"{gap:+.2f}" if row["metric"] == "accuracy" else f"{gap:+.2e}"
    cell = results.EMPTY if np.isnan(gap) else f"**{difference}**" if _is_different(row) else difference
    return f"| {row['dataset']}, {row['setting']} | {row['method']} | {ours} | {printed} | {cell} | {row['seeds']} |\n"


BLOCKS: dict[str, Callable[[str], str]] = {
    "study": table,
    "method": method_table,
    "claims": lambda name: claims.table(),
    "numbers": number_table,
    "differences": differences.table,
}

if __name__ == "__main__":
    run_main(main)
