"""Server optimisers (Reddi et al., ICLR 2021, arXiv:2003.00295): the mean update of a round as a gradient.

With x the server's model and x̂ the mean of the uploads, the server takes a step of an optimiser on the gradient x − x̂.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from fedweave.client.solvers import SGD, Solver
from fedweave.errors import BadInput
from fedweave.federation.protocol import Method, Server
from fedweave.settings import Between, Positive, Rate
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree

Rule = Literal["adam", "yogi", "adagrad"]
Momentum = Annotated[float, Between(0, 0.9999)]

# What each optimiser reads of the settings besides its own name, and its learning rate where none is set.
READS = {
    "mean": (),
    "sgd": ("server_lr", "server_momentum"),
    "adam": ("server_lr", "server_momentum", "server_beta2", "server_tau"),
    "yogi": ("server_lr", "server_momentum", "server_beta2", "server_tau"),
    "adagrad": ("server_lr", "server_tau"),
}
RATES = {"sgd": 1.0, "adam": 0.01, "yogi": 0.01, "adagrad": 0.1}


@dataclass(frozen=True, kw_only=True)
class Adaptive(Solver):
    """x ← x − η m / (√v + τ), the adaptive step of Algorithm 2; m ← β1 m + (1 − β1) g, and v by the rule.

    adagrad: v ← v + g². adam: v ← β2 v + (1 − β2) g². yogi: v ← v − (1 − β2) g² sign(v − g²). m begins at 0 and v at
    τ², and nothing corrects their bias, as in the paper.
    """

    rule: Rule
    lr: float
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def init(self, params: Params) -> Tree:
        first = {name: torch.zeros_like(value) for name, value in params.items()}
        return {"m": first, "v": {name: torch.full_like(value, self.tau**2) for name, value in params.items()}}

    def step(self, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
        m = {name: self.beta1 * state["m"][name] + (1 - self.beta1) * g for name, g in grads.items()}
        v = {name: self._second(state["v"][name], g.square()) for name, g in grads.items()}
        new = {name: value - self.lr * m[name] / (v[name].sqrt() + self.tau) for name, value in params.items()}
        return new, {"m": m, "v": v}

    step_ = step

    def _second(self, v: torch.Tensor, squared: torch.Tensor) -> torch.Tensor:
        if self.rule == "adagrad":
            return v + squared
        if self.rule == "adam":
            return self.beta2 * v + (1 - self.beta2) * squared
        return v - (1 - self.beta2) * squared * torch.sign(v - squared)


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer(Method):
    """A choice of what the server does with the mean of the uploads: take it, or take a step of an optimiser."""

    server_optimizer: Annotated[
        Literal["mean", "sgd", "adam", "yogi", "adagrad"], "what the server does with the mean of the uploads"
    ] = "mean"
    server_lr: Annotated[Rate, "η of the server's optimiser; 0: 1 of sgd, 0.01 of adam and yogi, 0.1 of adagrad"] = 0.0
    server_momentum: Annotated[Momentum, "momentum of sgd, β1 of adam and yogi"] = 0.9
    server_beta2: Annotated[Momentum, "β2 of adam and yogi"] = 0.99
    server_tau: Annotated[Positive, "τ of adam, yogi and adagrad: how little they adapt"] = 1e-3

    def __post_init__(self) -> None:
        chosen, defaults = self.server_optimizer, type(self).__dataclass_fields__
        for name in (name for name in READS["adam"] if name not in READS[chosen]):
            if (value := getattr(self, name)) != defaults[name].default:
                readers = ", ".join(rule for rule, names in READS.items() if name in names)
                raise BadInput(
                    f"{name}: {value:g} has no effect with server_optimizer: {chosen}; use {readers}, or leave it out"
                )

    @property
    def server_solver(self) -> Solver | None:
        """The server's optimiser, or None for the mean."""
        if self.server_optimizer == "mean":
            return None
        rate = self.server_lr or RATES[self.server_optimizer]
        if self.server_optimizer == "sgd":
            return SGD(lr=rate, momentum=self.server_momentum)
        beta1 = 0.0 if self.server_optimizer == "adagrad" else self.server_momentum
        return Adaptive(rule=self.server_optimizer, lr=rate, beta1=beta1, beta2=self.server_beta2, tau=self.server_tau)

    def initial(self, model: Params) -> Server:
        """{"model"} before round 0, and the "optimizer" of its parameters if there is one."""
        solver = self.server_solver
        return (
            {"model": model} if solver is None else {"model": model, "optimizer": solver.init(self._trainable(model))}
        )

    def advance(self, server: Server, mean: Params) -> Server:
        """The same after a round; BatchNorm statistics, where they are sent, take the mean."""
        solver = self.server_solver
        if solver is None:
            return {"model": mean}
        old = self._trainable(server["model"])
        gradient = trees.sub(old, self._trainable(mean))
        moved, state = solver.step(old, gradient, server["optimizer"])
        return {"model": {**mean, **moved}, "optimizer": state}

    def _trainable(self, model: Params) -> Params:
        return trees.without(model, self.task.buffers)
