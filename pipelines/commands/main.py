"""The command line: look at what there is, run one method, switch studies, build the report."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fedweave.errors import BadInput, Diverged, choose, shown
from fedweave.files import check_writable, user_errors
from fedweave.pipelines.commands import listing, projects, records, studies
from fedweave.pipelines.scheduling import workers
from fedweave.study import catalogue, config, plugins, spec

app = typer.Typer(
    help="Personalized federated learning methods, trained, tuned and compared on equal terms.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(studies.app, name="study")
app.add_typer(records.app)
app.command()(projects.init)
app.command()(workers.deploy)
app.command()(workers.worker)
out = Console(markup=False)  # labels have [brackets]


def main() -> None:
    """Entry point: bad input is one line on stderr and exit code 2."""
    guarded(app)


def guarded(command: Callable[[], Any]) -> None:
    """Run `command`; a `BadInput` becomes one line on stderr and exit code 2, a diverged training 3."""
    try:
        with user_errors():
            command()
    except BadInput as error:
        sys.exit(_complain(str(error), 2))
    except Diverged as error:
        sys.exit(_complain(str(error), 3))


def _complain(message: str, code: int) -> int:
    Console(stderr=True, soft_wrap=True).print(Text.assemble(("error:", "bold red"), " ", message), highlight=False)
    return code


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="methods, datasets, models, partitions or studies")],
    name: Annotated[str, typer.Argument(help="a method or model, to list its settings")] = "",
    uses: studies.Uses = None,
) -> None:
    """List what can be used, one line each."""
    if what != "studies":
        plugins.load(plugins.paths(uses or [], "--uses").values())
    rows = {
        "methods": listing.methods,
        "datasets": listing.datasets,
        "models": listing.models,
        "partitions": listing.partitions,
        "studies": listing.studies,
    }
    table = Table(box=None, pad_edge=False, header_style="bold")
    listed = rows[choose(what, rows, "fedweave list")]
    header, *body = listing.settings(what, name) if name else listed()
    for i, name in enumerate(header):
        table.add_column(name, style="cyan" if i == 0 else None, no_wrap=i == 0)
    for row in body:
        table.add_row(*map(str, row))
    out.print(table)


@app.command()
def run(
    method: Annotated[str, typer.Option(help="a name from `fedweave list methods`")],
    dataset: Annotated[
        str, typer.Option(help="a name from `fedweave list datasets`; its task is the one in studies/base.yaml")
    ] = "digits",
    rounds: Annotated[int, typer.Option(help="rounds; 0 takes the task's own")] = 0,
    seed: Annotated[int, typer.Option(help="seed of participation, minibatches and initialisation")] = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="a hyper-parameter, name=value; train.lr=0.1 reaches the solver")
    ] = None,
    output: Annotated[Path, typer.Option(help="folder for the results")] = Path("results/single"),
    uses: studies.Uses = None,
) -> None:
    """Train one method on one data set: progress bar, result table, plain files. Needs no DVC.

    Example: fedweave run --method fedavg_ft --dataset digits --rounds 20 --set train.lr=0.1
    """
    import torch

    from fedweave.runs import archive, assembly, parallel, repetition

    plugins.load(plugins.paths(uses or [], "--uses").values())
    chosen = _single(method, dataset, rounds, seed, settings or [])
    features, dealt = _inputs(chosen)
    bench = repetition.prepare(chosen, features, dealt)
    folder = output / "runs" / chosen.key
    check_writable(folder)
    torch.set_num_threads(parallel.share(bench.method.network, 1, bench.device)[1])
    with _bar(f"{bench.method.label} on {dataset}", bench.rounds) as advance:
        history = repetition.perform(bench, seed, None, advance)
    archive.write(folder, bench, {seed: history})
    _result(bench, history, seed, folder, assembly.point(chosen))


def _single(method: str, dataset: str, rounds: int, seed: int, settings: list[str]) -> spec.Run:
    """A run from command-line words, checked like a study."""
    from fedweave.methods import METHODS
    from fedweave.runs import assembly

    base = spec.read_yaml(catalogue.STUDIES / "base.yaml")
    whole = {
        name: task for name, task in base["tasks"].items() if "dataset" in task
    }  # the rest are what papers' tasks have in common
    task = whole[choose(dataset, whole, "--dataset")]
    choose(method, METHODS, "--method")
    key = f"{dataset}-{method}"
    block = {
        "study": "single",
        "seeds": [seed],
        "tasks": {dataset: task},
        "runs": {key: {"task": dataset, "method": method}},
        "methods": {method: {}},
        "tune": {"seeds": [(seed + 1) % 2**31]},
    }
    extra = _pairs([*settings, *([f"train.rounds={rounds}"] if rounds else [])])
    try:
        chosen = assembly.check(spec.parse(block, "fedweave run"), "fedweave run").run(key, extra=extra)
        assembly.check_run(chosen, "fedweave run")
    except BadInput as error:
        # There is no params.yaml here: a value can only have come from --set.
        raise BadInput(re.sub(rf"params\.yaml: (methods\.{method}|runs\.{key})\.", "--set ", str(error))) from error
    return chosen


def _pairs(settings: list[str]) -> dict[str, Any]:
    """Settings of the command line by name.

    Raises:
        BadInput: one is no name=value, or a name is given twice.
    """
    bad = next((s for s in settings if "=" not in s), None)
    if bad is not None:
        raise BadInput(f"--set: {shown(bad)} is not name=value, such as train.lr=0.1")
    pairs: dict[str, Any] = {}
    for name, value in (s.split("=", 1) for s in settings):
        if name in pairs:
            hint = " (--rounds is train.rounds)" if name == "train.rounds" else ""
            raise BadInput(f"--set {name}: {shown(pairs[name])} and {value} both; give one{hint}")
        try:
            pairs[name] = config.load_yaml(value)
        except BadInput as error:
            raise BadInput(
                f"--set {name}: {shown(value)} is not a YAML value ({error}); quote it if it is a text"
            ) from error
    return pairs


def _inputs(run: spec.Run) -> tuple[Any, Any]:
    """The data set, downloaded where needed, and its partition, dealt in memory."""
    from fedweave import data

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        console=out,
        transient=True,
    ) as bar:
        lines: dict[str, Any] = {}

        def show(name: str, done: int, total: int | None) -> None:
            lines.setdefault(name, bar.add_task(name))
            bar.update(lines[name], completed=done, total=total)

        data.download(run.task.dataset, Path("data/raw"), progress=show)
    dataset = data.load(run.task.dataset, Path("data/raw"))
    return dataset, data.partition(dataset, **run.task.partition)


@contextmanager
def _bar(title: str, rounds: int) -> Iterator[Callable[[Any], None]]:
    """A progress bar over rounds that shows the latest validation mean; gives the callback that advances it."""
    texts = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    columns = (texts[0], BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), texts[1])
    with Progress(*columns, console=out) as progress:
        line = progress.add_task(title, total=rounds, note="")

        def advance(report: Any) -> None:
            progress.update(line, completed=report.round)
            scores = report.scores.get(report.method.point)
            if scores:
                progress.update(line, note=f"validation {float(scores['val'].nanmean()):.4g}")

        yield advance


def _result(bench: Any, history: Any, seed: int, folder: Path, point: str) -> None:
    from fedweave.runs.archive import label, selected
    from fedweave.runs.selection import summarise

    task = bench.method.task
    unit = " %" if task.metric == "accuracy" else ""
    table = Table(
        title=f"{label(bench)} on {bench.run.task.dataset} ({bench.run.task.setting}), seed {seed}",
        title_justify="left",
    )
    for name in ("split", f"mean {task.metric}", "std over clients", "worst 10 %"):
        table.add_column(name, justify="left" if name == "split" else "right")
    for split in ("val", "test"):
        s = summarise(selected(bench, history, split), task.higher_is_better)
        table.add_row(split, *(f"{v:.4g}{unit}" for v in s))
    out.print(table)
    mib = sum(row[1] + row[2] for row in history.ledger) / 2**20
    seconds = sum(row[3] for row in history.ledger)
    out.print(
        f"selected by {bench.run.evaluate.select} at point {point!r}; {mib:.1f} MiB sent, "
        f"{seconds:.1f} s; files in {folder}",
        soft_wrap=True,
    )
    if bench.note:
        out.print(f"note: {bench.note}", soft_wrap=True)


if __name__ == "__main__":
    main()
