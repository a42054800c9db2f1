"""PeFLL, learning to learn personalized models (Scott et al., ICLR 2024, arXiv:2306.05515).

Server keeps an embedding network E and a hypernetwork h, one optimiser for both. A round has six messages: E goes
down; v_i comes up, the mean output of E on the rows of a minibatch; θ̄_i = h((v_i − m) / s) goes down; Δθ_i comes up
after local training; the gradient of ½ ‖θ̄_i − θ_i‖² in v_i goes down, and the client returns it in E. That is P + D +
|E| each way. Here a client does all of it in one exchange, with the same numbers, and the bytes are those of the
messages. Every client gets its model from its rows, a newcomer too, without training; v_i is then that of all training
rows.

Deviations from pefllauthors/PeFLL:
1. m and s, mean and standard deviation over the entries of a vector, are means over the clients of the first round, in
   which everyone has its own; in the code they are those of the first client.
2. y joins the features of x, not its pixels, and a vector has two entries at least.
3. The client's optimiser is that of the task. Classes that a client lacks are not masked in the evaluation.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.solvers import Solver, value_and_grad
from fedweave.engine.protocol import ClientState, Server, Start, Update
from fedweave.engine.registry import method
from fedweave.families import GeneratedModels, SplitClient
from fedweave.families.descriptors import ClientDescriptors, moments
from fedweave.families.server_solvers import network_solver
from fedweave.settings import Count, LogSpace, NonNegative, Rate, Share
from fedweave.tensors import trees
from fedweave.tensors.gradients import pull_back
from fedweave.tensors.trees import Params, Tree


@method("pefll")
@dataclass(frozen=True, kw_only=True)
class PeFLL(ClientDescriptors, SplitClient, GeneratedModels):
    """A network that describes clients by their rows, and one that makes models from descriptions."""

    server_optimizer: Annotated[Literal["sgd", "adam"], "optimiser of both networks"] = "adam"
    server_lr: Annotated[Rate, LogSpace(0.0001, 0.03), "learning rate of both networks"] = 2e-4
    server_momentum: Annotated[Share, "momentum of both networks under sgd"] = 0.9
    server_decay: Annotated[Rate, "weight decay of both networks"] = 0.0
    server_clip: Annotated[NonNegative, "largest norm of the networks' gradient; 0 is none"] = 50.0
    embedding_size: Annotated[Count, "D, length of a vector, 0 for ⌊1 + N/4⌋, at least 2"] = 0

    label = "PeFLL"
    point = "pre"
    embeds = True
    parameters = ()
    robust_part = "update"

    @property
    def server_solver(self) -> Solver:
        return network_solver(
            self.server_optimizer, self.server_lr, self.server_momentum, self.server_decay, self.server_clip
        )

    def begin(self, start: Start) -> tuple[Tree, Tree]:
        like, size = next(iter(start.model.values())), max(2, self.embedding_size or 1 + start.clients // 4)
        phi = {"embed": self.embedding_network(size, start), "hyper": self.init_hypernetwork(size, start)}
        return phi, {"embeddings": like.new_zeros(start.clients, size), "scale": like.new_zeros(2)}

    def generate(self, phi: Tree, fixed: Tree, ids: Tensor) -> Params:
        """θ̄ [P, ...] from the vectors that clients `ids` sent last."""
        return self.models(phi["hyper"], fixed["embeddings"][ids], fixed["scale"])

    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        # The network is built here, because clients may run under vmap.
        _ = self.hypernetwork(server["fixed"]["embeddings"].shape[1]).meta_module
        return {**server["phi"], "scale": server["fixed"]["scale"]}, {}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        start = self.personalize(shared, own, client, data)
        fit = self.descend(start, data)
        update = trees.sub(*(trees.omit(model, self.local_names) for model in (fit.model, start)))

        def surrogate_loss(embed: Params) -> tuple[Tensor, Tree]:
            vector = self.describe(embed, data)
            models = self.models(shared["hyper"], vector[None], shared["scale"])
            return -sum((models[name][0] * value).sum() for name, value in update.items()), {"embedding": vector}

        _, outputs, gradient = value_and_grad(surrogate_loss, shared["embed"])
        upload = {"update": update, "embedding": outputs["embedding"].detach(), "gradient": gradient}
        return Update(upload, trees.select(fit.model, self.local_names), fit.model, fit.loss)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        with torch.no_grad():
            models = self.models(shared["hyper"], self.describe(shared["embed"], data)[None], shared["scale"])
        return {**trees.at(models, 0), **client}

    def gradient(self, server: Server, ids: Tensor, uploads: Tree) -> tuple[Tree, Params]:
        def generate_models(hyper: Params) -> Params:
            return self.models(hyper, uploads["embedding"], server["fixed"]["scale"])

        cotangent = trees.tree_map(lambda value: -value / len(ids), uploads["update"])
        hyper, start = pull_back(generate_models, server["phi"]["hyper"], lambda start: cotangent)
        # In the order of φ, in which an optimiser goes through it.
        return {"embed": trees.tree_map(lambda g: g.mean(0), uploads["gradient"]), "hyper": hyper}, start

    def remember(self, fixed: Tree, ids: Tensor, start: Params, uploads: Tree) -> Tree:
        vectors, scale = uploads["embedding"], fixed["scale"]
        first_scale = torch.stack([row.mean() for row in moments(vectors)])
        scale = torch.where(scale.any(), scale, first_scale)
        return {"embeddings": fixed["embeddings"].index_copy(0, ids, vectors), "scale": scale}

    def add_rows(self, phi: Tree, fixed: Tree, enrolled: Tree, newcomers: int, start: Start) -> tuple[Tree, Tree]:
        table = fixed["embeddings"]
        return phi, {**fixed, "embeddings": torch.cat([table, table.new_zeros(newcomers, table.shape[1])])}

    def traffic(self, shared: Tree, own: Tree, uploads: Tree, participants: int) -> tuple[int, int]:
        up = trees.nbytes(uploads)
        return up, up  # every message has an answer of its own size

    def portrait(self, server: Server) -> Tensor:
        return server["fixed"]["embeddings"]
