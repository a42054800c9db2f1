"""Options of `fedweave compare`, `recommend` and `import` that describe the content of a user's file."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from fedweave.errors import BadInput

PARTS = ("train", "val", "test")
FIELD = re.compile(r'\s*+(?:"((?:[^"]|"")*)"\s*|([^",][^,]*)?)(?=,|$)')  # one field of a line of CSV

File = Annotated[Path, typer.Argument(help="CSV, TSV or Parquet with one row per example, a folder of them, or NPZ")]
Client = Annotated[
    str, typer.Option(help="column with the client of a row; in a folder, a file without this column is one client")
]
Encoding = Annotated[
    str, typer.Option(help="encoding of CSV and TSV files, such as cp1252 or latin1, as Excel writes; default: UTF-8")
]
QUOTES = """a name with a comma in double quotes, as in CSV: '"a,b",c'"""
Label = Annotated[str, typer.Option(help=f"column to predict; forecasts may have several, with commas; {QUOTES}")]
Features = Annotated[str, typer.Option(help=f"columns that models see, with commas; {QUOTES}; default: all others")]
Exclude = Annotated[str, typer.Option(help="columns that models do not see, in place of --features, with commas")]
Split = Annotated[str, typer.Option(help="random, stratified, chronological, grouped, or a column of train, val, test")]
Shares = Annotated[str, typer.Option(help="shares of train, val and test, such as 0.6,0.2,0.2")]
Time = Annotated[str, typer.Option(help="column of times for a chronological split")]
Gap = Annotated[int, typer.Option(help="rows between two parts of a chronological split")]
Recording = Annotated[str, typer.Option(help="column of recordings, such as sessions, for a grouped split")]
Group = Annotated[str, typer.Option(help="column of the client's group, which only tables and figures use")]
Unit = Annotated[str, typer.Option(help="column of the client's unit, such as a person: tests take its clients as one")]
Relation = Annotated[str, typer.Option(help="CSV with a given client graph: one pair of clients per row")]
Val = Annotated[float | None, typer.Option(help="share of training rows for validation, if no other option says it")]
Normalize = Annotated[str, typer.Option(help="scaling of arrays, forecasts: none, standard, standard_client or unit")]
Preprocess = Annotated[
    str, typer.Option(help="training rows that scale a column: client (each client's own) or pooled")
]
Target = Annotated[str, typer.Option(help="classes or numbers; default: numbers where the label has a fraction")]
Window = Annotated[int, typer.Option(help="forecasts: number of known time steps; rows are then time steps")]
Horizon = Annotated[int, typer.Option(help="forecasts: number of time steps to forecast")]
Stride = Annotated[int, typer.Option(help="forecasts: time steps between two windows")]
Text = Annotated[str, typer.Option(help="columns of texts, with commas; review=512 for 512 hashes, review=words.txt")]
Embed = Annotated[
    bool | None, typer.Option("--embed/--one-hot", help="encoding of categories; default: embed above 100 values")
]
Name = Annotated[str, typer.Option(help="name of the data set; default: the name of the file")]


def output_path(path: str) -> Path:
    """The path that an option names for results; an empty one would mean the current folder.

    Raises:
        BadParameter: it is empty.
    """
    if not str(path).strip():
        raise typer.BadParameter(f"{path!r} is an empty path; name a folder, or . for the current one")
    return Path(path)


def parse_options(
    *, label: str, features: str, exclude: str, shares: str, text: str, val: float | None, embed: bool | None,
    **plain: Any,
) -> dict[str, Any]:  # fmt: skip
    """Arguments of `Federation.from_file`, without those that the user has left out.

    Raises:
        BadInput: shares that are not three numbers, a quote that does not close, or a vocabulary that is not there.
    """
    lists = {
        "features": split_names(features, "--features"), "exclude": split_names(exclude, "--exclude"),
        "shares": _parse_shares(shares), "text": _parse_texts(text),
    }  # fmt: skip
    arguments = {key: value for key, value in {**plain, **lists}.items() if value}
    arguments |= {key: value for key, value in (("val", val), ("embed", embed)) if value is not None}
    names = split_names(label, "--label") if arguments.get("window") else []
    return {**arguments, "label": label if names in ([], [label.strip()]) else names}


def split_words(text: str) -> list[str]:
    """Words between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


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


def _parse_texts(text: str) -> dict[str, Any]:
    """Column of texts -> number of hashes, or the words of a vocabulary file."""
    from fedweave.own_data.column_encoding import HASHED

    texts: dict[str, Any] = {}
    for part in split_names(text, "--text"):
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


def _parse_shares(text: str) -> dict[str, float]:
    """Part -> its share; empty for an empty text.

    Raises:
        BadInput: the text is not three numbers.
    """
    try:
        numbers = [float(word) for word in split_words(text)]
    except ValueError:
        numbers = [0.0]
    if numbers and len(numbers) != len(PARTS):
        raise BadInput(f"--shares: {text!r} must be three numbers, of train, val and test, such as 0.6,0.2,0.2")
    return dict(zip(PARTS, numbers, strict=False))
