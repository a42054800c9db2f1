"""FedSheafHN (Liang et al., arXiv:2405.16056).

Server keeps an embedding x_i of every client's subgraph (the mean over nodes of the last graph convolution), sheaf diffusion
S_θ on the complete graph of clients, attention A and a hypernetwork H_φ: Ω̃ = H(A · S(X)). ω̃_i, the model without classifier,
goes down; the trained ω̃_i comes up, sometimes with a new x_i (2 P_gen + D). The client keeps classifier and its Adam moments.

Deviations:
1. Paper and public code (CarrieWFF/FedSheafHN) print the server's step as +Δω̃, which is ascent; the default descends. In the
   code trained and generated tensors share memory, so Δω̃ = 0: the control is `server_learning=False`. It selects on test data.
2. Local training before round 0 yields x_i only: the classifier starts from the common initial model.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave import keys, trees
from fedweave.collaboration import complete_graph
from fedweave.families import GeneratedModels
from fedweave.families.hypernetworks import applied
from fedweave.federation import ClientData
from fedweave.hyper.attention import padded
from fedweave.hyper.collaborative import CollaborativeHypernetwork, Encoder, Mixer
from fedweave.protocol import ClientState, Server, Start, Update, initialised
from fedweave.solvers import Adam, Grouped, Solver
from fedweave.task import NodeClassification
from fedweave.trees import Params, Tree


@dataclass(frozen=True, kw_only=True)
class FedSheafHN(GeneratedModels):
    """Models of graph clients from a hypernetwork behind sheaf diffusion.

    Attributes:
        lr_theta, decay_theta, lr_phi: Adam on the encoder S_θ (with weight decay), and on attention and hypernetwork.
        gnn, attention, depth, channels, width, dropout: see `CollaborativeHypernetwork`; a dropout mask lasts one round.
        embedding: "graph" or, as ablation, "onehot" vectors of the same length. server_learning: whether θ and φ are trained.
        enrol_epochs, refresh: epochs before the first embedding; rounds between embeddings, 0 for never.
    """

    task: NodeClassification
    lr_theta: float = 0.001
    decay_theta: float = 5e-4
    lr_phi: float = 0.01
    gnn: Encoder = "sheaf"
    attention: Mixer = "free"
    depth: int = 4
    channels: int = 20
    width: int = 128
    dropout: float = 0.3
    embedding: Literal["graph", "onehot"] = "graph"
    enrol_epochs: int = 10
    refresh: int = 5
    server_learning: bool = True

    label = "FedSheafHN"
    needs = frozenset({"subgraphs"})
    bounds: ClassVar[dict] = {
        **dict.fromkeys(("lr_theta", "decay_theta", "lr_phi", "enrol_epochs", "refresh"), (0, None)),
        **dict.fromkeys(("depth", "channels", "width"), (1, None)),
        "dropout": (0.0, 0.99),
    }

    @property
    def kept(self) -> tuple[str, ...]:
        return (*self.task.head, *self.task.buffers)

    @property
    def server_solver(self) -> Solver:
        on = float(self.server_learning)
        solvers = {"theta": Adam(lr=on * self.lr_theta, weight_decay=self.decay_theta), "phi": Adam(lr=on * self.lr_phi)}
        return Grouped(solvers=solvers, group=lambda name: "theta" if name.startswith("encoder.") else "phi")

    @property
    def enrolment_epochs(self) -> int:
        return self.enrol_epochs

    def enrol(self, model: Params, data: ClientData) -> Tree:
        return {"embedding": self.task.embedding(self.descend(model, data, epochs=slice(0, self.enrol_epochs)).model, data)}

    def begin(self, start: Start) -> tuple[Tree, Tree]:
        x = self._vectors(start.enrolled, 0)
        return initialised(lambda: self._network(*x.shape), start.seed, x.dtype), {"x": x, "key": keys.key(start.seed)}

    def generate(self, phi: Tree, fixed: Tree, ids: Tensor) -> Params:
        x = fixed["x"]
        return applied(lambda: self._network(*x.shape), phi, x, complete_graph(len(x)).to(x.device), ids, key=fixed["key"])

    def remember(self, fixed: Tree, ids: Tensor, start: Params, uploads: Tree) -> Tree:
        x = fixed["x"]
        return {"x": trees.put(x, ids, uploads["embedding"]) if "embedding" in uploads else x, "key": keys.fold(fixed["key"], 3)}

    def welcome(self, phi: Tree, fixed: Tree, enrolled: Tree, newcomers: int, start: Start) -> tuple[Tree, Tree]:
        free = {name: padded(value, newcomers) for name, value in phi.items() if name == "attention.matrix"}
        return {**phi, **free}, {**fixed, "x": torch.cat([fixed["x"], self._vectors(enrolled, len(fixed["x"]))])}

    def join(self, model: Params) -> ClientState:
        return {"model": trees.only(model, self.kept), "moments": self.solver.init(trees.only(model, self.task.head))}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        model = self.personalize(shared, own, client, data)
        solver = Grouped(solvers={"head": self.solver, "body": self.solver}, group=lambda n: "head" if n in self.task.head else "body")
        moments = {**solver.init(trees.only(model, self.task.params)), "head": client["moments"]}
        fit = self.descend(model, data, solver=solver, state=moments)
        due = self.embedding == "graph" and self.refresh and data.round and data.round % self.refresh == 0
        upload = {"model": trees.without(fit.model, self.kept), **({"embedding": self.task.embedding(fit.model, data)} if due else {})}
        return Update(upload, {"model": trees.only(fit.model, self.kept), "moments": fit.state["head"]}, fit.model, fit.loss)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return {**own, **client["model"]}

    def collaboration(self, server: Server) -> Tensor | None:
        return server["phi"]["attention.matrix"].expand(len(self.task.layers), -1, -1) if self.attention == "free" else None

    def _vectors(self, enrolled: Tree, first: int) -> Tensor:
        x: Tensor = enrolled["embedding"]
        return x if self.embedding == "graph" else torch.eye(first + len(x), x.shape[1]).to(x)[first:]

    def _network(self, clients: int, size: int) -> CollaborativeHypernetwork:
        return CollaborativeHypernetwork(
            clients,
            size,
            trees.without(self.task.shapes(), self.kept),
            gnn=self.gnn,
            depth=self.depth,
            attention=self.attention,
            channels=self.channels,
            width=self.width,
            dropout=self.dropout,
        )
