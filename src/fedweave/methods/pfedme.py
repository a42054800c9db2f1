"""pFedMe (T. Dinh et al., NeurIPS 2020, arXiv:2006.08848).

Server keeps one model g (traffic 2P). The client starts w and θ from g; for every batch K steps
θ ← θ − lr_p (∇F(θ) + λ (θ − w) + μ θ), then one step of w on the Moreau envelope's gradient λ (w − θ). w is uploaded,
g ← (1 − β) g + β Σ n_k w_k, θ is deployed. `eval_w` deploys w, as CharlieDinh/pFedMe scores.

Deviation: the step on w is one of the run's optimiser, which is the paper's w ← w − η λ (w − θ) for plain SGD.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch

from fedweave.client.data import ClientData
from fedweave.client.solvers import Solver
from fedweave.engine.protocol import ClientState, Update
from fedweave.engine.registry import method
from fedweave.families import GlobalModel
from fedweave.settings import AtLeast, AtMost, LogSpace, Rate, Weight
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


@dataclass(frozen=True, kw_only=True)
class Envelope(Solver):
    """K steps of the proximal problem around an anchor w, then one step of w; state {"w", "outer", "taken"}.

    Attributes:
        lr, lam, mu, steps: of the proximal problem.
        outer: the optimiser of w.
    """

    lr: float
    lam: float
    mu: float
    steps: int
    outer: Solver

    def init(self, params: Params) -> Tree:
        taken = next(iter(params.values())).new_zeros(())
        return {
            "w": {name: value.clone() for name, value in params.items()},
            "outer": self.outer.init(params),
            "taken": taken,
        }

    def keep(self, state: Tree) -> Tree:
        return self.outer.keep(state["outer"])

    def resume(self, kept: Tree, params: Params) -> Tree:
        return {**self.init(params), "outer": self.outer.resume(kept, params)}

    def step(self, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
        w, taken = state["w"], state["taken"] + 1
        theta = {
            name: p - self.lr * (grads[name] + self.lam * (p - w[name]) + self.mu * p) for name, p in params.items()
        }
        outer_step = self.outer.step(w, {name: self.lam * (w[name] - theta[name]) for name in w}, state["outer"])
        is_last = taken % self.steps == 0
        w, outer = trees.tree_map(lambda a, b: torch.where(is_last, a, b), outer_step, (w, state["outer"]))
        return theta, {"w": w, "outer": outer, "taken": taken}

    step_ = step


@method("pfedme")
@dataclass(frozen=True, kw_only=True)
class PFedMe(GlobalModel):
    """Personal models in the Moreau envelope of the global one."""

    lam: Annotated[Weight, LogSpace(1, 30), "λ, strength of the envelope"] = 15.0
    inner_steps: Annotated[int, AtLeast(1), AtMost(10_000), "K, steps of θ per batch"] = 5
    inner_lr: Annotated[Rate, LogSpace(0.001, 0.06), "lr_p, size of these steps"] = 0.01
    beta: Annotated[Weight, "β, share of the new average in g"] = 1.0
    mu: Annotated[Weight, "μ, weight decay of θ"] = 1e-3
    eval_w: Annotated[bool, "deploy w instead of θ"] = False

    label = "pFedMe"
    point = "pre"

    def merge(self, old: Params, mean: Params) -> Params:
        return trees.tree_map(lambda a, b: (1 - self.beta) * a + self.beta * b, old, mean)

    def join(self, model: Params) -> ClientState:
        return {"personal": model}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        plan = [[rows for rows in epoch for _ in range(self.inner_steps)] for epoch in data.plan]
        envelope = Envelope(lr=self.inner_lr, lam=self.lam, mu=self.mu, steps=self.inner_steps, outer=self.solver)
        fit = self.descend({**client["personal"], **shared}, replace(data, plan=plan), solver=envelope)
        personal = {**fit.model, **fit.state["w"]} if self.eval_w else fit.model
        upload = {**trees.omit(fit.model, self.local_names), **fit.state["w"]}
        return Update({"model": upload}, {"personal": personal}, personal, fit.loss)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        return client["personal"]
