"""Federations that forecast: series of the clients, cut into windows of known steps and the steps to forecast."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedweave import exported_model
from fedweave.data import Dataset
from fedweave.errors import BadInput, format_count
from fedweave.own_data import arrays, data_warnings
from fedweave.own_data.arrangement import Arrangement, federation_fields
from fedweave.own_data.array_checks import as_array, as_plain, check_size
from fedweave.own_data.precision import as_stored, refuse_lost
from fedweave.own_data.row_options import DataOptions
from fedweave.own_data.splits import split_rows

GAP = 1.5  # times the usual step between two rows: where one row is missing, they are two steps apart
NOTE = "Series are scaled by training rows of {}; scores are in the unit of the series."


class Windows(NamedTuple):
    """Windows of all series.

    Attributes:
        x: values of the known steps [M, window, C].
        targets: next steps [M, K], those of one channel after the other.
        first: row of the first step of each window [M].
        start: its position in its series [M].
        dropped: windows that were left out because a value is missing.
        crossing: windows with a gap in time between two of their rows.
        gaps: rows before a gap.
    """

    x: np.ndarray
    targets: np.ndarray
    first: np.ndarray
    start: np.ndarray
    dropped: int
    crossing: int
    gaps: np.ndarray


def fields_from_steps(values: Any, others: Any, client: Any, options: DataOptions) -> dict[str, Any]:
    """The fields of a federation from rows that are time steps.

    Args:
        values: what is forecast [M], or several series [M, V].
        others: further channels that are known up to now [M, F], or None.
        client: who owns each row.
        options: with `window`, `horizon` and `time`.

    Raises:
        BadInput: as `Federation.from_arrays`.
    """
    steps = as_channels(values, "y")
    width = steps.shape[1]
    if others is not None:
        channels = as_channels(others, "x")
        if len(channels) != len(steps):
            raise BadInput(
                f"x: {format_count(len(channels), 'row')}, but y has {len(steps)}; give one for each time step"
            )
        steps = np.concatenate([steps, channels], axis=1)
    steps = as_stored(steps)
    _check_options(options)
    owner, names = arrays.as_clients(client, len(steps))
    time = arrays.as_times(options.time, len(steps))
    recording = None if options.recording is None else arrays.as_recordings(options.recording, len(steps))
    series = _series(owner, recording)
    windows = _cut_windows(steps, width, series, time, names, owner, options)
    parts = _split_windows(windows, owner, None if recording is None else series, names, options)
    arrangement = Arrangement(owner[windows.first], names, None, (), parts, windows.targets)
    group, unit = (
        _select_windows(getattr(options, name), name, windows.first, len(steps)) for name in ("group", "unit")
    )
    normalize = options.normalize or "standard"
    scope = "each client alone" if normalize == "standard_client" else "all clients together"
    dataset = Dataset(
        options.name,
        "images",
        exported_model.as_images(windows.x),
        None,
        0,
        targets=windows.targets,
        channels=tuple(range(width)),
        note=NOTE.format(scope) if normalize != "none" else "",
    )
    dropped = (
        f"{format_count(windows.dropped, 'window')} with a missing value "
        f"{'is' if windows.dropped == 1 else 'are'} left out"
    )
    notes = (
        *((dropped,) if windows.dropped else ()),
        *data_warnings.find_marks(steps, "the series"),
        *_describe_gaps(windows, owner, names),
    )
    options = replace(options, group=group, unit=unit, normalize=normalize)
    return federation_fields(dataset, arrangement, options, windows.x.shape[1:], notes)


def _select_windows(values: Any, name: str, first: np.ndarray, steps: int) -> Any:
    """Values per step as values per window; a mapping from clients stays as it is."""
    if values is None or isinstance(values, Mapping):
        return values
    return arrays.as_column(values, name, steps)[first]


def as_channels(values: Any, name: str) -> np.ndarray:
    """The values of each time step as float64 [M, C].

    Raises:
        BadInput: naming `name`, if they are not numbers, too large or of another shape.
    """
    array = as_array(values, name, "give each time step the same number of values")
    try:
        steps = array.astype(np.float64)
    except (ValueError, TypeError) as error:
        raise BadInput(f"{name}: holds values that are not numbers ({error}); a series has numbers only") from error
    steps = steps[:, None] if steps.ndim == 1 else steps
    if steps.ndim != 2 or not steps.size:
        raise BadInput(f"{name}: shape {[*steps.shape]}; with window=, rows are time steps: give [M] or [M, C]")
    check_size(steps, name)
    refuse_lost(steps, array.dtype, name)
    return steps


def _check_options(options: DataOptions) -> None:
    """Refuse options that do not fit each other."""
    for name in ("window", "horizon", "stride"):
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadInput(f"{name}: {value!r} must be a number of steps, 1 or more; forecasts need window and horizon")
    if options.time is None:
        raise BadInput("time: forecasts need the time of each row; give time")
    conflicts = {
        "target": options.target not in (None, "numbers"),
        "split": isinstance(options.split, str) and options.split != "chronological",
    }
    for name in (name for name, conflict in conflicts.items() if conflict):
        value = getattr(options, name)
        raise BadInput(f"{name}: {value!r} does not fit forecasts, which are numbers in a chronological split; drop it")
    if options.split is not None and not isinstance(options.split, str | Mapping):
        raise BadInput("split: forecasts are split in the order of time; give shares, such as {'train': 0.6, ...}")
    if isinstance(options.split, Mapping) and options.shares is not None:
        raise BadInput(f"shares: {dict(options.shares)}, but split is {dict(options.split)}; give one of them")


def _series(owner: np.ndarray, recording: np.ndarray | None) -> np.ndarray:
    """Number of the series of each row [M]: one a client, or one a recording of a client."""
    if recording is None:
        return owner
    ids: dict[Any, int] = {}
    return np.array([ids.setdefault(pair, len(ids)) for pair in zip(owner.tolist(), recording.tolist(), strict=True)])


def _cut_windows(
    steps: np.ndarray,
    width: int,
    series: np.ndarray,
    time: np.ndarray,
    names: Sequence[str],
    owner: np.ndarray,
    options: DataOptions,
) -> Windows:
    """Windows of every series in the order of time.

    A gap is between two rows that are further apart than `GAP` times the usual step, the median of the series. Windows
    are not cut there, as weekends of a series of working days would leave no window.
    """
    window, horizon, stride = options.window or 1, options.horizon or 1, options.stride
    pieces = []
    order = np.lexsort((time, series))
    for rows in np.split(order, np.flatnonzero(np.diff(series[order])) + 1):
        name, span = names[owner[rows[0]]], window + horizon
        if (np.diff(time[rows]) == 0).any():
            raise BadInput(_describe_repeat(name, options.time, rows, time))
        if len(rows) < span:
            raise BadInput(
                f"window: client {name!r} has a series of {format_count(len(rows), 'step')}, and a "
                f"window and its horizon take {span}; "
                "make them shorter, or leave the series out"
            )
        windows = np.lib.stride_tricks.sliding_window_view(steps[rows], span, axis=0)[::stride]  # [n, C, span]
        start = np.arange(0, len(rows) - span + 1, stride)
        known, next_steps = windows[:, :, :window], windows[:, :width, window:]
        complete = np.isfinite(known).all((1, 2)) & np.isfinite(next_steps).all((1, 2))
        windows, start = windows[complete], start[complete]
        x, y = windows[:, :, :window].transpose(0, 2, 1), windows[:, :width, window:].reshape(len(windows), -1)
        apart = np.diff(time[rows].astype(np.float64))
        is_gap = apart > GAP * np.median(apart)
        gaps_before = np.append(0, np.cumsum(is_gap))
        crossing = int((gaps_before[start + span - 1] > gaps_before[start]).sum())
        pieces.append((x, y, rows[start], start, rows[:-1][is_gap], int((~complete).sum()), crossing))
    *arrays_of_series, dropped, crossings = zip(*pieces, strict=True)
    x, y, first, start, gaps = map(np.concatenate, arrays_of_series)
    return Windows(x, np.ascontiguousarray(y), first, start, sum(dropped), sum(crossings), gaps)


def _describe_repeat(name: str, given: Any, rows: np.ndarray, time: np.ndarray) -> str:
    """The message about two rows of one time in the series `rows` of a client."""
    row = int(rows[1:][np.diff(time[rows]) == 0][0])
    value = as_plain(given, "time")[row]
    text = f"{value:g}" if isinstance(value, int | float | np.number) else str(value)[:19]
    clock = ""
    if not isinstance(value, int | float | np.number):
        clock = "; an hour that is there twice, at the end of summer time, needs its zone: 2024-10-27 02:00+01:00"
    return f"time: client {name!r} has two rows of one time, {text}; give recording= where it has several series{clock}"


def usual_steps(time: Any, client: np.ndarray) -> list[float]:
    """The smallest and the largest usual step of a client, the median between its rows in the order of time."""
    import pandas as pd

    ordered = pd.DataFrame({"client": client, "time": arrays.as_times(time, len(client))}).sort_values("time")
    steps = ordered.groupby("client")["time"].diff().groupby(ordered["client"]).median()
    return [float(steps.min()), float(steps.max())]


def _describe_gaps(windows: Windows, owner: np.ndarray, names: Sequence[str]) -> tuple[str, ...]:
    """A line if windows cross gaps."""
    if not windows.crossing:
        return ()
    verb, row = "crosses" if windows.crossing == 1 else "cross", int(windows.gaps[0])
    total, gaps = format_count(len(windows.first), "window"), format_count(len(windows.gaps), "gap")
    return (
        f"{windows.crossing} of {total} {verb} a gap in time, as if its steps were adjacent: the series have {gaps} of "
        f"more than {GAP:g} times the usual step, the first of client {names[owner[row]]!r} after row {row}; give "
        "recording= a number for each stretch without a gap, or add rows for missing steps",
    )


def _split_windows(
    windows: Windows, owner: np.ndarray, recording: np.ndarray | None, names: tuple[str, ...], options: DataOptions
) -> dict[str, tuple[np.ndarray, ...]]:
    """Chronological parts of each client's windows, of which no two forecast the same step."""
    least = -(-(options.horizon or 1) // options.stride) - 1
    gap = options.gap or least
    if isinstance(gap, int) and gap < least:  # `split_rows` refuses other types
        raise BadInput(f"gap: {gap}, but then windows of two parts forecast the same steps; at least {least}")
    owner_of_window = owner[windows.first]
    missing = [name for i, name in enumerate(names) if not (owner_of_window == i).any()]
    if missing:
        raise BadInput(f"window: client {missing[0]!r} has no window without a missing value; fill them in, or drop it")
    shares = options.split if isinstance(options.split, Mapping) else options.shares
    starts, sessions = windows.start, None if recording is None else recording[windows.first]
    chronological = replace(options, split="chronological", shares=shares, gap=gap, time=starts, recording=sessions)
    return split_rows(owner_of_window, owner_of_window, names, chronological)
