"""Handwritten digits that scikit-learn contains: nothing to download.

Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI repository (1998), test part.
"""

from importlib.metadata import distribution
from pathlib import Path

import numpy as np

from fedweave.data.base import Dataset, symmetrise_edges
from fedweave.data.registry import dataset

NEIGHBOURS = 5
SITES, PUBLIC = 16, 5  # clients of `digits-sites`, and the first digit that they read


@dataset("digits", "images")
def digits(root: Path) -> Dataset:
    """Images [1797, 1, 8, 8] in 10 classes, 174 to 183 each."""
    del root
    pixels, y = _load_arrays()
    return Dataset("digits", "images", (pixels / 16.0).astype(np.float32)[:, None], y, classes=10)


@dataset("digits-sites", "images")
def digits_sites(root: Path) -> Dataset:
    """Images [896, 1, 8, 8] of the digits 5 to 9; a client is one of 16 made-up sites.

    A group is all sites that hold the page alike: upright, or turned by 180 degrees. The digits 0 to 4 are nobody's.
    """
    del root
    pixels, y = _load_arrays()
    mine = y >= PUBLIC
    x, y = (pixels[mine] / 16.0).astype(np.float32), y[mine] - PUBLIC
    owner = np.random.default_rng(0).integers(SITES, size=len(y))
    turned = owner % 2 == 1
    x[turned] = x[turned, ::-1, ::-1]
    return Dataset(
        "digits-sites",
        "images",
        x[:, None],
        y,
        classes=10 - PUBLIC,
        class_names=tuple(map(str, range(PUBLIC, 10))),
        owner=owner,
        names=tuple(f"site {i}" for i in range(SITES)),
        group=np.arange(SITES) % 2,
        group_names=("upright", "turned"),
    )


def public_digits() -> tuple[np.ndarray, np.ndarray]:
    """Images [901, 1, 8, 8] float32 in 0..1 and labels of the digits 0 to 4, which no client of `digits-sites` has."""
    pixels, y = _load_arrays()
    return (pixels[y < PUBLIC] / 16.0).astype(np.float32)[:, None], y[y < PUBLIC]


@dataset("digits-graph", "graph")
def digits_graph(root: Path) -> Dataset:
    """The same digits as nodes [1797, 64], edges to the 5 nearest images, symmetrised."""
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
