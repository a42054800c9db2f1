"""Partial pooling: a mixed-effects model (Laird & Ware, Biometrics 38, 1982; Bates et al., J. Stat. Softw. 67, 2015).

y_i = X_i β + Z_i b_i + ε, b_i ~ N(0, σ² Λ Λ'), ε ~ N(0, σ²): coefficients β of all clients, and deviations b_i of each
one in the intercept (Z_i = 1) or in all columns (Z_i = X_i), shrunk towards 0 as far as clients are alike. X_i are the
flattened inputs behind a 1; the network of the task is not used. The server keeps β, Λ and sums of each client.

Numbers are exact after one round: a client sends [X_i y_i]' [X_i y_i], the server maximises the (restricted)
likelihood, and the client adds the best linear unbiased prediction b_i = Λ (I + Λ' Z' Z Λ)⁻¹ Λ' Z' (y_i − X_i β).
Classes take a step of Newton's method a round: a client sends the value, gradient and Hessian of Laplace's
approximation of its likelihood, and predicts with the mode of b_i. Two classes are one logistic model, K classes are K
of them, one against the rest, with probabilities divided by their sum. Every number of a target is a model, too.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fedweave.client.data import ClientData
from fedweave.engine.protocol import ClientState, Method, Server, Start, Update
from fedweave.engine.registry import method
from fedweave.families import mixed_classes, mixed_numbers
from fedweave.families.heads import head_shape
from fedweave.families.mixed_effects import Rows, add_effects, check_size, design, pack, split_point, training_rows
from fedweave.settings import Choices, Weight
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


@method("partial_pooling")
@dataclass(frozen=True, kw_only=True)
class PartialPooling(Method):
    """A linear or logistic model of all clients, whose intercept and slopes may differ between clients."""

    slopes: Annotated[
        Literal["none", "independent", "correlated"],
        Choices(("none", "independent")),
        "whether slopes differ between clients too, and whether the deviations of a client are correlated",
    ] = "none"
    likelihood: Annotated[Literal["reml", "ml"], "of numbers: restricted or ordinary maximum likelihood"] = "reml"
    ridge: Annotated[Weight, Choices((0.0, 1.0, 10.0, 100.0)), "penalty of squared common slopes, as rows"] = 0.0

    label = "Partial pooling"
    point = "pre"
    robust_part = ""
    parameters = ()
    needs = frozenset({"pooled_rows"})

    @property
    def has_classes(self) -> bool:
        """Whether the model is logistic."""
        return self.task.targets_are == "classes"

    epochs = 0  # no minibatches are drawn

    def join(self, model: Params) -> ClientState:
        return {}

    def enrol(self, model: Params, data: ClientData) -> Tree:
        """Sizes alone: tensors without entries, whose lengths are the columns of X and the models."""
        x, targets, _ = self._rows(data)
        check_size(self.label, x.shape[-1], self.slopes)
        return {"columns": x.new_zeros(x.shape[-1], 0), "models": x.new_zeros(len(targets), 0)}

    def init(self, start: Start) -> Server:
        models, columns = (start.enrolled[name].shape[1] for name in ("models", "columns"))
        like = start.enrolled["columns"].new_zeros(())
        build = mixed_classes.start_state if self.has_classes else mixed_numbers.start_state
        return build(start.clients, models, columns, self.slopes, like)

    def admit(self, server: Server, enrolled: Tree, newcomers: int, start: Start) -> Server:
        return trees.grow(server, self.init(start))

    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        return {"point": server["point"]}, {} if self.has_classes else {"known": server["known"][ids]}

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        rows, (coef, factor) = self._rows(data), split_point(shared["point"], self.slopes)
        effects = self._effects(rows, coef, factor)
        model = {"coef": add_effects(coef, factor, effects)}
        loss = self.task.mean_loss(self.predict(model, data, data.train), data, data.train)
        if self.has_classes:
            upload = mixed_classes.client_terms(rows, coef, factor, effects, self.slopes)
        else:  # what the server knows is not sent again
            upload = {"sums": torch.where(own["known"], 0.0, pack(mixed_numbers.gram(rows)))}
        return Update(upload, {}, model, loss)

    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        if self.has_classes:
            return mixed_classes.server_step(server, ids, uploads, self.slopes, self.ridge)
        restricted = self.likelihood == "reml"
        return mixed_numbers.server_step(server, ids, uploads["sums"], self.slopes, restricted, self.ridge)

    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Params:
        coef, factor = split_point(shared["point"], self.slopes)
        return {"coef": add_effects(coef, factor, self._effects(self._rows(data), coef, factor))}

    def predict(self, model: Tree, data: ClientData, rows: Tensor) -> Tensor:
        outputs = (design(self.task, data, rows) @ model["coef"].mT).to(self.task.dtype)
        if not self.has_classes:
            return outputs
        return torch.cat([-outputs, outputs], -1) / 2 if outputs.shape[-1] == 1 else logsigmoid(outputs)

    def traffic(self, shared: Tree, own: Tree, uploads: Tree, participants: int) -> tuple[int, int]:
        """Eight bytes a number, as sums of squares need them; with numbers, to and from clients that are new."""
        new = participants if self.has_classes else int((~own["known"]).sum())
        down, up = (trees.nbytes(tree, lambda t: t.element_size()) for tree in (shared, uploads))
        return new * down, new * up // participants

    def _effects(self, rows: Rows, coef: Tensor, factor: Tensor) -> Tensor:
        """u [K, q], of which Λ u are the client's deviations."""
        return (mixed_classes if self.has_classes else mixed_numbers).find_mode(rows, coef, factor)

    def _rows(self, data: ClientData) -> Rows:
        """The client's training rows; of classes, the targets of each model are 0 and 1."""
        classes = head_shape(self.task)[0] if self.has_classes else 0
        return training_rows(self.task, data, classes)
