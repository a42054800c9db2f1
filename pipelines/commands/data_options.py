"""Options of `fedweave compare`, `recommend` and `import` that describe the content of a user's file."""

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from fedweave.errors import BadInput
from fedweave.own_data.options import IN_PYTHON, DataFields
from fedweave.settings import Setting, describe

PANEL = "What the file holds"  # part of a command's help
FIELD = re.compile(r'\s*+(?:"((?:[^"]|"")*)"\s*|([^",][^,]*)?)(?=,|$)')  # one field of a line of CSV

File = Annotated[Path, typer.Argument(help="CSV, TSV or Parquet with one row per example, a folder of them, or NPZ")]
Client = Annotated[
    str, typer.Option(help="column with the client of a row; in a folder, a file without this column is one client")
]
Encoding = Annotated[
    str,
    typer.Option(
        rich_help_panel=PANEL,
        help="encoding of CSV and TSV files, such as cp1252 or latin1, as Excel writes; default: UTF-8",
    ),
]
QUOTES = """a name with a comma in double quotes, as in CSV: '"a,b",c'"""
Label = Annotated[str, typer.Option(help=f"column to predict; forecasts may have several, with commas; {QUOTES}")]
# How columns and lists are written on the command line.
WRITTEN = {
    "shares": "{}; such as 0.6,0.2,0.2",
    "features": f"{{}}; with commas, {QUOTES}, or repeated",
    "exclude": "{}; with commas or repeated",
    "text": "{}; with commas or repeated; review=512 for 512 hashes, review=words.txt",
    "split": "column with {}",
    **{name: f"column with the {name} {{}}" for name in ("time", "recording", "group", "unit")},
}
REPEATED = ("features", "exclude", "text")
IN_PYTHON_ONLY = ("seed",)


def _as_parameter(setting: Setting) -> inspect.Parameter:
    """A field of `DataFields` as an option of a command."""
    types = {*get_args(setting.type)} or {setting.type}
    default: Any = 0 if int in types else None if types & {float, bool} else ""
    kind: Any = next((kind for kind in (int, float, bool) if kind in types), str)
    if setting.name in REPEATED:
        kind, default = list[str], None
    text = WRITTEN.get(setting.name, "{}").format(setting.meaning.partition(IN_PYTHON)[0]).replace("`", "")
    names = ("--embed/--one-hot",) if setting.name == "embed" else ()
    option = typer.Option(*names, help=text, rich_help_panel=PANEL)
    annotation: Any = Annotated[kind if default is not None else kind | None, option]
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def with_data_options(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with an option for each field of `DataFields` in place of its parameter `data`.

    `data` gets the arguments of `Federation.from_file`, without those that the user has left out.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in signature.parameters.values()]
    options = [_as_parameter(setting) for setting in describe(DataFields) if setting.name not in IN_PYTHON_ONLY]
    extra = {"label": (Label, inspect.Parameter.empty), "encoding": (Encoding, "")}
    options[:0] = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in extra.items()
    ]
    place = [parameter.name for parameter in own].index("data")
    parameters = [*own[:place], *options, *own[place + 1 :]]

    @functools.wraps(command)
    def call(file: Any, **named: Any) -> None:
        defaults = {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}
        arguments = {**defaults, **named}
        given = {option.name: arguments.pop(option.name) for option in options}
        command(file, **arguments, data=parse_options(**given))

    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def output_path(path: str) -> Path:
    """The path that an option names for results. An empty one, which would mean the current folder, is refused."""
    if not str(path).strip():
        raise typer.BadParameter(f"{path!r} is an empty path; name a folder, or . for the current one")
    return Path(path)


def parse_options(
    *,
    label: str,
    features: Sequence[str] | None,
    exclude: Sequence[str] | None,
    shares: str,
    text: Sequence[str] | None,
    val: float | None,
    embed: bool | None,
    **plain: Any,
) -> dict[str, Any]:
    """Arguments of `Federation.from_file`, without those that the user has left out.

    Raises:
        BadInput: shares that are not three numbers, a quote that does not close, or a vocabulary that is not there.
    """
    from fedweave.data.partitions.splits import parse_shares  # not above: it imports NumPy

    lists = {
        "features": split_repeated(features, "--features"),
        "exclude": split_repeated(exclude, "--exclude"),
        "shares": parse_shares(shares),
        "text": _parse_texts(text),
    }
    arguments = {key: value for key, value in {**plain, **lists}.items() if value}
    arguments |= {key: value for key, value in (("val", val), ("embed", embed)) if value is not None}
    names = split_names(label, "--label") if arguments.get("window") else []
    return {**arguments, "label": label if names in ([], [label.strip()]) else names}


def split_words(texts: list[str]) -> list[str]:
    """Words between commas, of an option that may be repeated."""
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def split_names(text: str, option: str) -> list[str]:
    """Names of columns between commas; one in double quotes is taken as it is, with its commas and spaces, as in CSV.

    Raises:
        BadInput: a quote is not closed.

    >>> split_names('"a,b", c,5" disk', "--features")
    ['a,b', 'c', '5" disk']
    """
    fields, end = [], 0
    while end <= len(text):
        match = FIELD.match(text, end)
        if match is None:
            raise BadInput(f"{option}: {text!r} has a name whose quotes do not close; {QUOTES}")
        fields.append((match[2] or "").strip() if match[1] is None else match[1].replace('""', '"'))
        end = match.end() + 1
    return [name for name in fields if name]


def split_repeated(texts: Sequence[str] | None, option: str) -> list[str]:
    """Names of columns of an option that may be repeated, each time with names between commas.

    Raises:
        BadInput: a quote is not closed.
    """
    return [name for text in texts or () for name in split_names(text, option)]


def _parse_texts(given: Sequence[str] | None) -> dict[str, Any]:
    """Column of texts -> number of hashes, or the words of a vocabulary file."""
    from fedweave.own_data.column_encoding import HASHED

    texts: dict[str, Any] = {}
    for part in split_repeated(given, "--text"):
        name, _, encoding = part.partition("=")
        if not encoding:
            texts[name] = HASHED
        elif re.fullmatch("[0-9]{1,9}", encoding):
            texts[name] = int(encoding)
        else:
            texts[name] = _read_vocabulary(Path(encoding))
    return texts


def _read_vocabulary(path: Path) -> list[str]:
    if not path.is_file():
        raise BadInput(f"--text: {path} is not a file of words, and no number of hashes such as 512")
    try:
        return path.read_text(encoding="utf-8").split()
    except UnicodeDecodeError as error:
        raise BadInput(f"--text: {path} is not text in UTF-8 (byte {error.start}); save it as UTF-8") from error
