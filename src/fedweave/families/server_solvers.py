"""Optimisers of a server that averages (Reddi et al., ICLR 2021, arXiv:2003.00295)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedweave.client.solvers import SGD, Adam, Solver
from fedweave.errors import BadInput
from fedweave.families.base import GlobalModel, SplitClient
from fedweave.tensors.trees import Params, Tree

Rule = Literal["adam", "yogi", "adagrad"]
Choice = Literal["sgd", "adam", "yogi", "adagrad"]

# Settings of each optimiser and their defaults: those of the paper; rates are in the middle of its best ones.
SETTINGS: dict[Choice, dict[str, float]] = {
    "sgd": {"server_lr": 1.0, "server_momentum": 0.9},
    "adam": {"server_lr": 0.01, "server_momentum": 0.9, "server_beta2": 0.99, "server_tau": 1e-3},
    "yogi": {"server_lr": 0.01, "server_momentum": 0.9, "server_beta2": 0.99, "server_tau": 1e-3},
    "adagrad": {"server_lr": 0.1, "server_tau": 1e-3},
}


@dataclass(frozen=True, kw_only=True)
class AdaptiveSolver(Solver):
    """x ← x − η m / (√v + τ), the adaptive step of Algorithm 2; m ← β1 m + (1 − β1) g, and v by the rule.

    adagrad: v ← v + g². adam: v ← β2 v + (1 − β2) g². yogi: v ← v − (1 − β2) g² sign(v − g²). m begins at 0 and v at
    τ², and their bias is not corrected, as in the paper.
    """

    rule: Rule
    lr: float
    beta1: float = 0.0
    beta2: float = 0.99
    tau: float = 1e-3

    def init(self, params: Params) -> Tree:
        first = {name: torch.zeros_like(value) for name, value in params.items()}
        return {"m": first, "v": {name: torch.full_like(value, self.tau**2) for name, value in params.items()}}

    def step(self, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
        m = {name: self.beta1 * state["m"][name] + (1 - self.beta1) * g for name, g in grads.items()}
        v = {name: self._second_moment(state["v"][name], g.square()) for name, g in grads.items()}
        new = {name: value - self.lr * m[name] / (v[name].sqrt() + self.tau) for name, value in params.items()}
        return new, {"m": m, "v": v}

    step_ = step

    def _second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        if self.rule == "adagrad":
            return v + squared
        if self.rule == "adam":
            return self.beta2 * v + (1 - self.beta2) * squared
        return v - (1 - self.beta2) * squared * torch.sign(v - squared)


def server_optimizer(rule: Choice | None, settings: Mapping[str, float | None], where: str) -> Solver | None:
    """The optimiser `rule` with `settings`, where None is its default; None for a server that takes the mean.

    Raises:
        BadInput: a setting is given that `rule` does not read.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    for name, value in given.items():
        if rule is None or name not in SETTINGS[rule]:
            readers = ", ".join(other for other, options in SETTINGS.items() if name in options)
            raise BadInput(
                f"{where}.{name}",
                f"{value:g} is read by server_optimizer: {readers}, not by {rule or 'the mean'}; "
                "set one of them, or leave it out",
            )
    return None if rule is None else solver(rule, **{**SETTINGS[rule], **given})


def solver(
    rule: Choice, server_lr: float, server_momentum: float = 0.0, server_beta2: float = 0.99, server_tau: float = 1e-3
) -> Solver:
    """The optimiser `rule`: "sgd" or a rule of `AdaptiveSolver`."""
    if rule == "sgd":
        return SGD(lr=server_lr, momentum=server_momentum)
    return AdaptiveSolver(rule=rule, lr=server_lr, beta1=server_momentum, beta2=server_beta2, tau=server_tau)


class ServerOptimizer(SplitClient, GlobalModel):
    """FedAvg with the optimiser `rule` at the server, whose settings are the method's own."""

    rule: ClassVar[Choice]

    point = "pre"
    server_steps = False

    @property
    def server_solver(self) -> Solver:
        return solver(self.rule, **{name: getattr(self, name) for name in SETTINGS[self.rule]})


def network_solver(rule: Literal["sgd", "adam"], lr: float, momentum: float, decay: float, clip: float) -> Solver:
    """The optimiser of a server's networks; `clip` is the largest norm of their gradient, 0 for none."""
    if rule == "adam":
        return Adam(lr=lr, weight_decay=decay, clip=clip or None)
    return SGD(lr=lr, momentum=momentum, weight_decay=decay, clip=clip or None)
