"""Shared code of methods that treat the head and the layers below it (body) differently, or read features of rows."""

from functools import lru_cache

import torch
from torch import Tensor, nn

from fedweave.client.data import ClientData
from fedweave.client.task import RowLosses, Task
from fedweave.engine.protocol import Start
from fedweave.errors import BadInput
from fedweave.models import ClientModel
from fedweave.tensors.seeding import use_seed
from fedweave.tensors.trees import Params, Tree


def body(task: Task) -> tuple[str, ...]:
    """Names of the parameters below the head."""
    return tuple(name for name in task.params if name not in task.head)


def draw_xavier_head(task: Task, start: Start) -> Start:
    """`start` with a head drawn by Xavier's uniform law, as the masked classifier of JinheonBaek/FED-PUB.

    A bias of C outputs is drawn as a matrix [1, C].
    """
    with use_seed(start.seed):
        rows = {name: torch.empty_like(start.model[name], device="cpu") for name in task.head}
        for row in rows.values():
            nn.init.xavier_uniform_(row if row.ndim > 1 else row[None])
    return start._replace(model={**start.model, **{name: row.to(start.model[name]) for name, row in rows.items()}})


def head_shape(task: Task) -> tuple[int, int]:
    """(C, D) of the head, which makes outputs [B, C] of features [B, D].

    Raises:
        BadInput: the head consists of other layers than linear ones.
    """
    return _measure_head(task.template, task.head)


@lru_cache(maxsize=64)
def _measure_head(network: ClientModel, names: tuple[str, ...]) -> tuple[int, int]:
    matrices = [value for name, value in network.named_parameters() if name in names and value.ndim == 2]
    if matrices:
        (classes, _), (_, width) = matrices[-1].shape, matrices[0].shape
        if _count_outputs(network, matrices[0].new_zeros(1, width)) == classes:
            return classes, width
    raise BadInput(
        f"model: this method needs a linear head, and {', '.join(network.head)} is none; "
        "end the model with nn.Linear, or choose another method"
    )


def _count_outputs(network: ClientModel, features: Tensor) -> int:
    """Number of outputs of the head's modules on `features`; 0 if they cannot read them."""
    try:
        with torch.no_grad():
            for name in network.head:
                features = network.get_submodule(name)(features)
    except Exception:  # of a user's module
        return 0
    return features.numel()


def row_features(task: Task, model: Params, data: ClientData, rows: Tensor) -> Tensor:
    """Features [B, D] of `rows` in evaluation mode.

    Raises:
        BadInput: the features of a row are not a vector.
    """
    z = task.features(model, data, rows)
    if z.ndim != 2:
        raise BadInput(
            f"model: the features of a row have the shape {[*z.shape[1:]]}, and this method needs a vector; "
            "flatten them before the head, or choose another method"
        )
    return z


def classify(task: Task, model: Params, z: Tensor) -> Tensor:
    """Logits [B, C] of the head in `model` on features [B, D]."""
    return task.call({name: model[name] for name in task.head}, z, "classify")


def one_hot(task: Task, data: ClientData, rows: Tensor) -> Tensor:
    """Labels of `rows` [m] as floats [m, C]; padding rows are 0."""
    labels = task.targets(data, rows.clamp(min=0))
    classes = torch.arange(head_shape(task)[0], device=rows.device)
    return ((labels[:, None] == classes) & (rows >= 0)[:, None]).to(task.dtype)


def class_statistics(task: Task, model: Params, data: ClientData) -> Tree:
    """Statistics of the features z of `model` on the client's m training rows, with p the shares of the classes.

    {"counts": [C], "means": μ_c [C, D], "h": p_c μ_c [C, D], "variance": V = (Σ p_c E‖z‖²_c − Σ p_c² ‖μ_c‖²) / m}.
    """
    z, labels = row_features(task, model, data, data.train), one_hot(task, data, data.train)
    counts = labels.sum(0)
    p, divisor = counts / counts.sum(), counts.clamp(min=1)
    means, power = labels.T @ z / divisor[:, None], labels.T @ z.square().sum(1) / divisor
    variance = ((p * power).sum() - (p.square() * means.square().sum(1)).sum()) / counts.sum()
    return {"counts": counts, "means": means, "h": p[:, None] * means, "variance": variance}


def aligned_losses(task: Task, data: ClientData, prototypes: Tensor, defined: Tensor, weight: float) -> RowLosses:
    """The task's loss of a row + weight · mean((z − μ_y)²), if the class y has a prototype.

    Args:
        prototypes: μ [C, D].
        defined: bool [C], which classes have one.
    """

    def losses(model: Params, rows: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
        z, y = task.forward(model, data, rows, key, mask, method="features"), task.targets(data, rows)
        values = task.row_loss(task.call(model, z, "classify"), y)
        return values + weight * ((z - prototypes[y]).square().mean(-1) * defined[y])

    return losses


def head_weights(variance: Tensor, h: Tensor, smallest: float = 1e-3) -> Tensor:
    """α [P, P]: row i minimises Σ_j V_j α_j² + ‖Σ_j α_j (h_i − h_j)‖² over the simplex; V [P], h [P, C, D].

    Shares below `smallest` count as 0 and the others are scaled to sum 1, unless all are below, as with very many
    clients.
    Non-negative least squares on ‖A x‖² + (1ᵀx − 1)² has its minimum on the ray through that α. Norms of differences
    of h are those of the columns of R in hᵀ = Q R, which has at most P rows in place of C·D.
    """
    from scipy.optimize import nnls

    v = variance.double().cpu().clamp(min=0).sqrt().diag()
    flat = torch.linalg.qr(h.double().cpu().flatten(1).T, mode="r").R.T
    ones = torch.ones(1, len(v), dtype=torch.float64)
    target = torch.zeros(len(v) + flat.shape[1] + 1, dtype=torch.float64)
    target[-1] = 1.0
    rows = [nnls(torch.cat([v, (own - flat).T, ones]).numpy(), target.numpy())[0] for own in flat]
    x = torch.stack([torch.from_numpy(row) for row in rows])
    alpha = x / x.sum(1, keepdim=True)
    is_large = alpha >= smallest
    alpha = alpha * (is_large | ~is_large.any(1, keepdim=True))
    return (alpha / alpha.sum(1, keepdim=True)).to(variance)
