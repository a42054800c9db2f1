"""The options of a call that reads one's own data, checked; and those of the rows of newcomers and of large clients."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedweave.errors import BadInput, choose, format_count, format_value
from fedweave.own_data import arrays
from fedweave.own_data.argument_checks import as_names, as_python, check_flag, check_seed, check_text
from fedweave.own_data.column_encoding import HASHED
from fedweave.own_data.options import ROW_OPTIONS, DataFields
from fedweave.own_data.splits import RULES, are_shares, show_first

NEEDED = {"chronological": "time", "grouped": "recording"}  # rule of a split -> what it needs of each row


@dataclass(frozen=True)
class DataOptions(DataFields):
    """The options of a call, and how many classes there must be: newcomers may have one, as training had others."""

    least_classes: int = 2

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_text(self.name, "name", "own-data")
        if self.embed is not None:
            check_flag(self.embed, "embed")
        for name in ("gap", "window", "horizon", "stride", "min_rows"):
            object.__setattr__(self, name, as_python(getattr(self, name)))
        if type(self.min_rows) is not int or self.min_rows < 0:
            raise BadInput(f"min_rows: {format_value(self.min_rows)} must be a number of rows, 0 or more")

    @property
    def is_pooled(self) -> bool:
        """Whether the rows of all clients scale a column."""
        return choose(self.preprocess, ("pooled", "client"), "preprocess") == "pooled"

    def words(self, features: Sequence[str]) -> Mapping[str, int | Sequence[str]]:
        """Column of texts -> its words, or how many hashes."""
        texts = self.text if isinstance(self.text, Mapping) else dict.fromkeys(as_names(self.text, "text", 0), HASHED)
        for name in texts:
            choose(name, features, "text")
        return dict(texts)

    @property
    def is_forecast(self) -> bool:
        """Whether rows are time steps, of which windows are cut."""
        return self.window is not None or self.horizon is not None

    @property
    def rule(self) -> str:
        """The rule of the split that these options name or imply; empty for the default and for given parts."""
        if self.time is not None or self.recording is not None:
            return "grouped" if self.time is None else "chronological"
        return self.split if isinstance(self.split, str) and self.split in RULES else ""

    def with_arrays(self, count: int) -> "DataOptions":
        """These options with the time and the recording of `count` rows as arrays."""
        time = None if self.time is None else arrays.as_times(self.time, count)
        recording = None if self.recording is None else arrays.as_recordings(self.recording, count)
        return replace(self, time=time, recording=recording)


def check_names(names: Iterable[str], others: Iterable[str] = ()) -> None:
    """Refuse a name that is not an option of rows and not in `others`."""
    for name in names:
        choose(name, [*ROW_OPTIONS, *others], "options")


def row_options(options: Mapping[str, Any], others: Iterable[str] = ()) -> DataOptions:
    """The options of rows that a call got; `others` are names of further options of the call."""
    check_names(options, others)
    return DataOptions(**options)


def follow_rule(options: DataOptions, rule: str) -> DataOptions:
    """The options of newcomers' rows with the rule by which the rows of training were split, unless they name another.

    Raises:
        BadInput: the rule needs a time or a recording of each row, which is not given.
    """
    if options.rule or not (options.split is None or are_shares(options.split)):
        return options
    if needed := NEEDED.get(rule):
        raise BadInput(
            f"join: the rows of {options.name} are split by the rule {rule!r}, so newcomers' rows need {needed}= too; "
            "or name another rule, such as split='random'"
        )
    if rule and options.split is not None:
        return replace(options, split=rule, shares=options.split)
    return replace(options, split=rule or options.split)


def find_large_clients(client: Any, count: int, options: DataOptions) -> tuple[np.ndarray, DataOptions, str]:
    """Which rows are of clients with at least `min_rows` rows [M], the options of these rows, and a note.

    Raises:
        BadInput: no client has so many, or an option names rows by their numbers.
    """
    everything = np.ones(count, dtype=bool), replace(options, min_rows=0), ""
    if not options.min_rows:
        return everything
    owner, names = arrays.as_clients(client, count)
    sizes = np.bincount(owner, minlength=len(names))
    small = [name for name, size in zip(names, sizes, strict=True) if size < options.min_rows]
    if not small:
        return everything
    if len(small) == len(names):
        largest = f"{names[int(sizes.argmax())]!r}, has {format_count(int(sizes.max()), 'row')}"
        raise BadInput(
            f"min_rows: no client has {options.min_rows} rows; the largest, {largest}; give a smaller number"
        )
    kept = (sizes >= options.min_rows)[owner]
    if isinstance(options.split, Mapping) and not are_shares(options.split):
        raise BadInput("min_rows: split names rows by their numbers, which would change; leave min_rows out")
    by_row = {key: getattr(options, key) for key in ("split", "time", "recording", "group", "unit")}
    selected = {
        key: arrays.as_column(value, key, count)[kept]
        for key, value in by_row.items()
        if value is not None and not isinstance(value, str | Mapping)
    }
    rows, verb = format_count(int((~kept).sum()), "row"), "is" if len(small) == 1 else "are"
    note = (
        f"{len(small)} of {format_count(len(names), 'client')} with fewer than {options.min_rows} rows {verb} left out "
        f"({rows}): {show_first(small)}"
    )
    return kept, replace(options, min_rows=0, **selected), note
