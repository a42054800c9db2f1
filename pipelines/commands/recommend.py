"""`fedweave recommend`: should these clients collaborate, with which method, and what should each of them deploy?"""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import fedweave as fw
from fedweave.metrics import unit
from fedweave.pipelines.commands import own_data as own
from fedweave.pipelines.commands.studies import Uses
from fedweave.results import format_score
from fedweave.study import plugins

app = typer.Typer()

Budget = Annotated[str, typer.Option(help="of time, such as 90s, 10min or 2h; none: no limit")]
Traffic = Annotated[str, typer.Option(help="bytes that a training may send, such as 200MB; default: no limit")]


@app.command()
def recommend(
    file: own.File, client: own.Client, label: own.Label, out: own.Out,
    budget: Budget = "10min", traffic: Traffic = "",
    methods: Annotated[str, typer.Option(help="that race, with commas; default: one or two of each family")] = "",
    features: own.Features = "", split: own.Split = "", shares: own.Shares = "", time: own.Time = "",
    gap: own.Gap = 0, recording: own.Recording = "", group: own.Group = "", relation: own.Relation = "",
    val: own.Val = None, normalize: own.Normalize = "", per_client: own.PerClient = False, embed: own.Embed = None,
    name: own.Name = "", model: own.Model = "mlp",
    rounds: Annotated[int, typer.Option(help="of a full training")] = 50,
    seeds: Annotated[int, typer.Option(help="repetitions of the last comparison")] = 3,
    points: Annotated[int, typer.Option("--settings", help="settings of each method that race")] = 3,
    metric: Annotated[str, typer.Option(help="of the scores; default: accuracy")] = "",
    settings: own.Settings = None,
    uses: Uses = None,
) -> None:  # fmt: skip
    """Race methods on your own data, and say what to deploy; run it again to go on where it was stopped.

    Example: fedweave recommend flights.csv --client dest --label late --time time_hour --budget 10min --out advice/
    """
    plugins.load(plugins.paths(uses or [], "--uses").values())
    texts = {
        "split": split, "time": time, "recording": recording, "group": group, "relation": relation,
        "normalize": normalize, "name": name, "features": own._words(features), "shares": own._shares(shares),
        "gap": gap,
    }  # fmt: skip
    # What was left out takes the default of Federation.from_file.
    data: dict[str, Any] = {key: value for key, value in texts.items() if value}
    data |= {key: value for key, value in (("val", val), ("embed", embed)) if value is not None}
    data |= {"pooled": False} if per_client else {}
    train, options = own._training(settings or [])
    train |= {"metric": metric} if metric else {}
    federation = fw.Federation.from_file(file, client=client, label=label, **data)
    found = fw.recommend(
        federation, own._words(methods) or None, budget=None if budget == "none" else budget, traffic=traffic or None,
        model={"name": model, **options}, rounds=rounds, seeds=seeds, settings=points, out=out, **train,
    )  # fmt: skip
    show(found)


def show(found: fw.Recommendation) -> None:
    """The methods, the answers in sentences, and where the page is."""
    console = Console(markup=False)
    console.width = console.width if console.is_terminal else own.WIDE
    console.print(board(found), "")
    for line in found.lines:
        console.print(f"{line.topic}: {line.text}", style="bold" if line is found.lines[0] else "", soft_wrap=True,
                      highlight=False)  # fmt: skip
    for note in found.facts["notes"]:
        console.print(f"note: {note}", soft_wrap=True, highlight=False)
    console.print(f"{found.report()} shows everything", soft_wrap=True)


def board(found: fw.Recommendation) -> Table:
    """The finalists and controls, best validation first; the recommended one is bold."""
    metric = str(found.facts["metric"])
    table = Table(title=f"test {metric}{unit(metric)}", title_justify="left", box=None, header_style="bold")
    for title in ("method", "settings", "test", "to the leader", "verdict", "MiB", "seconds"):
        table.add_column(title, justify="left" if title in ("method", "settings", "verdict") else "right", no_wrap=True)
    for row in found.board.to_dict("records"):
        score, gap = (format_score(row[key], float("nan"), metric) for key in ("test", "difference"))
        cells = (row["label"], row["settings"] or "declared", score, "" if row["verdict"] == "leads" else gap)
        cost = (f"{row['mib']:.3g}", f"{row['seconds']:.3g}")
        table.add_row(*cells, row["verdict"], *cost, style="bold" if row["method"] == found.method else "")
    return table
