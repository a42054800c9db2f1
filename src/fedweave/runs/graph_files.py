"""Graphs that runs read from files: those that a user gives, and those that another run recorded."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedweave.errors import BadInput, first_line, format_value
from fedweave.files.arrays import read_npz
from fedweave.graphs.controls import RecordedGraphs
from fedweave.graphs.setting import GraphSetting
from fedweave.graphs.weights import row_shares
from fedweave.runs import graph_tables
from fedweave.study.spec import RunSpec

RESULTS = Path("results")
FORMATS = ".npy, .npz with the array `weights`, or .csv"


def read_stored(
    run: RunSpec, setting: GraphSetting, clients: int, layers: int | None, where: str, names: Sequence[str] = ()
) -> dict[int | None, RecordedGraphs]:
    """Seed -> graphs that `run` reads, as `setting` says; a given file has those of every seed, under None.

    Args:
        layers: number of layers of the run's model; None if it is not known yet, and then it is not checked.
        where: the beginning of messages: the key and its value.
        names: of the clients; () before there are data, and then names in a given file are not checked.

    Raises:
        BadInput: a file or run that is missing, damaged, or does not fit.
    """
    if setting.source.startswith("~"):
        raise BadInput(where, "~ is not read as the home folder here; write the whole path, which begins with /")
    if setting.kind == "given":
        return {None: _normalise_weights(_read_given(Path(setting.source), names, where), layers, clients, where)}
    files = _find_recorded_files(run, setting.source, where)
    return {
        seed: _normalise_weights(
            _read_arrays(path, f"{where}: {path}", "train that run again"), layers, clients, f"{where}: {path}"
        )
        for seed, path in files.items()
    }


def files_of(run: RunSpec) -> tuple[Path, ...]:
    """The files that a given or replayed graph of `run` is read from, as far as they exist."""
    kind, _, source = str(run.options.get("graph", "")).partition(":")
    if kind == "given":
        return tuple(path for path in [Path(source)] if path.is_file())
    return tuple(sorted(_find_folder(run, source).glob("collaboration-*.npz"))) if kind == "replayed" else ()


def _read_given(path: Path, clients: Sequence[str], where: str) -> Mapping[str, np.ndarray]:
    if path.suffix not in READERS:
        raise BadInput(where, f"a file of another format; use {FORMATS}")
    if not path.is_file():
        raise BadInput(where, f"there is no such file at {path.absolute()}; write its path from the current folder")
    if path.suffix == ".csv":
        return {"weights": _read_table(path, clients, where)}
    return _read_arrays(path, where, "it must hold numbers only, no texts or objects")


def _read_table(path: Path, clients: Sequence[str], where: str) -> np.ndarray:
    """The weights of a .csv; if it has names, in the order of `clients`, if these are known."""
    arrays = _read_arrays(path, where, graph_tables.WAY)
    weights, names = arrays["weights"], arrays["names"]
    if names:
        _check_weights(weights, where, names)  # before they are reordered, so that a message has the names of the file
    return graph_tables.reorder(weights, names, clients, where) if names and clients else weights


def _read_arrays(path: Path, where: str, way: str) -> Mapping[str, Any]:
    try:
        arrays = READERS[path.suffix](path)
    except Exception as error:  # each format has many exceptions for damaged files
        # without the row, as numpy counts rows from 0 or 1 and does not count comments
        reason = first_line(error).partition(" at row ")[0]
        raise BadInput(where, f"damaged, or no matrix ({reason}); {way}") from error
    if "weights" not in arrays:
        raise BadInput(where, f"it has no array `weights` but {', '.join(sorted(arrays)) or 'none'}; {way}")
    return arrays


def _read_npy(path: Path) -> dict[str, np.ndarray]:
    return {"weights": np.load(path, allow_pickle=False)}


READERS = {".npz": read_npz, ".npy": _read_npy, ".csv": graph_tables.read_csv}


def _find_recorded_files(run: RunSpec, source: str, where: str) -> dict[int, Path]:
    """Seed -> the file with the graphs that the run `source` recorded."""
    folder = _find_folder(run, source)
    if not (folder / "run.json").is_file():
        way = "name a run of this study, STUDY/RUN, or the path of a run's folder"
        raise BadInput(where, f"{folder} holds no finished run; train it first, or {way}")
    files = {int(path.stem.rpartition("-")[2]): path for path in sorted(folder.glob("collaboration-*.npz"))}
    if missing := sorted({*run.seeds} - {*files}):
        reason = f"graphs of the seeds {', '.join(map(str, files))} only" if files else "no collaboration graph"
        raise BadInput(where, f"{folder} has {reason}, and this study has seed {missing[0]}")
    return files


def _find_folder(run: RunSpec, source: str) -> Path:
    """The folder of the run `source`, which is a path, a run of the same study, or <study>/<run>."""
    study, _, name = source.rpartition("/")
    places = [Path(source), RESULTS / run.study / "runs" / source, RESULTS / (study or run.study) / "runs" / name]
    return next((place for place in places if (place / "run.json").is_file()), places[-1])


def _normalise_weights(arrays: Mapping[str, Any], layers: int | None, clients: int, where: str) -> RecordedGraphs:
    """Graphs [rounds, layers, clients, clients] whose size fits the run, with rows of sum 1."""
    weights = np.asarray(arrays["weights"])
    _check_shape(weights, layers, clients, where)
    _check_weights(weights, where)
    graphs = weights.reshape((1,) * (4 - weights.ndim) + weights.shape).astype(np.float64)
    rounds = tuple(int(round) for round in arrays.get("rounds", range(len(graphs))))
    return RecordedGraphs(rounds, row_shares(torch.from_numpy(graphs)))


def _check_shape(weights: np.ndarray, layers: int | None, clients: int, where: str) -> None:
    if not weights.size:
        raise BadInput(where, f"the file is empty; write a row of {clients} weights for each of {clients} clients")
    is_square = 2 <= weights.ndim <= 4 and weights.shape[-2:] == (clients, clients)
    if not is_square or (weights.ndim > 2 and layers is not None and weights.shape[-3] not in (1, layers)):
        layered = f"[{'layers' if layers is None else layers}, {clients}, {clients}]"
        raise BadInput(
            where, f"its weights are {list(weights.shape)}, and this run needs [{clients}, {clients}] or {layered}"
        )


def _check_weights(weights: np.ndarray, where: str, names: Sequence[str] = ()) -> None:
    """Refuse weights that cannot be shares; the message names the first one."""
    if weights.dtype.kind not in "fiub":
        raise BadInput(where, f"its weights are of the type {weights.dtype}; they must be numbers, at least 0")
    labels = [*map(format_value, names)] or range(1, weights.shape[-1] + 1)
    if (bad := np.argwhere(~(np.isfinite(weights) & (weights >= 0)))).size:
        *matrix, row, column = bad[0]
        place = f"row {labels[row]}, column {labels[column]}" + (f" of matrix {matrix[-1] + 1}" if matrix else "")
        raise BadInput(where, f"{place} is {weights[tuple(bad[0])]}; weights are finite numbers, at least 0")
    if (empty := np.argwhere(~(weights > 0).any(-1))).size:
        client = empty[0, -1]
        row = labels[client] if names else f"{client + 1} (client {client})"
        raise BadInput(where, f"row {row} has no weight; give it one, for itself at least")
