"""Records of the engine: settings, the state between rounds, reports, and the last downloads."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedweave.engine import server_hooks
from fedweave.engine.protocol import ClientState, Method, Server
from fedweave.engine.uploads import PLAIN, UploadPath
from fedweave.tensors.storage import Storage
from fedweave.tensors.trees import Tree


@dataclass(frozen=True)
class Settings:
    """Settings of a run, without its method and data.

    Attributes:
        rounds: T.
        seed: of participation, minibatches, dropout and initialisation.
        participation: fraction (≤ 1) or number (> 1) of clients a round.
        every: rounds between evaluations; the last round is always evaluated.
        newcomers: how many clients (the last ones) are absent at first.
        join_round: the round before which they join; 0 means nobody is absent.
        freeze: the server learns nothing more once they have joined.
        upload_path: what happens to uploads on their way.
        edges: edges of the collaboration graph per client whose value is measured after the last round.
        storage: where the tables of all clients are stored; None: in memory.
    """

    rounds: int
    seed: int = 0
    participation: float = 1.0
    every: int = 1
    newcomers: int = 0
    join_round: int = 0
    freeze: bool = False
    upload_path: UploadPath = PLAIN
    edges: int = 0
    storage: Storage | None = None


class State(NamedTuple):
    """Everything that a run needs to continue.

    Attributes:
        round: number of rounds so far.
        server: the server's state.
        clients: the clients' private states [N, ...].
        optimizers: states [N, ...] of the clients' optimisers by phase of local training; empty unless they are kept.
    """

    round: int
    server: Server
    clients: ClientState
    optimizers: Tree = {}  # noqa: RUF012 - a tuple's field, never written to


class EdgeValue(NamedTuple):
    """The value of one source for one client: a row of edges.csv.

    Attributes:
        round: number of rounds so far.
        learner, source: clients.
        weight: of the edge, the mean over layers.
        gain: validation loss without the source minus that with it; positive where it helps.
    """

    round: int
    learner: int
    source: int
    weight: float
    gain: float


class Report(NamedTuple):
    """The result of one round.

    Attributes:
        round: number of rounds so far, from 1.
        bytes_down, bytes_up: traffic of this round over all participants.
        seconds: time of the round, without evaluation and without downloads that the last evaluation has made already.
        loss: mean training loss of the participants whose upload was accepted; NaN where there were none.
        dropped: identities of the participants whose upload was not accepted: not finite, or of a wrong shape.
        scores: {"pre" | "post": {"val" | "test": metric per evaluated client [K]}}; empty between evaluations.
        models: {"pre" | "post": their personalized models [K, ...]}; empty between evaluations.
        diagnostics: name -> number, about the server after the round; empty between evaluations.
        state: the state after the round.
        method: the method of this stage.
        edges: values of sampled edges, after the last round of a run that asks for them.
        portrait: the method's vectors of the clients [N, D]; None between evaluations and if it has none.
        curves: (round, name, value) of code from elsewhere, which reports all its rounds at once.
    """

    round: int
    bytes_down: int
    bytes_up: int
    seconds: float
    loss: float
    dropped: tuple[int, ...]
    scores: dict[str, dict[str, Tensor]]
    models: dict[str, Tree]
    diagnostics: dict[str, float]
    state: State
    method: Method
    edges: tuple[EdgeValue, ...] = ()
    portrait: Tensor | None = None
    curves: tuple[tuple[int, str, float], ...] = ()


class DownloadCache:
    """The last downloads: an evaluation and the round after it need the same ones, so they are computed once."""

    def __init__(self) -> None:
        self.arguments: tuple[Method, Server, Tensor] | None = None
        self.downloads: tuple[Tree, Tree] = ({}, {})

    def __call__(self, method: Method, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        """`method.download(server, ids)`."""
        if (
            self.arguments is None
            or method is not self.arguments[0]
            or server is not self.arguments[1]
            or not torch.equal(ids, self.arguments[2])
        ):
            self.arguments, self.downloads = None, ({}, {})  # so that two downloads are never in memory at once
            self.downloads = server_hooks.download(method, server, ids)
            self.arguments = (method, server, ids)
        return self.downloads
