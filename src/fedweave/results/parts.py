"""Clients that tests and intervals take as one part: those that share test nodes, and those of one unit."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fedweave.errors import format_count
from fedweave.results.runs import Run
from fedweave.results.selection import score_matrix


def scores_by_method(runs: Sequence[Run], table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Label -> [S, N] on the clients that all `runs` of a task have, for tests: see `average_parts`."""
    return average_parts({run.label: score_matrix(table, run.name) for run in runs}, part_numbers(runs))


def part_numbers(runs: Sequence[Run]) -> Sequence[int] | None:
    """Number of each client's part, which all `runs` of a task share; None where each client is a part of its own."""
    return next((run.info["sharing"] for run in runs if run.info.get("sharing")), None)


def average_parts(frames: Mapping[str, pd.DataFrame], sharing: Sequence[int] | None = None) -> dict[str, np.ndarray]:
    """Name -> [S, N] on the clients that all `frames` (seeds by clients) have.

    Tests take columns to be independent. Clients that share test nodes also share training data, and clients of one
    unit, such as a person, are alike in more than their method; so the clients of a part become one column, their mean.
    Clients that are scored on the same official rows (`test: weighted`) train on rows of their own; a test is valid
    given those rows.

    Args:
        sharing: number of each client's part.
    """
    clients = sorted(set.intersection(*(set(frame.columns) for frame in frames.values())))
    if not sharing:
        return {label: np.ascontiguousarray(frame[clients].to_numpy()) for label, frame in frames.items()}
    # An array, as pandas may take a list for names of columns.
    groups = np.array([sharing[client] for client in clients], dtype=np.int64)
    return {label: frame[clients].T.groupby(groups).mean(skipna=False).T.to_numpy() for label, frame in frames.items()}


def common_clients(runs: Sequence[Run], table: pd.DataFrame) -> set[int]:
    """The clients that all `runs` of a task have in a table of `clients`."""
    return set.intersection(*(set(table["client"][table["run"] == run.name]) for run in runs))


def describe(runs: Sequence[Run], table: pd.DataFrame) -> str:
    """Which clients count as one, and how many they are: "clients of one unit count as one: 20 clients, 10 units".

    Empty where each client counts alone.
    """
    parts = part_numbers(runs)
    if parts is None:
        return ""
    clients = common_clients(runs, table)
    members, unit = _part_words(runs, parts)
    return (
        f"{members} count as one: {format_count(len(clients), 'client')}, "
        f"{len({parts[client] for client in clients})} {unit}"
    )


def name_parts(runs: Sequence[Run]) -> str:
    """What tests take as independent: "clients", or "units" or "parts" where several clients count as one."""
    parts = part_numbers(runs)
    return "clients" if parts is None else _part_words(runs, parts)[1]


def _part_words(runs: Sequence[Run], parts: Sequence[int]) -> tuple[str, str]:
    """(clients that count as one, what they are together)."""
    units = next((run.info["units"] for run in runs if run.info.get("units")), None)
    if units is None:
        return "clients that share test nodes", "parts"
    if len({*zip(units, parts, strict=True)}) == len({*units}) == len({*parts}):
        return "clients of one unit", "units"
    if len({*units}) == len(units):
        return "clients that share test nodes", "parts"
    return "clients of one unit, or that share test nodes,", "parts"
