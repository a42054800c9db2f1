"""Linear mixed-effects models by sums over each client's rows (Laird & Ware, 1982; Bates et al., 2015).

Client i has y_i = X_i β + Z_i b_i + ε, b_i ~ N(0, σ² Λ Λ'), ε ~ N(0, σ²). With M_i = I + Λ' Z_i' Z_i Λ,
σ² X' V⁻¹ X = Σ_i (X_i' X_i − X_i' Z_i Λ M_i⁻¹ Λ' Z_i' X_i), and likewise for X' V⁻¹ y and y' V⁻¹ y, so that the
likelihood needs nothing of a client but [X y]' [X y]. Given Λ, β and σ² have closed forms (Bates et al., Eqs. 34 to
42); the profiled likelihood is maximised over the entries of Λ.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fedweave.families.mixed_effects import Rows, build_factor, count_effects, entries, start_point, unpack
from fedweave.families.trust_region import minimise
from fedweave.tensors.trees import Tree

STARTS = (1.0, 0.1)  # standard deviations of random effects, relative to σ and to the columns, that searches start from
RANK = 1e-10  # relative size below which a direction of the columns is empty


class _Sums(NamedTuple):
    """The sums of all clients, in columns that are independent of each other.

    Attributes:
        xx, xy, yy: [r, r], [r], [], over all clients.
        zz, zx, zy: [N, q, q], [N, q, r], [N, q].
        penalty: [r, r] of squared slopes.
        rows: number of rows.
        free: number of coefficients without a penalty.
    """

    xx: Tensor
    xy: Tensor
    yy: Tensor
    zz: Tensor
    zx: Tensor
    zy: Tensor
    penalty: Tensor
    rows: float
    free: int


def gram(rows: Rows) -> Tensor:
    """[X y]' [X y], [d + K, d + K], of a client."""
    values = torch.cat([rows.design, rows.targets.mT], -1)
    return values.mT @ (values * rows.weight[:, None])


def find_mode(rows: Rows, coef: Tensor, factor: Tensor) -> Tensor:
    """u [K, q] of a client, of which Λ u is the best linear unbiased prediction: (I + Λ' Z' Z Λ)⁻¹ Λ' Z' (y − X β)."""
    random = rows.design[:, : factor.shape[-1]] * rows.weight[:, None]
    residual = (rows.targets - coef @ rows.design.mT) @ random
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    middle = identity + factor.mT @ (random.mT @ random) @ factor
    return torch.linalg.solve(middle, factor.mT @ residual[..., None])[..., 0]


def start_state(clients: int, models: int, columns: int, slopes: str, like: Tensor) -> Tree:
    """The server before the first round: parameters, and a row for each client."""
    size = columns + models
    return {
        "point": start_point(models, columns, slopes, 0.0, like),
        "sums": like.new_zeros(clients, size * (size + 1) // 2),
        "known": torch.zeros(clients, dtype=torch.bool, device=like.device),
    }


def server_step(state: Tree, ids: Tensor, sums: Tensor, slopes: str, restricted: bool, ridge: float) -> Tree:
    """The state after the `sums` [P, ...] of clients `ids`; those of clients that were known do not count."""
    known, table = state["known"], state["sums"]
    is_new = ~known[ids]
    if not is_new.any():
        return state
    table = table.index_copy(0, ids, torch.where(is_new[:, None], sums.to(table), table[ids]))
    known = known.index_fill(0, ids, True)
    grams = repair(unpack(table[known]))
    columns = grams.shape[-1] - len(state["point"])
    points = []
    for target in range(columns, grams.shape[-1]):
        part = torch.cat([torch.arange(columns), torch.tensor([target])]).to(grams.device)
        points.append(fit(grams[:, part][:, :, part], slopes, restricted, ridge)[0])
    point = torch.stack(points)
    return {"point": torch.where(point.isfinite().all(), point, state["point"]), "sums": table, "known": known}


def repair(grams: Tensor) -> Tensor:
    """Gram matrices [N, m, m]; where noise has made one impossible, the nearest possible ones."""
    scale = grams.diagonal(dim1=-2, dim2=-1).abs().amax(-1).clamp(min=1e-300)
    jitter = 1e-9 * scale[:, None, None] * torch.eye(grams.shape[-1], dtype=grams.dtype, device=grams.device)
    if not torch.linalg.cholesky_ex(grams + jitter).info.any():
        return grams
    values, vectors = torch.linalg.eigh(grams)
    return (vectors * values.clamp(min=0)[:, None]) @ vectors.mT


def fit(grams: Tensor, slopes: str = "none", restricted: bool = True, ridge: float = 0.0) -> tuple[Tensor, Tensor]:
    """(β and the entries of Λ [d + k], σ²) of one target, by restricted or ordinary maximum likelihood.

    Args:
        grams: [N, d + 1, d + 1] with [X y]' [X y] of each client; the first column of X is 1.
        slopes: "none", "independent" or "correlated".
        restricted: REML, or ML.
        ridge: weight of the squared slopes, as that many rows; 0 is 1 where there are no more rows than columns.
    """
    columns, rows = grams.shape[-1] - 1, float(grams[:, 0, 0].sum())
    effects = count_effects(columns, slopes)
    scale = (grams.sum(0).diagonal()[:columns] / max(rows, 1.0)).sqrt()
    scale = torch.where(scale > 0, scale, 1.0)
    values, vectors = torch.linalg.eigh(grams[:, :columns, :columns].sum(0) / scale[:, None] / scale)
    basis = vectors[:, values > RANK * values.max()] / scale[:, None]
    ridge = ridge if ridge or rows > basis.shape[1] else 1.0
    sums = _sum(grams, basis, scale[:effects], ridge, rows)
    i, j = entries(effects, slopes, grams.device)

    def deviance(point: Tensor) -> Tensor:
        return _profile(sums, build_factor(point, i, j, effects), restricted)[0]

    found = [minimise(deviance, size * (i == j).to(grams)) for size in STARTS]
    point, _ = min(found, key=lambda pair: float(pair[1].nan_to_num(torch.inf)))
    _, coef, noise = _profile(sums, build_factor(point, i, j, effects), restricted)
    return torch.cat([basis @ coef, point / scale[:effects][i]]), noise


def _sum(grams: Tensor, basis: Tensor, scale: Tensor, ridge: float, rows: float) -> _Sums:
    columns, effects = grams.shape[-1] - 1, len(scale)
    total, slopes = grams.sum(0), basis[1:]
    zz, zx, zy = grams[:, :effects, :effects], grams[:, :effects, :columns], grams[:, :effects, columns]
    return _Sums(
        basis.T @ total[:columns, :columns] @ basis,
        basis.T @ total[:columns, columns],
        total[columns, columns],
        zz / scale[:, None] / scale,
        zx @ basis / scale[:, None],
        zy / scale,
        ridge * slopes.T @ slopes,
        rows,
        1 if ridge else basis.shape[1],
    )


def _profile(sums: _Sums, factor: Tensor, restricted: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(−2 log-likelihood up to a constant, coefficients [r], σ²) given Λ."""
    identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    lower = torch.linalg.cholesky_ex(identity + factor.T @ sums.zz @ factor)[0]
    both = factor.T @ torch.cat([sums.zx, sums.zy[..., None]], -1)
    solved = torch.linalg.solve_triangular(lower, both, upper=False)
    zx, zy = solved[..., :-1], solved[..., -1]
    precision = sums.xx + sums.penalty - torch.einsum("nqr,nqs->rs", zx, zx)
    right = sums.xy - torch.einsum("nqr,nq->r", zx, zy)
    triangle = torch.linalg.cholesky_ex(precision)[0]
    coef = torch.cholesky_solve(right[:, None], triangle)[:, 0]
    freedom = max(sums.rows - sums.free if restricted else sums.rows, 1.0)
    noise = (sums.yy - zy.square().sum() - right @ coef).clamp(min=1e-14 * float(sums.yy) + 1e-300) / freedom
    deviance = 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum() + freedom * noise.log()
    if restricted:
        deviance = deviance + 2 * triangle.diagonal().log().sum()
    return deviance, coef, noise
