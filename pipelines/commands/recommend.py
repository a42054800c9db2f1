"""`fedweave recommend`: whether clients should collaborate, with which method, and what each of them should deploy."""

from collections.abc import Collection
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.table import Table

import fedweave as fw
from fedweave.errors import BadInput
from fedweave.study import plugins

from ..stages import terminal
from . import data_options as opt
from . import own_data
from .interrupts import explain_interrupt
from .studies import Uses

app = typer.Typer()

Budget = Annotated[str, typer.Option(help="time budget, such as 90s, 10min or 2h; none: no limit")]
Traffic = Annotated[str, typer.Option(help="largest traffic of a training, such as 200MB; default: no limit")]


@app.command()
@opt.with_data_options
def recommend(
    file: opt.File,
    client: opt.Client,
    out: own_data.Out,
    data: dict[str, Any],
    budget: Budget = "10min",
    traffic: Traffic = "",
    methods: Annotated[
        list[str] | None,
        typer.Option(help="methods to race, with commas, or repeated; default: one or two of each family"),
    ] = None,
    contestant: own_data.Contestants = None,
    model: own_data.Model = "mlp",
    rounds: Annotated[int, typer.Option(help="rounds of a full training")] = 50,
    seeds: Annotated[int, typer.Option(help="repetitions in the last comparison")] = 3,
    points: Annotated[
        int | None,
        typer.Option(
            "--settings",
            help="number of settings of each method to race; 1: the declared ones; default: five learning rates",
            show_default=False,
        ),
    ] = None,
    metric: own_data.Metric = "",
    margin: own_data.Margin = "",
    settings: own_data.Settings = None,
    uses: Uses = None,
) -> None:
    """Race methods on your own data, and say what to deploy; run it again to continue it.

    Example: fedweave recommend flights.csv --client dest --label late --time time_hour --budget 10min --out advice/
    """
    plugins.load_option(uses)
    chosen = own_data.split_settings(settings or [], metric)
    if chosen.evaluate:
        name = next(iter(chosen.evaluate))
        raise BadInput(f"--set evaluate.{name}: a race sets its evaluation itself; leave it out, or use compare")
    listed: list[Any] = [*own_data.build_methods(opt.split_words(methods or []), chosen.methods)]
    if contestant:
        from fedweave.recommendation.candidates import DEFAULT  # not at the top: it imports torch

        listed = [*(listed or DEFAULT.split()), *own_data.build_contestants(contestant)]
    federation = fw.Federation.from_file(file, client=client, **data)
    told = own_data.warn_of_data(federation)
    with explain_interrupt(out):
        advice = fw.recommend(
            federation,
            listed or None,
            budget=None if budget == "none" else budget,
            traffic=traffic or None,
            model={"name": model, **chosen.model},
            rounds=rounds,
            seeds=seeds,
            settings=points,
            margin=own_data.read_margin(margin),
            out=out,
            **chosen.train,
        )
    show(advice, told)
    # The rows are at hand here, and `fedweave predict` and `export` have only the folder.
    print_use(advice, replace(fw.load(out), federation=federation))


def print_use(advice: "fw.Recommendation", done: "fw.Comparison") -> None:
    """Say what `predict` and `export` use: the recommended method, and local training for those that keep to it."""
    from fedweave.recommendation.sentences import list_names  # not at the top: it imports numpy

    use = own_data.explain_use(done[advice.method], f"use {advice.method}, {own_data.explain_recommendation(advice)}, ")
    print(f"predict and export {use}")
    if clients := advice.local_clients:
        name = advice.method_of(clients[0])  # local training, for all of them
        print(f"for {list_names(clients)} they {own_data.explain_use(done[name], f'use {name}, ')}")


def show(advice: "fw.Recommendation", told: Collection[str] = ()) -> None:
    """Print the methods, the answers in sentences, the notes but those `told`, and the path of the page."""
    console = terminal.console()
    console.print(board(advice), "")
    for line in advice.lines:
        console.print(
            f"{line.topic}{'' if line.topic.endswith('?') else ':'} {line.text}",
            style="bold" if line is advice.lines[0] else "",
            soft_wrap=True,
            highlight=False,
        )
    for note in advice.facts["notes"]:
        if note not in told:
            console.print(f"note: {note}", soft_wrap=True, highlight=False)
    console.print(f"{advice.report()} shows everything", soft_wrap=True)


def board(advice: "fw.Recommendation") -> Table:
    """The finalists and controls, best validation score first; the recommended method is bold."""
    from fedweave.metrics import unit
    from fedweave.results import format_score
    from fedweave.results.formats import format_change

    metric = str(advice.facts["metric"])
    title, note = f"test {metric}{unit(metric)}, best on validation rows first", advice.note_on_local
    table = Table(title=title, caption=note or None, title_justify="left", caption_justify="left", box=None)
    table.header_style = "bold"
    for title in ("method", "settings", "test", "against the leader", "verdict", "MiB", "seconds"):
        table.add_column(title, justify="left" if title in ("method", "settings", "verdict") else "right", no_wrap=True)
    for row in advice.board.to_dict("records"):
        score, gap = format_score(row["test"], float("nan"), metric), format_change(row["difference"], metric)
        cells = (row["label"], row["settings"] or "declared", score, "" if row["verdict"] == "leads" else gap)
        cost = (f"{row['mib']:.3g}", f"{row['seconds']:.3g}")
        table.add_row(*cells, row["verdict"], *cost, style="bold" if row["method"] == advice.method else "")
    return table
