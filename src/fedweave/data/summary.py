"""Summary of a partition: numbers, a table, a picture. Legend: N clients, C classes, E edges."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.data.base import Dataset, Partition, Rows
from fedweave.data.partitions.splits import PARTS
from fedweave.files.atomic import atomic_path, write_atomic
from fedweave.tensors.random_streams import stream

MAX_CLIENTS = 3000  # of which all pairs are compared: 4.5 million


def summary(dataset: Dataset, partition: Partition) -> dict[str, Any]:
    """Sizes of the parts, label histogram [N, C], heterogeneity, edges and clustering, as plain numbers."""
    result: dict[str, Any] = {"dataset": dataset.name, "kind": dataset.kind, "clients": partition.clients}
    result["sizes"] = {part: _size_statistics([len(r) for r in getattr(partition, part)]) for part in PARTS}
    if dataset.y is not None:
        histogram = label_histogram(dataset, partition)
        result["labels"] = histogram.tolist()
        result["heterogeneity"] = heterogeneity(histogram)
    if partition.nodes is not None:
        both = partition.subgraphs
        result["nodes"] = _size_statistics([len(nodes) for nodes, _ in both])
        result["edges"] = _size_statistics([edges.shape[1] for _, edges in both])
        result["clustering"] = float(np.mean([clustering_coefficient(edges, len(nodes)) for nodes, edges in both]))
    if partition.relation is not None:
        result["relation"] = partition.relation.shape[1]
    if partition.group is not None:
        result["groups"] = len(np.unique(partition.group))
    if partition.units:
        result["units"] = len({*partition.units})
    return result | ({"layout": partition.layout} if partition.layout else {}) | {"note": dataset.note}


def label_histogram(dataset: Dataset, partition: Partition) -> np.ndarray:
    """Label histogram [N, C] of the rows of each client; a test set that all clients share is not counted."""
    rows = own_rows(partition) if partition.nodes is None else partition.nodes
    return np.stack([np.bincount(dataset.labels[r], minlength=dataset.classes) for r in rows])


def own_rows(partition: Partition) -> Rows:
    """All rows of each client, without a test set that all clients share."""
    parts = PARTS if partition.test_weight is None else PARTS[:2]
    return tuple(np.concatenate(rows) for rows in zip(*(getattr(partition, part) for part in parts), strict=True))


def heterogeneity(histogram: np.ndarray) -> float:
    """Median over pairs of rows of `histogram` [N, C] of the Jensen-Shannon distance (root, natural log).

    Source: the statistics of FED-PUB (Baek et al., ICML 2023). 0 for a single client. Of more than
    `MAX_CLIENTS` clients, only so many are compared; a fixed seed draws them.
    """
    if len(histogram) > MAX_CLIENTS:
        histogram = histogram[stream(0, len(histogram)).permutation(len(histogram))[:MAX_CLIENTS]]
    share = histogram / histogram.sum(1, keepdims=True)
    first, second = np.triu_indices(len(share), 1)
    if not len(first):
        return 0.0
    p, q = share[first], share[second]
    divergence = (_relative_entropy(p, (p + q) / 2) + _relative_entropy(q, (p + q) / 2)) / 2
    return float(np.median(np.sqrt(np.maximum(divergence, 0.0))))


def _relative_entropy(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Kullback-Leibler divergence of the rows of p from those of q, in nats."""
    ratio = np.divide(p, q, out=np.ones_like(p), where=p > 0)
    return (p * np.log(ratio)).sum(1)


def clustering_coefficient(edges: np.ndarray, count: int) -> float:
    """Mean local clustering coefficient of `edges` [2, E] (both directions); 0 for nodes below degree 2."""
    from scipy.sparse import csr_matrix

    graph = csr_matrix((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(count, count))
    degree = np.asarray(graph.sum(1)).ravel()
    closed = np.asarray((graph @ graph).multiply(graph).sum(1)).ravel()
    return float(np.mean(closed / np.maximum(degree * (degree - 1), 1.0)))


def describe(folder: Path | str, dataset: Dataset, partition: Partition) -> dict[str, Any]:
    """Write summary.json, labels.csv and labels.png to `folder`; returns the summary."""
    result = summary(dataset, partition)
    text = re.sub(r"\[[\d,\s]+\]", lambda row: re.sub(r"\s+", "", row[0]), json.dumps(result, indent=2))
    write_atomic(Path(folder) / "summary.json", text + "\n")  # a row of the histogram stays on one line
    write_atomic(Path(folder) / "labels.csv", _table(dataset, partition, result))
    with atomic_path(Path(folder) / "labels.png") as path:
        _draw(path, dataset, partition, result)
    return result


def _size_statistics(sizes: list[int]) -> dict[str, float]:
    return {
        "min": int(min(sizes)),
        "median": float(np.median(sizes)),
        "max": int(max(sizes)),
        "mean": float(np.mean(sizes)),
    }


def _table(dataset: Dataset, partition: Partition, result: dict[str, Any]) -> str:
    """A CSV table with a line per client: name or number, group, unit, sizes of the parts, and rows of each class."""
    import pandas as pd

    columns: dict[str, Any] = {"client": partition.names or range(partition.clients)}
    if partition.group is not None:
        columns["group"] = (
            [partition.group_names[g] for g in partition.group] if partition.group_names else partition.group
        )
    if partition.units:
        columns["unit"] = partition.units
    columns |= {part: [len(rows) for rows in getattr(partition, part)] for part in PARTS}
    names = dataset.class_names or range(dataset.classes)
    columns |= {
        f"class_{c}": column for c, column in zip(names, zip(*result.get("labels", ()), strict=True), strict=False)
    }
    return pd.DataFrame(columns).to_csv(index=False, lineterminator="\n")


def _draw(path: Path, dataset: Dataset, partition: Partition, result: dict[str, Any]) -> None:
    """Clients by classes as a heat map; for series and numbers the range of each client's values."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(min(12.0, 4.5 + 0.1 * partition.clients), 3.6), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if "labels" in result:
        image = axes.imshow(np.array(result["labels"]).T, aspect="auto", cmap="Blues", interpolation="nearest")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="client", ylabel="class")
        axes.set_title(f"{dataset.name}: Jensen-Shannon distance {result['heterogeneity']:.2f} in the median")
        figure.colorbar(image, ax=axes, label="rows")
    else:
        targets = dataset.targets  # of each client its series, or its targets
        values = dataset.x if targets is None else [targets[rows] for rows in own_rows(partition)]
        quantiles = np.stack([np.quantile(own, [0.25, 0.5, 0.75]) for own in values], axis=1)
        low, middle, high = quantiles[:, np.argsort(quantiles[1], kind="stable")]
        axes.fill_between(range(len(middle)), low, high, alpha=0.3, label="middle half")
        axes.plot(middle, label="median")
        axes.set(xlabel="clients in the order of their medians", ylabel="value", title=dataset.name)
        axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, format="png", metadata={"Software": None})
