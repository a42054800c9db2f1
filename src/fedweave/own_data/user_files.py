"""Files that users have: tables as CSV or Parquet, and arrays as NPZ."""

import difflib
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave import exported_model
from fedweave.errors import BadInput, describe_error, format_value
from fedweave.files.arrays import read_npz

if TYPE_CHECKING:
    import pandas as pd

TEXTS = (".csv", ".tsv")
TABLES = (*TEXTS, ".parquet", ".pq")
ARRAYS = ".npz"
UNNAMED = r"Unnamed: \d+"  # what pandas calls a column without a name
UTF_8 = "utf-8"
COMMA_NUMBER = r"[+-]?([1-9]\d{0,2}(\.\d{3})+|\d+)(,\d+)?([eE][+-]?\d+)?"  # with points between thousands
GROUPED = r"[+-]?[1-9]\d{0,2},\d{3}"  # the comma may separate thousands
MAYBE_GROUPED = r"[+-]?([1-9]\d{0,2}[.,]\d{3}|\d{1,3})"  # with a sign that may separate thousands
NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
CODE = r"[+-]?0\d"  # a number is not written so
SHORT_POWER = r"\d+[eE]\d+"  # 1E3 is a code or a number written by hand: programs write 1e+03 or 1.0E3
# Attributes of a table: warnings about how its file was read, columns whose signs say that they are no codes, and
# whether points separate thousands in the file, as its decimal mark is a comma; columns of numbers -> a text that is
# written as a code is.
NOTES, AMOUNTS, COMMAS, CODES = "fedweave notes", "fedweave amounts", "fedweave commas", "fedweave codes"
FIRST_LINES = 1000  # of which codes are looked for


def read_table(
    source: Any,
    names: Collection[str] = (),
    encoding: str = "",
    labels: Collection[str] = (),
    typed: bool = True,
    has_commas: bool = False,
) -> "pd.DataFrame":
    """A table: as it is, or read from a CSV, TSV or Parquet file (CSV also compressed, such as .csv.gz).

    A CSV file may have semicolons in place of commas, as spreadsheets write it where the decimal mark is a comma.

    Args:
        names: columns of names, such as that of clients, whose texts in a CSV file are never read as numbers.
        encoding: of a CSV or TSV file, as Python names it; default: UTF-8.
        labels: columns of names or numbers: names where a text is a code such as "007".
        typed: whether names become numbers where all are written as these would be.
        has_commas: whether the decimal mark of a file with semicolons is a comma, also where no number has one.

    Raises:
        BadInput: the file is missing, damaged, empty or of another kind.
    """
    import pandas as pd

    if isinstance(source, pd.DataFrame):
        return source
    table = _read_file(source, {*names}, {*labels}, encoding, has_commas)
    return _type_texts(table, names if typed else (), labels)


def read_names(path: Path | str) -> "pd.DataFrame":
    """The table of a file, all of whose values are names; without a header, its first line names the columns."""
    return _read_file(path, None, set(), "")


def _type_texts(table: "pd.DataFrame", names: Collection[str], labels: Collection[str]) -> "pd.DataFrame":
    """A table of a file, whose columns of names and labels are texts, with these as they were meant."""
    typed = {name: exported_model.type_names(table[name]) for name in names if _are_texts(table, name)}
    typed |= {name: _type_label(table[name]) for name in labels if name not in names and _are_texts(table, name)}
    return table.assign(**typed)


def _are_texts(table: "pd.DataFrame", name: Any) -> bool:
    """Whether the table has one column of this name, of texts alone."""
    import pandas as pd

    column = table[name] if isinstance(name, Hashable) and name in table else None
    return column is not None and column.ndim == 1 and pd.api.types.infer_dtype(column, skipna=True) == "string"


def _type_label(texts: "pd.Series[Any]") -> "pd.Series[Any]":
    """Texts of a label as numbers, unless one is none or a code such as 007, or all are codes such as 1E3."""
    distinct = [text.strip() for text in texts.dropna().unique()]
    are_codes = any(re.match(CODE, text) for text in distinct) or all(re.fullmatch(SHORT_POWER, t) for t in distinct)
    if are_codes or not all(re.fullmatch(NUMBER, text) for text in distinct):
        return exported_model.type_names(texts)
    values = {float(text) for text in distinct}
    if len(values) < len(distinct) and all(value % 1 == 0 for value in values):
        return exported_model.type_names(texts)  # as classes, two of them would become one
    numbers = texts.astype(object).where(texts.notna(), "nan").to_numpy().astype(str).astype(np.float64)
    whole = all(re.fullmatch(r"[+-]?\d{1,30}", text) for text in distinct) and not texts.isna().any()
    return texts.map(int) if whole else texts.map(dict(zip(texts, numbers, strict=True)).get).astype(np.float64)


def _read_file(
    source: Any, names: set[str] | None, labels: set[str], encoding: str, has_commas: bool = False
) -> "pd.DataFrame":
    """The table of a file, with texts in columns of names and labels; None: all are names.

    Args:
        has_commas: whether the decimal mark is a comma, as another file says.
    """

    path = _check_file(source)
    if (kind := _table_kind(path)) is None:
        way = f"save its rows as CSV or Parquet, with the ending {', '.join(TABLES)}"
        raise BadInput(f"{path}: has another ending than tables have; {way}")
    try:
        if kind in (".parquet", ".pq"):
            table = _read_parquet(path)
        else:
            file = _TextFile(path, encoding or UTF_8, "\t" if kind == ".tsv" else ",")
            table = _read_csv(file, names, labels, has_commas)
    except BadInput:
        raise
    except Exception as error:  # readers raise errors of many types for damaged files
        reason = describe_error(error)
        raise BadInput(f"{path}: cannot be read as a table ({reason}); {_suggest_fix(error)}") from error
    if not len(table):
        raise BadInput(f"{path}: has no rows; write one line per row below the header")
    return table


def _table_kind(path: Path) -> str | None:
    """The ending that says how to read a table: ".csv" of "a.csv.gz"; None for other files."""
    kinds = [suffix.lower() for suffix in path.suffixes[-2:]]
    return next((suffix for suffix in reversed(kinds) if suffix in TABLES), None)


def check_encoding(path: Path, encoding: Any) -> str:
    """The encoding, which must be one of texts that Python has, and of a file with text; "" for the default."""
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

    def width(self) -> int:
        """Fields of the lines below the header; 0 without any."""
        import pandas as pd

        try:
            options: dict[str, Any] = {"header": None, "skiprows": 1, "nrows": 50, "on_bad_lines": "skip"}
            return int(self.read(**options, dtype=str).shape[1])
        except (pd.errors.EmptyDataError, pd.errors.ParserError):
            return 0


def _read_csv(file: _TextFile, names: set[str] | None, labels: set[str], has_commas: bool) -> "pd.DataFrame":
    """A table of a text file; columns without a name and without any value are left out."""
    import pandas as pd

    ways = (replace(file, separator=separator) for separator in dict.fromkeys((file.separator, ";", "\t")))
    headers = {written: written.header() for written in ways}
    # A sign in a quoted name is no separator: the lines below have as many fields as the header.
    fitting = {written: titles for written, titles in headers.items() if written.width() == len(titles) > 1}
    file, titles = max((fitting or headers).items(), key=lambda entry: len(entry[1]))
    repeated = {title for title in titles if title and titles.count(title) > 1}
    # Read in pieces, a column could have the number 1 in one piece and the text "1" in another.
    types: Any = str if names is None else dict.fromkeys({*titles} & (names | labels), str)
    table = file.read(low_memory=False, dtype=types)
    if not isinstance(table.index, pd.RangeIndex):
        advice = "name every column in the first line, remove lines above it, or separators at the ends of lines"
        header = format_value(file.separator.join(titles))
        raise BadInput(f"{file.path}: its lines have more fields than its header, {header}; {advice}")
    codes = _find_codes(file, table) if names is not None else {}
    empty = [name for name in table if re.fullmatch(UNNAMED, name) and table[name].isna().all()]
    if names is not None and _may_have_commas(file, table, names, has_commas):
        table = _read_commas(file, table, names, has_commas)
    elif names is not None:
        table.attrs[NOTES] = _note_grouped(file, table, names, labels)
    if repeated:  # pandas has added numbers to the names
        pairs = zip(table.columns, titles, strict=True)
        table.columns = pd.Index([title if title in repeated else name for name, title in pairs])
    table.attrs[CODES] = codes
    return table.drop(columns=empty)


def _may_have_commas(file: _TextFile, table: "pd.DataFrame", names: set[str], has_commas: bool) -> bool:
    """Whether the decimal mark may be a comma.

    It may with semicolons. With tabs some comma must be one that does not separate thousands, such as that of 12,5.
    """
    if file.separator != "\t" or has_commas:
        return file.separator != ","
    texts = (table[name].dropna().str.strip() for name in table if name not in names and _are_texts(table, name))
    numbers = (column for column in texts if column.str.fullmatch(COMMA_NUMBER).all())
    return any((column.str.contains(",") & ~column.str.fullmatch(GROUPED)).any() for column in numbers)


def _find_codes(file: _TextFile, table: "pd.DataFrame") -> dict[str, str]:
    """Columns of numbers -> a text of the first lines that numbers are hardly written as, such as 007 or 1E3."""
    whole = {name for name in table if table[name].dtype.kind in "iuf"}
    written = file.read(usecols=whole.__contains__, dtype=str, nrows=FIRST_LINES)
    found = {str(name): texts[texts.str.fullmatch(rf"0\d+|{SHORT_POWER}", na=False)] for name, texts in written.items()}
    return {name: str(texts.iloc[0]) for name, texts in found.items() if len(texts)}


def _read_commas(file: _TextFile, table: "pd.DataFrame", names: set[str], has_commas: bool) -> "pd.DataFrame":
    """The table with numbers where the decimal mark is a comma; points then separate thousands in the whole file."""
    columns = [name for name in table if name not in names]
    numeric = {name for name in columns if table[name].dtype.kind == "f"}
    written = file.read(usecols=numeric.__contains__, dtype=str) if numeric else table[[]]
    texts = {name: written[name] if name in written else table[name] for name in columns}
    texts = {name: text for name, text in texts.items() if name in written or _are_texts(table, name)}
    # The numbers of a column as the texts that have a sign, in a column that may be read in this way.
    signed = {name: text.dropna().str.strip() for name, text in texts.items()}
    signed = {name: text for name, text in signed.items() if text.str.fullmatch(COMMA_NUMBER).all()}
    with_comma = [name for name, text in signed.items() if text.str.contains(",", regex=False).any()]
    with_point = [name for name, text in signed.items() if text.str.contains(".", regex=False).any()]
    are_commas = has_commas or bool(with_comma)
    has_commas = are_commas or any(signed[name].str.count(r"\.").max() > 1 for name in with_point)
    groups = with_point if has_commas else []
    notes = []
    for name in [*dict.fromkeys([*with_comma, *with_point])]:
        marks = signed[name].str.contains("[.,]")
        example = str(signed[name][marks].iloc[0])
        if name in groups and name not in with_comma:
            why = "as others have decimal commas" if are_commas else "as some have two"
            digits = re.sub(r"[.,]", "", example)
            notes.append(f"column {name!r}: points separate thousands, {why}: {example} is read as {digits}")
        elif name not in groups:
            notes += _maybe_grouped(name, signed[name])
    read = {
        name: texts[name].str.replace(".", "", regex=False).str.replace(",", ".", regex=False).astype(float)
        for name in dict.fromkeys([*with_comma, *groups])
    }
    table = table.assign(**read)
    table.attrs |= {NOTES: notes, AMOUNTS: [*read], COMMAS: has_commas}
    return table


def _note_grouped(file: _TextFile, table: "pd.DataFrame", names: set[str], labels: set[str]) -> list[str]:
    """A line for each column of a file whose decimal mark is a point and whose points may separate thousands."""
    floats = {name: table[name] for name in table if name not in names and table[name].dtype.kind == "f"}
    doubtful = {name for name, column in floats.items() if _are_thousandths(column)}
    written = file.read(usecols=doubtful.__contains__, dtype=str) if doubtful else table[[]]
    written = written.assign(**{name: table[name] for name in labels - names if _are_texts(table, name)})
    return [line for name in written for line in _maybe_grouped(name, written[name].dropna().str.strip())]


def _are_thousandths(column: "pd.Series[Any]") -> bool:
    """Whether numbers below 1000, some of them with a fraction, have at most three digits behind the point."""
    numbers = column.dropna().to_numpy()
    near = np.isclose(numbers * 1000, np.rint(numbers * 1000), rtol=0, atol=1e-6)
    return bool((np.abs(numbers) < 1000).all() and near.all() and (numbers % 1).any() and not (numbers % 1).all())


def _maybe_grouped(name: Any, texts: "pd.Series[str]") -> list[str]:
    """A line if the signs in the texts of a column of numbers may separate thousands."""
    marks = texts.str.contains("[.,]")
    if marks.all() or not marks.any() or not texts.str.fullmatch(MAYBE_GROUPED).all():
        return []
    example = str(texts[marks].iloc[0])
    return [
        f"column {name!r}: {example} is read as a fraction, but all fractions have three digits, and other numbers "
        f"none, as if the sign separated thousands; if so, write {re.sub('[.,]', '', example)}"
    ]


def _read_parquet(path: Path) -> "pd.DataFrame":
    """The table of a Parquet file. Categories of numbers, which pandas reads as numbers, are categories."""
    import pandas as pd
    import pyarrow.parquet

    schema = pyarrow.parquet.read_schema(path)
    table = pd.read_parquet(path)
    about = (schema.pandas_metadata or {}).get("columns", ())
    categories = [one["name"] for one in about if one["pandas_type"] == "categorical" and one["name"] in table]
    return table.astype(dict.fromkeys(categories, "category"))


def read_arrays(source: Path | str) -> dict[str, np.ndarray]:
    """The arrays of an NPZ file, by name.

    Raises:
        BadInput: the file is missing or damaged, or holds Python objects.
    """
    path = _check_file(source)
    try:
        return read_npz(path)
    except Exception as error:  # numpy and zipfile raise errors of many types for damaged files
        reason = describe_error(error)
        raise BadInput(
            f"{path}: cannot be read as arrays ({reason}); save them with numpy.savez, and dates or objects "
            "as texts: times.astype(str)"
        ) from error


def read_folder(
    folder: Path, client: str, names: Collection[str] = (), encoding: str = "", labels: Collection[str] = ()
) -> "pd.DataFrame":
    """The tables of all files in a folder, one below the other; other arguments as in `read_table`.

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
    names = (client, *names)
    tables = _read_alike(files, {*names}, {*labels}, encoding)
    columns = [*map(str, tables[files[0]])]
    for file, table in tables.items():
        if different := sorted({*columns} ^ {*map(str, table)}):
            raise BadInput(f"{file}: differs from {files[0].name} in the column {different[0]!r}; give both the same")
        if not table.columns.is_unique:
            twice = str(table.columns[table.columns.duplicated()][0])
            raise BadInput(f"{file}: two columns have the name {twice!r}; rename one")
    if client not in columns:
        tables = _add_client(tables, client, columns)
    notes = [note for table in tables.values() for note in table.attrs.get(NOTES, ())]
    joined = _type_texts(pd.concat(_align_texts([*tables.values()]), ignore_index=True), names, labels)
    amounts = [name for table in tables.values() for name in table.attrs.get(AMOUNTS, ())]
    has_commas = any(table.attrs.get(COMMAS) for table in tables.values())
    codes = {name: text for table in tables.values() for name, text in table.attrs.get(CODES, {}).items()}
    codes = {name: text for name, text in codes.items() if joined[name].dtype.kind in "iuf"}
    joined.attrs |= {NOTES: [*dict.fromkeys(notes)], AMOUNTS: amounts, COMMAS: has_commas, CODES: codes}
    return joined


def _read_alike(files: Sequence[Path], names: set[str], labels: set[str], encoding: str) -> dict[Path, "pd.DataFrame"]:
    """The tables of files that mean the same by the same text.

    A column that has texts in one file has them in all, so that "007" is one category; and where the decimal mark of
    one file is a comma, it is so in all.
    """
    tables = {file: _read_file(file, names, labels, encoding) for file in files}
    has_commas = any(table.attrs.get(COMMAS) for table in tables.values())
    texts = {str(name) for table in tables.values() for name in table if _are_texts(table, name)}
    for file, table in tables.items():
        others = {name for name in texts if name in table and not _are_texts(table, name)} - names - labels
        if _table_kind(file) in TEXTS and (others or table.attrs.get(COMMAS, has_commas) != has_commas):
            tables[file] = _read_file(file, names | others, labels, encoding, has_commas)
    return tables


def _align_texts(tables: Sequence["pd.DataFrame"]) -> list["pd.DataFrame"]:
    """The tables, with texts in columns that are texts in another table."""
    texts = {name for table in tables for name in table if table[name].dtype.kind == "O" and table[name].notna().any()}
    return [table.assign(**{name: name_values(table[name]) for name in texts}) for table in tables]


def name_values(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """The values of a column as names; a missing one stays missing, and makes no fractions of whole numbers."""
    is_whole = column.dtype.kind == "f" and bool((column.dropna() % 1 == 0).all())
    exact = column.astype("Int64") if is_whole else column
    return exact.astype(object).map(exported_model.name_of, na_action="ignore")


def _add_client(
    tables: Mapping[Path, "pd.DataFrame"], client: str, columns: Sequence[str]
) -> dict[Path, "pd.DataFrame"]:
    """The tables with the name of their file, without its ending, in the column `client`."""
    if similar := difflib.get_close_matches(str(client), columns, n=1):  # more likely a typing error
        advice = "where each file is one client, give a name unlike those of the columns"
        raise BadInput(f"client: no column {client!r}; did you mean {similar[0]!r}? {advice}")
    names = [file.name[: file.name.lower().rindex(str(_table_kind(file)))] for file in tables]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(
            f"{next(iter(tables)).parent}: two files have the name {twice[0]!r}; each is a client, rename one"
        )
    return {file: table.assign(**{client: name}) for name, (file, table) in zip(names, tables.items(), strict=True)}


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
