"""Handwritten digits that scikit-learn contains: nothing to download.

Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI repository (1998), test part.
"""

from importlib.metadata import distribution
from pathlib import Path

import numpy as np

from fedweave.data.base import Dataset, symmetrise_edges
from fedweave.data.registry import dataset

NEIGHBOURS = 5


@dataset("digits", "images")
def digits(root: Path) -> Dataset:
    """Images [1797, 1, 8, 8] in 10 classes, 174 to 183 each; `root` is not used."""
    del root
    pixels, y = _load_arrays()
    return Dataset("digits", "images", (pixels / 16.0).astype(np.float32)[:, None], y, classes=10)


@dataset("digits-graph", "graph")
def digits_graph(root: Path) -> Dataset:
    """The same digits as nodes [1797, 64], edges to the 5 nearest images, symmetrised; `root` is not used."""
    del root
    pixels, y = _load_arrays()
    flat = pixels.reshape(len(pixels), -1)
    edges = symmetrise_edges(nearest_neighbour_edges(flat, NEIGHBOURS), len(flat))
    return Dataset("digits-graph", "graph", (flat / 16.0).astype(np.float32), y, classes=10, edges=edges)


def nearest_neighbour_edges(points: np.ndarray, k: int) -> np.ndarray:
    """Edges [2, M * k] from each of `points` [M, F] to its k nearest others; ties go to the lower index.

    Integer-valued points are compared exactly, so the graph is the same on every machine.
    """
    norm = (points**2).sum(1)
    distance = norm[:, None] + norm[None] - 2.0 * points @ points.T
    np.fill_diagonal(distance, np.inf)
    near = np.argsort(distance, axis=1, kind="stable")[:, :k]
    return np.stack([np.repeat(np.arange(len(points)), k), near.ravel()])


def _load_arrays() -> tuple[np.ndarray, np.ndarray]:
    """Pixels [1797, 8, 8] float64 in 0..16 and labels [1797] int64."""
    # `sklearn.datasets.load_digits` reads this file too, but first imports SciPy's statistics, which takes seconds.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(file), delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
