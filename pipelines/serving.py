"""One client's personalized model as a module that stands alone: loadable and servable without the federation."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedweave.data import Dataset, Partition, load_dataset, load_partition, normalise
from fedweave.errors import BadInput
from fedweave.models import build, gcn_norm

if TYPE_CHECKING:
    from fedweave.results import Run

LARGE = 2**26  # bytes of features above which an example is not worth normalising a whole data set


class Servable(NamedTuple):
    """A module in evaluation mode, an input for it, float32 [B, ...], and what it answers."""

    module: nn.Module
    example: np.ndarray
    answer: np.ndarray


class OnGraph(nn.Module):
    """A client's graph model with its own subgraph inside: features [V, F] in, scores [V, C] out."""

    def __init__(self, model: nn.Module, edges: Tensor, weight: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("edges", edges)
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of all nodes of the client's subgraph."""
        return self.model((x, self.edges, self.weight))


def servable(run: "Run", seed: int, client: int = 0, data: Path = Path("data")) -> Servable | None:
    """The model of `client` after repetition `seed`, with an example input.

    None where there is no such thing: a model that is more than the client's network (a memory of training rows), or
    data that are no longer there.
    """
    try:
        dataset = load_dataset(data / "features" / run.info["dataset"])
        partition = load_partition(data / "partitions" / run.task / "partition.npz")
    except BadInput:
        return None
    stored = torch.load(run.folder / f"models-{seed}.pt", weights_only=True)["models"]
    options = dict(run.info["spec"]["task"]["model"])
    example = _example(dataset, partition, client, run.info["spec"]["task"].get("normalize", "none"))
    outputs = dataset.classes or partition.layout["horizon"]
    model: nn.Module = build(options.pop("name"), _shape(dataset, partition), outputs, **options)
    if stored.keys() != model.state_dict().keys():
        return None
    # Not strict: torch's BatchNorm would add its batch counter to what is loaded, which the models here do without.
    model.load_state_dict({name: value[client] for name, value in stored.items()}, strict=False)
    if dataset.kind == "graph":
        nodes, pairs = partition.subgraphs[client]
        edges, weight = gcn_norm(torch.from_numpy(pairs), len(nodes))
        model = OnGraph(model, edges, weight)
    with torch.no_grad():
        return Servable(model.eval(), example, model(torch.from_numpy(example)).numpy())


def _shape(dataset: Dataset, partition: Partition) -> tuple[int, ...]:
    return (partition.layout["window"], 2) if dataset.kind == "series" else tuple(dataset.x.shape[1:])


def _example(dataset: Dataset, partition: Partition, client: int, scaling: Any) -> np.ndarray:
    """Inputs of one client as its model sees them."""
    if dataset.kind == "series":
        span = partition.layout["window"] + partition.layout["horizon"]
        return np.zeros((2, span, 2), dtype=np.float32)
    features = dataset.x if dataset.x.nbytes > LARGE else normalise(dataset, partition, scaling)
    rows = partition.nodes[client] if partition.nodes is not None else partition.train[client][:2]
    return np.asarray(features[rows], dtype=np.float32)
