"""Graphs with labelled nodes: Planetoid, Amazon co-purchase, ogbn-arxiv.

Sources: Yang et al. (2016); Shchur et al. (2018); Hu et al., Open Graph Benchmark (2020).
"""

import gzip
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.data.base import Dataset, symmetric
from fedweave.data.registry import dataset
from fedweave.data.sources.pickles import read_arrays
from fedweave.errors import BadInput
from fedweave.files import read
from fedweave.readers.arrays import read_npz
from fedweave.readers.sparse import checked_csr, dense

CSR = ("data", "indices", "indptr", "shape")
LARGEST = 1 << 28  # bytes of the arrays of an Amazon file; the larger one has 32 MB


def planetoid(name: str, folder: str, root: Path) -> Dataset:
    """Cora, CiteSeer or PubMed with all nodes and edges; features as published.

    Nodes that only `graph` names (15 of CiteSeer) have no features and the first class, as everywhere.

    Raises:
        BadInput: a damaged file, or files that do not fit each other.
    """
    raw, prefix = root / "Planetoid" / folder / "raw", f"ind.{folder.lower()}"
    parts = {part: read_arrays(raw / f"{prefix}.{part}") for part in ("tx", "allx", "ty", "ally", "graph")}
    try:
        order = np.array((raw / f"{prefix}.test.index").read_text(encoding="ascii").split(), dtype=np.int64)
        x = _stacked(dense(_sparse(parts["allx"])), dense(_sparse(parts["tx"])), order)
        y = _stacked(_matrix(parts["ally"]), _matrix(parts["ty"]), order).argmax(1)
        edges = symmetric(_pairs(parts["graph"], len(x)), len(x))
    except (TypeError, ValueError) as error:
        raise BadInput(f"{raw}: not the graph {folder} ({error}); run the download stage again") from error
    return Dataset(name, "graph", x, y, classes=int(y.max()) + 1, edges=edges)


def _sparse(value: Any) -> Any:
    if not hasattr(value, "toarray"):
        raise TypeError(f"features are a {type(value).__name__}, not a sparse matrix")
    return value


def _matrix(value: Any) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.ndim != 2 or value.dtype.kind not in "biuf" or not value.size:
        raise TypeError("labels are no matrix of numbers")
    return value


def _stacked(first: np.ndarray, rest: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Rows of `first`, then those of `rest` at the places that `order` names; places that it leaves out are zero."""
    start, end = len(first), int(order.max(initial=-1)) + 1
    if len(order) != len(rest) or first.shape[1] != rest.shape[1] or len(np.unique(order)) < len(order):
        raise ValueError(f"{len(order)} test nodes for {len(rest)} rows")
    if not start <= order.min(initial=start) or (end - start) > 2 * len(rest):
        raise ValueError(f"test nodes {order.min(initial=start)} to {end - 1} after {start} rows")
    out = np.zeros((max(start, end), first.shape[1]), first.dtype)
    out[:start], out[order] = first, rest
    return out


def _pairs(graph: Any, count: int) -> np.ndarray:
    """Edges [2, E] of a dictionary of neighbours."""
    if not isinstance(graph, dict) or not all(type(near) is list for near in graph.values()):
        raise TypeError("the graph is no dictionary of lists")
    flat = [node for near in graph.values() for node in near]
    if not all(type(node) is int and 0 <= node < count for node in (*graph, *flat)):
        raise ValueError(f"a node of the graph is none of {count}")
    rows = np.repeat(np.array(list(graph), np.int64), [len(near) for near in graph.values()])
    return np.stack([rows, np.array(flat, np.int64)])


def amazon(name: str, folder: str, root: Path) -> Dataset:
    """Amazon Computers or Photo; edges made undirected, attributes 0 or 1.

    Raises:
        BadInput: the file is damaged, or its matrices are not what they say.
    """
    path = root / "Amazon" / folder / "raw" / f"amazon_electronics_{folder.lower()}.npz"
    return read(path, partial(_amazon, name), "run the download stage again")


def _amazon(name: str, path: Path) -> Dataset:
    names = [f"{part}_{key}" for part in ("attr", "adj") for key in CSR]
    stored = read_npz(path, ["labels", *names], LARGEST)
    attributes, links = (checked_csr(*(stored[f"{part}_{key}"] for key in CSR)) for part in ("attr", "adj"))
    x, y = dense(attributes), stored["labels"]
    if y.shape != (len(x),) or y.dtype.kind not in "iu" or links.shape != (len(x), len(x)):
        raise ValueError(f"{len(x)} nodes, labels of shape {y.shape}, and links of shape {links.shape}")
    x[x > 0] = 1
    rows = np.repeat(np.arange(len(x)), np.diff(links.indptr))
    edges = symmetric(np.stack([rows, links.indices]), len(x))
    return Dataset(name, "graph", x, y.astype(np.int64), classes=int(y.max()) + 1, edges=edges)


@dataset("ogbn-arxiv")
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


dataset("cora")(partial(planetoid, "cora", "Cora"))
dataset("citeseer")(partial(planetoid, "citeseer", "CiteSeer"))
dataset("pubmed")(partial(planetoid, "pubmed", "PubMed"))
dataset("amazon-computer")(partial(amazon, "amazon-computer", "Computers"))
dataset("amazon-photo")(partial(amazon, "amazon-photo", "Photo"))
