"""A finished run's models outside of the federation, which predict as any of its clients would."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedweave import exported_model
from fedweave.client.data import ClientData
from fedweave.data import Dataset, Partition
from fedweave.engine.protocol import Method
from fedweave.errors import BadInput
from fedweave.files.arrays import read_npz
from fedweave.files.atomic import atomic_path, load_tensors, read
from fedweave.models import ClientModel
from fedweave.models.gcn import gcn_norm
from fedweave.runs import tasks
from fedweave.study import objects
from fedweave.study.config import construct
from fedweave.study.schema import EvaluateSpec, TaskSpec, TrainSpec
from fedweave.study.spec import RunSpec
from fedweave.tensors import trees
from fedweave.tensors.trees import Tree

MODELS, GRAPHS = "models-*.pt", "graphs.npz"
# Clients' models take turns in one module, so threads of a server take turns, too. PyTorch itself uses several cores.
TURN = Lock()


@dataclass(frozen=True)
class DeployedModels:
    """The models of all clients and repetitions, with what they need to predict.

    Attributes:
        method: knows how its models predict.
        models: seed -> models [K, ...] of the evaluated clients.
        graphs: (edges [2, E], weights [E]) of every subgraph client; empty for other kinds of data.
        span: time steps of an input of a series; 0 for other kinds of data.
        clients: [K] the clients that `models` are of; None: of all.
    """

    method: Method
    models: dict[int, Tree]
    graphs: list[tuple[Tensor, Tensor]]
    span: int
    clients: tuple[int, ...] | None = None

    def answer(self, x: np.ndarray, client: int = 0, seed: int | None = None) -> np.ndarray:
        """The prediction of the model of `client` for inputs that are scaled as its task scales them.

        Args:
            x: images [B, c, h, w]; features of all nodes of the client's subgraph [V, F]; windows [B, T, 2] of values
                and hours (the values of the horizon are ignored).
            seed: which repetition; default: the first.

        Returns:
            scores [B, C] or [V, C], or forecasts [B, horizon], or numbers as the models learn them.

        Raises:
            BadInput: an unknown client or seed, or a value that the model looks up in vain.
        """
        seed = self.select_seed(seed)
        codes = self.method.task.template.codes
        if codes and (problem := exported_model.find_no_code(x, codes)):
            raise BadInput("x", f"the model {problem}")
        inputs = torch.from_numpy(np.asarray(x, dtype=np.float32))
        try:
            with torch.no_grad(), TURN:
                return self.outputs(self.select_model(seed, client), inputs, client).numpy()
        except IndexError as error:  # of an embedding
            raise BadInput(
                "x",
                f"the model has no entry for a value of these rows ({error}), such as a code that an embedding was "
                "not made for; give codes as in training",
            ) from error

    def select_model(self, seed: int, client: int) -> Tree:
        """The model of `client` in one repetition.

        Raises:
            BadInput: there is no such client, or it was not evaluated, so that its model was not stored.
        """
        count = len(tree_leaves(self.models[seed])[0])
        if self.clients is None and not 0 <= client < count:
            raise BadInput("client", f"{client} is not one of 0 .. {count - 1}")
        if self.clients is not None and client not in self.clients[:count]:
            raise BadInput("client", f"{client} was not evaluated, and only the models of {count} others are stored")
        return trees.at(self.models[seed], client if self.clients is None else self.clients.index(client))

    def select_seed(self, seed: int | None) -> int:
        """The seed, or the first one for None.

        Raises:
            BadInput: it was not trained.
        """
        seed = min(self.models) if seed is None else seed
        if seed not in self.models:
            raise BadInput("seed", f"{seed} was not trained; choices: {', '.join(map(str, self.models))}")
        return seed

    def outputs(self, model: Tree, x: Tensor, client: int) -> Tensor:
        """The outputs of one model for inputs as those of `answer`."""
        arrays, rows = self._arrays(x, client)
        none = rows[:0]
        data = ClientData(arrays, [], none, none, none, torch.tensor(0), 0, torch.tensor(0.0), False)
        return self.method.predict(model, data, rows)

    def _arrays(self, x: Tensor, client: int) -> tuple[dict[str, Tensor], Tensor]:
        """The inputs as a client's data, and its rows."""
        rows = torch.arange(x.shape[0])  # `len` would fix the number of rows of an exported program
        if self.span:
            return {"x": x[:, :, 0].reshape(1, -1), "time": x[:, :, 1].reshape(-1)}, rows * self.span
        arrays = {"x": x, "y": torch.zeros_like(rows)}
        if self.graphs:
            edges, weight = self.graphs[client]
            arrays |= {"edges": edges, "weight": weight, "nodes": torch.ones(x.shape[0], dtype=torch.bool)}
        return arrays, rows


def write_graphs(path: Path, partition: Partition) -> None:
    """Write the edges of every client's subgraph."""
    pairs = [pairs for _, pairs in partition.subgraphs]
    sizes = np.array([len(nodes) for nodes, _ in partition.subgraphs])
    ends = np.cumsum([p.shape[1] for p in pairs])
    with atomic_path(path) as temporary:
        np.savez_compressed(temporary, sizes=sizes, ends=ends, edges=np.concatenate(pairs, 1))


def deploy(
    info: dict[str, Any],
    facts: dict[str, Any],
    models: Path,
    graphs: list[tuple[Tensor, Tensor]],
    model: Callable[[], ClientModel] | None = None,
) -> DeployedModels:
    """The models of a run with what they need to predict.

    Args:
        info: of run.json.
        facts: name, kind, shape and classes of the data set, and the layout of a series.
        models: the folder of models-SEED.pt.
        graphs: of subgraph clients, as `normalise_graphs`; empty for other kinds.
        model: makes client models, where the run's have no name.

    Raises:
        BadInput: the run's settings no longer fit the code, or its models are damaged.
    """
    run, (dataset, partition) = parse_run(info), _build_placeholders(facts)
    method = objects.build_method(run, tasks.build_task(run, dataset, partition, model=model))
    models_by_seed = {
        int(path.stem.removeprefix("models-")): read_stored(path)["models"] for path in models.glob(MODELS)
    }
    span = sum(partition.layout.get(k, 0) for k in SPAN)
    clients = tuple(map(int, info["evaluated"])) if info.get("evaluated") else None
    return DeployedModels(method, dict(sorted(models_by_seed.items())), graphs, span, clients)


def read_stored(file: Path) -> Any:
    """The tensors of a file in the folder of a finished run.

    Raises:
        BadInput: it is damaged; training again leaves out finished runs, so that the folder has to go.
    """
    return read(file, load_tensors, f"remove the folder {file.parent}, and train again")


SPAN = ("window", "horizon")


def parse_run(info: dict[str, Any]) -> RunSpec:
    """The run that run.json describes."""
    task, method = dict(info["spec"]["task"]), dict(info["spec"]["method"])
    return RunSpec(
        info["study"],
        info["run"],
        info["task"],
        construct(TaskSpec, {**task, "train": {}, "metric": None}, "task"),
        method.pop("name"),
        method,
        construct(TrainSpec, info["spec"]["train"], "train"),
        construct(EvaluateSpec, info["spec"]["evaluate"], "evaluate"),
        tuple(info["seeds"]),
        info.get("margins"),
    )


def _build_placeholders(facts: dict[str, Any]) -> tuple[Dataset, Partition]:
    """A data set of the same shapes with one blank row in it, and its layout."""
    kind, shape = facts["kind"], tuple(facts["shape"])
    layout = {name: facts[name] for name in SPAN if name in facts}
    if kind == "series":
        blank = Dataset(facts["name"], kind, np.zeros((1, 1), np.float32), None, 0, time=np.zeros(1, np.float32))
    else:
        edges = np.zeros((2, 0), np.int64) if kind == "graph" else None
        empty = np.zeros((1, *shape), np.float32)
        width = len(facts["offset"][0]) if facts.get("offset") else 0
        blank = Dataset(
            facts["name"],
            kind,
            empty,
            None if width else np.zeros(1, np.int64),
            facts["classes"],
            edges=edges,
            categories=tuple(facts.get("categories", ())),
            channels=tuple(facts.get("channels", ())),
            targets=np.zeros((1, width), np.float32) if width else None,
        )
    return blank, Partition((), (), (), layout=layout)


def read_graphs(path: Path) -> list[tuple[Tensor, Tensor]]:
    """The graphs that `write_graphs` has written, as `normalise_graphs` returns them; empty if there is no file."""
    if not path.is_file():
        return []
    stored = read_npz(path)
    return normalise_graphs(np.split(stored["edges"], stored["ends"][:-1], axis=1), stored["sizes"])


def normalise_graphs(edges: Iterable[np.ndarray], sizes: Iterable[int]) -> list[tuple[Tensor, Tensor]]:
    """Edges [3, E + V] with self loops, and their weights [E + V], of every client's subgraph of V nodes."""
    return [gcn_norm(torch.from_numpy(np.array(pairs)), int(size)) for pairs, size in zip(edges, sizes, strict=True)]
