"""`fedweave compare`, `predict` and `export`: methods on a user's file, predictions of their models, and the models."""

import sys
import warnings
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

import fedweave as fw
from fedweave.errors import MAX_SUGGESTIONS, BadInput, choose, relocate, suggest
from fedweave.study import plugins

from ..stages import terminal
from . import data_options as opt
from .interrupts import explain_interrupt
from .single_run import parse_pairs
from .studies import Uses

if TYPE_CHECKING:
    from fedweave.engine.protocol import Method

app = typer.Typer()
# Arguments of fw.compare and fw.recommend that --set does not take -> the option of the commands for them.
OPTION_NAMES = (
    "methods",
    "model",
    "rounds",
    "seeds",
    "metric",
    "out",
    "name",
    "tune",
    "resume",
    "budget",
    "traffic",
    "margin",
)
OPTIONS = {
    "federation": "the argument FILE",
    "settings": "--settings",
    **{word: f"--{word}" for word in OPTION_NAMES},
    "evaluate": "for example evaluate.every=5",
}
Out = Annotated[
    Path, typer.Option(parser=opt.output_path, help="folder for the results, which `fedweave predict` and fw.load read")
]
METHODS_DEFAULT = "local,fedavg,fedavg_ft,ditto"
Methods = Annotated[
    list[str] | None,
    typer.Option(
        help=f"names from `fedweave list methods`, with commas, or repeated; default: {METHODS_DEFAULT}",
        show_default=False,
    ),
]
Contestants = Annotated[
    list[str] | None,
    typer.Option(
        "--contestant", help="a command that is judged beside the methods, such as 'python mine.py'; repeat for more"
    ),
]
Model = Annotated[str, typer.Option(help="client model, a name from `fedweave list models`")]
Tune = Annotated[
    int | None,
    typer.Option(
        help="trials of the search for each method's settings; 0: no search; default: five learning rates",
        show_default=False,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="a setting, name=value: lr=0.1 of the training, ditto.lam=0.5 of a method, "
        "model.hidden=32, evaluate.every=5",
    ),
]
Refit = Annotated[
    bool, typer.Option(help="the model that was trained again on training and validation rows, where there is one")
]
Metric = Annotated[str, typer.Option(help="metric of the scores; default: accuracy")]
Results = Annotated[Path, typer.Argument(help="results of `fedweave compare` or `recommend`")]
MethodName = Annotated[str, typer.Option(help="method; default: what the report or the recommendation deploys")]
Seed = Annotated[int | None, typer.Option(help="seed of the repetition; default: the first")]
Margin = Annotated[
    str,
    typer.Option(
        help="difference that is equivalent in practice: 0.5, or a share such as '5 %'; default: 1 "
        "point of a percentage, 0.01 of a share, 5 % of an error"
    ),
]


@app.command()
@opt.with_data_options
def compare(
    file: opt.File,
    client: opt.Client,
    out: Out,
    data: dict[str, Any],
    methods: Methods = None,
    contestant: Contestants = None,
    model: Model = "mlp",
    rounds: Annotated[int, typer.Option(help="rounds of a training")] = 50,
    seeds: Annotated[int, typer.Option(help="number of repetitions")] = 3,
    tune: Tune = None,
    metric: Metric = "",
    margin: Margin = "",
    settings: Settings = None,
    resume: Annotated[bool, typer.Option(help="reuse finished runs with the same settings and code")] = True,
    uses: Uses = None,
) -> None:
    """Compare methods on your own data: leaderboard, summary and report.

    Example: fedweave compare flights.csv --client dest --label late --time time_hour --out flights/
    """
    _check_results_spare(file, out)
    plugins.load_option(uses)
    chosen = split_settings(settings or [], metric)
    listed = [
        *build_methods(opt.split_words(methods or [METHODS_DEFAULT]), chosen.methods),
        *build_contestants(contestant or []),
    ]
    federation = fw.Federation.from_file(file, client=client, **data)
    told = warn_of_data(federation)
    with explain_interrupt(out, resume), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are printed below the leaderboard
        comparison = fw.compare(
            federation,
            listed,
            model={"name": model, **chosen.model},
            rounds=rounds,
            seeds=seeds,
            margin=read_margin(margin),
            tune=tune,
            out=out,
            resume=resume,
            evaluate=chosen.evaluate or None,
            **chosen.train,
        )
    comparison.save(out)
    show(comparison, told)
    # The rows are at hand here, and `fedweave predict` and `export` have only the folder.
    used = comparison.deployed()
    print(f"predict and export {explain_use(used, f'use {used.name}, {explain_default(comparison)}, ')}")


@app.command()
def predict(
    folder: Results,
    file: Annotated[Path, typer.Argument(help="CSV, TSV, Parquet or NPZ with the columns of the training data")],
    client: Annotated[str, typer.Option(help="client whose model predicts")],
    method: MethodName = "",
    seed: Seed = None,
    features: Annotated[str, typer.Option(help="in an NPZ file, the array of rows")] = "x",
    encoding: opt.Encoding = "",
    refit: Refit = True,
    output: Annotated[
        Path | None, typer.Option(parser=opt.output_path, help="CSV to write; default: the terminal")
    ] = None,
    uses: Uses = None,
) -> None:
    """Predict new rows with the model of one client: one line per row, with its number and each class's probability.

    A forecast reads the last rows of the file. Of a file with the clients' column, the rows of this client count alone.

    Example: fedweave predict flights/ new.csv --client BOS
    """
    from fedweave.files.atomic import write_atomic
    from fedweave.own_data import user_files
    from fedweave.prediction import input_description
    from fedweave.prediction.predictor import read_inputs, select_own_rows

    if output is not None and output.resolve() == file.resolve():
        raise BadInput(
            f"--output: {output} is the file of the rows, which predictions would replace; name another file"
        )
    encoding = user_files.check_encoding(file, encoding)
    result, why = load_result(folder, method, uses, client)
    if file.suffix.lower() == user_files.ARRAYS:
        stored = user_files.read_arrays(file)
        rows: Any = stored[choose(features, stored, "--features")]
    else:
        rows = input_description.read_file(read_inputs(result.run)[0], file, encoding)
        for line in rows.attrs.get(user_files.NOTES, ()):
            print(f"warning: {line}", file=sys.stderr)
        rows = rows.reset_index(drop=True)
    own_rows = select_own_rows(result.run, rows, client)
    left_out = f", {len(own_rows)} of {len(rows)} rows: the others are of other clients"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        text = _prediction_table(result, own_rows, client, seed, refit).to_csv(index=False, float_format="%.6g")
    for line in dict.fromkeys(str(one.message) for one in caught):
        if not line.startswith(f"{result.name}: "):  # how it was trained is in the line below
            print(f"warning: {line}", file=sys.stderr)
    left_out = left_out if len(own_rows) < len(rows) else ""
    print(f"{result.name} of {client} {_explain(result, why, seed, refit)}{left_out}", file=sys.stderr)
    if output is None:
        sys.stdout.write(text)
    else:
        write_atomic(output, text)


@app.command()
def export(
    folder: Results,
    target: Annotated[Path, typer.Argument(parser=opt.output_path, help="a new folder")],
    client: Annotated[str, typer.Option(help="client whose model is exported")],
    method: MethodName = "",
    seed: Seed = None,
    refit: Refit = True,
    uses: Uses = None,
) -> None:
    """Write the model of one client to a folder that predicts without fedweave, and that MLflow serves.

    Example: fedweave export flights/ boston/ --client BOS
    """
    result, why = load_result(folder, method, uses, client)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it is in the line below
        place = result.export(target, client, seed=seed, refit=refit)
    print(f"{result.name} of {client} {_explain(result, why, seed, refit)}: {place}")


def explain_use(result: "fw.MethodResult", use: str) -> str:
    """`use` and what the models of `predict` and `export` were trained on, or what to do where there are none."""
    if result.run.info.get("contestant"):
        return f"need --method: {result.name} has left predictions and no models"
    return f"{use}{result.refit()}"


def explain_default(comparison: "fw.Comparison") -> str:
    """Why `predict` and `export` use the method that they use."""
    return "as the report says" if comparison.answers.method else "which has the best validation score"


def explain_recommendation(advice: "fw.Recommendation") -> str:
    """Why `predict` and `export` use the method of a recommendation."""
    return "as nothing is recommended yet" if advice.facts.get("under_trained") else "which is recommended"


def _explain(result: "fw.MethodResult", why: str, seed: int | None, refit: bool) -> str:
    """Why this method is used, and what its models were trained on."""
    return f"({why}; {result.refit(seed=seed) if refit else 'trained on training rows'})"


def _check_results_spare(file: Path, out: Path) -> None:
    """Refuse a folder where a table of the results would replace the user's file."""
    from fedweave.comparison.folder_copies import RESULTS

    if file.resolve().parent == out.resolve() and any(file.match(pattern) for pattern in RESULTS):
        raise BadInput(f"--out: in {out} the results would replace {file}; choose another folder")


def load_result(folder: Path, method: str, uses: list[str] | None, client: str) -> tuple["fw.MethodResult", str]:
    """The result of `method` in a folder of `fedweave compare` or `recommend`, and why it is this one.

    Without a name it is the method that the recommendation has for the client, else the one that the report deploys.
    """
    from fedweave.recommendation.result import FACTS, FOLDER, Recommendation

    plugins.load_option(uses)
    comparison = fw.load(folder)
    if method:
        return comparison[choose(method, comparison.methods, "--method")], "as --method says"
    if (folder / FOLDER / FACTS).is_file():
        advice = Recommendation.load(folder)
        if client in advice.local_clients:
            return comparison[advice.method_of(client)], "to which this client keeps, by its validation rows"
        return comparison[advice.method], explain_recommendation(advice)
    return comparison.deployed(), explain_default(comparison)


def _prediction_table(result: "fw.MethodResult", rows: Any, client: str, seed: int | None, refit: bool) -> Any:
    """A table with a row for each prediction: the number of the row in the file's table, from 1, then the class and all
    probabilities, or a number; or the steps of a forecast.
    """
    import pandas as pd

    from fedweave.exported_model import step_names
    from fedweave.prediction.predictor import read_inputs

    if result.run.info.get("targets", "classes") != "classes":
        values = result.predict(rows, client, seed=seed, refit=refit)
        if values.ndim > 1:
            return pd.DataFrame(values, columns=step_names(read_inputs(result.run)[0]["columns"], values.shape[1]))
        answers = pd.DataFrame({"prediction": values})
    else:
        answers = result.predict_proba(rows, client, seed=seed, refit=refit).reset_index(drop=True)
        answers.insert(0, "prediction", [str(answers.columns[i]) for i in answers.to_numpy().argmax(1)])
    if isinstance(rows, pd.DataFrame):
        answers.insert(0, "row", rows.index + 1, allow_duplicates=True)
    return answers


def warn_of_data(federation: "fw.Federation") -> tuple[str, ...]:
    """Print the warnings about the data before the training, and return them: who misread a column need not wait."""
    for line in federation.notes:
        terminal.console().print(f"warning: {line}", soft_wrap=True, highlight=False)
    return federation.notes


def show(comparison: "fw.Comparison", told: Collection[str] = ()) -> None:
    """Print the leaderboard, the summary in sentences, warnings but those `told`, and the path of the report."""
    from fedweave import results
    from fedweave.prediction.input_description import find_partitions
    from fedweave.report.summary import summary

    from ..stages import leaderboard

    console = terminal.console()
    tables = results.compute_tables(comparison.study, find_partitions(comparison.study.folder))
    leaderboard.print_boards(console, comparison.study, tables, reasons=False)
    leaderboard.print_summary(console, summary(comparison.study, tables))
    for line in comparison.warnings:
        if line not in told:
            console.print(f"warning: {line}", soft_wrap=True, highlight=False)
    console.print(f"{comparison.report()} shows everything", soft_wrap=True)


def _check_settings(values: Mapping[str, Any]) -> None:
    """Refuse names of methods, names that are options of the command, and a setting under both of its names."""
    from fedweave.methods import METHODS

    for key in values:
        name = key.removeprefix("train.")
        if name in METHODS:
            raise BadInput(f"--set {key}: is a method; write its settings such as {key}.NAME=VALUE")
        if name in OPTIONS or key == "model.name":
            raise BadInput(f"--set {key}: is not a setting of the training; use {OPTIONS[name.removesuffix('.name')]}")
        if name != key and name in values:
            raise BadInput(f"--set {key}: and {name} are the same setting; give one of them")


class SplitSettings(NamedTuple):
    """Settings from the options --set, by what they are of; those of methods by name of the method."""

    train: dict[str, Any]
    model: dict[str, Any]
    evaluate: dict[str, Any]
    methods: dict[str, dict[str, Any]]


def split_settings(settings: list[str], metric: str = "") -> SplitSettings:
    """The settings of the options --set and --metric. The metric is among the settings of the training.

    Raises:
        BadInput: as `parse_pairs` and `_check_settings`, or the part before the point is neither a method nor a block.
    """
    from fedweave.methods import METHODS

    values = parse_pairs(settings)
    _check_settings(values)
    split = SplitSettings({"metric": metric} if metric else {}, {}, {}, {})
    for key, value in values.items():
        block, _, name = key.partition(".")
        if not name:
            split.train[key] = value
        elif block in METHODS:
            split.methods.setdefault(block, {})[name] = value
        else:
            getattr(split, _choose_block(block, key))[name] = value
    return split


def read_margin(text: str) -> float | str | None:
    """The option --margin as `fw.compare` takes it: a number, a share such as "5 %", or None where it is not given."""
    try:
        return float(text) if text else None
    except ValueError:
        return text


def _choose_block(block: str, key: str) -> str:
    """`block`, which must be one of the settings of the training, the model or the evaluation.

    Raises:
        BadInput: naming the blocks, and the methods that are spelled like it.
    """
    from fedweave.methods import METHODS

    blocks = SplitSettings._fields[:-1]
    if block not in blocks:
        hint = suggest(block, [*METHODS, *blocks], MAX_SUGGESTIONS)
        raise BadInput(
            f"--set {key}: {block!r} is unknown; {hint}choices: {', '.join(blocks)}, and a method, of which all "
            f"{len(METHODS)} are listed by: fedweave list methods"
        )
    return block


def build_contestants(commands: list[str]) -> list[Any]:
    """The programs that run `commands`, those of one file with numbers behind their names.

    Raises:
        BadInput: naming the command.
    """
    from fedweave.contestants.entry import rename

    with relocate({"contestants.program": "--contestant"}):
        programs = [fw.contestants.program(command) for command in commands]
    numbers: Counter[str] = Counter()
    for i, program in enumerate(programs):
        numbers[program.own_name] += 1
        if (number := numbers[program.own_name]) > 1:
            programs[i] = rename(program, f"{program.own_name}-{number}")
    return programs


def build_methods(names: list[str], settings: Mapping[str, Mapping[str, Any]]) -> "list[str | Method]":
    """The methods called `names`, those with `settings` as objects that have them. Their values are not checked here.

    Raises:
        BadInput: a setting of a method that is not listed, or one that the method does not have.
    """
    from fedweave.methods import METHODS, find_name

    names = [find_name(name) for name in names]
    for method, values in settings.items():
        if method not in names:
            raise BadInput(f"--set {method}.{next(iter(values))}: {method} is not in --methods; add it there")
        for name in values:
            choose(name, [setting.name for setting in METHODS[method].settings()], f"--set {method}.{name}")
    return [METHODS[name](**settings[name]) if name in settings else name for name in names]
