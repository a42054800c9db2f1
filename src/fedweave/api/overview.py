"""What a federation says of itself: one line, and a table of its clients."""

from typing import TYPE_CHECKING

import numpy as np

from fedweave.data.partitions.splits import PARTS

if TYPE_CHECKING:
    import pandas as pd

    from fedweave.api.federation import Federation

SMALL = 10  # test rows of a client below which its score is hardly more than chance


def summary(made: "Federation") -> str:
    """Clients, rows and targets."""
    dataset = made.dataset
    size = " x ".join(map(str, made.shape))
    rows = "nodes" if dataset.kind == "graph" else "windows" if dataset.channels else "rows"
    count = dataset.x.size if dataset.kind == "series" else len(dataset.x)
    unit = "value" if size == "1" else "values"
    content = f", {dataset.classes} classes" if dataset.classes else ""
    if dataset.targets is not None:
        content = (
            f", forecasts of {dataset.outputs // len(dataset.channels)} steps" if dataset.channels else ", numbers"
        )
    return f"Federation {made.name!r}: {len(made)} clients, {count} {rows} of {size} {unit}{content}"


def table(made: "Federation") -> "pd.DataFrame":
    """See `Federation.table`."""
    import pandas as pd

    partition, dataset = made.partition, made.dataset
    frame = pd.DataFrame({"client": made.names})
    for part in PARTS:
        frame[part] = [len(held) for held in getattr(partition, part)]
    if dataset.y is not None:
        counts = [np.bincount(_labels(made, i, "train"), minlength=dataset.classes) for i in range(len(made))]
        frame["classes"] = [int((count > 0).sum()) for count in counts]
        frame["most_frequent"] = [float(count.max() / count.sum()) for count in counts]
    if dataset.targets is not None:
        trained = [dataset.targets[rows] for rows in partition.train]
        frame["mean"], frame["std"] = [float(own.mean()) for own in trained], [float(own.std()) for own in trained]
    if partition.group is not None:
        titles = partition.group_names
        frame["group"] = [titles[g] if titles else int(g) for g in partition.group]
    if partition.units:
        frame["unit"] = partition.units
    return frame


def small_clients(made: "Federation") -> list[str]:
    """See `Federation.small_clients`."""
    few = [name for name, held in zip(made.names, made.partition.test, strict=True) if len(held) < SMALL]
    examples = ", ".join(few[:3]) + (", ..." if len(few) > 3 else "")
    text = f"{len(few)} of {len(made)} clients have fewer than {SMALL} test rows ({examples}); their scores say little"
    return [text] if few else []


def majority(made: "Federation") -> np.ndarray | None:
    """See `Federation.majority`."""
    if made.dataset.y is None or made.partition.test_weight is not None or not any(map(len, made.partition.test)):
        return None
    guesses = [np.bincount(_labels(made, i, "train")).argmax() for i in range(len(made))]
    return np.array([100.0 * float((_labels(made, i, "test") == g).mean()) for i, g in enumerate(guesses)])


def _labels(made: "Federation", client: int, part: str) -> np.ndarray:
    held, nodes = getattr(made.partition, part)[client], made.partition.nodes
    return made.dataset.labels[held if nodes is None else nodes[client][held]]
