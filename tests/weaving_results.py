"""Generated runs of twenty clients in groups, with graphs of known weights."""

import json
from pathlib import Path

import numpy as np

from fedweave import results
from tests.fake_results import write_run

CLIENTS, ROUNDS, LAYERS = 20, 12, ("conv1", "bn1", "conv2", "bn2", "fc1", "fc")


GROUP = np.arange(CLIENTS) // 4


def study(tmp_path: Path, name: str = "s") -> Path:
    """An empty study folder."""
    return tmp_path / "results" / name


def write(
    folder: Path,
    task: str = "t",
    label: str = "FedAGHN",
    rounds: int = ROUNDS,
    seeds: tuple[int, ...] = (0, 1),
    **block: object,
) -> Path:
    """A generated run whose name is its label's."""
    extra = {key: block.pop(key) for key in ("leaks", "cohorts", "spec") if key in block}
    path = write_run(folder, task, label, 0.0, block, seeds, CLIENTS, rounds, np.random.default_rng(0))
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | extra))
    return path


def keep(path: Path, seed: int, rounds: list[int], offset: float = 0.0, group: np.ndarray | None = GROUP) -> np.ndarray:
    """Write graphs [R, L, N, N] with known weights: own, similar and other ones differ by round and layer."""
    weights = np.zeros((len(rounds), len(LAYERS), CLIENTS, CLIENTS), dtype=np.float32)
    same = GROUP[:, None] == GROUP
    for r, when in enumerate(rounds):
        for layer in range(len(LAYERS)):
            weights[r, layer] = np.where(same, 0.05 + 0.001 * when + 0.002 * layer + offset, 0.01)
            np.fill_diagonal(weights[r, layer], 0.03 / when)
    arrays = {"rounds": np.array(rounds), "weights": weights, "layers": np.array(LAYERS)}
    np.savez(path / f"collaboration-{seed}.npz", **arrays, **({} if group is None else {"group": group}))
    return weights


def selected(folder: Path) -> dict[int, int]:
    """The round that validation selects for each seed, of a study with one run."""
    table = results.clients(results.load_study(folder))
    return {int(seed): int(part["round"].iloc[0]) for seed, part in table.groupby("seed")}
