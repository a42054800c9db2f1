"""Graphs with labelled nodes: Planetoid, Amazon co-purchase, ogbn-arxiv.

Sources: Yang et al. (2016); Shchur et al. (2018); Hu et al., Open Graph Benchmark (2020).
"""

import gzip
import zipfile
from functools import partial
from pathlib import Path

import numpy as np

from fedweave.data.base import Dataset, symmetrise_edges
from fedweave.data.registry import dataset
from fedweave.files.arrays import read_npz
from fedweave.files.atomic import read

CSR = ("data", "indices", "indptr", "shape")


def planetoid(name: str, folder: str, root: Path) -> Dataset:
    """Cora, CiteSeer or PubMed with all nodes and edges; features as published.

    torch-geometric unpickles these files. `fedweave.data.load` compares them with pinned sha256 sums first.
    """
    from torch_geometric.io import read_planetoid_data

    graph = read_planetoid_data(str(root / "Planetoid" / folder / "raw"), folder.lower())
    x, y = graph.x.numpy(), graph.y.numpy().astype(np.int64)
    edges = symmetrise_edges(graph.edge_index.numpy(), len(x))
    return Dataset(name, "graph", x, y, classes=int(y.max()) + 1, edges=edges)


def amazon(name: str, folder: str, root: Path) -> Dataset:
    """Amazon Computers or Photo; edges made undirected, attributes 0 or 1.

    Raises:
        BadInput: the file is damaged.
    """
    path = root / "Amazon" / folder / "raw" / f"amazon_electronics_{folder.lower()}.npz"
    return read(path, partial(_read_amazon, name), "run the download stage again")


def _read_amazon(name: str, path: Path) -> Dataset:
    """The graph of a file whose digest has been checked; scipy trusts the indices in it."""
    from scipy.sparse import csr_matrix

    names = [f"{part}_{key}" for part in ("attr", "adj") for key in CSR]
    stored = read_npz(path, ["labels", *names])
    (*attributes, size), (*links, _) = ([stored[f"{part}_{key}"] for key in CSR] for part in ("attr", "adj"))
    x = csr_matrix(tuple(attributes), shape=tuple(size)).astype(np.float32).toarray()
    y, (_, columns, starts) = stored["labels"], links
    x[x > 0] = 1
    rows = np.repeat(np.arange(len(x)), np.diff(starts))
    edges = symmetrise_edges(np.stack([rows, columns]), len(x))
    return Dataset(name, "graph", x, y.astype(np.int64), classes=int(y.max()) + 1, edges=edges)


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

    with archive.open(f"arxiv/raw/{name}.csv.gz") as packed, gzip.open(packed) as plain:
        return np.ascontiguousarray(pd.read_csv(plain, header=None).to_numpy(dtype))


dataset("cora", "graph")(partial(planetoid, "cora", "Cora"))
dataset("citeseer", "graph")(partial(planetoid, "citeseer", "CiteSeer"))
dataset("pubmed", "graph")(partial(planetoid, "pubmed", "PubMed"))
dataset("amazon-computer", "graph")(partial(amazon, "amazon-computer", "Computers"))
dataset("amazon-photo", "graph")(partial(amazon, "amazon-photo", "Photo"))
