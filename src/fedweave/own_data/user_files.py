"""Files that users have: tables as CSV or Parquet, arrays as NPZ, lists of pairs."""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.errors import BadInput, format_value
from fedweave.files.arrays import read_npz

if TYPE_CHECKING:
    import pandas as pd

TEXTS = (".csv", ".tsv")
TABLES = (*TEXTS, ".parquet", ".pq")
ARRAYS = ".npz"
UNNAMED = r"Unnamed: \d+"  # what pandas calls a column without a name
UTF_8 = "utf-8"
DECIMAL_COMMA = r"\s*[+-]?\d+(,\d+)?([eE][+-]?\d+)?\s*"


def read_table(
    source: Any, columns: Sequence[str] | None = None, ids: Collection[str] | None = (), encoding: str = ""
) -> "pd.DataFrame":
    """A table: as it is, or read from a CSV, TSV or Parquet file (CSV also compressed, such as .csv.gz).

    A CSV file may have semicolons in place of commas, as spreadsheets write it where the decimal mark is a comma.

    Args:
        columns: the only ones to read, which saves memory; default: all. Names that the file lacks are ignored.
        ids: columns of names, such as that of clients, which stay texts in a CSV file if as numbers they would be
            written in another way: "01" is not 1. None: all columns.
        encoding: of a CSV or TSV file, as Python names it; default: UTF-8.

    Raises:
        BadInput: the file is missing, damaged, empty or of another kind.
    """
    import pandas as pd

    if isinstance(source, pd.DataFrame):
        return source
    path = _check_file(source)
    if (kind := _table_kind(path)) is None:
        raise BadInput(f"{path}: is not a table; give a file with the ending {', '.join(TABLES)}")
    try:
        if kind in (".parquet", ".pq"):
            table = pd.read_parquet(
                path, columns=columns and [*filter({*_parquet_columns(path)}.__contains__, columns)]
            )
        else:
            table = _read_csv(_TextFile(path, encoding or UTF_8, "\t" if kind == ".tsv" else ","), columns, ids)
    except BadInput:
        raise
    except Exception as error:  # readers raise errors of many types for damaged files
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadInput(f"{path}: cannot be read as a table ({reason}); {_suggest_fix(error)}") from error
    if not len(table):
        raise BadInput(f"{path}: has no rows; write one line per row below the header")
    return table


def _table_kind(path: Path) -> str | None:
    """The ending that says how to read a table: ".csv" of "a.csv.gz"; None for other files."""
    kinds = [suffix.lower() for suffix in path.suffixes[-2:]]
    return next((suffix for suffix in reversed(kinds) if suffix in TABLES), None)


def check_encoding(path: Path, encoding: Any) -> str:
    """The encoding, which must be one of texts that Python has, and of a file with text; "" for the default.

    Raises:
        BadInput: naming the encoding, and what to give.
    """
    if not encoding:
        return ""
    try:
        "".encode(encoding)
    except (LookupError, TypeError, ValueError) as error:
        known = "cp1252, latin1 or utf-16"
        raise BadInput(f"encoding: {format_value(encoding)} is unknown; give one that Python has: {known}") from error
    if not path.is_dir() and _table_kind(path) not in TEXTS:
        raise BadInput(f"encoding: {encoding!r} is for CSV and TSV files, and {path} is none; leave it out")
    return str(encoding)


@dataclass(frozen=True)
class _TextFile:
    """A CSV or TSV file, and how it is written."""

    path: Path
    encoding: str
    separator: str

    def read(self, **options: Any) -> "pd.DataFrame":
        """The table that pandas reads, with further options of `pd.read_csv`."""
        import pandas as pd

        return pd.read_csv(self.path, encoding=self.encoding, sep=self.separator, **options)

    def header(self) -> list[str]:
        """The names in the first line; empty where a column has none."""
        return [*map(str, self.read(header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0])]


def _read_csv(file: _TextFile, columns: Sequence[str] | None, ids: Collection[str] | None) -> "pd.DataFrame":
    """A table of a text file; columns without a name and without any value are left out.

    Raises:
        BadInput: lines have more fields than the header, so that pandas would move the values to other columns.
    """
    import pandas as pd

    headers = {written: written.header() for written in (file, replace(file, separator=";"))}
    file, titles = max(headers.items(), key=lambda entry: len(entry[1]))
    repeated = {title for title in titles if title and titles.count(title) > 1}
    used = None if columns is None or repeated & {*columns} else {*columns}.__contains__
    # Read in pieces, a column could have the number 1 in one piece and the text "1" in another.
    table = file.read(usecols=used, low_memory=False)
    if not isinstance(table.index, pd.RangeIndex):
        advice = "name every column in the header, or remove the separator at the end of each line"
        raise BadInput(f"{file.path}: its lines have more fields than its header; {advice}")
    table = table.assign(**_read_codes(file, table, titles if ids is None else ids))
    empty = [name for name in table if re.fullmatch(UNNAMED, name) and table[name].isna().all()]
    if file.separator == ";":
        texts = [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]
        commas = [name for name in texts if table[name].dropna().astype(str).str.fullmatch(DECIMAL_COMMA).all()]
        table = table.assign(**{name: table[name].str.replace(",", ".").astype(float) for name in commas})
    if repeated and used is None:  # pandas has added numbers to the names
        pairs = zip(table.columns, titles, strict=True)
        table.columns = pd.Index([title if title in repeated else name for name, title in pairs])
    return table.drop(columns=empty)


def _read_codes(file: _TextFile, table: "pd.DataFrame", ids: Collection[str]) -> dict[str, "pd.Series[Any]"]:
    """Those columns `ids` of `table` as texts that are written in another way than their numbers, such as 01 and 1."""
    names = [name for name in table if name in ids and table[name].dtype.kind in "iuf"]
    if not names:
        return {}
    texts = file.read(usecols={*names}.__contains__, dtype=str)
    return {name: texts[name].str.strip() for name in names if _loses_text(table[name], texts[name].str.strip())}


def _loses_text(numbers: "pd.Series[Any]", texts: "pd.Series[Any]") -> bool:
    """Whether a number would be written in another way than its text; 1.0 may be the text 1."""
    import pandas as pd

    pairs = pd.DataFrame({"number": numbers, "text": texts}).dropna().drop_duplicates()
    rows = zip(pairs["number"].tolist(), pairs["text"].tolist(), strict=True)
    return any(text not in (str(number), f"{number:.0f}") for number, text in rows)


def _parquet_columns(path: Path) -> list[str]:
    """Names of the columns of a Parquet file."""
    import pyarrow.parquet

    return list(pyarrow.parquet.read_schema(path).names)


def read_arrays(source: Path | str) -> dict[str, np.ndarray]:
    """The arrays of an NPZ file, by name.

    Raises:
        BadInput: the file is missing or damaged, or holds Python objects.
    """
    path = _check_file(source)
    try:
        return read_npz(path)
    except Exception as error:  # numpy and zipfile raise errors of many types for damaged files
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadInput(f"{path}: cannot be read as arrays ({reason}); save them with numpy.savez") from error


def read_folder(folder: Path, client: str, ids: Collection[str] = (), encoding: str = "") -> "pd.DataFrame":
    """The tables of all files in a folder, one below the other; `ids` and `encoding` as in `read_table`.

    Where the files have no column `client`, each file is one client, with the file's name, and the column is added.

    Raises:
        BadInput: there is no table, or the tables do not fit each other.
    """
    import pandas as pd

    files = [file for file in sorted(folder.iterdir()) if _table_kind(file) and not file.name.startswith(".")]
    if not files:
        raise BadInput(
            f"{folder}: has no tables; give a file, or a folder of files with the ending {', '.join(TABLES)}"
        )
    tables = {file: read_table(file, ids=(client, *ids), encoding=encoding) for file in files}
    columns = [*map(str, tables[files[0]])]
    for file, table in tables.items():
        if different := sorted({*columns} ^ {*map(str, table)}):
            raise BadInput(f"{file}: differs from {files[0].name} in the column {different[0]!r}; give both the same")
        if not table.columns.is_unique:
            twice = str(table.columns[table.columns.duplicated()][0])
            raise BadInput(f"{file}: two columns have the name {twice!r}; rename one")
    if client not in columns:
        tables = _add_client(tables, client, columns)
    return pd.concat(_align_ids(_align_codes([*tables.values()]), (client, *ids)), ignore_index=True)


def _align_codes(tables: Sequence["pd.DataFrame"]) -> list["pd.DataFrame"]:
    """The tables, with whole numbers as such in columns that are texts in another table.

    A missing value makes pandas read the code 1 as 1.0, which would not be the code "1" of the other table.
    """
    texts = {name for table in tables for name in table if table[name].dtype.kind == "O" and table[name].notna().any()}

    def is_whole(column: "pd.Series[Any]") -> bool:
        return column.dtype.kind == "f" and bool((column.dropna() % 1 == 0).all())

    return [
        table.assign(**{name: table[name].astype("Int64").astype(object) for name in texts if is_whole(table[name])})
        for table in tables
    ]


def _align_ids(tables: list["pd.DataFrame"], ids: Iterable[str]) -> list["pd.DataFrame"]:
    """The tables, with texts in the columns `ids` that are codes such as "01" in another table."""
    import pandas as pd

    def are_codes(column: "pd.Series[Any]") -> bool:
        values = column.dropna()
        is_text = pd.api.types.infer_dtype(values) == "string"
        return is_text and bool(pd.to_numeric(values, errors="coerce").notna().all())

    codes = [name for name in ids if any(name in table and are_codes(table[name]) for table in tables)]
    return [table.assign(**{name: table[name].map(str, na_action="ignore") for name in codes}) for table in tables]


def _add_client(
    tables: Mapping[Path, "pd.DataFrame"], client: str, columns: Sequence[str]
) -> dict[Path, "pd.DataFrame"]:
    """The tables with the name of their file, without its ending, in the column `client`."""
    if similar := difflib.get_close_matches(str(client), columns, n=1):  # more likely a typing error
        advice = "where each file is one client, give a name unlike those of the columns"
        raise BadInput(f"client: no column {client!r}; did you mean {similar[0]!r}? {advice}")
    names = [file.name.split(".")[0] for file in tables]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(
            f"{next(iter(tables)).parent}: two files have the name {twice[0]!r}; each is a client, rename one"
        )
    return {file: table.assign(**{client: name}) for name, (file, table) in zip(names, tables.items(), strict=True)}


def read_pairs(source: Any, option: str) -> list[tuple[Any, Any]]:
    """Pairs of a list, of a table of two columns, or of its file.

    Raises:
        BadInput: it holds no pairs, or more than these.
    """
    if isinstance(source, str | Path) or hasattr(source, "columns"):
        table = read_table(source, ids=None)
        if table.shape[1] > 2:
            raise BadInput(
                f"{option}: has the columns {', '.join(map(str, table.columns[:5]))}, and pairs have no weights or "
                "other values; give two columns, such as source and target"
            )
        if table.shape[1] < 2 or table.iloc[:, :2].isna().to_numpy().any():
            raise BadInput(f"{option}: needs two columns without missing entries, such as source and target")
        return [*zip(table.iloc[:, 0].tolist(), table.iloc[:, 1].tolist(), strict=True)]
    pairs = [*source] if isinstance(source, Iterable) else [source]
    invalid = next((pair for pair in pairs if not isinstance(pair, Collection) or len(pair) != 2), None)
    if invalid is not None:
        raise BadInput(f"{option}: {format_value(invalid)} is not a pair; for example [('a', 'b'), ('b', 'c')]")
    return [tuple(pair) for pair in pairs]


def _check_file(source: Any) -> Path:
    if not isinstance(source, str | Path):
        raise BadInput(f"table: {type(source).__name__} is neither a pandas table nor a path of a file; give one")
    path = Path(source)
    if re.match(r"[a-z][a-z0-9+.-]+:/", str(source), re.IGNORECASE):
        raise BadInput(f"{source}: is an address, not a file; download it, and give the path of the file")
    if path.is_dir():
        raise BadInput(f"{path}: is a folder, not a file; give the path of one file in it")
    if path.exists() and not path.is_file():
        raise BadInput(f"{path}: is a pipe or a device, not a file; write its rows to a file, and give that")
    if not path.is_file():
        raise BadInput(f"{path}: there is no such file; check the path, which is relative to {Path.cwd()}")
    return path


def _suggest_fix(error: Exception) -> str:
    """What the user can do about a table that cannot be read."""
    advice = {
        "UnicodeDecodeError": "save the file as UTF-8, or name its encoding, such as cp1252: `--encoding` of the "
        "command, `encoding` of Federation.from_file",
        "ParserError": "give every line as many fields as the header, and put fields with a comma in quotes",
        "EmptyDataError": "write a header and one line per row",
    }
    return advice.get(type(error).__name__, "the file is damaged or not what its ending says; write or copy it again")
