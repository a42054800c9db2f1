"""`fedweave compare` and `fedweave predict`: methods on a file of the user's own data, and what their models say."""

import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import fedweave as fw
from fedweave.errors import BadInput, choose
from fedweave.pipelines.commands.single import pairs
from fedweave.pipelines.commands.studies import Uses
from fedweave.study import plugins

app = typer.Typer()
WIDE = 160  # columns of output that is no terminal
PARTS = ("train", "val", "test")

File = Annotated[Path, typer.Argument(help="CSV, TSV or Parquet with one row per example, or NPZ")]
Client = Annotated[str, typer.Option(help="column that says who has the row")]
Label = Annotated[str, typer.Option(help="column to predict")]
Out = Annotated[Path, typer.Option(help="folder for the results, which `fedweave predict` and fw.load read")]
Methods = Annotated[str, typer.Option(help="names from `fedweave list methods`, with commas")]
Features = Annotated[str, typer.Option(help="columns that models see, with commas; default: all others")]
Split = Annotated[str, typer.Option(help="random, stratified, chronological, grouped, or a column of train, val, test")]
Shares = Annotated[str, typer.Option(help="of train, val and test, such as 0.6,0.2,0.2")]
Time = Annotated[str, typer.Option(help="column of times, for a chronological split")]
Gap = Annotated[int, typer.Option(help="rows between two parts of a chronological split")]
Recording = Annotated[str, typer.Option(help="column of recordings, such as sessions, for a grouped split")]
Group = Annotated[str, typer.Option(help="column of the client's group, for tables and figures alone")]
Relation = Annotated[str, typer.Option(help="CSV of pairs of clients: a given client graph")]
Val = Annotated[float | None, typer.Option(help="share of the training rows that validates, if no row is 'val'")]
Normalize = Annotated[str, typer.Option(help="of arrays: none, standard, standard_client or unit")]
PerClient = Annotated[bool, typer.Option("--per-client", help="scale columns by each client's own training rows")]
Embed = Annotated[bool | None, typer.Option("--embed/--one-hot", help="categories; default: embed above 100 values")]
Name = Annotated[str, typer.Option(help="of the data; default: that of the file")]
Model = Annotated[str, typer.Option(help="of the clients, a name from `fedweave list models`")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="a setting of the training or the model, name=value: lr=0.1, model.hidden=32"),
]


@app.command()
def compare(
    file: File, client: Client, label: Label, out: Out, methods: Methods = "local,fedavg,fedavg_ft,ditto",
    features: Features = "", split: Split = "", shares: Shares = "", time: Time = "", gap: Gap = 0,
    recording: Recording = "", group: Group = "", relation: Relation = "", val: Val = None, normalize: Normalize = "",
    per_client: PerClient = False, embed: Embed = None, name: Name = "", model: Model = "mlp",
    rounds: Annotated[int, typer.Option(help="of training")] = 50,
    seeds: Annotated[int, typer.Option(help="repetitions")] = 3,
    tune: Annotated[int, typer.Option(help="trials of a search for each method's settings")] = 0,
    metric: Annotated[str, typer.Option(help="of the scores; default: accuracy")] = "",
    settings: Settings = None,
    resume: Annotated[bool, typer.Option(help="take finished runs with the same settings and code")] = True,
    uses: Uses = None,
) -> None:  # fmt: skip
    """Compare methods on your own data: leaderboard, summary and report.

    Example: fedweave compare flights.csv --client dest --label late --time time_hour --out flights/
    """
    plugins.load(plugins.paths(uses or [], "--uses").values())
    texts = {
        "split": split, "time": time, "recording": recording, "group": group, "relation": relation,
        "normalize": normalize, "name": name, "features": _words(features), "shares": _shares(shares), "gap": gap,
    }  # fmt: skip
    # What was left out takes the default of Federation.from_file.
    data: dict[str, Any] = {key: value for key, value in texts.items() if value}
    data |= {key: value for key, value in (("val", val), ("embed", embed)) if value is not None}
    data |= {"pooled": False} if per_client else {}
    train, options = _training(settings or [])
    train |= {"metric": metric} if metric else {}
    federation = fw.Federation.from_file(file, client=client, label=label, **data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are printed below the leaderboard
        done = fw.compare(
            federation, _words(methods), model={"name": model, **options}, rounds=rounds, seeds=seeds, tune=tune,
            out=out, resume=resume, **train,
        )  # fmt: skip
    done.save(out)
    show(done)


@app.command()
def predict(
    folder: Annotated[Path, typer.Argument(help="of `fedweave compare`")],
    file: Annotated[Path, typer.Argument(help="rows with the columns of the training's: CSV, TSV, Parquet or NPZ")],
    client: Annotated[str, typer.Option(help="whose model answers")],
    method: Annotated[str, typer.Option(help="default: the one with the best validation score")] = "",
    seed: Annotated[int | None, typer.Option(help="which repetition; default: the first")] = None,
    features: Annotated[str, typer.Option(help="of NPZ: the array of rows")] = "x",
    output: Annotated[Path | None, typer.Option(help="CSV to write; default: the terminal")] = None,
    uses: Uses = None,
) -> None:
    """Predict new rows with the own model of a client: one line per row, with the probability of each class.

    Example: fedweave predict flights/ new.csv --client BOS
    """
    from fedweave.api import reading
    from fedweave.files import write_atomic

    plugins.load(plugins.paths(uses or [], "--uses").values())
    done = fw.load(folder)
    result = done[choose(method, done.methods, "--method") if method else best(done)]
    if file.suffix.lower() == reading.ARRAYS:
        stored = reading.read_arrays(file)
        rows: Any = stored[choose(features, stored, "--features")]
    else:
        rows = reading.read_table(file)
    shares = result.predict_proba(rows, client, seed=seed).reset_index(drop=True)
    shares.insert(0, "prediction", [str(shares.columns[i]) for i in shares.to_numpy().argmax(1)])
    text = shares.to_csv(index=False, float_format="%.6g")
    print(f"{result.name} of {client}", file=sys.stderr)
    if output is None:
        sys.stdout.write(text)
    else:
        write_atomic(output, text)


def best(done: fw.Comparison) -> str:
    """The method with the best mean validation score at its chosen round; test scores choose nothing.

    Raises:
        BadInput: the folder has results on several data sets.
    """
    runs = [done[name].run for name in done.methods]
    if len({run.task for run in runs}) > 1:
        raise BadInput("--method: the folder has results on several data sets; name one of: " + ", ".join(done.methods))
    scores = {name: float(done[name].chosen("val")["value"].mean()) for name in done.methods}
    return (max if runs[0].higher_is_better else min)(scores, key=lambda name: scores[name])


def show(done: fw.Comparison) -> None:
    """The leaderboard, the summary in sentences, what to know before believing it, and where the report is."""
    from fedweave import results
    from fedweave.pipelines.stages import leaderboard
    from fedweave.report.summary import summary

    console, partitions = Console(markup=False), done.study.folder / "partitions"
    console.width = console.width if console.is_terminal else WIDE
    tables = results.current(done.study, partitions)
    for task, part in tables.board.groupby("task", sort=False):
        console.print(leaderboard.fitting(console, part, tables.controls[tables.controls["task"] == task]), "")
    for line in leaderboard.LEGEND:
        console.print(line, style="dim", soft_wrap=True)
    leaderboard.in_words(console, summary(done.study, tables))
    for line in done.warnings:
        console.print(f"warning: {line}", soft_wrap=True, highlight=False)
    console.print(f"{done.report()} shows everything", soft_wrap=True)


def _training(settings: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings of the training, options of the model) of --set."""
    values = pairs(settings)
    model = {key.removeprefix("model."): value for key, value in values.items() if key.startswith("model.")}
    train = {key.removeprefix("train."): value for key, value in values.items() if not key.startswith("model.")}
    return train, model


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _shares(text: str) -> dict[str, float]:
    """Shares of the parts.

    Raises:
        BadInput: no three numbers.
    """
    try:
        numbers = [float(word) for word in _words(text)]
    except ValueError:
        numbers = [0.0]
    if numbers and len(numbers) != len(PARTS):
        raise BadInput(f"--shares: {text!r} must be three numbers, of train, val and test, such as 0.6,0.2,0.2")
    return dict(zip(PARTS, numbers, strict=False))
