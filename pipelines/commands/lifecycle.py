"""`fedweave refresh`, `challenge`, `serve` and others: new rows, and which models are deployed on them."""

from pathlib import Path
from typing import Annotated, Any

import typer

import fedweave as fw
from fedweave.errors import BadInput, relocate
from fedweave.lifecycle import LEDGER, ROLES

from .. import delivery_versions
from . import data_options as opt
from . import own_data

app = typer.Typer()
Life = Annotated[Path, typer.Argument(help="folder of the life: its deliveries, models and record")]
Key = Annotated[
    list[str] | None,
    typer.Option(help="columns that name a row, with commas or repeated; later rows correct earlier ones"),
]
Features = Annotated[
    list[str] | None, typer.Option(help="columns that models see, with commas or repeated; default: all others")
]
Exclude = Annotated[list[str] | None, typer.Option(help="columns that models do not see, with commas or repeated")]
OPTIONS = {"per_year": "per-year", "methods": "method", "train": "set", "columns": "features"}  # where they differ


@app.command()
def refresh(
    life: Life,
    source: Annotated[str, typer.Option(help="files, such as 'flights/*.csv', or the address of a database")] = "",
    query: Annotated[str, typer.Option(help="SQL, of a database")] = "",
    command: Annotated[str, typer.Option(help="a command that prints CSV or Parquet, in place of --source")] = "",
    client: Annotated[str, typer.Option(help="column with the client of a row")] = "",
    label: Annotated[str, typer.Option(help="column to predict; it may be empty until a correction brings it")] = "",
    key: Key = None,
    complete: Annotated[bool, typer.Option("--complete", help="a row that the source has no more was deleted")] = False,
    target: Annotated[
        str, typer.Option(help="classes or numbers; default: numbers where the label has a fraction")
    ] = "",
    features: Features = None,
    exclude: Exclude = None,
    method: Annotated[
        list[str] | None, typer.Option(help="method; of several, with commas or repeated, the best by validation")
    ] = None,
    model: Annotated[str, typer.Option(help="client model")] = "",
    rounds: Annotated[int, typer.Option(help="rounds of a training; default: 50", show_default=False)] = 0,
    metric: own_data.Metric = "",
    margin: own_data.Margin = "",
    patience: Annotated[
        int, typer.Option(help="deliveries after which a challenger is given up; default: 90", show_default=False)
    ] = 0,
    per_year: Annotated[int, typer.Option(help="deliveries of a year; default: 365", show_default=False)] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="a setting, name=value: lr=0.1 of the training, model.hidden=32, or of the life, gone_after=9"
        ),
    ] = None,
    encoding: opt.Encoding = "",
    accept: Annotated[
        list[str] | None, typer.Option(help="a file in quarantine whose values are right; repeat for more")
    ] = None,
) -> None:
    """Take what is new in a source as a delivery; the first call begins a life, later ones need the folder alone.

    Example: fedweave refresh life/ --source 'flights/*.csv' --client airport --label late --key id
    """
    from fedweave.lifecycle.life_settings import PLACES

    given: dict[str, Any] = {name: value for name, value in locals().items() if name in PLACES}
    own, training, of_model = _read_settings(settings or [], metric)
    chosen = {"features": features, "exclude": exclude}
    columns = {name: opt.split_repeated(value, f"--{name}") for name, value in chosen.items()}
    given |= {
        "key": opt.split_repeated(key, "--key"),
        "methods": opt.split_words(method or []),
        "train": training,
        "columns": {name: value for name, value in columns.items() if value},
        "model": {"name": model or "mlp", **of_model} if model or of_model else None,
    }
    given = {name: value for name, value in given.items() if value} | own
    if margin:
        given["margin"] = own_data.read_margin(margin)  # perhaps 0
    places = {name: f"--{OPTIONS.get(name, name)}" for name in given} | {name: f"--set {name}" for name in own}
    _check_begun(life, places)
    with relocate(places | {"methods": "--method", "accept": "--accept"}):
        opened = fw.Lifecycle.begin(life, **given) if given else fw.Lifecycle(life)
        outcomes = opened.refresh(accept or ())
    print("\n".join(map(str, outcomes)) or f"{life}: nothing new")
    delivery_versions.store(opened.deliveries.place, opened.deliveries.place / LEDGER)


def _check_begun(life: Path, places: dict[str, str]) -> None:
    """Refuse the options `places` of a life that has begun, unless a source says that another one is meant."""
    from fedweave.lifecycle.life_settings import FILE

    if places and not {"source", "command"} & places.keys() and (file := life / FILE).is_file():
        raise BadInput(next(iter(places.values())), f"the life has begun; leave it out, or change it in {file}")


def _read_settings(settings: list[str], metric: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """--set as settings of the life, of the training and of the model."""
    from fedweave.lifecycle.life_settings import PLACES

    chosen = own_data.split_settings(settings, metric)
    if chosen.methods or chosen.evaluate:
        raise BadInput("--set: a life takes settings of training, model and its own, such as lr=0.1 or gone_after=9")
    own = {name: value for name, value in chosen.train.items() if name in PLACES and name != "metric"}
    return own, {name: value for name, value in chosen.train.items() if name not in PLACES}, chosen.model


@app.command()
def evaluate(life: Life) -> None:
    """Score the champion and the challenger on deliveries that they have not seen, and say which clients drift."""
    opened = fw.Lifecycle(life)
    answered = len(opened.answered)
    lines = [*opened.describe_scores(opened.evaluate()), *opened.describe_scores(opened.answered.iloc[answered:])]
    lines += opened.describe_drift()
    print("\n".join(lines) or f"{life}: nothing to score")


@app.command()
def challenge(life: Life) -> None:
    """Test the champion and the challenger on rows that neither has seen, decide, and train the next challenger."""
    opened = fw.Lifecycle(life)
    events = opened.challenge(progress=True)
    print("\n".join(map(str, events)) or opened.describe_test())
    _store_models(opened)


@app.command()
def forget(life: Life, site: Annotated[str, typer.Argument(help="name of the client")]) -> None:
    """Erase the rows of a site and the models that were trained with it, train without it, and prove it by digests."""
    opened = fw.Lifecycle(life)
    proof = opened.forget(site, progress=True)
    print(opened.roles.events[-1], proof, sep="\n")
    delivery_versions.store(opened.deliveries.place, opened.deliveries.place / LEDGER)
    _store_models(opened)


@app.command()
def rollback(life: Life) -> None:
    """Make the champion before the present one the champion again."""
    opened = fw.Lifecycle(life)
    print(opened.rollback())
    _record(opened)


@app.command()
def serve(
    life: Life,
    port: Annotated[int, typer.Option(help="0: a free one")] = 5002,
    host: Annotated[str, typer.Option(help="address to listen on; everyone who reaches it gets answers")] = "127.0.0.1",
    log: Annotated[bool, typer.Option("--log", help="keep the answers until labels come, for evaluate")] = False,
    log_days: Annotated[int, typer.Option(help="days that they are kept")] = 90,
) -> None:
    """Answer over HTTP with the champion, also while it moves: POST /predict {"rows": [...]}, GET /health."""
    from fedweave.lifecycle.answering import AnswerLog, ServedChampion

    from .. import champion_server  # takes a second

    opened = fw.Lifecycle(life)
    with relocate({"log": "--log"}):
        answers = AnswerLog(life, opened.settings.terms.key, log_days) if log else None
    champion_server.serve(ServedChampion(opened, answers), host, port)


def _store_models(life: "fw.Lifecycle") -> None:
    """Let DVC and MLflow have the models."""
    delivery_versions.store(life.folder / "models", life.folder / ROLES)
    _record(life)


def _record(life: "fw.Lifecycle") -> None:
    """Bring MLflow up to date, in the folder of a project."""
    if Path("dvc.yaml").is_file():
        from ..mlflow_records import champions  # takes seconds

        champions.try_record(life)


@app.command("lifecycle")
def show(
    life: Life, page: Annotated[bool, typer.Option("--page", help="write the page LIFE/lifecycle.html too")] = False
) -> None:
    """What has arrived, what is in quarantine, how good champion and challenger are, and what happened last."""
    opened = fw.Lifecycle(life)
    print("\n".join(opened.describe()))
    if page:
        from fedweave.lifecycle.page import build  # takes seconds

        print(build(opened))
