"""Files that users have: tables as CSV or Parquet, arrays as NPZ, lists of pairs."""

import re
import warnings
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.errors import BadInput, format_value
from fedweave.readers.arrays import read_npz

if TYPE_CHECKING:
    import pandas as pd

TABLES = (".csv", ".tsv", ".parquet", ".pq")
ARRAYS = ".npz"
DECIMAL_COMMA = r"\s*[+-]?\d+(,\d+)?([eE][+-]?\d+)?\s*"


def read_table(source: Any, columns: Sequence[str] | None = None) -> "pd.DataFrame":
    """A table: as it is, or read from a CSV, TSV or Parquet file (CSV also compressed, such as .csv.gz).

    A CSV file may have semicolons in place of commas, as spreadsheets write it where the decimal mark is a comma.

    Args:
        columns: the only ones to read, which saves memory; default: all. Names that the file lacks are ignored.

    Raises:
        BadInput: the file is missing, damaged, empty or of another kind.
    """
    import pandas as pd

    if isinstance(source, pd.DataFrame):
        return source
    path = _check_file(source)
    kinds = [suffix.lower() for suffix in path.suffixes[-2:]]
    kind = next((suffix for suffix in reversed(kinds) if suffix in TABLES), None)
    if kind is None:
        raise BadInput(f"{path}: is no table; give a file with the ending {', '.join(TABLES)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pd.errors.DtypeWarning)  # a column of numbers and texts is a category
            if kind in (".parquet", ".pq"):
                table = pd.read_parquet(
                    path, columns=columns and [*filter({*_parquet_columns(path)}.__contains__, columns)]
                )
            else:
                table = _read_csv(path, "\t" if kind == ".tsv" else ",", columns)
    except Exception as error:  # readers raise errors of many types for damaged files
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadInput(f"{path}: cannot be read as a table ({reason}); {_suggest_fix(error)}") from error
    if not len(table):
        raise BadInput(f"{path}: has no rows; write one line per row below the header")
    return table


def _read_csv(path: Path, separator: str, columns: Sequence[str] | None) -> "pd.DataFrame":
    """A table of a text file."""
    import pandas as pd

    used = None if columns is None else {*columns}.__contains__
    names, semicolon_names = (pd.read_csv(path, sep=sep, nrows=0).columns for sep in (separator, ";"))
    if len(semicolon_names) <= len(names):
        return pd.read_csv(path, sep=separator, usecols=used)
    table = pd.read_csv(path, sep=";", usecols=used)
    texts = [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]
    commas = [name for name in texts if table[name].dropna().astype(str).str.fullmatch(DECIMAL_COMMA).all()]
    return table.assign(**{name: table[name].str.replace(",", ".").astype(float) for name in commas})


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


def read_pairs(source: Any, option: str) -> list[tuple[Any, Any]]:
    """Pairs of a list, of the first two columns of a table, or of those of a file.

    Raises:
        BadInput: it holds no pairs.
    """
    if isinstance(source, str | Path) or hasattr(source, "columns"):
        table = read_table(source)
        if table.shape[1] < 2 or table.iloc[:, :2].isna().to_numpy().any():
            raise BadInput(f"{option}: needs two columns without missing entries, such as source and target")
        return [*zip(table.iloc[:, 0].tolist(), table.iloc[:, 1].tolist(), strict=True)]
    pairs = [*source] if isinstance(source, Iterable) else [source]
    invalid = next((pair for pair in pairs if not isinstance(pair, Collection) or len(pair) != 2), None)
    if invalid is not None:
        raise BadInput(f"{option}: {format_value(invalid)} is no pair; give such as [('a', 'b'), ('b', 'c')]")
    return [tuple(pair) for pair in pairs]


def _check_file(source: Any) -> Path:
    if not isinstance(source, str | Path):
        raise BadInput(f"table: {type(source).__name__} is neither a pandas table nor a path of a file; give one")
    path = Path(source)
    if re.match(r"[a-z][a-z0-9+.-]+:/", str(source), re.IGNORECASE):
        raise BadInput(f"{source}: is an address and no file; download it, and give the path of the file")
    if path.is_dir():
        raise BadInput(f"{path}: is a folder and no file; give the path of one file in it")
    if path.exists() and not path.is_file():
        raise BadInput(f"{path}: is a pipe or a device and no file; write its rows to a file, and give that")
    if not path.is_file():
        raise BadInput(f"{path}: there is no such file; check the path, which is relative to {Path.cwd()}")
    return path


def _suggest_fix(error: Exception) -> str:
    """What the user can do about a table that cannot be read."""
    advice = {
        "UnicodeDecodeError": "save the file as UTF-8",
        "ParserError": "give every line as many fields as the header, and put fields with a comma in quotes",
        "EmptyDataError": "write a header and one line per row",
    }
    return advice.get(type(error).__name__, "the file is damaged or not what its ending says; write or copy it again")
