"""Graphs with labelled nodes: Planetoid, Amazon co-purchase, ogbn-arxiv.

Sources: Yang et al. (2016); Shchur et al. (2018); Hu et al., Open Graph Benchmark (2020). The files are
checked before they are opened (`fedweave.data.load`), and torch-geometric reads those that are its own
formats.
"""

import gzip
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.data.base import Dataset, symmetric


def planetoid(name: str, folder: str, root: Path) -> Dataset:
    """Cora, CiteSeer or PubMed with all nodes and edges; features as published."""
    from torch_geometric.io import read_planetoid_data

    return _dataset(name, read_planetoid_data(str(root / "Planetoid" / folder / "raw"), folder.lower()))


def amazon(name: str, folder: str, root: Path) -> Dataset:
    """Amazon Computers or Photo; edges made undirected, attributes 0 or 1."""
    from torch_geometric.io import read_npz

    raw = root / "Amazon" / folder / "raw" / f"amazon_electronics_{folder.lower()}.npz"
    return _dataset(name, read_npz(str(raw)))


def _dataset(name: str, data: Any) -> Dataset:
    """Dataset of a torch-geometric Data with x, y and edge_index."""
    x, y = data.x.numpy(), data.y.numpy().astype(np.int64)
    return Dataset(name, "graph", x, y, classes=int(y.max()) + 1, edges=symmetric(data.edge_index.numpy(), len(x)))


def arxiv(root: Path) -> Dataset:
    """ogbn-arxiv, edges made undirected; read from the official archive as it is."""
    with zipfile.ZipFile(root / "ogbn-arxiv" / "arxiv.zip") as archive:
        x = _table(archive, "node-feat", np.float32)
        y = _table(archive, "node-label", np.int64)[:, 0]
        edges = _table(archive, "edge", np.int64).T
    return Dataset("ogbn-arxiv", "graph", x, y, classes=int(y.max()) + 1, edges=symmetric(edges, len(x)))


def _table(archive: zipfile.ZipFile, name: str, dtype: type) -> np.ndarray:
    """A headerless gzipped CSV of the archive: [rows, columns]."""
    import pandas as pd

    with archive.open(f"arxiv/raw/{name}.csv.gz") as packed, gzip.open(packed) as plain:
        return np.ascontiguousarray(pd.read_csv(plain, header=None).to_numpy(dtype))


LOADERS: dict[str, Callable[[Path], Dataset]] = {
    "cora": partial(planetoid, "cora", "Cora"),
    "citeseer": partial(planetoid, "citeseer", "CiteSeer"),
    "pubmed": partial(planetoid, "pubmed", "PubMed"),
    "amazon-computer": partial(amazon, "amazon-computer", "Computers"),
    "amazon-photo": partial(amazon, "amazon-photo", "Photo"),
    "ogbn-arxiv": arxiv,
}
