"""What a run stored of the server: the collaboration graphs, and the vectors by which it describes clients.

A missing file is not an error.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedweave.errors import BadInput
from fedweave.files.arrays import read_npz
from fedweave.files.atomic import read
from fedweave.results.runs import RETRAIN_HINT, Run


class Graphs(NamedTuple):
    """The collaboration graphs of one seed: who learned from whom.

    Attributes:
        seed: of the repetition.
        rounds: [R] rounds with a stored graph.
        weights: [R, L, N, N], row = learner.
        layers: names of the L layers.
        group: [N] true groups of the clients, or None.
        divergence: [N, N] how much the training targets of two clients differ, or None.

    A graph that is the same for every layer is stored once (L = 1).
    """

    seed: int
    rounds: list[int]
    weights: np.ndarray
    layers: list[str]
    group: np.ndarray | None
    divergence: np.ndarray | None = None

    def index_at(self, round: int) -> int:
        """Position of the last stored graph that is not after `round`, or of the first one."""
        return max(0, int(np.searchsorted(self.rounds, round, side="right")) - 1)


class Portrait(NamedTuple):
    """The vectors [N, D] by which the server describes clients at the end of one seed, and true groups [N]."""

    seed: int
    round: int
    vectors: np.ndarray
    group: np.ndarray | None


def graphs(run: Run, seed: int | None = None) -> Graphs | None:
    """The collaboration graphs of `seed` (default: the first), if the method has any.

    Raises:
        BadInput: a file that is not [R, L, N, N] with a round for each R.
    """
    record = _load(run, "collaboration", seed, ("weights", "rounds", "layers"))
    if record is None:
        return None
    seed, path, arrays = record
    weights, rounds, layers = arrays["weights"], arrays["rounds"].tolist(), arrays["layers"].tolist()
    if weights.ndim != 4 or weights.shape[:2] != (len(rounds), len(layers)):
        shape, expected = weights.shape, (len(rounds), len(layers))
        raise BadInput(f"{path}: weights {shape} for {expected} rounds and layers; {RETRAIN_HINT}")
    if (weights == weights[:, :1]).all():
        weights, layers = weights[:, :1], ["all layers"]
    if not weights.size:
        return None
    clients = weights.shape[-1]
    divergence = arrays.get("divergence")
    is_square = divergence is not None and divergence.shape == (clients, clients)
    return Graphs(seed, rounds, weights, layers, _group(run, arrays, clients), divergence if is_square else None)


def graphs_by_seed(run: Run) -> dict[int, Graphs]:
    """Seed -> its collaboration graphs, of every seed that has some; each file is read once."""
    stored = {seed: graphs(run, seed) for seed in run.seeds}
    return {seed: found for seed, found in stored.items() if found is not None}


def portrait(run: Run) -> Portrait | None:
    """The clients' vectors of the first seed that has some; None if the method has none.

    Raises:
        BadInput: a file that cannot be read.
    """
    record = _load(run, "portrait", None, ("vectors", "round"))
    if record is None:
        return None
    seed, _, arrays = record
    return Portrait(seed, int(arrays["round"]), arrays["vectors"], _group(run, arrays, len(arrays["vectors"])))


def _group(run: Run, arrays: Mapping[str, np.ndarray], clients: int) -> np.ndarray | None:
    """The true groups of the `clients` of a file: those of the run, else those stored with the arrays."""
    group = arrays.get("group") if run.group is None else run.group
    return group if group is not None and len(group) == clients else None


def _load(
    run: Run, name: str, seed: int | None, needed: tuple[str, ...]
) -> tuple[int, Path, dict[str, np.ndarray]] | None:
    for number in run.seeds if seed is None else [seed]:
        path = run.folder / f"{name}-{number}.npz"
        if not path.is_file():
            continue
        arrays = read(path, read_npz, RETRAIN_HINT)
        if not {*needed} <= {*arrays}:
            raise BadInput(f"{path}: not readable (no {', '.join({*needed} - {*arrays})}); {RETRAIN_HINT}")
        return number, path, arrays
    return None
