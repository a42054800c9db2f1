"""The summary of a federation: one line, and a table of its clients."""

from typing import TYPE_CHECKING

import numpy as np

from fedweave.data.partitions.splits import PARTS
from fedweave.errors import format_count
from fedweave.own_data import features

if TYPE_CHECKING:
    import pandas as pd

    from fedweave.own_data.federation import Federation

MIN_TEST_ROWS = 10  # test rows of a client below which its score is hardly more than chance


def summary(federation: "Federation") -> str:
    """Clients, rows and targets."""
    dataset = federation.dataset
    size = " x ".join(map(str, federation.shape))
    rows = "nodes" if dataset.kind == "graph" else "windows" if dataset.channels else "rows"
    count = dataset.x.size if dataset.kind == "series" else len(dataset.x)
    unit = "value" if size == "1" else "values"
    content = f", {format_count(dataset.classes, 'class')}" if dataset.classes else ""
    if dataset.targets is not None:
        horizon = dataset.outputs // len(dataset.channels or (0,))
        content = f", forecasts of {format_count(horizon, 'step')}" if dataset.channels else ", numbers"
    clients = format_count(len(federation), "client")
    return f"Federation {federation.name!r}: {clients}, {count} {rows} of {size} {unit}{content}"


def scaling(federation: "Federation") -> list[str]:
    """How features are scaled, one line each."""
    note = federation.dataset.note or (f"scaling: {federation.normalize}" if federation.preprocessing is None else "")
    return [*filter(None, [features.state_scale(federation.dataset, federation.partition), note])]


def table(federation: "Federation") -> "pd.DataFrame":
    """See `Federation.table`."""
    import pandas as pd

    partition, dataset = federation.partition, federation.dataset
    frame = pd.DataFrame({"client": federation.names})
    for part in PARTS:
        frame[part] = [len(rows) for rows in getattr(partition, part)]
    if dataset.y is not None:
        labels = [_labels(federation, i, "train") for i in range(len(federation))]
        counts = [np.bincount(values, minlength=dataset.classes) for values in labels]
        frame["classes"] = [int((count > 0).sum()) for count in counts]
        frame["most_frequent"] = [float(count.max() / count.sum()) for count in counts]
    if dataset.targets is not None:
        targets = [dataset.targets[rows] for rows in partition.train]
        frame["mean"] = [float(values.mean()) for values in targets]
        frame["std"] = [float(values.std()) for values in targets]
    if partition.group is not None:
        titles = partition.group_names
        frame["group"] = [titles[g] if titles else int(g) for g in partition.group]
    if partition.units:
        frame["unit"] = partition.units
    return frame


def small_clients(federation: "Federation") -> list[str]:
    """See `Federation.small_clients`."""
    test_rows = zip(federation.names, federation.partition.test, strict=True)
    small = [name for name, rows in test_rows if len(rows) < MIN_TEST_ROWS]
    examples = ", ".join(small[:3]) + (", ..." if len(small) > 3 else "")
    count = f"{len(small)} of {format_count(len(federation), 'client')}"
    verb = "has" if len(small) == 1 else "have"
    text = f"{count} {verb} fewer than {MIN_TEST_ROWS} test rows ({examples}); their scores say little"
    return [text] if small else []


def majority(federation: "Federation") -> np.ndarray | None:
    """See `Federation.majority`."""
    partition = federation.partition
    if federation.dataset.y is None or partition.test_weight is not None or not any(map(len, partition.test)):
        return None
    guesses = [np.bincount(_labels(federation, i, "train")).argmax() for i in range(len(federation))]
    hits = [_labels(federation, i, "test") == guess for i, guess in enumerate(guesses)]
    return np.array([100.0 * float(hit.mean()) if len(hit) else np.nan for hit in hits])


def _labels(federation: "Federation", client: int, part: str) -> np.ndarray:
    rows, nodes = getattr(federation.partition, part)[client], federation.partition.nodes
    return federation.dataset.labels[rows if nodes is None else nodes[client][rows]]
