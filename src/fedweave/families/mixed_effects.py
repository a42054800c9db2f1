"""What linear and logistic mixed-effects models have in common: rows, parameters and random effects.

The parameters of a model are β [d] and the entries of a factor Λ [q, q] that are estimated; random effects are in the
first q columns of X, of which the first one is 1.
"""

from math import isqrt
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedweave.client.data import ClientData
from fedweave.client.task import Task
from fedweave.errors import BadInput

MOST_COLUMNS = 512  # the square of which a client sends
MOST_EFFECTS = {"none": MOST_COLUMNS, "independent": 64, "correlated": 12}


class Rows(NamedTuple):
    """Rows of a client: X [B, d], targets [K, B], and the weight of each row [B], 0 for padding."""

    design: Tensor
    targets: Tensor
    weight: Tensor


def design(task: Task, data: ClientData, rows: Tensor) -> Tensor:
    """X [B, d] in double precision: a 1, and the flattened inputs of `rows` [B], those of padding included."""
    flat = torch.as_tensor(task.batch(data, rows.clamp(min=0))).flatten(1).double()
    return torch.cat([torch.ones_like(flat[:, :1]), flat], 1)


def training_rows(task: Task, data: ClientData, classes: int) -> Rows:
    """The training rows of a client.

    Args:
        classes: of the targets, which become 0 and 1: the second of two classes, or each one of more; 0 for numbers.
    """
    targets, weight = task.targets(data, data.train.clamp(min=0)), (data.train >= 0).double()
    x = design(task, data, data.train)
    if not classes:
        return Rows(x, targets.double().flatten(1).mT, weight)
    if "class_weight" in data.arrays:
        weight = weight * data.arrays["class_weight"][targets]
    labels = torch.arange(1 if classes == 2 else 0, classes, device=targets.device)
    return Rows(x, (targets == labels[:, None]).double(), weight)


def add_effects(coef: Tensor, factor: Tensor, effects: Tensor) -> Tensor:
    """The coefficients [K, d] of a client: β, and Λ u in the first q columns."""
    deviations = (factor @ effects[..., None])[..., 0]
    return coef + pad(deviations, (0, coef.shape[-1] - deviations.shape[-1]))


def check_size(label: str, columns: int, slopes: str) -> None:
    """Refuse more columns than the sums of a client are good for."""
    if columns <= MOST_EFFECTS[slopes]:
        return
    way = "set slopes to none" if columns <= MOST_COLUMNS else "take fewer columns, or leave the method out"
    raise BadInput(
        f"{label}: slopes: {slopes}, with {columns} columns (inputs and intercept), more than {MOST_EFFECTS[slopes]}; "
        f"{way}"
    )


def count_effects(columns: int, slopes: str) -> int:
    """q: the intercept, or all columns."""
    return 1 if slopes == "none" else columns


def count_columns(parameters: int, slopes: str) -> int:
    """d, from the number of parameters of a model."""
    if slopes == "none":
        return parameters - 1
    return parameters // 2 if slopes == "independent" else (isqrt(9 + 8 * parameters) - 3) // 2


def entries(effects: int, slopes: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns [k] of the entries of Λ that are estimated: those of a triangle, or of the diagonal."""
    if slopes == "correlated":
        i, j = torch.tril_indices(effects, effects, device=device)
        return i, j
    diagonal = torch.arange(effects, device=device)
    return diagonal, diagonal


def start_point(models: int, columns: int, slopes: str, scale: float, like: Tensor) -> Tensor:
    """Parameters [K, d + k] before the first round: β = 0, Λ = `scale` I."""
    i, j = entries(count_effects(columns, slopes), slopes, like.device)
    factor = scale * (i == j).to(like)
    return torch.cat([like.new_zeros(models, columns), factor.expand(models, -1)], -1)


def split_point(point: Tensor, slopes: str) -> tuple[Tensor, Tensor]:
    """(β [K, d], Λ [K, q, q]) of parameters [K, d + k]."""
    columns = count_columns(point.shape[-1], slopes)
    effects = count_effects(columns, slopes)
    return point[:, :columns], build_factor(point[:, columns:], *entries(effects, slopes, point.device), effects)


def build_factor(values: Tensor, i: Tensor, j: Tensor, effects: int) -> Tensor:
    """Λ [..., q, q] with `values` [..., k] at the entries (i, j)."""
    flat = values.new_zeros(*values.shape[:-1], effects * effects)
    return flat.index_copy(-1, i * effects + j, values).unflatten(-1, (effects, effects))


def pack(matrix: Tensor) -> Tensor:
    """The upper triangle [..., m (m + 1) / 2] of symmetric matrices [..., m, m]."""
    i, j = torch.triu_indices(*matrix.shape[-2:], device=matrix.device)
    return matrix[..., i, j]


def unpack(triangle: Tensor) -> Tensor:
    """The symmetric matrices [..., m, m] of `pack`."""
    size = (isqrt(1 + 8 * triangle.shape[-1]) - 1) // 2
    i, j = torch.triu_indices(size, size, device=triangle.device)
    matrix = triangle.new_zeros(*triangle.shape[:-1], size, size)
    matrix[..., i, j] = triangle
    matrix[..., j, i] = triangle
    return matrix
