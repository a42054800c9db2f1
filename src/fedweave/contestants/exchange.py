"""The folder that a program gets and the folder that it fills: docs/contestants.md describes both."""

import json
import os
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.contestants.rows import ContestAnswers, ContestClient, ContestTask
from fedweave.errors import ContestantFailed, format_value
from fedweave.files.arrays import read_npz

VERSION = 1
MOST_CELLS = 20_000_000  # of the files of text of a task; larger ones have arrays alone
LARGEST_FILE, LARGEST_NOTES = 1 << 30, 1 << 26  # bytes of a file of predictions, and of bytes.json and curves.csv

UNREADABLE = (ValueError, TypeError, KeyError, OSError, SyntaxError, RecursionError, zipfile.BadZipFile, zlib.error)


def write_task(task: ContestTask, folder: Path, seconds: float | None = None) -> None:
    """Write a task to a new folder: task.json, and for each client its rows as arrays and as text.

    Args:
        seconds: that the contestant has.
    """
    folder.mkdir(parents=True)
    cells = sum(part.size for client in task.clients for part in (client.train_x, client.val_x, client.test_x))
    for position, client in enumerate(task.clients):
        place = folder / "clients" / str(position)
        place.mkdir(parents=True)
        parts: dict[str, dict[str, np.ndarray]] = {
            "train": {"x": client.train_x, "y": client.train_y},
            "val": {"x": client.val_x, "y": client.val_y},
            "test": {"x": client.test_x},
        }
        for part, arrays in parts.items():
            np.savez(place / f"{part}.npz", **arrays)  # type: ignore[arg-type]
            if cells <= MOST_CELLS:
                _write_text(place / f"{part}.csv", arrays)
    if task.relation is not None:
        np.savetxt(folder / "relation.csv", task.relation, "%d", ",", header="client,neighbour", comments="")
    text = json.dumps(_describe(task, seconds), indent=1) + "\n"
    (folder / "task.json").write_text(text, encoding="utf-8")


def _describe(task: ContestTask, seconds: float | None) -> dict[str, Any]:
    return {
        "version": VERSION,
        "name": task.name,
        "kind": task.kind,
        "outputs": task.outputs,
        "classes": [*task.classes],
        "metric": task.metric,
        "higher_is_better": task.higher_is_better,
        "seed": task.seed,
        "settings": {**task.settings},
        "budget": {"rounds": task.rounds, "seconds": seconds, "bytes": None},
        "shape": [*task.clients[0].train_x.shape[1:]],
        "categories": [*task.categories],
        "clients": [_describe_client(position, client) for position, client in enumerate(task.clients)],
    }


def _describe_client(position: int, client: ContestClient) -> dict[str, Any]:
    rows = {part: len(getattr(client, f"{part}_x")) for part in ("train", "val", "test")}
    return {"name": client.name, "folder": f"clients/{position}", "evaluated": client.evaluated, **rows}


def _write_text(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Inputs as columns x1, x2, ...; targets as y, or y1, y2, ... Every number reads back to the same bits."""
    x = arrays["x"].reshape(len(arrays["x"]), -1)
    columns, names = [x], [f"x{i + 1}" for i in range(x.shape[1])]
    if "y" in arrays:
        y = arrays["y"].reshape(len(x), -1) if arrays["y"].ndim > 1 else arrays["y"][:, None]
        columns, names = [x, y], [*names, *(["y"] if y.shape[1] == 1 else [f"y{i + 1}" for i in range(y.shape[1])])]
    with path.open("w", encoding="utf-8") as file:
        file.write(",".join(names) + "\n")
        for row in zip(*(column.tolist() for column in columns), strict=True):
            file.write(",".join(repr(value) for part in row for value in part) + "\n")


def read_answers(task: ContestTask, folder: Path) -> ContestAnswers:
    """What a program wrote, in the order of the clients; the numbers themselves are not checked yet.

    Raises:
        ContestantFailed: a file is missing, damaged or too large; its place is the client and the file.
    """
    _refuse_links(folder)
    pairs = []
    for position, client in enumerate(task.clients):
        place = folder / "clients" / str(position)
        val = _read_outputs(place, "val", len(client.val_x), client)
        pairs.append((val, _read_outputs(place, "test", len(client.test_x), client)))
    counts = _read(folder / "bytes.json", lambda file: dict(json.loads(file.read_text("utf-8"))), most=LARGEST_NOTES)
    most = len(task.clients) + 1
    graph = _read(folder / "graph.csv", lambda file: np.loadtxt(file, delimiter=",", ndmin=2, max_rows=most))
    curves = _read(folder / "curves.csv", _read_curves, most=LARGEST_NOTES) or []
    counts = counts or {}
    return ContestAnswers(pairs, counts.get("up", 0), counts.get("down", 0), graph, curves)


def _refuse_links(folder: Path) -> None:
    """A link is read with our rights, so that it could lead to files that are closed to the program."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if (path := Path(place, name)).is_symlink():
                raise ContestantFailed(str(path.relative_to(folder)), "it is a link; write a file")


def _read_outputs(folder: Path, part: str, rows: int, client: ContestClient) -> np.ndarray:
    """The array "outputs" of PART.npz, or the columns of PART.csv."""
    arrays, text = folder / f"{part}.npz", folder / f"{part}.csv"
    shown = f"client {client.name!r}: {folder.parent.name}/{folder.name}/{part}"
    if not rows or not client.evaluated:
        return np.zeros((0, 0))
    if not arrays.is_file() and not text.is_file():
        raise ContestantFailed(f"{shown}.npz", "it wrote neither this file nor one of CSV in its place")
    if arrays.is_file():
        table, order = _read(arrays, _read_arrays, f"{shown}.npz")
    else:
        table, order = _read(text, lambda file: _read_columns(file, rows + 1), f"{shown}.csv")
    if order is not None and (np.shape(order) != (rows,) or (order != np.arange(rows)).any()):
        problem = f"its rows are not 0 to {rows - 1} in this order"
        raise ContestantFailed(f"{shown}.npz" if arrays.is_file() else f"{shown}.csv", problem)
    return np.asarray(table)


def _read_arrays(file: Path) -> tuple[np.ndarray, np.ndarray | None]:
    content = read_npz(file, max_bytes=LARGEST_FILE)
    if "outputs" not in content:
        raise ValueError(f"it has no array outputs, but {', '.join(content) or 'none'}")
    return content["outputs"], content.get("row")


def _read_columns(file: Path, most: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The columns of a file of CSV with a heading, except for `row`, which may state the order; `most` rows of it."""
    with file.open(encoding="utf-8") as lines:
        names = [name.strip().strip('"') for name in lines.readline().split(",")]
        table = np.loadtxt(lines, delimiter=",", ndmin=2, quotechar='"', max_rows=most)
    if len(table) == most:
        raise ValueError(f"it has more than {most - 1} rows")
    if not table.size:
        return table.reshape(0, len(names)), None
    if "row" not in names:
        return table, None
    position = names.index("row")
    return np.delete(table, position, 1), table[:, position]


def _read_curves(file: Path) -> list[tuple[int, str, float]]:
    lines = [line.split(",") for line in file.read_text("utf-8").splitlines()[1:] if line.strip()]
    return [(int(number), name.strip('" '), float(value)) for number, name, value in lines]


def _read(file: Path, parse: Any, shown: str = "", most: int = LARGEST_FILE) -> Any:
    """What `parse` makes of a file; None if there is none."""
    if not file.is_file():
        return None
    try:
        if (size := file.stat().st_size) > most:
            raise ValueError(f"it has {size} bytes, more than {most}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of files without numbers, which have the wrong shape
            return parse(file)
    except UNREADABLE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ContestantFailed(shown or file.name, f"it cannot be read: {format_value(reason)}") from error
