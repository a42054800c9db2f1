"""The control of a run's collaboration graph: from the word in its settings to weights, all checked before training."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from fedweave.errors import BadInput
from fedweave.families.weaving import Weaving
from fedweave.federation.collaboration import row_shares
from fedweave.federation.federation import Federation
from fedweave.federation.graph_controls import GraphControl, Recorded
from fedweave.federation.graph_truth import group_graph, similarity_graph
from fedweave.federation.graph_words import GraphWord, parse
from fedweave.federation.protocol import Method
from fedweave.files import read
from fedweave.methods import METHODS
from fedweave.readers.arrays import map_npy, read_npz
from fedweave.study.spec import Run

RESULTS = Path("results")
FORMATS = ".npy, .npz with the array `weights`, or .csv"


def check_word(run: Run, where: str) -> None:
    """Refuse a word that is no graph of the run's method, and any graph of a method that has none.

    Raises:
        BadInput: naming the run, the word and the choices.
    """
    cls, word = METHODS[run.method], run.options.get("graph")
    if word is None:
        return
    if not issubclass(cls, Weaving):
        names = ", ".join(sorted(name for name, other in METHODS.items() if issubclass(other, Weaving)))
        raise BadInput(f"{where}.graph: {run.method} has no collaboration graph; leave it out, or use {names}")
    if isinstance(word, str):  # another type is refused with the other settings
        parse(word, cls.own_graphs, f"{where}.graph")


def build(run: Run, method: Method, federation: Federation) -> GraphControl | None:
    """The control that the run's method asks for, or None.

    Raises:
        BadInput: a file or run that is missing or does not fit, or nothing that an oracle could know.
    """
    if not isinstance(method, Weaving):
        return None
    where = f"runs.{run.key}.graph: {method.graph!r}"
    word = parse(method.graph, method.own_graphs, f"runs.{run.key}.graph")
    if word.kind in method.own_graphs:
        return None
    if word.kind in ("uniform", "self", "shuffled"):
        return GraphControl(word.kind)
    if word.kind == "oracle":
        return GraphControl("stored", {None: Recorded((0,), _oracle(method, federation, where)[None, None])})
    layers, clients = len(method.task.layers), federation.clients
    if word.kind == "given":
        return GraphControl("stored", {None: _from_file(Path(word.source), layers, clients, where)})
    return GraphControl("stored", _replayed(run, word, layers, clients, where))


def given_files(run: Run) -> tuple[Path, ...]:
    """The files that a given or replayed graph of `run` is read from, as far as they exist."""
    kind, _, source = str(run.options.get("graph", "")).partition(":")
    if kind == "given":
        return tuple(path for path in [Path(source)] if path.is_file())
    return tuple(sorted(_folder(run, source).glob("collaboration-*.npz"))) if kind == "replayed" else ()


def _oracle(method: Method, federation: Federation, where: str) -> torch.Tensor:
    """Equal weights on the true group, else weights that fall with the divergence of the clients' labels."""
    if federation.group is not None:
        return group_graph(federation.group.cpu().numpy())
    if method.task.targets_are != "classes" or federation.divergence is None:
        raise BadInput(f"{where}: the task has neither groups of clients nor labels; use uniform, self or shuffled")
    return similarity_graph(federation.divergence.cpu().numpy())


def _from_file(path: Path, layers: int, clients: int, where: str) -> Recorded:
    readers = {".npz": read_npz, ".npy": _alone, ".csv": _csv}
    if path.suffix not in readers:
        raise BadInput(f"{where}: a file of another format; use {FORMATS}")
    if not path.is_file():
        raise BadInput(f"{where}: there is no such file; paths are relative to the folder of params.yaml")
    arrays = read(path, readers[path.suffix], f"give {FORMATS}")
    if "weights" not in arrays:
        raise BadInput(f"{where}: it has no array `weights` but {', '.join(sorted(arrays)) or 'none'}")
    weights = arrays["weights"]
    return _checked({**arrays, "weights": weights[None] if weights.ndim == 2 else weights}, layers, clients, where)


def _alone(path: Path) -> dict[str, np.ndarray]:
    return {"weights": np.array(map_npy(path))}


def _csv(path: Path) -> dict[str, np.ndarray]:
    return {"weights": np.loadtxt(path, delimiter=",", ndmin=2)}


def _replayed(run: Run, word: GraphWord, layers: int, clients: int, where: str) -> Mapping[int | None, Recorded]:
    folder = _folder(run, word.source)
    if not (folder / "run.json").is_file():
        raise BadInput(f"{where}: {folder} holds no finished run; train it first, or give the path of its folder")
    files = {int(path.stem.rpartition("-")[2]): path for path in sorted(folder.glob("collaboration-*.npz"))}
    if missing := sorted({*run.seeds} - {*files}):
        reason = f"graphs of the seeds {', '.join(map(str, files))} only" if files else "no collaboration graph"
        raise BadInput(f"{where}: {folder} has {reason}, and this study has seed {missing[0]}")
    stored: dict[int | None, Recorded] = {}
    for seed, path in files.items():
        stored[seed] = _checked(read(path, read_npz, "train that run again"), layers, clients, where)
    return stored


def _folder(run: Run, source: str) -> Path:
    """The folder of the run `source`: a path, a run of the same study, or <study>/<run>."""
    study, _, name = source.rpartition("/")
    places = [Path(source), RESULTS / run.study / "runs" / source, RESULTS / (study or run.study) / "runs" / name]
    return next((place for place in places if (place / "run.json").is_file()), places[-1])


def _checked(arrays: Mapping[str, np.ndarray], layers: int, clients: int, where: str) -> Recorded:
    """Graphs whose size fits the run, with rows of sum 1."""
    weights = np.asarray(arrays["weights"])
    weights = weights[None] if weights.ndim == 3 else weights
    sizes = f"[{clients}, {clients}], [{layers}, {clients}, {clients}]"
    if weights.ndim != 4 or weights.shape[1] not in (1, layers) or weights.shape[2:] != (clients, clients):
        shape = list(weights.shape[1:]) if weights.ndim == 4 else list(weights.shape)
        raise BadInput(f"{where}: its weights are {shape}, and this run needs {sizes}")
    if weights.dtype.kind not in "fiub" or not np.isfinite(weights).all() or (weights < 0).any():
        raise BadInput(f"{where}: a weight is negative or no number; weights are at least 0")
    if (empty := np.argwhere(~(weights > 0).any(-1))).size:
        raise BadInput(f"{where}: client {empty[0, -1]} has no weight at all; give it one, for itself at least")
    rounds = tuple(int(made) for made in arrays.get("rounds", range(len(weights))))
    return Recorded(rounds, row_shares(torch.from_numpy(weights.astype(np.float64))))
