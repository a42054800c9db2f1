"""The options of a user's data, each described once: the Python calls, the command line and the docs come from here."""

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, TypeVar

from fedweave.settings import describe

IN_PYTHON = "; in Python also "  # before what the command line cannot give
Function = TypeVar("Function", bound=Callable[..., Any])
Names = Sequence[str]


@dataclass(frozen=True)
class DataFields:
    """All options. Those of tables come last. `split` to `unit` may be names of columns, or of arrays of a file."""

    split: Annotated[
        Any,
        "train, val or test of each row, or a rule: random, stratified (with the mix of classes), chronological (a "
        "client's first rows train, its last ones test) or grouped (whole recordings); default: chronological where "
        "`time` is given, grouped where `recording` is, else stratified; in Python also {'train': rows, ...} or shares",
    ] = None
    shares: Annotated[Mapping[str, float] | None, "of train, val and test; default: 0.6, 0.2 and 0.2"] = None
    time: Annotated[Any, "of each row: numbers, dates or texts such as 2024-05-31 17:00"] = None
    gap: Annotated[int, "rows between two parts in the order of time that are in none"] = 0
    recording: Annotated[
        Any, "of each row, such as a session: its rows stay in one part, or it is cut by `time` on its own"
    ] = None
    group: Annotated[Any, "of each row's client, for tables and figures alone; in Python also {client: group}"] = None
    unit: Annotated[
        Any,
        "of each row's client: the person, hospital or household behind it; tests and intervals take the clients of "
        "one unit as one; in Python also {client: unit}",
    ] = None
    relation: Annotated[
        Any, "a given graph of the clients: the file of a table of two columns; in Python also the table, or pairs"
    ] = None
    min_rows: Annotated[int, "of a client; those with fewer are left out, and a note names them"] = 0
    val: Annotated[float | None, "share of training rows that validates, where no other option says it"] = None
    normalize: Annotated[
        Any,
        "scaling of arrays and forecasts: none, standard (by channel or column, from all training rows), "
        "standard_client (from those of the client) or unit; default: bytes in the shape of images are divided by 255, "
        "others are standard",
    ] = None
    target: Annotated[
        str | None, "classes or numbers; default: classes, and numbers where the label has a fraction"
    ] = None
    window: Annotated[int | None, "forecasts: number of known steps; rows are then time steps"] = None
    horizon: Annotated[int | None, "forecasts: number of steps to forecast"] = None
    stride: Annotated[int, "forecasts: steps between two windows"] = 1
    name: Annotated[str, "of the data in tables; default: the name of the file"] = "own-data"
    seed: Annotated[int, "of a drawn split"] = 0
    features: Annotated[Names | None, "columns that models see; default: all others, and none for forecasts"] = None
    exclude: Annotated[Names, "columns that models do not see, in place of `features`"] = ()
    embed: Annotated[bool | None, "whether categories are embedded; default: those of more than 100 values"] = None
    preprocess: Annotated[
        Literal["pooled", "client"], "training rows that scale a column: pooled, or client: each client's own"
    ] = "pooled"
    text: Annotated[
        Names | Mapping[str, int | Names],
        "columns of texts, whose words are counted in 256 hashes; in Python also {column: number of hashes, or words}",
    ] = ()


class RowKeywords(TypedDict, total=False):
    """The fields of `DataFields` for rows of any kind, as type checkers and editors read them."""

    split: Any
    shares: Mapping[str, float] | None
    time: Any
    gap: int
    recording: Any
    group: Any
    unit: Any
    relation: Any
    min_rows: int
    val: float | None
    normalize: Any
    target: str | None
    window: int | None
    horizon: int | None
    stride: int
    name: str
    seed: int


class TableKeywords(RowKeywords, total=False):
    """All fields of `DataFields`."""

    features: Names | None
    exclude: Names
    embed: bool | None
    preprocess: Literal["pooled", "client"]
    text: Names | Mapping[str, int | Names]


ROW_OPTIONS = tuple(RowKeywords.__annotations__)
TABLE_OPTIONS = tuple(TableKeywords.__annotations__)[len(ROW_OPTIONS) :]  # those that rows of other kinds do not have


def with_options(keywords: type, **defaults: Any) -> Callable[[Function], Function]:
    """A decorator: `help()` and `signature` of a call show the fields of `keywords` in place of **options.

    Args:
        defaults: of the call, where they differ from those of the fields.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        settings = [s for s in describe(DataFields) if s.name in keywords.__annotations__]
        settings = [s for s in settings if s.name not in signature.parameters]
        added = [
            inspect.Parameter(
                s.name, inspect.Parameter.KEYWORD_ONLY, annotation=s.type, default=defaults.get(s.name, s.default)
            )
            for s in settings
        ]
        function.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        lines = "".join(
            textwrap.fill(f"{s.name}: {s.meaning}.", 120, initial_indent=12 * " ", subsequent_indent=16 * " ") + "\n"
            for s in settings
        )
        place = "\n        Raises:"
        function.__doc__ = (function.__doc__ or "").replace(place, f"{lines}{place}", 1)
        return function

    return decorate
