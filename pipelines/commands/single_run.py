"""`fedweave run`: one method on one data set, without DVC."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

import fedweave as fw
from fedweave.errors import BadInput, choose, format_value, relocate
from fedweave.study import catalogue, config, plugins, schema, spec

from .. import paths, template
from .data_options import output_path
from .interrupts import explain_interrupt
from .studies import Uses

BLOCKS = {"evaluate": schema.EvaluateSpec, "train": schema.TrainSpec}
SELECTION_RULES = {
    "best_val_round": "chosen by validation",
    "per_client_best_val": "chosen by validation for each client",
    "last": "the last one",
}
EVALUATION_POINTS = {"pre": "as received, before local training", "post": "after local training"}
SINGLE = Path("results/single")
Output = Annotated[
    Path | None,
    typer.Option(
        parser=output_path,
        help="folder for the results; runs of one data set in one folder need equal terms (default: results/single/"
        "DATASET-METHOD, where a run replaces the one before)",
        show_default=False,
    ),
]
out = Console(markup=False)  # labels have [brackets]


def run(
    method: Annotated[str, typer.Option(help="a name from `fedweave list methods`")],
    dataset: Annotated[
        str, typer.Option(help="a name from `fedweave list datasets`; its task is the one in studies/base.yaml")
    ] = "digits",
    rounds: Annotated[int, typer.Option(help="rounds; 0: those of the task")] = 0,
    seed: Annotated[int, typer.Option(help="seed of participation, minibatches and initialisation")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="a setting, name=value: of the method (lam=0.5), train.lr=0.1, model.hidden=32, partition.clients=5",
        ),
    ] = None,
    output: Output = None,
    resume: Annotated[bool, typer.Option(help="reuse a finished run with the same settings and code")] = True,
    uses: Uses = None,
) -> None:
    """Train one method on one data set: progress bar, result table, plain files. Needs no DVC.

    Example: fedweave run --method fedavg_ft --dataset digits --rounds 20 --set train.lr=0.1
    """
    plugins.load_option(uses)
    chosen = build_run(method, dataset, rounds, seed, settings or [])
    _download(chosen.task.dataset)
    with relocate({"partition": "--set partition"}):
        federation = fw.Federation.from_dataset(
            chosen.task.dataset,
            chosen.task.partition,
            normalize=chosen.task.normalize,
            setting=chosen.task.setting,
            root=paths.RAW,
        )
    reports: list[fw.Progress] = []
    _show(_train(chosen, federation, output or SINGLE / chosen.key, resume, reports), seed)
    if not reports:
        out.print("it was trained before, with the same settings and code; --no-resume trains it again", soft_wrap=True)


def _train(
    chosen: spec.RunSpec, federation: "fw.Federation", folder: Path, resume: bool, reports: "list[fw.Progress]"
) -> "fw.MethodResult":
    """Train the run into `folder`; every evaluated round is added to `reports`."""
    from fedweave.methods import METHODS

    try:
        with explain_interrupt(folder, resume):
            return fw.fit(
                METHODS[chosen.method](**chosen.options),
                federation,
                model=chosen.task.model,
                seed=chosen.seeds[0],
                evaluate=asdict(chosen.evaluate),
                out=folder,
                resume=resume,
                callbacks=[reports.append],
                name=chosen.study,
                **asdict(chosen.train),
            )
    except fw.Diverged as error:
        raise error.__cause__ or error from None  # which names settings as --set takes them, such as train.lr


def build_run(method: str, dataset: str, rounds: int, seed: int, settings: list[str]) -> spec.RunSpec:
    """A run from the options of the command line, checked like a study before anything is downloaded.

    Raises:
        BadInput: one line that names the option, its value and the way out.
    """
    from fedweave.methods import METHODS
    from fedweave.study import checks, validate

    if not 0 <= seed < 2**31:
        raise BadInput(f"--seed: {format_value(seed)} is out of range; it must be at least 0 and below 2^31")
    task = _task(dataset)
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
    overrides = parse_pairs([*settings, *([f"train.rounds={rounds}"] if rounds else [])])
    _check_blocks(overrides, method)
    where = "fedweave run"
    # There is no params.yaml here: a value can only have come from --set or --rounds.
    blocks = (f"methods.{method}", f"runs.{key}", f"tasks.{dataset}")
    places = {f"{where}: {block}": "--set " for block in blocks}
    places |= {f"{where}: {block}.train.rounds": "--rounds" for block in blocks if rounds}
    with relocate(places):
        study = spec.parse(block, where)
        chosen = validate.build_variant(study, key, {}, overrides)
        _check_partition(chosen, dataset)
        checks.check_task(chosen.task, f"{where}: tasks.{dataset}")
        validate.check_run(chosen, where)
    return chosen


def _check_blocks(names: Collection[str], method: str) -> None:
    """Refuse a name of a setting of the training or of the evaluation without its block, such as lr for train.lr."""
    from fedweave.methods import METHODS

    own = {setting.name for setting in METHODS[method].settings()}
    blocks = {f.name: block for block, cls in BLOCKS.items() for f in fields(cls)}
    for name in names:
        if name in blocks and name not in own:
            raise BadInput(f"--set {name}: is not a setting of {method}; did you mean '{blocks[name]}.{name}'?")


def _task(dataset: str) -> dict[str, Any]:
    """The task of a data set in studies/base.yaml; for a data set of a plug-in, a task without a partition."""
    from fedweave.data import DATASETS

    file = catalogue.STUDIES / "base.yaml"
    base = spec.read_yaml(file if file.is_file() else template("studies/base.yaml"))
    # The tasks without a data set hold what the tasks of a paper have in common.
    tasks: dict[str, Any] = {name: task for name, task in base["tasks"].items() if "dataset" in task}
    if dataset in DATASETS and dataset not in tasks:
        return {
            "dataset": dataset,
            "setting": "own",
            "partition": {"seed": 0},
            "model": {"name": "mlp"},
            "train": {"rounds": 20, "lr": 0.05},
        }
    return dict(tasks[choose(dataset, {**dict.fromkeys(DATASETS), **tasks}, "--dataset")])


def _check_partition(chosen: spec.RunSpec, dataset: str) -> None:
    if "name" not in chosen.task.partition:
        raise BadInput(
            f"--dataset {dataset}: no task in studies/base.yaml says which client has which rows; add for example "
            "--set partition.name=iid --set partition.clients=5"
        )


def parse_pairs(settings: list[str]) -> dict[str, Any]:
    """Name -> value of the options --set, each name=value with a name of its own."""
    bad = next((s for s in settings if "=" not in s), None)
    if bad is not None:
        raise BadInput(f"--set: {format_value(bad)} is not name=value, such as train.lr=0.1")
    values: dict[str, Any] = {}
    for name, value in (s.split("=", 1) for s in settings):
        if name in values:
            hint = " (--rounds is train.rounds)" if name == "train.rounds" else ""
            raise BadInput(f"--set {name}: {format_value(values[name])} and {value} both; give one{hint}")
        try:
            values[name] = config.load_yaml(value)
        except BadInput as error:
            raise BadInput(
                f"--set {name}: {format_value(value)} is not a YAML value ({error}); quote it if it is a text"
            ) from error
    return values


def _download(dataset: str) -> None:
    """Download the files of a data set, with a progress bar for each."""
    from fedweave import data

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, console=out, transient=True) as progress:
        bars: dict[str, Any] = {}

        def show(name: str, done: int, total: int | None) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name)
            progress.update(bars[name], completed=done, total=total)

        data.download(dataset, paths.RAW, progress=show)


def _describe_scores(result: "fw.MethodResult") -> str:
    """The round of the scores, how it was chosen, and whether the models were trained locally after it."""
    rounds = result.select_scores()["round"]
    first, last = rounds.min(), rounds.max()
    if last < 0:
        return "no round has a finite score of every client"
    which = f"round {first}" if first == last else f"rounds {first} to {last}"
    return (
        f"{which}, {SELECTION_RULES[result.run.info['select']]}; scored {EVALUATION_POINTS[result.run.info['point']]}"
    )


def _show(result: "fw.MethodResult", seed: int) -> None:
    """Print the scores at the round that validation chose, the costs, and the path of the files."""
    from fedweave.metrics import unit
    from fedweave.runs.selection import summarise

    info: Mapping[str, Any] = result.run.info
    percent = unit(info["metric"])
    table = Table(
        title=f"{result.run.label} on {info['dataset']} ({info['setting']}), seed {seed}", title_justify="left"
    )
    for name in ("split", f"mean {info['metric']}", "std over clients", "worst 10 %"):
        table.add_column(name, justify="left" if name == "split" else "right")
    for split in ("val", "test"):
        values = result.select_scores(split)["value"].to_numpy()
        table.add_row(split, *(f"{value:.4g}{percent}" for value in summarise(values, result.run.higher_is_better)))
    out.print(table)
    sent = result.rounds[["bytes_down", "bytes_up"]].to_numpy().sum() / 2**20
    out.print(
        f"{_describe_scores(result)}; {sent:.1f} MiB sent, "
        f"{result.rounds['seconds'].sum():.1f} s; files in {result.run.folder}",
        soft_wrap=True,
    )
    if info["note"]:
        out.print(f"note: {info['note']}", soft_wrap=True)
