"""Task: pure functions of a client model and its objective.

A *model* is one flat dictionary name -> tensor of parameters and BatchNorm buffers; frozen parameters are constants of
the task, and no part of it. A "layer" is one module that owns
parameters: its weight and bias together.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fedweave.client.augmentation import shift
from fedweave.client.data import ClientData
from fedweave.client.frozen_body import has_frozen_body
from fedweave.client.functional import copy_buffer, invoke
from fedweave.client.kernel_forward import run_forward
from fedweave.client.solvers import Loss, masked_mean
from fedweave.errors import BadInput
from fedweave.metrics import METRICS, Metric
from fedweave.models.adapters import low_ranks
from fedweave.models.base import BODY, ClientModel, Inputs, find_constants, find_norms, layers
from fedweave.models.gcn import SparseMatrix
from fedweave.tensors import trees
from fedweave.tensors.seeding import use_seed
from fedweave.tensors.trees import Params, is_mapped

CHUNK = 2048  # rows evaluated at once

# row_losses(model, rows [B], key, mask [B] of real rows or None) -> losses [B]; it may update the model's buffers.
RowLosses = Callable[[Params, Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Task(ABC):
    """What clients learn.

    Attributes:
        build: makes a newly initialised model; torch's global generator gives the random numbers.
        dtype: floating type of parameters.
        products: floating type in which the model multiplies (`torch.autocast`), or None for that of its parameters.
        scoring: the metric of the scores, or None for the task's own, which `row_score` computes on the device.
    """

    build: Callable[[], ClientModel]
    dtype: torch.dtype = torch.float32
    products: torch.dtype | None = None
    scoring: Metric | None = field(default=None, kw_only=True)

    targets_are = "numbers"
    metric = "accuracy"
    higher_is_better = True

    def __post_init__(self) -> None:
        _ = self.template  # built now, because a mapped function may not draw random numbers

    def in_unit(self, values: Tensor, data: ClientData) -> Tensor:
        """Targets or outputs [B, ...] of a client in the unit in which they are scored; by default as they are."""
        return values

    @property
    def score_metric(self) -> Metric:
        """The metric of the scores."""
        return self.scoring or METRICS[self.metric]

    @cached_property
    def template(self) -> ClientModel:
        """The module whose `forward` every client runs, with its constants; its own parameters are never used.

        Constants that are drawn at random are the same in all repetitions.
        """
        return self.build_module()

    def build_module(self) -> ClientModel:
        """A module of its own as the template, with its constants."""
        with use_seed(0):
            return self.build().to(self.dtype)

    @cached_property
    def params(self) -> tuple[str, ...]:
        """Names of the trainable parameters."""
        return tuple(name for name, _ in self.template.named_parameters())

    @cached_property
    def constants(self) -> tuple[str, ...]:
        """Names of the frozen parameters: one for all clients, in `template`, and no part of a model."""
        return find_constants(self.template)

    @cached_property
    def buffers(self) -> tuple[str, ...]:
        """Names of the buffers of a model: BatchNorm statistics, and a module's own, such as a mask."""
        return tuple(trees.omit(dict(self.template.named_buffers()), self.constants))

    @cached_property
    def integer_buffers(self) -> tuple[str, ...]:
        """Names of the buffers of whole numbers or truth values, of which there is no mean."""
        buffers = dict(self.template.named_buffers())
        return tuple(name for name in self.buffers if not buffers[name].is_floating_point())

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of all parameters and buffers of a model."""
        return frozenset({*self.params, *self.buffers})

    @cached_property
    def has_frozen_body(self) -> bool:
        """Whether nothing below the head changes; then it runs as in evaluation during training too."""
        return has_frozen_body(self.template)

    @cached_property
    def layers(self) -> dict[str, tuple[str, ...]]:
        """Layer name -> its parameter names, in the model's order."""
        return layers(self.template)

    @cached_property
    def head(self) -> tuple[str, ...]:
        """Parameter names of the head: the last module, or the last ones, with all that they contain."""
        return tuple(name for module in self.template.head for name in self.params if name.startswith(f"{module}."))

    @cached_property
    def products_to_mix(self) -> tuple[tuple[str, str], ...]:
        """Names of A and B of the adapters whose products servers mix, in place of A and B themselves."""
        pairs = {f"{p}.A": f"{p}.B" for p, layer in low_ranks(self.template).items() if layer.mix == "product"}
        return tuple((a, b) for a, b in pairs.items() if a in self.params)

    @cached_property
    def adapter_ranks(self) -> Sequence[int] | None:
        """Ranks of the clients' adapters, again from the first after the last; None if all have the same."""
        return next((layer.ranks for layer in low_ranks(self.template).values()), None)

    @cached_property
    def norms(self) -> tuple[str, ...]:
        """Parameter names of normalisation layers, found by their type or their buffers."""
        return tuple(name for layer in find_norms(self.template) for name in self.layers.get(layer, ()))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name -> shape."""
        return {name: tuple(value.shape) for name, value in self.template.named_parameters()}

    def init(self, seed: int) -> Params:
        """A freshly initialised model, a function of `seed`."""
        with use_seed(seed):
            module = self.build().to(self.dtype)
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return {name: value.detach().clone() for name, value in trees.omit(tensors, self.constants).items()}

    def objective(self, data: ClientData, row_losses: RowLosses | None = None) -> Loss:
        """The client's loss as a function of (model, rows, key): the mean of `row_losses`, by default the task's.

        Where classes have weights, each row counts with the weight of its class.
        """

        def task_losses(model: Params, rows: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
            return self.row_loss(self.forward(model, data, rows, key, mask), self.targets(data, rows))

        def loss(model: Params, rows: Tensor, key: Tensor) -> tuple[Tensor, Params]:
            buffers = {name: copy_buffer(model[name], data.size) for name in self.buffers}
            mask = rows >= 0 if data.padded else None
            real = rows.clamp(min=0) if data.padded else rows
            values = (row_losses or task_losses)({**model, **buffers}, real, key, mask)
            if "class_weight" in data.arrays:
                values = values * data.arrays["class_weight"][self.targets(data, real)]
            return values.mean() if mask is None else masked_mean(values, mask), buffers

        return loss

    def call(self, model: Params, inputs: Inputs, method: str = "forward", **options: Tensor | None) -> Tensor:
        """Run a method of the client module on `model`; the outputs have the dtype of the parameters."""
        if self.products is None:
            return invoke(self.template, model, method, inputs, **options)
        with torch.autocast(next(iter(model.values())).device.type, self.products):
            return invoke(self.template, model, method, inputs, **options).to(self.dtype)

    def predict(self, model: Params, data: ClientData, rows: Tensor) -> Tensor:
        """Outputs in evaluation mode for `rows` [B]; padding rows give the output of another row."""
        return self._run_in_chunks(lambda r: self.forward(model, data, r.clamp(min=0)), rows)

    def features(self, model: Params, data: ClientData, rows: Tensor) -> Tensor:
        """Penultimate features [B, D] in evaluation mode."""
        return self._run_in_chunks(lambda r: self.forward(model, data, r.clamp(min=0), method="features"), rows)

    def _run_in_chunks(self, run: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        # `shape` stays symbolic when the model is exported; `len` and `split` would fix the number of rows.
        parts = [rows] if rows.shape[0] <= CHUNK else rows.split(CHUNK)
        with torch.no_grad():
            return torch.cat([run_forward(run, part) for part in parts])

    @property
    def capabilities(self) -> frozenset[str]:
        """Properties of the task that a method may require in `needs`."""
        has_body = {*self.params} - {*self.head}
        return frozenset({"pooled_rows", *(("batch_norm",) if self.norms else ()), *((BODY,) if has_body else ())})

    @abstractmethod
    def batch(self, data: ClientData, rows: Tensor, key: Tensor | None = None) -> Inputs:
        """Inputs of the model for `rows`; with a key, those of a training batch."""

    def forward(
        self,
        model: Params,
        data: ClientData,
        rows: Tensor,
        key: Tensor | None = None,
        mask: Tensor | None = None,
        method: str = "forward",
    ) -> Tensor:
        """Outputs [B, ...] for `rows`; with a key in training mode, where `mask` [B] marks real rows.

        Raises:
            BadInput: the model lacks a parameter or buffer; an untrained one would replace it.
        """
        if method == "forward" and not self.names <= model.keys():
            raise BadInput(
                f"the model that the method returned lacks {', '.join(sorted(self.names - model.keys()))}; "
                "every parameter and buffer comes from the server or is kept by the client"
            )
        inputs = self.batch(data, rows, key)
        if key is not None and self.has_frozen_body:
            features = self.call(model, inputs, "features")
            return features if method == "features" else self.call(model, features, "classify")
        return self.call(model, inputs, method, key=key, mask=mask)

    @abstractmethod
    def targets(self, data: ClientData, rows: Tensor) -> Tensor:
        """Targets of `rows`."""

    @abstractmethod
    def row_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss per row [B]."""

    @abstractmethod
    def row_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Metric per row [B], NaN where outputs are not finite; a client's value is its weighted mean."""

    def mean_loss(self, outputs: Tensor, data: ClientData, rows: Tensor) -> Tensor:
        """Mean loss of `outputs` on `rows` (padding ignored); 0 for a client without rows."""
        return masked_mean(self.row_loss(outputs, self.targets(data, rows.clamp(min=0))), rows >= 0)

    def scored_rows(self, data: ClientData, rows: Tensor) -> Tensor:
        """`rows` without those of classes that the client does not have.

        Under `vmap` all rows are returned, because shapes cannot depend on data.
        """
        if is_mapped() or "test_weight" not in data.arrays:
            return rows
        return rows[data.arrays["test_weight"][self.targets(data, rows)] > 0]

    def score(self, outputs: Tensor, data: ClientData, rows: Tensor, shared_test: bool = False) -> Tensor:
        """The client's metric on `rows` (padding ignored); NaN for a client without rows.

        With `shared_test` rows are weighted by the client's own label distribution `test_weight` [C].
        """
        targets = self.targets(data, rows.clamp(min=0))
        weight = (rows >= 0).to(outputs.dtype)
        if shared_test and "test_weight" in data.arrays:
            weight = weight * data.arrays["test_weight"][targets]
        return (self.row_score(outputs, targets) * weight).sum() / weight.sum()


class Classification(Task):
    """Cross-entropy and accuracy in percent."""

    targets_are = "classes"

    @property
    def capabilities(self) -> frozenset[str]:
        return super().capabilities | {"classes"}

    def targets(self, data: ClientData, rows: Tensor) -> Tensor:
        return data.arrays["y"][rows]

    def row_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # Equal to F.cross_entropy, which under vmap imports sympy: seconds in every process.
        return -outputs.log_softmax(-1).gather(-1, targets[..., None])[..., 0]

    def row_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        correct = (outputs.argmax(-1) == targets).to(outputs.dtype) * 100.0
        # Of outputs that are not finite, argmax would give the first class, whatever the model has learned.
        return torch.where(outputs.isfinite().all(-1), correct, torch.nan)


@dataclass(frozen=True)
class RowClassification(Classification):
    """Images or vectors: a client is a list of rows of one shared array "x" [M, ...].

    Attributes:
        augment: pixels by which training images are shifted at random; half of them are also mirrored. 0: no change.
        inputs: the array of the rows that the model gets.
    """

    augment: int = 0
    inputs: str = field(default="x", kw_only=True)

    def batch(self, data: ClientData, rows: Tensor, key: Tensor | None = None) -> Inputs:
        x = data.arrays[self.inputs]
        return x[rows] if key is None or not self.augment else shift(x, rows, self.augment, key)


class NodeClassification(Classification):
    """Nodes of a client's own subgraph: rows are local node indices; every step passes over the whole subgraph."""

    @property
    def capabilities(self) -> frozenset[str]:
        return super().capabilities - {"pooled_rows"} | {"subgraphs"}

    def inputs(self, data: ClientData) -> tuple[Tensor | SparseMatrix, Tensor, Tensor]:
        """The whole subgraph: (x [V, F] or its cells, edges [3, E], weight [E])."""
        a = data.arrays
        x = SparseMatrix(a["cells"], a["values"], len(a["x"])) if "cells" in a else a["x"]
        return x, a["edges"], a["weight"]

    def batch(self, data: ClientData, rows: Tensor, key: Tensor | None = None) -> Inputs:
        return self.inputs(data)

    def forward(
        self,
        model: Params,
        data: ClientData,
        rows: Tensor,
        key: Tensor | None = None,
        mask: Tensor | None = None,
        method: str = "forward",
    ) -> Tensor:
        # The model reads all nodes, so a mask of `rows` means nothing to it.
        return super().forward(model, data, rows, key, None, method)[rows]

    def _run_in_chunks(self, run: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        with torch.no_grad():
            return run(rows.clamp(min=0))

    def embedding(self, model: Params, data: ClientData) -> Tensor:
        """x_i [D]: the mean of the last graph layer's output over the client's nodes, in evaluation mode."""
        with torch.no_grad():
            outputs = self.call(model, self.inputs(data), "embed")
        real = data.arrays["nodes"].to(outputs.dtype)
        return (outputs * real[:, None]).sum(0) / real.sum()
