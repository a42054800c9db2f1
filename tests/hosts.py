"""A federation in one process: nodes with their own files, which function calls reach."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import fedweave as fw
from fedweave.comparison.plan import Plan, plan
from fedweave.deployment import export
from fedweave.deployment.node.node import Node, open_node
from fedweave.deployment.server.checkpoint import Session
from fedweave.deployment.server.message_log import MessageLog
from fedweave.deployment.server.node_registry import NodeRegistry
from fedweave.deployment.server.server import Coordinator
from fedweave.deployment.wire import spec
from fedweave.deployment.wire.messages import Reply, Request
from fedweave.errors import BadInput
from fedweave.runs import repetition
from fedweave.runs.history import History

KEEP: Callable[[int, Request, Reply], Reply] = lambda node, request, reply: reply  # noqa: E731


def planned(method: Any, federation: fw.Federation, model: Any = None, evaluate: Any = None, **train: Any) -> Plan:
    """A comparison of one method, as `fw.compare` plans it."""
    settings = {"rounds": 2, "executor": "loop", "lr": 0.1, **train}
    return plan(
        federation,
        [method],
        model=model,
        head=None,
        seeds=[3],
        tune=0,
        metric=None,
        evaluate=evaluate,
        central=False,
        name="hosts",
        train=settings,
    )


@dataclass
class Calls:
    """A channel to nodes in this process.

    Attributes:
        nodes_: node -> the object that sends its replies.
        change: a function that may change a reply.
        offline: nodes that are not connected.
        sent: all messages.
    """

    nodes_: dict[int, Node]
    change: Callable[[int, Request, Reply], Reply] = KEEP
    offline: set[int] = field(default_factory=set)
    sent: list[tuple[int, Request, Reply | str]] = field(default_factory=list)

    def nodes(self) -> list[int]:
        return [node for node in self.nodes_ if node not in self.offline]

    def exchange(self, requests: Mapping[int, Request]) -> dict[int, Reply | str]:
        replies: dict[int, Reply | str] = {}
        for node, request in requests.items():
            try:
                replies[node] = self.change(node, request, self.nodes_[node].answer(request))
            except (BadInput, TimeoutError) as error:
                replies[node] = str(error)
            self.sent.append((node, request, replies[node]))
        return replies


@dataclass
class Hosts:
    """An exported run with a node for each client, in `folder`."""

    folder: Path
    planned: Plan
    secure: bool = False

    def __post_init__(self) -> None:
        run = self.planned.study.run(next(iter(self.planned.study.runs)))
        inputs = self.planned.inputs.dataset, self.planned.inputs.partition
        self.prepared = export.prepare(run, *inputs)
        if not (self.folder / "app").exists():
            export.export(run, *inputs, self.folder / "app", secure=self.secure)
            export.write_client_files(self.prepared.federation, self.folder / "data")
        self.spec = spec.read(self.folder / "app" / export.PACKAGE / spec.FILE)

    def node(self, client: int) -> Node:
        """The node of a client, restarted."""
        return open_node(self.spec, self.folder / "data" / f"client-{client}.pt", self.folder / "nodes" / str(client))

    def calls(self) -> Calls:
        """A channel to all nodes. The numbers of nodes do not show their clients."""
        return Calls({900 - client: self.node(client) for client in range(len(self.spec.clients))})

    def run(self, calls: Calls | None = None, until: int | None = None, **options: Any) -> Session:
        """Run the federation from its last checkpoint."""
        settings = {"wait": 0.0, "say": lambda line: None, **options}
        registry = NodeRegistry(self.spec, self.calls() if calls is None else calls, **settings)
        return Coordinator(self.spec, registry, self.folder / "server", lambda *_: None).run(until)

    def message_log(self) -> MessageLog:
        """The messages that the server has logged."""
        return MessageLog(self.folder / "server")

    def simulation(self) -> History:
        """The same run in the simulation."""
        return repetition.run_repetition(self.prepared, self.spec.seed)


def same(a: History, b: History) -> bool:
    """Whether scores, losses, bytes and dropped uploads have the same bits."""
    rows = [[[*row[:3], *row[4:]] for row in history.ledger] for history in (a, b)]
    scores = [{name: [np.array(v).tobytes() for v in values] for name, values in h.scores.items()} for h in (a, b)]
    return rows[0] == rows[1] and scores[0] == scores[1] and a.dropped == b.dropped and a.rounds == b.rounds


def rows_of(clients: int = 3, classes: int = 3) -> fw.Federation:
    """Clients with different numbers of rows."""
    draws = np.random.default_rng(0)
    owner = np.repeat(np.arange(clients), [24 + 9 * i for i in range(clients)])
    y = draws.integers(classes, size=len(owner))
    x = draws.normal(size=(len(owner), 4)) + y[:, None] * np.eye(4)[:1]
    return fw.Federation.from_arrays(x.astype(np.float32), y, client=owner.tolist(), name="toy", normalize="none")


def graphs_of() -> fw.Federation:
    """Clients with a small graph of their own."""
    draws = np.random.default_rng(1)
    graphs = []
    for i in range(3):
        nodes = 14 + 4 * i
        edges = np.stack([np.arange(nodes), (np.arange(nodes) + 1) % nodes])
        graphs.append((draws.normal(size=(nodes, 5)).astype(np.float32), edges, draws.integers(2, size=nodes)))
    return fw.Federation.from_graphs(graphs, name="rings")


def series_of() -> fw.Federation:
    """Clients with a series each, in steps of time."""
    steps = np.arange(60)
    tables = [pd.DataFrame({"who": f"s{i}", "time": steps, "value": np.sin(steps / (3 + i))}) for i in range(3)]
    return fw.Federation.from_pandas(pd.concat(tables), client="who", label="value", time="time", window=6, horizon=2)
