"""Local training: every client trains its own model and never communicates.

Server keeps nothing; nothing is sent. The baseline that every personalized method has to beat.
"""

from dataclasses import dataclass

from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.engine.protocol import ClientState, Method, Server, Start, Update
from fedweave.engine.registry import method
from fedweave.tensors.trees import Params, Tree


@method("local")
@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """Each client on its own, for the same number of rounds and epochs as the other methods."""

    label = "Local"
    point = "pre"
    robust_part = ""

    @property
    def mixes_plainly(self) -> bool:
        return True  # nothing is mixed

    def uploads_in(self, round: int) -> bool:
        return False

    def init(self, start: Start) -> Server:
        return {}

    def join(self, model: Params) -> ClientState:
        return model

    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        return {}, {}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        fit = self.descend(client, data)
        return Update({}, fit.model, fit.model, fit.loss)

    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        return server

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return client
