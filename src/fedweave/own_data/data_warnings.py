"""Warnings about data: columns that reveal the label or are misread, test rows in training, similar names."""

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave import exported_model
from fedweave.data import Dataset
from fedweave.data.partitions.splits import PARTS
from fedweave.errors import format_count
from fedweave.own_data.splits import part_name
from fedweave.own_data.user_files import COMMA_NUMBER, UNNAMED
from fedweave.tensors.random_streams import stream

if TYPE_CHECKING:
    import pandas as pd

    from fedweave.own_data.column_encoding import Column

MIN_ROWS = 50  # with fewer rows, columns and rows may be equal by chance
MAX_ROWS = 20_000  # most rows that are checked
BINS = 200  # intervals of a column of numbers
MAX_ERROR = 0.01  # a column whose predictions have a smaller share of errors reveals the label
CHUNK = 65_536  # rows that are hashed at once
SAMPLE = 2000  # rows of which the chance of equal rows is estimated
MIN_NUMBER_SHARE = 0.8  # a column of texts with a larger share of numbers should have numbers alone
# A number with thousands separators, which are no points unless there are two or a decimal comma
THOUSANDS = r"[+-]?[1-9]\d{0,2}(([,' \u00a0\u202f]\d{3})+(\.\d+)?|([.' \u00a0\u202f]\d{3})+,\d+|(\.\d{3}){2,})"
# Beside a number: its unit, brackets, a printed minus, a space that pandas does not leave out, or a minus behind it
SIGNS = "[%$\u20ac\u00a3\u00a5()\u2212\u00a0]|-$"
# A number before its unit, which has letters
WITH_UNIT = r"\s*[+-]?\d[\d.,' ]*?\s*([A-Za-z\u00b0\u00b5][^\d]*)"
MONTH, CLOCK = r"[^\W\d_]{3,9}\.?", r"\d{1,2}:\d\d(:\d\d)?( ?[AaPp][Mm])?"
DATE = (
    r"\d{4}[-/.]\d\d?[-/.]\d\d?([ T].*)?|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}( .*)?|"
    rf"\d{{1,2}}\.?[ -]{MONTH}[ -]\d{{2,4}}( .*)?|{MONTH} \d{{1,2}},? \d{{4}}( .*)?|{CLOCK}"
)
MAX_CODES = 10  # up to so many different numbers may be codes of categories
MARKS = (-9, -99, -99.9, -999, -999.9, -9999, -99999, -32768, 999, 9999, 99999, 999999)  # in place of missing numbers
LEAST_MARKS = 3  # fewer may be an outlier
ID_NAME = r"(^|_|\b)(id|key|index|row|nr|no|num(ber)?|code)(_|\b|$)|(?-i:Id$|ID$)"  # of columns with names of rows
LEAST_DATES = 3  # different dates of a column; two may be names of two visits
FIRST_DATE, LAST_DATE = 1900_01_01, 2100_12_31  # that are written as numbers
MOST_UNSEEN = 0.2  # share of test rows
MANY_CLASSES = 20  # more whole numbers as labels may be amounts
DUPLICATE_FACTOR = 3  # so many times more equal rows than by chance are duplicates


def find_label_leakage(
    table: "pd.DataFrame", features: Sequence[str], labels: np.ndarray | None, numbers: Any, train: np.ndarray
) -> tuple[str, ...]:
    """A line for each column that alone predicts nearly every label of training rows.

    The most frequent class of every value (or interval of numbers) is counted in one half of the rows and predicted
    in the other half. A column reveals the label if at most 1 % of these predictions are wrong, and at most a tenth as
    many as if the most frequent class were always predicted. It reveals a number if the means by value explain 99 % of
    the variance.
    """
    if len(train) < MIN_ROWS:
        return ()
    rows = stream(0, len(train)).permutation(train)[:MAX_ROWS]
    half, lines = len(rows) // 2, []
    for name in features:
        values = _bin_values(table[name].iloc[rows], half)
        if labels is None:
            text, noun = _explain_numbers(values, np.asarray(numbers)[rows, 0].astype(np.float64), half), "target"
        else:
            text, noun = _explain_classes(values, labels[rows], half), "label"
        if text:
            lines.append(
                f"column {name!r} alone {text}; if it is known only after the {noun}, leave it out of features"
            )
    return tuple(lines)


def _explain_classes(values: np.ndarray, labels: np.ndarray, half: int) -> str:
    """What `values` [m] say of the classes [m] of the second half of the rows; empty if they reveal no label."""
    fit_labels, check_labels, classes = labels[:half], labels[half:], int(labels.max()) + 1
    most_frequent = np.bincount(fit_labels, minlength=classes).argmax()
    base_error = float((check_labels != most_frequent).mean())
    counts = np.bincount(values[:half] * classes + fit_labels, minlength=(values.max() + 1) * classes)
    counts = counts.reshape(-1, classes)
    guesses = np.where(counts.any(1), counts.argmax(1), most_frequent)
    error = float((guesses[values[half:]] != check_labels).mean())
    reveals = error <= MAX_ERROR and error <= base_error / 10 and base_error > 0
    return f"predicts {100 * (1 - error):.1f} % of the labels of training rows" if reveals else ""


def _explain_numbers(values: np.ndarray, targets: np.ndarray, half: int) -> str:
    """What `values` [m] say of the numbers [m] of the second half of the rows; empty if they reveal none."""
    fit_targets, check_targets = targets[:half], targets[half:]
    counts = np.bincount(values[:half], minlength=values.max() + 1)
    sums = np.bincount(values[:half], weights=fit_targets, minlength=values.max() + 1)
    guesses = np.where(counts > 0, sums / np.maximum(counts, 1), fit_targets.mean())
    total = max(np.square(check_targets - fit_targets.mean()).sum(), 1e-300)
    share = 1 - np.square(guesses[values[half:]] - check_targets).sum() / total
    return (
        f"explains {100 * share:.1f} % of the variance of the targets of training rows"
        if share >= 1 - MAX_ERROR
        else ""
    )


def _bin_values(column: "pd.Series[Any]", half: int) -> np.ndarray:
    """Number of the value, or of the interval, of each row [M]; 0 is a missing value."""
    import pandas as pd

    if not pd.api.types.is_numeric_dtype(column):
        return np.asarray(column.factorize()[0]) + 1
    numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
    codes, values = pd.factorize(numbers)
    if len(values) <= BINS:
        return np.asarray(codes) + 1
    finite = numbers[:half][np.isfinite(numbers[:half])]
    bins = min(BINS, half // 2)
    edges = np.unique(np.quantile(finite, np.linspace(0, 1, bins + 1)[1:-1])) if len(finite) else finite
    return np.where(np.isnan(numbers), 0, np.searchsorted(edges, numbers) + 1)


def find_misread_columns(table: "pd.DataFrame", columns: Iterable["Column"], rows: int) -> tuple[str, ...]:
    """A line for each category that should be numbers, or has so many values that nothing is learned from it, and for
    each column that may be an index.

    Args:
        rows: of training.
    """
    lines = []
    for column in columns:
        if re.fullmatch(UNNAMED, str(column.name)):
            lines.append(
                f"column {column.name!r} has no name in its file, as the index that pandas writes beside the columns; "
                "leave it out (exclude), or write the file with index=False"
            )
        elif not column.levels and not column.is_text and len(table) >= MIN_ROWS:
            lines.append(_dates_as_numbers(table[column.name]) or _row_numbers(table[column.name]))
        if column.levels and rows >= MIN_ROWS:
            line = _texts_among_numbers(table[column.name], len(column.levels)) or _dates_as_texts(column)
            if not line and len(column.levels) > rows / 2:
                line = (
                    f"column {column.name!r} has {len(column.levels)} different values in {rows} training rows, so "
                    "hardly anything can be learned from it; leave it out (exclude)"
                )
            lines += [line] if line else find_similar_names(f"values of column {column.name!r}", column.levels)
    return tuple(filter(None, lines))


def find_codes(codes: Mapping[str, str], features: Collection[str]) -> tuple[str, ...]:
    """A line for each of `features` that is read as numbers, and has a number written as codes are: 007, 1E3.

    Args:
        codes: column of a file -> such a text.
    """
    return tuple(
        f"column {name!r}: {text!r} is read as the number {float(text):.15g}; if it is a code, write a letter before "
        "it, or read the file with pandas, with that column as texts (dtype=str)"
        for name, text in codes.items()
        if name in features
    )


def _dates_as_numbers(column: "pd.Series[Any]") -> str:
    """A line if a column of numbers has dates of eight digits, whose differences are not those of time."""
    numbers = exported_model.as_numbers(column, str(column.name))
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers) or numbers.min() < FIRST_DATE or numbers.max() > LAST_DATE:
        return ""
    dates = np.unique(numbers)
    month, day = dates // 100 % 100, dates % 100
    are_dates = (dates % 1 == 0) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    if len(dates) < LEAST_DATES or not are_dates.all():
        return ""
    return (
        f"column {column.name!r} holds dates, such as {dates[0]:.0f}, and is read as a number; make other numbers of "
        "it, such as the month, or leave it out (exclude)"
    )


def find_amounts(texts: "pd.Series[Any]") -> np.ndarray:
    """Whether texts are numbers beside a sign, such as 12 %, or before a unit, such as 12 kg, that most have [M]."""
    import pandas as pd

    plain = texts.str.replace(SIGNS, "", regex=True).str.strip()
    are_plain = pd.to_numeric(plain, errors="coerce").notna() | plain.str.fullmatch(rf"{THOUSANDS}|{COMMA_NUMBER}")
    units = texts.str.extract(f"^{WITH_UNIT}$", expand=False).str.strip().str.casefold()
    amounts = (texts.str.contains(SIGNS) & are_plain) | units.isin(units.mode()[:1].tolist())
    return np.array(amounts, dtype=bool)


def _row_numbers(column: "pd.Series[Any]") -> str:
    """A line if a column of numbers counts the rows, or has a name of each."""
    numbers = exported_model.as_numbers(column, str(column.name))
    if not np.isfinite(numbers).all() or (numbers % 1).any() or len(np.unique(numbers)) < len(numbers):
        return ""
    counts_rows = np.ptp(numbers) == len(numbers) - 1
    if not counts_rows and not re.search(ID_NAME, str(column.name), re.IGNORECASE):
        return ""
    what = "counts the rows" if counts_rows else "has another whole number in every row, as a name has"
    return f"column {column.name!r} {what}, and models see it as a feature; if it says no more, exclude={[column.name]}"


def find_infinite(table: "pd.DataFrame", columns: Iterable["Column"]) -> tuple[str, ...]:
    """A line for each column of numbers with infinite values, filled in as missing ones are, or with marks of such."""
    lines: list[str] = []
    for column in columns:
        if column.levels or column.is_text:
            continue
        numbers = exported_model.as_numbers(table[column.name], column.name)
        lines += find_marks(numbers[:, None], f"column {column.name!r}")
        count = int(np.isinf(numbers).sum())
        if count:
            verb = "is infinite and counts" if count == 1 else "are infinite and count"
            lines.append(
                f"column {column.name!r}: {format_count(count, 'value')} {verb} as missing; look for a division by 0, "
                "or leave the value empty"
            )
    return tuple(lines)


def find_marks(values: np.ndarray, where: str) -> tuple[str, ...]:
    """A line for the first number that repeats apart from all others, as a mark of missing values does, such as -999.

    Args:
        values: [M, ...], not all finite perhaps.
    """
    for mark in MARKS:
        count = int((is_mark := values == mark).sum())
        if count < LEAST_MARKS:
            continue
        # The columns or channels that have it; the last axis but for images.
        axis = 1 if values.ndim == 4 else -1
        held = np.moveaxis(is_mark, axis, -1).reshape(-1, values.shape[axis]).any(0)
        column = np.take(values, int(held.argmax()), axis).ravel()
        others = column[np.isfinite(column) & (column != mark)]
        if not len(others):
            continue
        low, high = float(others.min()), float(others.max())
        apart = (mark < 0 <= low) or min(abs(mark - low), abs(mark - high)) > high - low
        if (column == mark).sum() >= LEAST_MARKS and not low <= mark <= high and apart:
            return (
                f"{where}: {count} values are {mark:g}, apart from all others (such as {low:g} to {high:g}), as a mark "
                "of missing values; drop these rows, or leave the values empty",
            )
    return ()


def _texts_among_numbers(column: "pd.Series[Any]", levels: int) -> str:
    """A line if most values are numbers and some are texts, which make a category of all."""
    import pandas as pd

    counts = column.value_counts()
    counts = counts[counts > 0]  # a category of pandas may have values that no row has
    texts = pd.Series([str(value) for value in counts.index], dtype=object)
    numbers = pd.to_numeric(texts, errors="coerce").notna().to_numpy()
    with_comma = ~numbers & pd.to_numeric(texts.str.replace(",", "."), errors="coerce").notna().to_numpy()
    grouped = texts.str.fullmatch(THOUSANDS).to_numpy()
    if (with_comma & ~grouped).any():  # then "1,090" is 1.09 and not 1090
        grouped = grouped & ~with_comma
    signed = ~(numbers | with_comma | grouped) & find_amounts(texts)
    numeric, sizes = numbers | with_comma | grouped | signed, counts.to_numpy()
    share = sizes[numeric].sum() / max(sizes.sum(), 1)
    if numbers.all() or share <= MIN_NUMBER_SHARE or (numeric.sum() <= MAX_CODES and not grouped.any()):
        return ""
    named = ~numeric if not numeric.all() else ~numbers  # texts that are no numbers, however these are written
    first, others = int(named.argmax()), int(named.sum()) - 1  # the most frequent text, and the rest
    more = f" and {format_count(others, 'other text')}" if others else ""
    ways = {
        "make these empty": ~numeric,
        "write numbers alone, without units, and with the minus of the keyboard": signed,
        "leave out the thousands separators": grouped,
        "write a point in place of the comma": with_comma & ~grouped,
    }
    advice = ", and ".join(way for way, texts_of_way in ways.items() if texts_of_way.any())
    return (
        f"column {column.name!r}: {int(100 * share)} % of its values are numbers, and it is read as {levels} "
        f"categories because of {texts[first]!r} ({format_count(sizes[first], 'row')}){more}; {advice}"
    )


def _dates_as_texts(column: "Column") -> str:
    """A line if a category has dates as texts, of which later rows have none that training had."""
    if len(column.levels) < LEAST_DATES or not all(re.fullmatch(DATE, level) for level in column.levels):
        return ""
    return (
        f"column {column.name!r} holds dates or times, such as {column.levels[0]!r}, and is read as "
        f"{len(column.levels)} categories; make numbers of it, such as the month, or leave it out (exclude)"
    )


def find_unseen(
    table: "pd.DataFrame", columns: Iterable["Column"], rows: Mapping[str, Sequence[np.ndarray]]
) -> tuple[str, ...]:
    """A line for each category whose values in many test rows are none of those in training rows."""
    test, lines = np.concatenate(rows["test"]), []
    for column in columns:
        if not column.levels or not len(test):
            continue
        values = table[column.name].iloc[test]
        unseen = (exported_model.level_codes(values, column.levels) == 0) & values.notna().to_numpy()
        if unseen.mean() > MOST_UNSEEN:
            lines.append(
                f"column {column.name!r}: {100 * unseen.mean():.0f} % of test rows have a value that no training row "
                f"has, such as {str(values[unseen].iloc[0])!r}, of which no model can know anything"
            )
    return tuple(lines)


def find_similar_names(kind: str, names: Sequence[str], known: Sequence[str] = ()) -> tuple[str, ...]:
    """A line if names of `kind` differ only in capitals, spaces at the ends, the encoding of an accent, or as 1, 01 and
    1.0 do.

    Args:
        known: other names, with which `names` are compared too; those that differ only from each other do not count.
    """
    groups: dict[str, list[str]] = {}
    for name in (*known, *names):
        plain = _normalize_unicode(name).strip().casefold()
        is_number = re.fullmatch(r"-?\d{1,15}(\.\d{0,6})?", plain, re.ASCII)
        groups.setdefault(str(float(plain)) if is_number else plain, []).append(name)
    new = {*names}
    similar = [group for group in groups.values() if len(group) > 1 and not new.isdisjoint(group)]
    if not similar:
        return ()
    more = f" (and {format_count(len(similar) - 1, 'more group')} of names)" if len(similar) > 1 else ""
    # Two encodings of an accent look the same, so both are written in ASCII.
    spellings = " and ".join(map(repr if len({*map(_normalize_unicode, similar[0])}) > 1 else ascii, similar[0]))
    return (f"{kind} {spellings} differ only in spelling{more}; write them the same way if they are one",)


def find_part_names(names: Sequence[str]) -> tuple[str, ...]:
    """A line if all clients have names of parts of a split, as where a folder of parts is taken for one of clients."""
    if len(names) < 2 or not all(part_name(name) in PARTS for name in names):
        return ()
    found = ", ".join(map(repr, names))
    return (
        f"the clients are {found}: if these are the parts of a split, make one table with a column for the client and "
        "one for the part, and name the latter with split",
    )


def find_number_classes(classes: Sequence[str]) -> tuple[str, ...]:
    """A line if there are many classes and all are whole numbers, which may be meant as numbers to predict."""
    if len(classes) <= MANY_CLASSES or not all(re.fullmatch(r"-?\d+", name) for name in classes):
        return ()
    return (
        f"the label has {len(classes)} different whole numbers, which are taken as classes; to predict numbers, give "
        "target='numbers' (--target numbers), and target='classes' if they are classes",
    )


def find_unlabelled(classes: Sequence[str]) -> tuple[str, ...]:
    """A line if -1 or -100 stands beside the classes 0 and 1, as scikit-learn and PyTorch mark rows without a label."""
    mark = next((name for name in ("-1", "-100") if {name, "0", "1"} <= {*classes}), None)
    if mark is None:
        return ()
    return (
        f"the label has the class {mark} beside 0 and 1; if it marks rows without a label, drop these rows, and give "
        "target='classes' (--target classes) if it is a class",
    )


def _normalize_unicode(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def find_duplicates(
    dataset: Dataset, rows: Mapping[str, Sequence[np.ndarray]], complete: np.ndarray | None = None
) -> tuple[str, ...]:
    """A line if test rows are training rows too: the same features and the same class.

    No line where most rows equal others, or where so many equal rows are likely by chance, as in a table of a few
    categories.

    Args:
        complete: whether a row has all its values [M]; rows with filled-in values are not compared.
    """
    if len(dataset.x) < MIN_ROWS:
        return ()
    targets = dataset.y if dataset.targets is None else dataset.targets[:, 0].view(f"u{dataset.targets.itemsize}")
    hashes = _hash_rows(dataset.x, np.asarray(targets))
    parts = [np.concatenate(rows[part]) for part in ("train", "test")]
    parts = [part if complete is None else part[complete[part]] for part in parts]
    train, test = (hashes[part] for part in parts)
    count = int(np.isin(test, train).sum())
    if not count or len(np.unique(train)) < len(train) / 2:
        return ()
    collision = _collision_probability(dataset.x[parts[0]], np.asarray(targets)[parts[0]])
    if count < DUPLICATE_FACTOR * len(test) * (1 - (1 - collision) ** len(train)):
        return ()
    verb = "is a training row" if count == 1 else "are training rows"
    return (
        f"{count} of {len(parts[1])} test rows {verb} too, with the same features and the same label; "
        "drop duplicates before splitting",
    )


def _collision_probability(x: np.ndarray, targets: np.ndarray) -> float:
    """The probability that two rows are equal if their values are independent, estimated from pairs of SAMPLE rows."""
    order = stream(2, len(x)).permutation(len(x))[:SAMPLE]
    pairs, probability = len(order) * (len(order) - 1), 1.0
    for column in (targets[order], *x[order].reshape(len(order), -1).T):
        counts = np.unique(column, return_counts=True)[1]
        probability *= float((counts * (counts - 1)).sum() / pairs)
        if not probability:  # a column of different numbers
            break
    return probability


def _hash_rows(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """A number of 64 bits for each row and its label [M]; equal rows have equal ones."""
    flat = np.ascontiguousarray(x).reshape(len(x), -1)
    words = flat.view(f"u{flat.itemsize}")
    factors = stream(1, words.shape[1]).integers(0, 2**63, size=words.shape[1], dtype=np.uint64) * 2 + 1
    parts = [words[start : start + CHUNK].astype(np.uint64) @ factors for start in range(0, len(words), CHUNK)]
    return np.asarray(np.concatenate(parts) * np.uint64(0x9E3779B97F4A7C15) + labels.astype(np.uint64))
