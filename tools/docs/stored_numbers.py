"""The numbers in docs/reproduction and those that papers print. Each file is read once.

Scores are in the unit of the page: accuracies in percent, squared errors in thousandths.
"""

from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedweave.errors import BadInput, choose
from fedweave.results import published

FOLDER = Path("docs/reproduction")
CLIENTS = ".clients.csv.gz"  # ending of the file with the scores of every client
WEIGHTS_FILE = ".weights.csv"  # ending of the file with weights of a graph at a printed stage
SCORES = ("mean", "std", "published_mean", "published_std")
METRICS = ("accuracy", "mse", "test_acc_pct", "test_mse_x1e-3")  # any other metric is a part of its row's name
UNITS = {"mse": 1e3}  # metric -> factor from the files' unit to the page's; 1 for all others
# Printed quantity -> column of the files with sizes of data sets and models; `QUANTITIES` has the traffic, too.
SIZES = {
    "num_clients": "clients",
    "num_classes": "classes",
    "num_nodes": "nodes",
    "num_edges": "edges",
    "clustering_coefficient": "clustering",
    "heterogeneity_js_median": "heterogeneity",
    "num_parameters": "parameters",
}
QUANTITIES = {**SIZES, "comm_cost_MB": "MiB"}  # the traffic takes a training
Row = dict[str, Any]
Group = dict[str, Row]  # by method
Board = dict[str, Group]  # by "data set, setting"


def size_key(dataset: str, setting: str, row: str = "") -> str:
    """The key of a printed size: its column, and the name of its row where it has one."""
    return ", ".join(filter(None, (dataset, setting, row)))


def rows(studies: str) -> Board:
    """The rows of one or several studies, with scores in the unit of the page.

    Raises:
        BadInput: a study without rows, or two rows of one method in one setting.
    """
    board: Board = {}
    for name in studies.split(","):
        for key, group in _rows(*_locate(f"{name.strip()}.csv")).items():
            for method, row in group.items():
                _add_row(board, key, method, row)
    return board


@lru_cache(maxsize=64)
def _rows(path: Path, modified: int) -> Board:
    frame = _read(path, modified)
    unit = frame["metric"].map(UNITS).fillna(1.0)
    frame = frame.assign(**{name: frame[name] * unit for name in SCORES})
    above = frame["mean"] - frame["published_mean"]
    return _build_board(frame.assign(above=above, below=-above))


@cache
def printed_rows(table: str) -> Board:
    """The rows of a printed table, "paper/table", in the same form."""
    frame = pd.DataFrame(published.rows(table.partition("/")[0]))
    return _build_board(frame[frame["table"] == table.partition("/")[2]])


def _build_board(frame: pd.DataFrame) -> Board:
    board: Board = {}
    for row in frame.to_dict("records"):
        key, metric = f"{row['dataset']}, {row['setting']}".strip(", "), row["metric"]
        method = row["method"] if metric in METRICS else f"{row['method']} {metric}".strip()
        _add_row(board, key, method, {str(name): value for name, value in row.items()})
    return board


def _add_row(board: Board, key: str, method: str, row: Row) -> None:
    group = board.setdefault(key, {})
    if method in group:
        raise BadInput(f"{FOLDER}: two rows of {method!r} in {key!r}; name one study")
    group[method] = row


def with_client_scores() -> list[str]:
    """The studies whose scores of single clients are stored, as "paper/table"."""
    files = sorted(FOLDER.glob(f"*/*{CLIENTS}"))
    return [f"{file.parent.name}/{file.name.removesuffix(CLIENTS)}" for file in files]


def client_scores(study: str, key: str) -> dict[str, np.ndarray]:
    """Method -> scores [seeds, clients] in one setting, in the unit of the page.

    Methods with several seeds have the seeds that all of these share, so that rows are pairs. Clients that share test
    nodes, or belong to one unit, are one column with their mean, because tests take columns to be independent.
    """
    scores = _read_client_scores(*_locate(f"{study}{CLIENTS}"), key)
    metrics = {row["metric"] for row in rows(study).get(key, {}).values()}
    unit = max((UNITS.get(metric, 1.0) for metric in metrics), default=1.0)
    return {method: unit * values for method, values in scores.items()}


@lru_cache(maxsize=64)
def _read_client_scores(path: Path, modified: int, key: str) -> dict[str, np.ndarray]:
    scores = _read(path, modified)
    setting_scores = scores[scores["dataset"] + ", " + scores["setting"] == key]
    tables = {
        str(method): rows.groupby(["seed", "part"])["value"].mean(skipna=False).unstack("part")
        for method, rows in setting_scores.groupby("method")
    }
    several = [{*table.index} for table in tables.values() if len(table) > 1]
    common = set[int]().union(*several[:1]).intersection(*several)
    return {
        method: (table.loc[sorted(common)] if len(table) > 1 else table).to_numpy() for method, table in tables.items()
    }


def modified(study: str) -> int:
    """When a study's scores were last changed [ns]."""
    return max(_locate(f"{study}{ending}")[1] for ending in (".csv", CLIENTS))


def cell(table: str, key: str, column: str) -> str:
    """The text of a cell in docs/reproduction/<table>.csv, in the row `key`."""
    values = _read(*_locate(f"{table}.csv"), text=True).set_index("key")
    return str(values.loc[choose(key, values.index, table), choose(column, values.columns, table)])


def _locate(name: str) -> tuple[Path, int]:
    """The path of a file and its time of modification [ns]: a changed file gets a new entry in the caches."""
    path = FOLDER / name
    if not path.is_file():
        raise BadInput(f"{path} is not there; take its study: python -m tools.docs.reproduction")
    return path.resolve(), path.stat().st_mtime_ns


@lru_cache(maxsize=64)
def _read(path: Path, modified: int, text: bool = False) -> pd.DataFrame:
    return pd.read_csv(path, dtype=str, keep_default_na=False) if text else pd.read_csv(path)
