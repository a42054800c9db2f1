"""Methods whose server generates every client's model from parameters φ."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial, reduce
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedweave.client.solvers import Solver, clone
from fedweave.engine import sent_downloads
from fedweave.engine.guards import returned
from fedweave.engine.guards.hook_calls import guard_call
from fedweave.engine.protocol import Method, Server, Start
from fedweave.families.weaving import split_ids
from fedweave.tensors import trees
from fedweave.tensors.gradients import pull_back
from fedweave.tensors.trees import Params, Tree


@dataclass(frozen=True, kw_only=True)
class GeneratedModels(Method):
    """The server keeps learnable φ and fixed state, generates every client's model, and learns from the trained models.

    State: {"phi": φ, "optimizer": its state, "fixed": data such as last models or a graph}.
    `server_sign` "descent" moves what is generated towards what was trained; "literal" is the opposite, as several
    papers print it.
    """

    server_sign: Annotated[Literal["descent", "literal"], "descent moves towards the trained models, literal away"] = (
        "descent"
    )

    # Whether a client's model and gradient do not depend on other participants, so that they can be computed in parts.
    rowwise: ClassVar[bool] = False

    @property
    @abstractmethod
    def server_solver(self) -> Solver:
        """The optimiser of φ."""

    @abstractmethod
    def begin(self, start: Start) -> tuple[Tree, Tree]:
        """(φ, fixed) before round 0."""

    @abstractmethod
    def generate(self, phi: Tree, fixed: Tree, ids: Tensor) -> Params:
        """θ̄ [P, ...] for clients `ids`; differentiable in φ."""

    @property
    def generated_shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name -> shape of what is generated, in the order of a network's heads or outputs."""
        return trees.omit(self.task.shapes(), self.local_names)

    def remember(self, fixed: Tree, ids: Tensor, start: Params, uploads: Tree) -> Tree:
        """The fixed state after a round with downloads `start` [P, ...] and `uploads`; by default unchanged."""
        return fixed

    def attach(self, server: Server, ids: Tensor) -> Tree:
        """Downloads of clients `ids` in addition to their models, [P, ...]; by default nothing."""
        return {}

    def cotangent(self, start: Params, uploads: Tree) -> Params:
        """∂ surrogate loss / ∂θ̄ [P, ...]; by default θ̄ − θ, the gradient of ½ Σ ‖θ̄ − θ‖²."""
        return trees.sub(start, uploads["model"])

    def gradient(self, server: Server, ids: Tensor, uploads: Tree) -> tuple[Tree, Params]:
        """(gradient of the surrogate loss in φ, θ̄ [P, ...]); by default `cotangent` pulled back through `generate`."""
        return pull_back(
            lambda phi: self.generate(phi, server["fixed"], ids),
            server["phi"],
            lambda start: self.cotangent(start, uploads),
        )

    def sent_models(self, server: Server, ids: Tensor) -> Params:
        """θ̄ [P, ...] of clients `ids`: the downloads of this round, or generated again if they were not stored."""
        own = sent_downloads.find(server, ids)
        if own is not None:
            return trees.select(own, self.task.params)
        with torch.no_grad():
            return self.generate(server["phi"], server["fixed"], ids)

    def _gradient_in_parts(self, server: Server, ids: Tensor, uploads: Tree) -> tuple[Tree, Params]:
        """`gradient`, computed in parts of the clients and summed."""
        parts = split_ids(
            torch.arange(len(ids), device=ids.device), self.values_per_client(server["fixed"]), self.rowwise
        )
        if len(parts) == 1:
            return self.gradient(server, ids, uploads)
        results = [self.gradient(server, ids[part], trees.take(uploads, part)) for part in parts]
        total = reduce(partial(trees.tree_map, torch.add), (gradient for gradient, _ in results))
        return total, trees.concat([start for _, start in results])

    def regularise(self, phi: Tree, fixed: Tree) -> Tree:
        """Gradient of an additional server-side loss, in the form of φ or of a part of it; by default none."""
        return {}

    def constrain(self, phi: Tree) -> Tree:
        """Project φ after a step; by default the identity."""
        return phi

    def add_rows(self, phi: Tree, fixed: Tree, enrolled: Tree, newcomers: int, start: Start) -> tuple[Tree, Tree]:
        """(φ, fixed) with rows for the last `newcomers` of `start.clients` clients; by default they have no rows."""
        return phi, fixed

    def assemble(self, phi: Tree, fixed: Tree) -> Server:
        """A server with a fresh optimiser."""
        return {"phi": phi, "optimizer": self.server_solver.init(trees.flatten_paths(phi)), "fixed": fixed}

    def init(self, start: Start) -> Server:
        begun = self.begin(start)
        returned.check_pair(f"{type(self).__name__}.begin", begun, "(φ, fixed state)")
        return self.assemble(*begun)

    def admit(self, server: Server, enrolled: Tree, newcomers: int, start: Start) -> Server:
        fresh = self.assemble(*self.add_rows(server["phi"], server["fixed"], enrolled, newcomers, start))
        return {**fresh, "optimizer": trees.grow(server["optimizer"], fresh["optimizer"])}

    def values_per_client(self, fixed: Tree) -> int:
        """Size of what `generate` computes for one client, by which clients are divided into parts if `rowwise`."""
        return 1

    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        with torch.no_grad():
            phi, fixed = server["phi"], server["fixed"]
            parts = split_ids(ids, self.values_per_client(fixed), self.rowwise)
            with guard_call(self, "generate", phi=phi, fixed=fixed, ids=ids):
                models = [self.generate(phi, fixed, part) for part in parts]
            hook, way = f"{type(self).__name__}.generate", "return every parameter of self.generated_shapes"
            for made, part in zip(models, parts, strict=True):
                returned.check_type(hook, made, dict, "a dictionary of tensors")
                returned.check_tensors(hook, made)
                right = {name: [len(part), *shape] for name, shape in self.generated_shapes.items()}
                given = returned.shapes(trees.select(made, right))
                returned.check_form(hook, given, right, f"{way}, with a row for each client of ids")
            return {}, {**trees.concat(models), **self.attach(server, ids)}

    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        fixed = server["fixed"]
        gradient, start = self._gradient_in_parts(server, ids, uploads)
        step = trees.flatten_paths(gradient)
        if self.server_sign == "literal":
            step = {name: -value for name, value in step.items()}
        penalty = trees.flatten_paths(self.regularise(server["phi"], fixed))
        step = {name: value + penalty[name] if name in penalty else value for name, value in step.items()}
        phi, optimizer = self.server_solver.step_(
            clone(trees.flatten_paths(server["phi"])), step, clone(server["optimizer"])
        )
        return {
            "phi": self.constrain(trees.unflatten_paths(phi)),
            "optimizer": optimizer,
            "fixed": self.remember(fixed, ids, start, uploads),
        }
