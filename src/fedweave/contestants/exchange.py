"""The folder that a program gets and the folder that it fills: docs/contestants.md describes both."""

import json
import math
import os
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.contestants.rows import ContestAnswers, ContestClient, ContestGraph, ContestTask
from fedweave.data.partitions.splits import PARTS
from fedweave.errors import ContestantFailed, first_line, format_value
from fedweave.files.arrays import read_npz

if TYPE_CHECKING:
    import pandas as pd

VERSION = 2  # each adds to the one before it
MOST_CELLS = 20_000_000  # of the files of text of a task; larger ones have arrays, and raw rows in Parquet
MOST_COLUMNS = 1_000  # of a file of Parquet
LARGEST_FILE, LARGEST_NOTES = 1 << 30, 1 << 26  # bytes of a file of predictions, and of bytes.json and curves.csv
ENDINGS = (".npz", ".parquet", ".csv")  # of files of predictions, the first of which counts


def write_task(task: ContestTask, folder: Path, seconds: float | None = None) -> None:
    """Write a task to a new folder: task.json, and for each client its rows as arrays, and as tables.

    Test windows of forecasts are not among them, see `origins`.

    Args:
        seconds: that the contestant has.
    """
    folder.mkdir(parents=True)
    for position, client in enumerate(task.without_origins().clients):
        place = client_folder(folder, position)
        place.mkdir(parents=True)
        write_part(place, "train", {"x": client.train_x, "y": client.train_y}, task)
        write_part(place, "val", {"x": client.val_x, "y": client.val_y}, task)
        if not task.forecasts:
            write_part(place, "test", {"x": client.test_x}, task)
        _write_raw(place, client, _is_small(task))
        if client.graph is not None:
            np.savez(place / "graph.npz", **vars(client.graph))
            _write_pairs(place / "edges.csv", client.graph.edges.T, "node,neighbour")
            if _is_small(task):
                _write_nodes(place / "nodes.csv", client.graph)
    if task.relation is not None:
        _write_pairs(folder / "relation.csv", task.relation, "client,neighbour")
    text = json.dumps(_describe(task, seconds), indent=1) + "\n"
    (folder / "task.json").write_text(text, encoding="utf-8")


def client_folder(folder: Path, position: int) -> Path:
    """The folder of a client in that of a task or of an output."""
    return folder / "clients" / str(position)


def write_part(folder: Path, part: str, arrays: dict[str, np.ndarray], task: ContestTask) -> None:
    """Write rows: PART.npz with the arrays, and the same as a table in PART.csv and PART.parquet if it is small."""
    np.savez(folder / f"{part}.npz", **arrays)  # type: ignore[arg-type]
    if _is_small(task):
        table = _as_table(arrays)
        _write_text(folder / f"{part}.csv", table)
        if table.shape[1] <= MOST_COLUMNS:
            table.to_parquet(folder / f"{part}.parquet", index=False)


def _write_raw(folder: Path, client: ContestClient, as_text: bool) -> None:
    """PART-raw.parquet, and PART-raw.csv if `as_text`: the rows before their preparation, where there are such."""
    for part in PARTS:
        if (table := getattr(client, f"{part}_raw")) is not None:
            table.to_parquet(folder / f"{part}-raw.parquet", index=False)
            if as_text:
                table.to_csv(folder / f"{part}-raw.csv", index=False)


def _is_small(task: ContestTask) -> bool:
    """Whether the rows of a task are written as text, too."""
    parts = (part for client in task.clients for part in (client.train_x, client.val_x, client.test_x))
    return sum(part.size for part in parts) <= MOST_CELLS


def _write_pairs(file: Path, pairs: np.ndarray, heading: str) -> None:
    np.savetxt(file, pairs, "%d", ",", header=heading, comments="")


def _write_nodes(file: Path, graph: ContestGraph) -> None:
    """The part of each node with its row in the files of that part, and its features."""
    names, rows = ["none"] * len(graph.x), [-1] * len(graph.x)
    for part in PARTS:
        for row, node in enumerate(getattr(graph, part).tolist()):
            names[node], rows[node] = part, row
    table = _as_table({"x": graph.x})
    table.insert(0, "part", names)
    table.insert(1, "row", rows)
    _write_text(file, table)


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
        "origins": task.origins,
        "budget": {"rounds": task.rounds, "seconds": seconds, "bytes": None},
        "shape": [*task.clients[0].train_x.shape[1:]],
        "categories": [*task.categories],
        "columns": [{**column} for column in task.columns],
        "clients": [_describe_client(position, client) for position, client in enumerate(task.clients)],
    }


def _describe_client(position: int, client: ContestClient) -> dict[str, Any]:
    rows = {part: len(getattr(client, f"{part}_x")) for part in ("train", "val", "test")}
    about = {"name": client.name, "folder": f"clients/{position}", "evaluated": client.evaluated, **rows}
    if client.train_label is None:
        return about
    return {**about, "unit": client.unit.tolist(), "offset": client.offset.tolist()}


def _as_table(arrays: dict[str, np.ndarray]) -> "pd.DataFrame":
    """Inputs as columns x1, x2, ...; targets as y, or y1, y2, ..."""
    import pandas as pd

    # Not by -1, which has no value for a client without validation rows.
    flat = {name: rows.reshape(len(rows), math.prod(rows.shape[1:])) for name, rows in arrays.items()}
    x = flat["x"]
    columns = {f"x{i + 1}": x[:, i] for i in range(x.shape[1])}
    if "y" in flat:
        y = flat["y"]
        columns |= {"y" if y.shape[1] == 1 else f"y{i + 1}": y[:, i] for i in range(y.shape[1])}
    return pd.DataFrame(columns)


def _write_text(path: Path, table: "pd.DataFrame") -> None:
    """A file of CSV, of which every number reads back to the same bits, also where it is read as float64."""
    wide = {name: np.float64 for name, column in table.items() if column.dtype == np.float32}
    table.astype(wide).to_csv(path, index=False, na_rep="nan", lineterminator="\n")


def read_answers(task: ContestTask, folder: Path, forecasts: Sequence[np.ndarray] = ()) -> ContestAnswers:
    """What a program wrote, in the order of the clients; the numbers themselves are not checked yet.

    Args:
        forecasts: of the test windows of each client, which were read before.

    Raises:
        ContestantFailed: a file is missing, damaged or too large; its place is the client and the file.
    """
    refuse_links(folder)
    pairs = []
    for position, client in enumerate(task.clients):
        place = client_folder(folder, position)
        test = forecasts[position] if forecasts else read_part(place, "test", len(client.test_x), client)
        pairs.append((read_part(place, "val", len(client.val_x), client), test))
    counts = _read(folder / "bytes.json", lambda file: dict(json.loads(file.read_text("utf-8"))), most=LARGEST_NOTES)
    most = len(task.clients) + 1
    graph = _read(folder / "graph.csv", lambda file: np.loadtxt(file, delimiter=",", ndmin=2, max_rows=most))
    curves = _read(folder / "curves.csv", _read_curves, most=LARGEST_NOTES) or []
    counts = counts or {}
    return ContestAnswers(pairs, counts.get("up", 0), counts.get("down", 0), graph, curves)


def refuse_links(folder: Path) -> None:
    """A link is read with our rights, so that it could lead to files that are closed to the program."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if (path := Path(place, name)).is_symlink():
                raise ContestantFailed(str(path.relative_to(folder)), "it is a link; write a file")


def read_part(folder: Path, part: str, rows: int, client: ContestClient) -> "np.ndarray | pd.DataFrame":
    """The array "outputs" of PART.npz, or the table of PART.parquet or PART.csv.

    Raises:
        ContestantFailed: there is no such file, or it cannot be read.
    """
    shown = f"client {client.name!r}: {folder.parent.name}/{folder.name}/{part}"
    if not rows or not client.evaluated:
        return np.zeros((0, 0))
    ending = next((ending for ending in ENDINGS if (folder / f"{part}{ending}").is_file()), None)
    if ending is None:
        raise ContestantFailed(f"{shown}.npz", "it wrote neither this file nor one of Parquet or CSV in its place")
    table, order = _read(folder / f"{part}{ending}", lambda file: READERS[ending](file, rows + 1), f"{shown}{ending}")
    if order is not None and (np.shape(order) != (rows,) or (order != np.arange(rows)).any()):
        raise ContestantFailed(f"{shown}{ending}", f"its rows are not 0 to {rows - 1} in this order")
    return table


def _read_arrays(file: Path, most: int) -> tuple[np.ndarray, np.ndarray | None]:
    with zipfile.ZipFile(file) as archive:
        if sum(member.file_size for member in archive.infolist()) > LARGEST_FILE:
            raise ValueError(f"its arrays take more than {LARGEST_FILE} bytes")
    content = read_npz(file)
    if "outputs" not in content:
        raise ValueError(f"it has no array outputs, but {', '.join(content) or 'none'}")
    return content["outputs"], content.get("row")


def _read_table(file: Path, most: int) -> tuple["pd.DataFrame", np.ndarray | None]:
    """The columns of a file of Parquet or of CSV with a heading, except for `row`, which may state the order."""
    import pandas as pd
    import pyarrow.parquet as pq

    if file.suffix == ".csv":
        table = pd.read_csv(file, nrows=most, float_precision="round_trip", skipinitialspace=True)
        rows = len(table)
        if not table.index.equals(pd.RangeIndex(rows)):  # pandas takes the first values for names of the rows
            raise ValueError("its rows have more values than its heading")
    elif (rows := pq.read_metadata(file).num_rows) < most:  # else it is not read
        table = pq.read_table(file).to_pandas(ignore_metadata=True)  # with `row`, if the program made it the index
    if rows >= most:
        raise ValueError(f"it has more than {most - 1} rows")
    for name, column in table.items():
        if column.dtype.kind not in "iuf":
            raise ValueError(f"its column {name!r} has no numbers")
    order = table.pop("row").to_numpy() if "row" in table else None
    return table, order


READERS = dict(zip(ENDINGS, (_read_arrays, _read_table, _read_table), strict=True))


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
    except Exception as error:  # parsers raise errors of many types
        reason = first_line(error)
        raise ContestantFailed(shown or file.name, f"it cannot be read: {format_value(reason)}") from error
