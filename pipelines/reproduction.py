"""Our numbers beside the printed ones in docs/reproduction.md: the tables there are made from docs/reproduction/<study>.csv.

python -m pipelines.reproduction STUDY...    take what results/<study>/leaderboard.csv holds, then rewrite the page
python -m pipelines.reproduction             rewrite the page
"""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from fedweave import published, results
from fedweave.errors import BadInput
from fedweave.files import write_atomic
from pipelines import paths
from pipelines.processes import stage

PAGE = Path("docs/reproduction.md")
TABLES = PAGE.with_suffix("")
BLOCK = re.compile(r"(<!-- study: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
HEADER = "| data set, setting | method | ours | printed | difference | seeds |\n|---|---|--:|--:|--:|--:|\n"


def main(*studies: str) -> None:
    """Take the leaderboards of `studies` into docs/reproduction and rewrite the tables of the page."""
    for study in studies:
        take(study)
    page = PAGE.read_text(encoding="utf-8")
    write_atomic(PAGE, BLOCK.sub(lambda found: found[1] + table(found[2]) + found[3], page))


def take(study: str) -> None:
    """Lay the rows of a study's leaderboard over those that docs/reproduction/<study>.csv has already.

    Raises:
        BadInput: the study has no leaderboard.
    """
    source, target = paths.RESULTS / study / "leaderboard.csv", TABLES / f"{study}.csv"
    if not source.is_file():
        raise BadInput(f"{source}: not there yet; make it with: fedweave study use {study} && dvc repro")
    rows = pd.read_csv(source)
    if target.is_file():
        rows = pd.concat([pd.read_csv(target), rows]).drop_duplicates(["dataset", "setting", "method"], keep="last")
    rows = rows.sort_values(["dataset", "setting", "method"], kind="stable")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, rows.to_csv(index=False, lineterminator="\n", float_format="%.6g"))


def table(study: str) -> str:
    """The rows of a study as Markdown, best first within a setting; a difference beyond two standard deviations is bold."""
    rows = pd.read_csv(TABLES / f"{study}.csv")
    spread = "client_std" if study.split("/")[0] in published.STD_OVER_CLIENTS else "std"
    best_first = rows["mean"].where(rows["metric"] == "mse", -rows["mean"])
    rows = rows.assign(order=best_first).sort_values(["dataset", "setting", "order"], kind="stable")
    return HEADER + "".join(_line(row, spread) for row in rows.to_dict("records"))


def _line(row: dict, spread: str) -> str:
    ours = results.shown(row["mean"], row[spread], row["metric"])
    printed = results.shown(row["published_mean"], row["published_std"], row["metric"])
    gap = row["mean"] - row["published_mean"]
    difference = f"{gap:+.2f}" if row["metric"] == "accuracy" else f"{gap:+.2e}"
    apart = abs(gap) > 2 * np.hypot(np.nan_to_num(row[spread]), np.nan_to_num(row["published_std"]))
    shown = results.EMPTY if np.isnan(gap) else f"**{difference}**" if apart else difference
    return f"| {row['dataset']}, {row['setting']} | {row['method']} | {ours} | {printed} | {shown} | {row['seeds']} |\n"


if __name__ == "__main__":
    stage(main)
