"""The control of a run's collaboration graph: from its setting to weights, all checked before training."""

from collections.abc import Sequence

import torch

from fedweave.data import Partition
from fedweave.engine.clients import Clients
from fedweave.engine.graph_truth import group_graph, similarity_graph
from fedweave.engine.protocol import Method
from fedweave.errors import BadInput
from fedweave.families.weaving import Weaving
from fedweave.graphs.controls import GraphControl, RecordedGraphs
from fedweave.graphs.setting import STORED, GraphSetting, parse
from fedweave.runs.graph_files import read_stored
from fedweave.study.spec import RunSpec


def build(run: RunSpec, method: Method, federation: Clients, names: Sequence[str]) -> GraphControl | None:
    """The control that the run's method asks for, or None; `names` are those of the clients.

    Raises:
        BadInput: a file or run is missing or does not fit, or there is no true graph for an oracle.
    """
    if not isinstance(method, Weaving):
        return None
    where = f"runs.{run.key}.graph: {method.graph!r}"
    setting = parse(method.graph, method.own_graphs, f"runs.{run.key}.graph")
    if setting.kind in method.own_graphs:
        return None
    if setting.kind in ("uniform", "self", "shuffled"):
        return GraphControl(setting.kind)
    if setting.kind == "oracle":
        return GraphControl(
            "stored", {None: RecordedGraphs((0,), _build_oracle_graph(method, federation, where)[None, None])}
        )
    return GraphControl("stored", read_stored(run, setting, federation.clients, len(method.task.layers), where, names))


def check_given_graph(run: RunSpec, partition: Partition, where: str) -> None:
    """Refuse a given graph that does not fit the clients of `partition`. A run to replay may not be trained yet."""
    if str(run.options.get("graph", "")).startswith("given:"):
        check_stored_graph(run, where, partition.client_names)


def check_stored_graph(run: RunSpec, where: str, names: Sequence[str] = ()) -> None:
    """Refuse a given or replayed graph that the run cannot read, before there are any models.

    Args:
        names: of the clients; () before there are data, and then they are not checked, and nothing is where the number
            of clients is that of the data.
    """
    kind, _, source = str(run.options.get("graph", "")).partition(":")
    clients = len(names) or run.task.partition.get("clients")
    if kind in STORED and source and clients:
        setting = GraphSetting(kind, source)
        read_stored(run, setting, clients, None, f"{where}.graph: {run.options['graph']!r}", names)


def _build_oracle_graph(method: Method, federation: Clients, where: str) -> torch.Tensor:
    """Equal weights on the true group, else weights that fall with the divergence of the clients' labels."""
    if federation.group is not None:
        return group_graph(federation.group.cpu().numpy())
    if method.task.targets_are != "classes" or federation.divergence is None:
        raise BadInput(where, "the task has neither groups of clients nor labels; use uniform, self or shuffled")
    return similarity_graph(federation.divergence.cpu().numpy())
