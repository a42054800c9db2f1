"""The leaderboard in the terminal."""

import pandas as pd
from rich.console import Console
from rich.table import Table

from fedweave import results, spec
from fedweave.errors import BadInput
from pipelines import paths
from pipelines.processes import stage

COLUMNS = {
    "rank": "", "method": "method", "score": "mean ± std", "worst10": "worst 10 %", "client_std": "client std",
    "mib": "MiB", "seconds": "seconds", "published": "published",
}  # fmt: skip


def main(study: str = "") -> None:
    """Print the leaderboard of `study` (default: the one that params.yaml names), and where the rest is."""
    name = study or spec.load().name
    folder = paths.RESULTS / name
    if not (folder / "leaderboard.csv").is_file():
        raise BadInput(f"{folder / 'leaderboard.csv'}: not there yet; make it with: dvc repro")
    console = Console()
    rows = list(results.leaderboard_rows(pd.read_csv(folder / "leaderboard.csv")))
    shown = [key for key in COLUMNS if key != "published" or any(row[key] != "–" for row in rows)]
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        table = Table(title=f"{task}, {mine[0]['metric']}", title_justify="left", box=None, header_style="bold")
        for key in shown:
            table.add_column(COLUMNS[key], justify="left" if key == "method" else "right", no_wrap=True)
        for row in mine:
            table.add_row(*(row[key] for key in shown), style="bold" if row["rank"] == "1" else "")
        console.print(table, "")
    console.print("mean over clients, std over seeds, at the round that validation data select", style="dim")
    console.print(f"study {name}: {folder / 'report.html'} shows everything", soft_wrap=True)
    console.print("runs and curves: make ui; plots: dvc plots show; changes: dvc metrics diff", style="dim")


if __name__ == "__main__":
    stage(main)
