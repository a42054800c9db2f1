"""Graphs with labelled nodes: Planetoid, Amazon co-purchase, ogbn-arxiv.

Sources: Yang et al. (2016); Shchur et al. (2018); Hu et al., Open Graph Benchmark (2020).
"""

import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.data.base import Dataset, symmetrise_edges
from fedweave.data.registry import dataset


def planetoid(name: str, folder: str, root: Path) -> Dataset:
    """Papers and their citations, with all nodes and edges; features as published.

    torch-geometric unpickles these files. `fedweave.data.load` compares them with pinned sha256 sums first.
    """
    from torch_geometric.io import read_planetoid_data

    return _build_dataset(name, read_planetoid_data(str(root / "Planetoid" / folder / "raw"), folder.lower()))


def amazon(name: str, folder: str, root: Path) -> Dataset:
    """Goods that are bought together; edges made undirected, attributes 0 or 1.

    torch-geometric reads a file in which objects may be pickled; its digest has been checked, as those of `planetoid`.
    """
    from torch_geometric.io import read_npz

    path = root / "Amazon" / folder / "raw" / f"amazon_electronics_{folder.lower()}.npz"
    return _build_dataset(name, read_npz(str(path)))


def _build_dataset(name: str, graph: Any) -> Dataset:
    x, y = graph.x.numpy(), graph.y.numpy().astype(np.int64)
    edges = symmetrise_edges(graph.edge_index.numpy(), len(x))
    return Dataset(name, "graph", x, y, classes=int(y.max()) + 1, edges=edges)


@dataset("ogbn-arxiv", "graph")
def arxiv(root: Path) -> Dataset:
    """ogbn-arxiv, edges made undirected; read from the official archive without unpacking."""
    with zipfile.ZipFile(root / "ogbn-arxiv" / "arxiv.zip") as archive:
        x = _read_table(archive, "node-feat", np.float32)
        y = _read_table(archive, "node-label", np.int64)[:, 0]
        edges = _read_table(archive, "edge", np.int64).T
    return Dataset("ogbn-arxiv", "graph", x, y, classes=int(y.max()) + 1, edges=symmetrise_edges(edges, len(x)))


def _read_table(archive: zipfile.ZipFile, name: str, dtype: type) -> np.ndarray:
    """A headerless gzipped CSV of the archive: [rows, columns]."""
    import pandas as pd

    with archive.open(f"arxiv/raw/{name}.csv.gz") as packed:
        return np.ascontiguousarray(pd.read_csv(packed, header=None, compression="gzip").to_numpy(dtype))


dataset("cora", "graph")(partial(planetoid, "cora", "Cora"))
dataset("citeseer", "graph")(partial(planetoid, "citeseer", "CiteSeer"))
dataset("pubmed", "graph")(partial(planetoid, "pubmed", "PubMed"))
dataset("amazon-computer", "graph")(partial(amazon, "amazon-computer", "Computers"))
dataset("amazon-photo", "graph")(partial(amazon, "amazon-photo", "Photo"))
