"""Fisher trace of a model on the training rows of a client (FedAS)."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.local_training import descend
from fedweave.client.solvers import Solver, masked_mean
from fedweave.client.task import Task
from fedweave.tensors.trees import Params, Tree, is_mapped


def fisher_trace(task: Task, model: Params, data: ClientData, plan: Sequence[Tensor]) -> Tensor:
    """Σ ‖∇F‖² over the batches of `plan`, 0-d: F is the mean loss of a batch in evaluation mode."""

    def loss(model: Params, rows: Tensor, key: Tensor) -> tuple[Tensor, Params]:
        places = rows.clamp(min=0)
        outputs = task.forward(model, data, places)
        return masked_mean(task.row_loss(outputs, task.targets(data, places)), rows >= 0), {}

    fit = descend(loss, model, [plan], _SquaredNorms(), data.key, task.params, masked=is_mapped())
    trace: Tensor = fit.state["trace"]
    return trace


@dataclass(frozen=True)
class _SquaredNorms(Solver):
    """Adds up the squared norms of gradients and changes no parameter."""

    def init(self, params: Params) -> Tree:
        return {"trace": next(iter(params.values())).new_zeros(())}

    def step(self, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
        return params, {"trace": state["trace"] + sum(g.square().sum() for g in grads.values())}

    step_ = step
