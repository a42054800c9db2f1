"""Families whose server learns how to mix the clients' last models: θ̄_i = Σ_j α_ij θ_j, layer by layer."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.func import vmap

from fedweave.client.functional import invoke
from fedweave.client.solvers import SGD, Solver
from fedweave.engine.guards.hook_calls import guard_call
from fedweave.engine.guards.returned import check_mixtures, check_weights
from fedweave.engine.protocol import Server, Start, init_parameters
from fedweave.families.base import SplitClient
from fedweave.families.generated_models import GeneratedModels
from fedweave.families.hypernetworks import draw_vectors
from fedweave.families.networks import Architecture, LayerWeights, architecture
from fedweave.families.weaving import Weaving, all_ids
from fedweave.graphs.weights import row_shares
from fedweave.settings import LogSpace, Rate, Size
from fedweave.tensors import trees
from fedweave.tensors.gradients import pull_back
from fedweave.tensors.tables import add_products
from fedweave.tensors.trees import Params, Tree


@dataclass(frozen=True, kw_only=True)
class LearnedMixtures(Weaving, SplitClient, GeneratedModels):
    """The server keeps every client's last model and mixes them by weights that depend on φ.

    State: fixed = {"models": [N, ...]}. Plain gradient descent on φ, so that the rows of absent clients do not change.
    """

    server_lr: Annotated[Rate, "step size on φ"] = 0.005

    mixes = True

    @abstractmethod
    def learnables(self, start: Start) -> Tree:
        """φ before round 0."""

    @abstractmethod
    def weights(self, phi: Tree, fixed: Tree, ids: Tensor) -> Tensor:
        """α [L, P, N] (or [1, P, N] for all layers alike) of clients `ids`, differentiable in φ.

        Every row is a mixture: its weights are at least 0, and their sum is 1. This is checked before round 0 for one
        client, and where a round is evaluated for all.
        """

    def retained_layers(self, phi: Tree, fixed: Tree, ids: Tensor) -> Tensor | None:
        """Layers [P, L] of which clients `ids` keep their own instead of a mixture; by default none."""
        return None

    def enlarge(self, phi: Tree, newcomers: int, start: Start) -> Tree:
        """φ with rows for the last `newcomers` of `start.clients` clients; by default φ has no rows."""
        return phi

    @property
    def learns_from_retained(self) -> bool:
        """Whether φ also learns from layers that clients retained; by default not."""
        return False

    @property
    def server_solver(self) -> Solver:
        return SGD(lr=self.server_lr)

    def alpha(self, phi: Tree, fixed: Tree, ids: Tensor) -> Tensor:
        """α [L, P, N] of clients `ids`."""
        alpha = self._checked_weights(phi, fixed, ids).expand(len(self.task.layers), -1, -1)
        return mask_newcomers(self.controlled(alpha, ids, available_sources(fixed)), ids, fixed)

    def _checked_weights(self, phi: Tree, fixed: Tree, ids: Tensor) -> Tensor:
        with guard_call(self, "weights", phi=phi, fixed=fixed, ids=ids):
            weights = self.weights(phi, fixed, ids)
        layers = 1 if isinstance(weights, Tensor) and len(weights) == 1 else len(self.task.layers)
        check_weights(type(self).__name__, weights, layers, len(ids), fixed["models"])
        return weights

    def begin(self, start: Start) -> tuple[Tree, Tree]:
        return self.learnables(start), {
            "models": trees.build_table(trees.omit(start.model, self.local_names), start.clients)
        }

    def init(self, start: Start) -> Server:
        server = super().init(start)
        ids = all_ids(start.ids)[:1]
        phi, fixed = trees.tree_map(lambda t: t.to(ids.device), (server["phi"], server["fixed"]))
        with torch.no_grad():
            check_mixtures(type(self).__name__, self._checked_weights(phi, fixed, ids), first=True)
        return server

    def generate(self, phi: Tree, fixed: Tree, ids: Tensor) -> Params:
        mixtures = self.mix_models(self.alpha(phi, fixed, ids), fixed["models"])
        retained = self.retained_layers(phi, fixed, ids)
        if retained is None:
            return mixtures
        # One column per layer, spread over the layer's parameters.
        is_retained = {
            name: column for column, names in zip(retained.T, self.task.layers.values(), strict=True) for name in names
        }
        own = trees.take(fixed["models"], ids)
        if self.learns_from_retained:  # the value of the own model, with the derivative of the mixture
            own = {name: value + (mixtures[name] - mixtures[name].detach()) for name, value in own.items()}
        return {
            name: torch.where(trees.column(is_retained[name], value), own[name], value)
            for name, value in mixtures.items()
        }

    def gradient(self, server: Server, ids: Tensor, uploads: Tree) -> tuple[Tree, Params]:
        if type(self).generate is not LearnedMixtures.generate:  # a subclass makes models in its own way
            return super().gradient(server, ids, uploads)
        # A mixture is linear in α, so its derivative needs no mixture.
        phi, fixed, start = server["phi"], server["fixed"], self.sent_models(server, ids)
        vector = self.cotangent(start, uploads)
        retained = None if self.learns_from_retained else self.retained_layers(phi, fixed, ids)
        gradient, _ = pull_back(
            lambda phi: {"alpha": self.alpha(phi, fixed, ids)},
            phi,
            lambda out: {"alpha": self._slope(out["alpha"], vector, fixed["models"], retained)},
        )
        return gradient, start

    def _slope(self, alpha: Tensor, vector: Params, models: Params, retained: Tensor | None) -> Tensor:
        """The derivative [L, P, N] of the mixtures by α [L, P, N], times `vector` [P, ...]; 0 for `retained` layers."""
        slopes = torch.zeros_like(alpha)
        for slope, names in zip(slopes, self.task.layers.values(), strict=True):
            for name in trees.select(models, names):
                add_products(slope, vector[name].flatten(1), models[name])
        return slopes if retained is None else slopes.masked_fill(retained.T[..., None], 0.0)

    def remember(self, fixed: Tree, ids: Tensor, start: Params, uploads: Tree) -> Tree:
        return {
            **fixed,
            "models": trees.put(fixed["models"], ids, uploads["model"]),
            **update_newcomer_mask(fixed, ids),
        }

    def add_rows(self, phi: Tree, fixed: Tree, enrolled: Tree, newcomers: int, start: Start) -> tuple[Tree, Tree]:
        fresh = trees.broadcast(trees.omit(start.model, self.local_names), newcomers)
        models = trees.concat([fixed["models"], fresh])
        return self.enlarge(phi, newcomers, start), {**fixed, "models": models, **newcomer_mask(newcomers, start)}

    def collaboration(self, server: Server) -> Tensor:
        ids = all_ids(next(iter(server["fixed"]["models"].values())))
        alpha = self.alpha(server["phi"], server["fixed"], ids)
        check_mixtures(type(self).__name__, alpha)
        retained = self.retained_layers(server["phi"], server["fixed"], ids)
        if retained is None:
            return alpha
        # A client receives no mixture of a layer that it retains, so all its weight is on itself.
        return torch.where(retained.T[..., None], torch.eye(len(ids)).to(alpha), alpha)


def newcomer_mask(newcomers: int, start: Start) -> Tree:
    """The entry of the fixed state with the clients that have no model yet: the last `newcomers` ones."""
    places = torch.arange(start.clients, device=start.ids.device)
    return {"without_upload": places >= start.clients - newcomers}


def update_newcomer_mask(fixed: Tree, ids: Tensor) -> Tree:
    """The entry of `newcomer_mask` after uploads of clients `ids`; none if no client has joined during the run."""
    mask = fixed.get("without_upload")
    return {} if mask is None else {"without_upload": mask.index_fill(0, ids, False)}


def available_sources(fixed: Tree) -> Tensor | None:
    """Clients that have a model to learn from, bool [N]; None for all."""
    mask = fixed.get("without_upload")
    return None if mask is None else ~mask


def mask_newcomers(alpha: Tensor, ids: Tensor, fixed: Tree) -> Tensor:
    """α [L, P, N] of clients `ids`, without the models of newcomers that have not uploaded yet.

    Such a newcomer itself starts with the common initial model.
    """
    without_upload = fixed.get("without_upload")
    if without_upload is None:
        return alpha
    itself = (ids[:, None] == torch.arange(len(without_upload), device=ids.device)).to(alpha)
    mixture = row_shares(alpha.masked_fill(without_upload, 0.0))
    only_itself = without_upload[ids][:, None] | ~mixture.any(-1, keepdim=True)
    return torch.where(only_itself, itself, mixture)


@dataclass(frozen=True, kw_only=True)
class LayerwiseHypernetworks(LearnedMixtures):
    """A vector and a hypernetwork for each client; the output of the network is the client's mixture (pFedLA).

    φ: {"vector": [N, E], "network": [N, ...]}.
    """

    server_lr: Annotated[float, LogSpace(0.0005, 0.5)] = 0.005
    vector_size: Annotated[Size, "length of a client's vector"] = 100
    width: Annotated[Size, "hidden width of a client's network"] = 100
    relu_norm: Annotated[bool, "weights are ReLU over its sum, started positive, instead of a softmax"] = False
    tied: Annotated[bool, "one row of weights for the whole model instead of one per layer"] = False

    def learnables(self, start: Start) -> Tree:
        return self._draw_learnables(start, next(iter(start.model.values())))

    def weights(self, phi: Tree, fixed: Tree, ids: Tensor) -> Tensor:
        network = self._network(len(phi["vector"])).meta_module
        rows = trees.take(phi, ids)
        alpha = vmap(lambda params, v, i: invoke(network, params, "forward", v, i))(
            rows["network"], rows["vector"], ids
        )
        return alpha.movedim(0, 1)

    def enlarge(self, phi: Tree, newcomers: int, start: Start) -> Tree:
        fresh = _split_by_source(self._draw_learnables(start, phi["vector"]), start.clients)
        return _merge_rows(trees.grow(_split_by_source(phi, len(phi["vector"])), fresh))

    def _network(self, clients: int) -> Architecture:
        layers = 1 if self.tied else len(self.task.layers)
        sizes = {"embed": self.vector_size, "width": self.width}
        return architecture(LayerWeights, clients, layers, relu_norm=self.relu_norm, **sizes)

    def _draw_learnables(self, start: Start, like: Tensor) -> Tree:
        """New φ: a network depends on its client's identity, a row of its heads on the identity of the source."""
        ids = start.ids.cpu()
        identities = int(ids.max()) + 1
        networks = [init_parameters(self._network(identities), start.seed + i, like.dtype) for i in ids.tolist()]
        networks_by_client = {
            "vector": draw_vectors(start.seed, ids, self.vector_size, like),
            "network": trees.stack(networks),
        }
        split = _split_by_source(networks_by_client, identities)
        chosen = {
            name: value[:, :, ids] if name.startswith("heads") else value for name, value in split["network"].items()
        }
        return trees.tree_map(lambda t: t.to(like.device), _merge_rows({**split, "network": chosen}))


def _split_by_source(phi: Tree, clients: int) -> Tree:
    """φ with the rows of every head [N, L · clients, ...] as [N, L, clients, ...]."""
    split = {
        name: v.unflatten(1, (-1, clients)) if name.startswith("heads") else v for name, v in phi["network"].items()
    }
    return {**phi, "network": split}


def _merge_rows(phi: Tree) -> Tree:
    """The inverse of `_split_by_source`."""
    return {
        **phi,
        "network": {name: v.flatten(1, 2) if name.startswith("heads") else v for name, v in phi["network"].items()},
    }
