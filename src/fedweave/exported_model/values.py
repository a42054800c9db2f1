"""Where values enter: names, numbers and times of any source are converted here, once, in training and prediction.

A name is a text. Texts of a file become numbers only where each number is written as its text was: "1", but not "01".
"""

import calendar
import re
import warnings
from collections.abc import Iterable
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import InputError

if TYPE_CHECKING:
    import pandas as pd

EXACT = 2**53  # above it float64 has no longer every whole number
DATE = r"\s*(\d{1,2})[./-](\d{1,2})[./-]\d{2,4}(?!\d)"
ISO = re.compile(r"\d{4}-\d\d(-\d\d([T ]\d\d[\d:.,]*(Z|[+-]\d\d(:?\d\d)?)?)?)?")
# A time of day and a zone behind it: 17:00Z, T170000+0200, 17:00 UTC
ZONE = re.compile(r"(?:\d:\d\d|T\d{4})[^+\-Z]*(?:Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)\s*$", re.IGNORECASE)
# Dates as whole numbers: how many digits -> their format. Other numbers are counted from anywhere.
NUMBER_DATES = {8: "%Y%m%d", 6: "%Y%m", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
TURNED_DATES = ("%d%m%Y", "%m%d%Y")  # of eight digits, whose order is not that of time
CLOCK = r"\s*\d{1,2}:\d\d(:\d\d)?\s*([AaPp]\.?[Mm]\.?)?\s*"  # without a date
SHORT_DATE = r"\s*\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])(?!\d)"  # whose year may be the first number
FIRST_YEAR = 1000  # of dates as texts: what is before it was no date
YEARS = (1900, 2100)
LONGEST = 60  # characters of a value in a message
KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float"}  # of labels that are no texts, by the kind of their array


def as_plain(values: Any) -> np.ndarray:
    """An array of any values: tensors without a gradient, hidden entries of a masked array as missing, bytes as texts.

    Raises:
        ValueError: rows of different lengths.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values  # NumPy has no such type
    if isinstance(values, np.ma.MaskedArray):
        numbers = values.dtype.kind in "biuf"
        hidden = np.ma.getmaskarray(values).any()
        masked: Any = values.astype(float if numbers else object)
        values = masked.filled(np.nan) if hidden else values.data
    array = np.asarray(values)
    if isinstance(values, list | tuple) and array.ndim == 1 and _has_changed(values, array):
        array = np.empty(len(values), dtype=object)
        array[:] = values
    if array.dtype.kind == "S" or (array.dtype.kind == "O" and any(isinstance(one, bytes) for one in array.flat)):
        array = np.array([as_text(one) for one in array.flat], dtype=object).reshape(array.shape)
    return array


def find_no_code(x: np.ndarray, codes: tuple[int, int]) -> str:
    """What is wrong with rows [M, ...] that must hold whole numbers from codes[0] to codes[1]; "" if nothing is."""
    low, high = codes
    wrong = x[(x != np.floor(x)) | (x < low) | (x > high)]
    if not len(wrong):
        return ""
    way = "make them with encode_texts and the tokenizer of the vectors"
    return f"reads codes from {low} to {high}, not {wrong[0]:g}; {way}"


def _has_changed(values: Iterable[Any], array: np.ndarray) -> bool:
    """Whether NumPy has made texts of numbers, or fractions of whole numbers that float64 does not have."""
    if array.dtype.kind in "US":
        return not all(isinstance(one, str | bytes) for one in values)
    return array.dtype.kind == "f" and any(isinstance(one, int) and abs(one) > EXACT for one in values)


def as_text(value: Any) -> Any:
    """Bytes as text; other values as they are."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def name_of(value: Any) -> str:
    """The name that a value is: its text."""
    return str(as_text(value.item() if isinstance(value, np.generic) else value))


def type_names(texts: "pd.Series[Any]") -> "pd.Series[Any]":
    """Texts of a file, as whole numbers, numbers or truth values where the text of each is the one that was read.

    So names sort as numbers do, and no name changes: "01", "+1", "1.50", "true" and 2^53 + 1 stay what they are.
    """
    import pandas as pd

    distinct = [*texts.dropna().unique()]
    stripped = {text: text.strip() for text in distinct}
    kinds: tuple[tuple[Any, str], ...] = ((int, r"-?\d{1,30}"), (float, r"-?\d.*"), (bool, "True|False"))
    for kind, pattern in kinds:
        if distinct and all(re.fullmatch(pattern, text, re.ASCII) for text in stripped.values()):
            values = {text: _parse(kind, stripped[text]) for text in distinct}
            if all(str(values[text]) == stripped[text] for text in distinct):
                column = pd.Series([values.get(text, text) for text in texts], index=texts.index, dtype=object)
                return column if texts.isna().any() else column.infer_objects()
    numeric = all(re.fullmatch(r"[+-]?\d[\d.eE+-]*", text, re.ASCII) for text in stripped.values())
    return texts.str.strip() if distinct and numeric else texts


def _parse(kind: Any, text: str) -> Any:
    """A value of Python; None where the text is none of this kind."""
    try:
        return text == "True" if kind is bool else kind(text)
    except ValueError:
        return None


def as_labels(names: Iterable[str], kind: str) -> list[Any]:
    """Names of classes as labels of the type that training had: "int", "bool" or "float"; texts for ""."""
    parse: Any = {"int": int, "float": float, "bool": lambda name: name == "True"}.get(kind, str)
    return [parse(name) for name in names]


def as_numbers(column: "pd.Series[Any]", name: str) -> np.ndarray:
    """Float64 [M] with NaN where a value is missing.

    Raises:
        InputError: a value is not a number.
    """
    # Times would become nanoseconds, and complex numbers their real part.
    values = column.astype(object) if column.dtype.kind in "mMc" else column
    try:
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    except (ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"table: column {name!r} held numbers in training; give numbers ({reason})") from error


def as_times(column: np.ndarray, where: str = "time") -> np.ndarray:
    """A time per row [M]: numbers as they are, dates and texts as microseconds since 1970; NaT is the least number.

    Whole numbers such as 20240131 or 202401 are dates if all of them are.

    Args:
        column: numbers, dates, or texts.
        where: how a message begins.

    Raises:
        InputError: a time is missing, a text cannot be read as a time or can be read in two ways, or only some of the
            times have a time zone.
    """
    if column.dtype.kind in "biuf":
        _refuse_missing(column.dtype.kind == "f" and np.isnan(column), len(column), where)
        return _read_numbers(column, where)
    return _read_times(column, where)


def _read_numbers(column: np.ndarray, where: str) -> np.ndarray:
    """Numbers [M] as they are, or dates that are written as whole numbers."""
    dates = _number_dates(column, where)
    return column if dates is None else dates.astype("datetime64[us]").astype(np.int64)


def _read_times(column: np.ndarray, where: str) -> np.ndarray:
    """Dates, or texts of numbers or times [M]; see `as_times`."""
    import pandas as pd

    places, distinct = pd.factorize(column)  # the rows of many clients have the same times
    missing, series = places < 0, pd.Series(distinct)
    if missing.all():
        _refuse_missing(missing, len(places), where)
    # Pandas takes dates with a time zone for numbers.
    if column.dtype.kind in "OUS" and not any(isinstance(value, date) for value in series):
        numbers = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64)
        if np.isfinite(numbers).all():
            _refuse_missing(missing, len(places), where)
            return _read_numbers(numbers, where)[places]
    values = series.tolist()
    _check_zones(values, where)
    day_first = _has_day_first(values, where)
    texts = [value for value in values if isinstance(value, str)]
    _refuse_unclear(texts, where)
    form = {"format": "ISO8601"} if texts and all(map(ISO.fullmatch, texts)) else {}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Could not infer format")  # the order of day and month is settled
            times = pd.to_datetime(series, utc=True, dayfirst=day_first, **form)
    except (ValueError, TypeError, OverflowError) as error:
        reason = str(error).split(". ")[0].split(", at position")[0].splitlines()[0]
        raise InputError(
            f"{where}: cannot be read as times ({reason}); give numbers, or such as 2024-05-31 17:00"
        ) from error
    _refuse_missing(missing | times.isna().to_numpy()[places], len(places), where)
    if texts and (first := times.min()).year < FIRST_YEAR:
        raise InputError(
            f"{where}: {_show(values[int(times.argmin())])} would be the year {first.year}; give numbers, "
            "with a point as the decimal mark, or such as 2024-05-31 17:00"
        )
    return np.asarray(times.dt.as_unit("us").astype("int64").to_numpy())[places]


def _refuse_missing(missing: Any, count: int, where: str) -> None:
    flags = np.broadcast_to(missing, count)
    if flags.any():
        rows = "1 row" if flags.sum() == 1 else f"{flags.sum()} rows"
        raise InputError(f"{where}: is missing in {rows}, first in row {int(flags.argmax())}; drop them first")


def _refuse_unclear(texts: list[str], where: str) -> None:
    """Refuse times of day without a date, and dates of which each may begin with its year of two digits."""
    if clock := next((text for text in texts if re.fullmatch(CLOCK, text)), None):
        raise InputError(f"{where}: {_show(clock)} has no date; write times such as 2024-05-31 17:00, or numbers")
    if texts and all(re.match(SHORT_DATE, text) for text in texts):
        raise InputError(f"{where}: {_show(texts[0])} may have the year first or last; write dates such as 2021-04-03")


def _number_dates(column: np.ndarray, where: str) -> Any:
    """The dates that whole numbers are, all of them, such as 20240131, 202401 or 2024013117; else None."""
    import pandas as pd

    distinct, position = np.unique(column, return_inverse=True)
    low, high = float(distinct[0]), float(distinct[-1])
    for digits, form in NUMBER_DATES.items():
        unit = 10 ** (digits - 4)
        if not (YEARS[0] * unit < low and high < (YEARS[1] + 1) * unit) or (distinct % 1).any():
            continue
        dates = pd.to_datetime(pd.Series(distinct.astype(np.int64).astype(str)), format=form, errors="coerce")
        if dates.notna().all():
            return dates.to_numpy()[position]
    if 1_01_1900 <= low and high <= 31_12_2100 and len(distinct) > 2 and not (distinct % 1).any():
        digits = pd.Series([f"{int(number):08d}" for number in distinct])
        years = digits.str[4:].astype(int)
        are_years = years.between(*YEARS).all()
        if are_years and any(pd.to_datetime(digits, format=f, errors="coerce").notna().all() for f in TURNED_DATES):
            example = digits.iloc[-1]
            raise InputError(
                f"{where}: {example} seems to be a date that ends with its year; write dates such as 2024-01-31"
            )
    return None


def _check_zones(values: Iterable[Any], where: str) -> None:
    """Refuse times of which only some have a time zone: which moment the others are would be a guess."""
    import pandas as pd

    examples: dict[bool, Any] = {}
    for value in values:
        if isinstance(value, str | datetime) and value is not pd.NaT:
            examples.setdefault(_has_zone(value), value)
    if len(examples) == 2:
        with_zone, without = (_show(examples[has_zone]) for has_zone in (True, False))
        raise InputError(
            f"{where}: {with_zone} has a time zone, and {without} has none; write all with one, such as "
            "2024-05-31 17:00+02:00, or all without"
        )


def _has_zone(value: str | datetime) -> bool:
    """Whether a text or a date has a time zone."""
    return ZONE.search(value) is not None if isinstance(value, str) else value.tzinfo is not None


def _show(value: Any) -> str:
    text = repr(str(value))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]}...'"


def _has_day_first(values: list[Any], where: str) -> bool:
    """Whether dates such as 31.5.2024 have the day before the month; one number above 12 decides for all rows."""
    texts = dict.fromkeys(value for value in values if isinstance(value, str))
    dates = {text: (int(match[1]), int(match[2])) for text in texts if (match := re.match(DATE, text))}
    day_first, month_first = (next((text for text in dates if dates[text][i] > 12), None) for i in (0, 1))
    if day_first and month_first:
        raise InputError(
            f"{where}: {_show(day_first)} has the day first, and {_show(month_first)} the month; "
            "write dates such as 2021-04-03"
        )
    unclear = next((text for text, (a, b) in dates.items() if a != b), None)
    if unclear and not (day_first or month_first):
        a, b = dates[unclear]
        raise InputError(
            f"{where}: {_show(unclear)} may be {a} {calendar.month_name[b]} or {b} {calendar.month_name[a]}, and "
            "no other row says which; write dates such as 2021-04-03 for 3 April"
        )
    return day_first is not None
