"""FedSheafHN (Liang et al., arXiv:2405.16056).

Server keeps an embedding x_i of every client's subgraph (the mean over nodes of the last graph convolution), sheaf
diffusion S_θ on the complete graph of clients, attention A and a hypernetwork H_φ: Ω̃ = H(A · S(X)). ω̃_i, the model
without classifier, goes down; the trained ω̃_i comes up, sometimes with a new x_i (2 P_gen + D). The client keeps
classifier and its Adam moments.

Deviations:
1. Paper and public code (CarrieWFF/FedSheafHN) print the server's step as +Δω̃, which is ascent; the default descends.
2. Local training before round 0 yields x_i only, and the classifier starts from the common initial model. In the code
   the rounds continue in that model and with its optimiser: `continued`.
3. What the code computes in effect is local training (see the page): `generated="biases"` without server learning, with
   `continued` and optimisers that clients keep. The code also selects on test data.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedweave.client.solvers import Adam, GroupedSolver, Solver
from fedweave.engine.protocol import Server, Start, init_parameters
from fedweave.engine.registry import method
from fedweave.families.embeddings import EmbeddedClient, unit_vectors
from fedweave.families.flat_heads import FlatHead
from fedweave.families.networks import Architecture, architecture
from fedweave.families.networks.attention import add_newcomers
from fedweave.families.networks.collaborative import CollaborativeHypernetwork, Encoder, Mixer
from fedweave.families.weaving import Weaving, all_ids
from fedweave.graphs.weights import complete_graph, smoothness
from fedweave.settings import Choices, Dropout, IntegerSpace, LogSpace, Rate, Size
from fedweave.tensors import dropout_keys, trees
from fedweave.tensors.trees import Params, Tree


@method("fedsheafhn")
@dataclass(frozen=True, kw_only=True)
class FedSheafHN(Weaving, EmbeddedClient, FlatHead):
    """Models of graph clients from a hypernetwork behind sheaf diffusion."""

    lr_theta: Annotated[Rate, LogSpace(0.001, 0.02), "learning rate of Adam on the encoder S_θ"] = 0.001
    decay_theta: Annotated[Rate, "weight decay of the encoder"] = 5e-4
    lr_phi: Annotated[Rate, Choices((0.001, 0.01)), "learning rate of Adam on attention and hypernetwork"] = 0.01
    gnn: Annotated[Encoder, "kind of the encoder's layers"] = "sheaf"
    attention: Annotated[Mixer, "attention over the clients; dot is softmax(QKᵀ/√D)V"] = "free"
    stalk: Annotated[Size, IntegerSpace(1, 5), "d, dimension of every client's stalk in a sheaf"] = 1
    depth: Annotated[Size, Choices((2, 4)), "layers of the encoder"] = 4
    channels: Annotated[Size, "channels of the encoder"] = 20
    width: Annotated[Size, "hidden width of the hypernetwork"] = 128
    dropout: Annotated[Dropout, "dropout of the encoder; a mask lasts one round"] = 0.3
    embedding: Annotated[Literal["graph", "onehot"], "what the server reads; onehot is an ablation"] = "graph"
    length: Annotated[Literal["free", "fixed"], "of a new embedding; fixed: as long as the first"] = "free"
    server_learning: Annotated[bool, "train θ and φ; false: only they stay fixed"] = True

    label = "FedSheafHN"

    @property
    def server_solver(self) -> Solver:
        factor = float(self.server_learning)
        solvers = {
            "theta": Adam(lr=factor * self.lr_theta, weight_decay=self.decay_theta),
            "phi": Adam(lr=factor * self.lr_phi),
        }
        return GroupedSolver(solvers=solvers, group=lambda name: "theta" if name.startswith("encoder.") else "phi")

    def begin(self, start: Start) -> tuple[Tree, Tree]:
        x = self._vectors(start.enrolled["embedding"], 0, start.clients)
        fixed = {"x": x, "key": dropout_keys.key(start.seed)}
        return init_parameters(self._network(*x.shape), start.seed, x.dtype), fixed

    def run_network(self, phi: Tree, fixed: Tree, ids: Tensor, method: Literal["forward", "hidden_features"]) -> Any:
        control = {} if self.control is None else {"control": lambda a: self.controlled_row(a, all_ids(a))}
        return self._run(phi, fixed, method, ids, key=fixed["key"], **control)

    def remember(self, fixed: Tree, ids: Tensor, start: Params, uploads: Tree) -> Tree:
        key = dropout_keys.fold(fixed["key"], 3)
        if self.embedding != "graph" or "embedding" not in uploads:
            return {**fixed, "key": key}
        new = uploads["embedding"]
        if self.length == "fixed":
            new = F.normalize(new, dim=1) * fixed["x"][ids].norm(dim=1, keepdim=True)
        return {"x": trees.put(fixed["x"], ids, new), "key": key}

    def add_rows(self, phi: Tree, fixed: Tree, enrolled: Tree, newcomers: int, start: Start) -> tuple[Tree, Tree]:
        attention = {name: add_newcomers(value, newcomers) for name, value in phi.items() if name == "attention.matrix"}
        return {**phi, **attention}, {
            **fixed,
            "x": torch.cat([fixed["x"], self._vectors(enrolled["embedding"], *fixed["x"].shape)]),
        }

    def collaboration(self, server: Server) -> Tensor | None:
        if self.attention == "none" and self.control is None:
            return None
        mixing = self._run(server["phi"], server["fixed"], "mixing_matrix")
        return self.controlled_row(mixing, all_ids(mixing)).expand(len(self.task.layers), -1, -1)

    def portrait(self, server: Server) -> Tensor:
        return self._run(server["phi"], server["fixed"], "encode")

    def diagnostics(self, server: Server) -> dict[str, Tensor]:
        z = self.portrait(server)
        return smoothness(z, complete_graph(len(z)).to(z.device))

    def _vectors(self, x: Tensor, first: int, length: int) -> Tensor:
        """Vectors of the clients from `first` on: their embeddings `x` [n, D], or one-hot vectors of `length` or, if
        longer, D.
        """
        return x if self.embedding == "graph" else unit_vectors(first, len(x), max(length, x.shape[1])).to(x)

    def _network(self, clients: int, size: int) -> Architecture:
        names = ("gnn", "attention", "stalk", "depth", "channels", "width", "dropout")
        options = {name: getattr(self, name) for name in names}
        return architecture(CollaborativeHypernetwork, clients, size, self.generated_shapes, **options)

    def _run(self, phi: Tree, fixed: Tree, method: str, *inputs: Tensor, **options: Any) -> Any:
        x = fixed["x"]
        edges = complete_graph(len(x)).to(x.device)
        return self._network(*x.shape).run(phi, x, edges, *inputs, method=method, **options)
