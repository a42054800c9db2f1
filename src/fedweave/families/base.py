"""Families of methods: what a server keeps, and what a client keeps. A method combines one of each.

Servers: `GlobalModel` (one model), `ClientModels` (the last model of every client), and in `generated_models.py`
`GeneratedModels` (parameters φ from which every client's model is generated).
Clients: `SplitClient` (a private part of the model, by parameter name).
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.local_training import Fit
from fedweave.client.solvers import Solver
from fedweave.engine.guards import draws_and_names, returned
from fedweave.engine.guards.hook_calls import guard_call
from fedweave.engine.protocol import ClientState, Method, Server, Start, Update
from fedweave.errors import BadInput
from fedweave.families.weaving import Weaving, all_ids, split_ids, usable_sources
from fedweave.graphs.products import mix_products
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


class SplitClient(Method):
    """The client trains what it receives together with its private part, uploads the first and keeps the second.

    BatchNorm buffers are private (unless `bn_buffers: average`): a received model overwrites trainable parameters only.
    """

    @property
    def private(self) -> tuple[str, ...]:
        """Names that never leave the client, in addition to BatchNorm buffers; by default none."""
        return ()

    @property
    def local_names(self) -> tuple[str, ...]:
        """All names that stay: private parameters and BatchNorm buffers."""
        return (*self.private, *self.statistics)

    def fit(self, model: Params, received: Params, data: ClientData) -> Fit:
        """Local training of `model`; `received` is the part that came from the server."""
        return self.descend(model, data)

    def feedback(self, model: Params, own: Tree, data: ClientData) -> Tree:
        """Extra uploads, computed on the model before training; `own` is the client's own download.

        By default none.
        """
        return {}

    def received(self, shared: Tree, own: Tree) -> Params:
        """The part of the model that came from the server; by default all parameters that were sent (`sent`)."""
        common, own = self.sent(shared, own)
        return {**common, **own}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        name, model = type(self).__name__, self.personalize(shared, own, client, data)
        returned.check_tensors(f"{name}.personalize", model)
        fit = self.fit(model, trees.omit(model, self.local_names), data)
        returned.check_type(f"{name}.fit", fit, Fit, "what self.descend returns")
        feedback = self.feedback(model, own, data)
        returned.check_tensors(f"{name}.feedback", feedback)
        return self.split_update(fit, **feedback)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        received = self.received(shared, own)
        returned.check_tensors(f"{type(self).__name__}.received", received)
        return {**received, **client}


def check_parts(method: Method, model: str, where: str) -> None:
    """Refuse a method whose parts of the `model`, private and shared ones, do not fit the model; `where` is the run."""
    check_local_names(method)
    check_adapters(method, where)
    check_shared_part(method, model, where)


def check_local_names(method: Method) -> None:
    """Refuse a method that keeps names at the client that its task's model does not have, as they would be ignored."""
    hooks = ("private", "local_names") if isinstance(method, SplitClient) else ("local_names",)
    for hook in hooks:
        draws_and_names.check_names(
            f"{type(method).__name__}.{hook}",
            getattr(method, hook),
            method.task.names,
            "nothing would stay with the client; return self.task.head, or self.task.layers['NAME'] for a layer",
        )


def check_shared_part(method: Method, model: str, where: str) -> None:
    """Refuse a method whose clients keep every parameter of the `model`: it would train as Local does."""
    if not {*method.task.params} - {*method.local_names}:
        raise BadInput(
            where,
            f"{method.label} keeps every parameter of the model {model} at the client, so that nothing is "
            "shared and it trains as Local does; take a model that trains a layer below its head, such as mlp, or "
            f"leave {method.label} out",
        )


def check_adapters(method: Method, where: str) -> None:
    """Refuse a method that cannot mix low-rank adapters in the way that the model asks for."""
    task = method.task
    is_torn = any(len({*pair} & {*method.local_names}) == 1 for pair in task.products_to_mix)
    for setting, is_asked_for in (("mix: product", task.products_to_mix), ("ranks", task.adapter_ranks)):
        if is_asked_for and (is_torn or not method.mixes_plainly):
            raise BadInput(
                where,
                f"model.adapter has {setting}, which needs a plain mean or mixture of A and B, and {method.label} "
                f"takes none; leave it out, or leave {method.label} out",
            )


class GlobalModel(Method):
    """The server keeps one model (the part that is not private) and averages uploads by training set size.

    Where it has an optimiser (`train.server_optimizer`), the model takes a step of it on the gradient x − x̂, with x the
    model and x̂ its successor without an optimiser (Reddi et al., ICLR 2021, arXiv:2003.00295).
    State: {"model": x}, and {"optimizer": its state} if there is one.
    """

    averages = True
    server_steps = True

    @property
    def server_solver(self) -> Solver | None:
        """The server's optimiser, or None; by default the run's."""
        return self.training.server

    @property
    def mixes_plainly(self) -> bool:
        cls = type(self)
        has_plain_mean = cls.aggregate is GlobalModel.aggregate and cls.merge is GlobalModel.merge
        return has_plain_mean and self.server_solver is None

    def extras(self, start: Start) -> Params:
        """What the server averages in addition to the model, before round 0; by default nothing."""
        return {}

    def merge(self, old: Params, mean: Params) -> Params:
        """The new model from the last one and the mean of the uploads; by default the mean."""
        return mean

    def init(self, start: Start) -> Server:
        model = {**trees.omit(start.model, self.local_names), **self.extras(start)}
        solver = self.server_solver
        if solver is None:
            return {"model": model}
        return {"model": model, "optimizer": solver.init(self._parameters(model))}

    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        return server["model"], {}

    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        mean = trees.weighted_mean(uploads["model"], weights)
        shares = (weights.double() / weights.double().sum())[None]
        mean |= trees.at(mix_products(shares, uploads["model"], self.task.products_to_mix), 0)
        with guard_call(self, "merge", old=server["model"]):
            mean = self.merge(server["model"], mean)
        hook, before = f"{type(self).__name__}.merge", returned.descriptions(server["model"])
        returned.check_type(hook, mean, Mapping, "the tensors of the new model by name")
        returned.check_form(hook, returned.descriptions(mean), before, "keep names, shapes and types of old")
        solver = self.server_solver
        if solver is None:
            return {"model": mean}
        old = self._parameters(server["model"])
        model, state = solver.step(old, trees.sub(old, self._parameters(mean)), server["optimizer"])
        return {"model": {**mean, **model}, "optimizer": state}

    def _parameters(self, model: Params) -> Params:
        """The entries that the optimiser changes: not BatchNorm statistics, of which the server takes the mean.

        A method with several models adds a path to the names of the further ones, such as "1/norm.running_mean".
        """
        return {name: value for name, value in model.items() if name.rpartition("/")[2] not in self.task.buffers}


class ClientModels(Weaving):
    """The server keeps every client's last model [N, ...] and sends each participant its own mixture of them.

    State: {"models": [N, ...], "seen": bool [N], "round": rounds so far, "fixed": further state of a method}.
    """

    mixes = True
    # Whether a client's row of weights does not depend on the other rows, so that rows can be computed in parts.
    rowwise: ClassVar[bool] = False

    @property
    def mixes_plainly(self) -> bool:
        return type(self)._download_part is ClientModels._download_part

    @abstractmethod
    def weights(self, server: Server, ids: Tensor) -> Tensor:
        """Mixture weights [L, P, N]: row = participant, column = source.

        Every row is a mixture: its weights are at least 0, and their sum is 1. This is checked before the first upload,
        and again where a round is evaluated.
        """

    def mixture(self, server: Server, ids: Tensor) -> Tensor:
        """The weights [L, P, N] of the mixtures: `weights`, or those of a control of the graph."""
        with guard_call(self, "weights", server=server, ids=ids):
            weights, layers = self.weights(server, ids), len(self.task.layers)
        returned.check_weights(type(self).__name__, weights, layers, len(ids), server["models"])
        if not server["seen"].any():
            returned.check_mixtures(type(self).__name__, weights, first=True)
        return self.controlled(weights, ids, usable_sources(server["seen"]))

    def begin(self, start: Start) -> Tree:
        """Further state of the server before round 0; tables have the shape [N, ...]. By default nothing."""
        return {}

    def remember(self, fixed: Tree, ids: Tensor, uploads: Tree, weights: Tensor) -> Tree:
        """Further state of the server after a round; by default unchanged."""
        return fixed

    def extra_downloads(self, server: Server, weights: Tensor, ids: Tensor) -> tuple[Tree, Tree]:
        """Downloads in addition to the mixtures by `weights`: (a tree for all, a tree [P, ...] of their own).

        By default none.
        """
        return {}, {}

    def init(self, start: Start) -> Server:
        models = trees.build_table(trees.omit(start.model, self.local_names), start.clients)
        return {
            "models": models,
            "seen": torch.zeros(start.clients, dtype=torch.bool),
            "round": torch.zeros((), dtype=torch.int64),
            "fixed": self.begin(start),
        }

    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        width = len(self.task.layers) * len(server["seen"])
        parts = [self._download_part(server, part) for part in split_ids(ids, width, self.rowwise)]
        return parts[0][0], trees.concat([own for _, own in parts])

    def _download_part(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        weights = self.mixture(server, ids)
        shared, own = self.extra_downloads(server, weights, ids)
        mixture = self.mix_models(weights, server["models"])
        for rows, names in zip(weights.expand(len(self.task.layers), -1, -1), self.task.layers.values(), strict=True):
            mixture |= mix_products(rows, trees.select(server["models"], names), self.task.products_to_mix)
        return shared, {"mixture": mixture, "active": server["seen"][ids], **own}

    def sent(self, shared: Tree, own: Tree) -> tuple[Params, Params]:
        return {}, own["mixture"]

    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        return {
            "models": trees.put(server["models"], ids, uploads["model"]),
            "round": server["round"] + 1,
            "seen": server["seen"].index_fill(0, ids, True),
            "fixed": self.remember(server["fixed"], ids, uploads, weights),
        }

    def admit(self, server: Server, enrolled: Tree, newcomers: int, start: Start) -> Server:
        return trees.grow(server, self.init(start))

    def collaboration(self, server: Server) -> Tensor | None:
        weights = self.mixture(server, all_ids(server["seen"]))
        returned.check_mixtures(type(self).__name__, weights)
        return weights
