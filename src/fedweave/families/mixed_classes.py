"""Logistic mixed-effects models by Laplace's approximation over rounds (Bates et al., 2015; Breslow & Clayton, 1993).

Client i has logit P(y = 1) = X_i β + Z_i b_i with b_i = Λ u_i, u_i ~ N(0, I), where Z_i are the first q columns of X_i.
With h(u) = Σ_j log p(y_j | u) − u'u / 2, û = argmax h and H = I + Λ' Z_i' W Z_i Λ at û, W = p (1 − p), its
log-likelihood is approximately h(û) − log|H| / 2. All K models (one a class) have the leading axis.

A client sends the value, the gradient and the Hessian of the negative of it in (β, Λ); the server adds them up and
takes a step of Newton's method. The gradient is exact, also through û. So are the rows of the Hessian of Λ; in those of
β, X' W X − X' W Z Λ H⁻¹ Λ' Z' W X, the derivative of log|H| is left out, which changes the path and not the optimum.
"""

import torch
from torch import Tensor
from torch.func import grad, grad_and_value
from torch.nn.functional import softplus

from fedweave.families.mixed_effects import Rows, count_columns, entries, pack, start_point, unpack
from fedweave.families.trust_region import newton_step
from fedweave.tensors.trees import Tree

MODE_STEPS = 25  # of the search for û
START = 0.5  # standard deviation of random effects before the first step
FURTHEST = 1.0  # longest change of a standard deviation in one step
UNKNOWN = torch.finfo(torch.float64).max  # a value that none is worse than


def find_mode(rows: Rows, coef: Tensor, factor: Tensor) -> Tensor:
    """û [K, q] for β [K, d] and Λ [K, q, q], by damped steps of Newton's method.

    The damping is that of functions whose third derivative is bounded by M times the second one, here with the longest
    row of Z Λ as M (Sun & Tran-Dinh, Mathematical Programming 178, 2019, arXiv:1703.04599, Theorem 2 with ν = 2).
    """
    fixed, random = _fixed_part(rows, coef), _random_columns(rows, factor)
    bound = (random.square().sum(-1).sqrt() * (rows.weight > 0)).amax(-1)
    mode = coef.new_zeros(*factor.shape[:2])
    for _ in range(MODE_STEPS):
        step, _ = _mode_step(rows, fixed, random, mode)
        size = (bound * step.square().sum(-1).sqrt()).clamp(min=1e-12)
        mode = mode + (torch.log1p(size) / size)[:, None] * step
    return mode


def log_likelihood(rows: Rows, coef: Tensor, factor: Tensor, mode: Tensor) -> Tensor:
    """Laplace's approximation [K] of the log-likelihood at û, `mode` [K, q].

    Two more steps of Newton's method carry the dependence of û on β and Λ, whose first and second derivatives are exact
    after them.
    """
    fixed, random = _fixed_part(rows, coef), _random_columns(rows, factor)
    for _ in range(2):
        mode = mode + _mode_step(rows, fixed, random, mode)[0]
    logits = fixed + torch.einsum("kbq,kq->kb", random, mode)
    _, precision = _mode_step(rows, fixed, random, mode)
    fit = ((rows.targets * logits - softplus(logits)) * rows.weight).sum(-1)
    log_determinant = 2 * torch.linalg.cholesky(precision).diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return fit - mode.square().sum(-1) / 2 - log_determinant / 2


def client_terms(rows: Rows, coef: Tensor, factor: Tensor, mode: Tensor, slopes: str) -> Tree:
    """ "value" [K], "gradient" [K, T] and "hessian" [K, T (T + 1) / 2] of a client's −log-likelihood in (β, Λ).

    Args:
        mode: û [K, q].
    """
    i, j = entries(factor.shape[-1], slopes, coef.device)

    def negative(coef: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        values = -log_likelihood(rows, coef, factor, mode)
        return values.sum(), values  # models do not depend on each other, so the sum has the gradient of each

    def gradient(coef: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        (slopes, scales), (_, values) = grad_and_value(negative, argnums=(0, 1), has_aux=True)(coef, factor)
        return torch.cat([slopes, scales[:, i, j]], -1), values

    def slope_of(entry: int) -> Tensor:
        slopes, scales = grad(lambda c, f: gradient(c, f)[0][:, coef.shape[-1] + entry].sum(), argnums=(0, 1))(
            coef, factor
        )
        return torch.cat([slopes, scales[:, i, j]], -1)

    first, values = gradient(coef, factor)
    lower = [slope_of(entry) for entry in range(len(i))]
    scale_rows = torch.stack(lower, -2)  # [K, k, T]
    block = _information(rows, coef, factor, mode)
    upper = torch.cat([block, scale_rows[..., : coef.shape[-1]].mT], -1)
    hessian = pack(torch.cat([upper, scale_rows], -2))
    return {"value": values, "gradient": first, "hessian": hessian, "rows": rows.weight.sum()}


def start_state(clients: int, models: int, columns: int, slopes: str, like: Tensor) -> Tree:
    """The server before the first round: parameters, the sums at the best ones so far, and a row for each client."""
    point = start_point(models, columns, slopes, START, like)
    size = point.shape[1]
    zero = point.new_zeros(models)
    terms = {
        "value": zero,
        "gradient": torch.zeros_like(point),
        "hessian": point.new_zeros(models, size * (size + 1) // 2),
    }
    rows = {**terms, "point": point, "rows": point.new_zeros(())}
    return {
        "point": point,
        "best": {**terms, "point": point.clone(), "value": zero + UNKNOWN},
        "radius": zero + 1,
        "known": torch.zeros(clients, dtype=torch.bool, device=like.device),
        "clients": {name: torch.stack([value] * clients) for name, value in rows.items()},
    }


def server_step(state: Tree, ids: Tensor, uploads: Tree, slopes: str, ridge: float | Tensor) -> Tree:
    """The state after the uploads [P, ...] of clients `ids` at the parameters that were sent.

    `ridge` is the penalty of squared common slopes, of all models or of each [K].

    Clients that did not take part count with the quadratic model of their last upload (Rodomanov & Kropotov, ICML
    2016). If all took part and the value is worse than the best one, the step is taken back and a shorter one is tried.
    """
    point, columns = state["point"], count_columns(state["point"].shape[1], slopes)
    news = {**uploads, "point": point.expand(len(ids), *point.shape)}
    clients = {name: table.index_copy(0, ids, news[name].to(table)) for name, table in state["clients"].items()}
    known = state["known"].index_fill(0, ids, True)
    total = _add_up(clients, known, point, ridge, columns)
    is_complete = known.new_full((), len(ids) == len(known))
    is_worse = total["value"] > state["best"]["value"] + 1e-9 * (1 + state["best"]["value"].abs())
    is_worse = is_worse & is_complete & state["known"].all()
    best = {name: torch.where(_column(is_worse, value), state["best"][name], value) for name, value in total.items()}
    best["value"] = torch.where(is_complete, best["value"], UNKNOWN)
    radius = torch.where(is_worse, state["radius"] / 8, (2 * state["radius"]).clamp(max=1.0))
    count = float(clients["rows"].sum())
    step = newton_step(best["gradient"], unpack(best["hessian"]), radius, count)
    furthest = step[:, columns:].abs().amax(-1)
    step = step * (FURTHEST * radius / furthest.clamp(min=1e-300)).clamp(max=1.0)[:, None]
    return {"point": best["point"] + step, "best": best, "radius": radius, "known": known, "clients": clients}


def _add_up(clients: Tree, known: Tensor, point: Tensor, ridge: float | Tensor, columns: int) -> Tree:
    """Value, gradient and Hessian at `point` [K, T] of the `known` clients, and of the penalty of the slopes."""
    weight, position = known.to(point), torch.arange(point.shape[1], device=point.device)
    penalty = torch.as_tensor(ridge).to(point).reshape(-1, 1) * ((position > 0) & (position < columns))
    hessians = unpack(clients["hessian"])
    gradients = clients["gradient"] + torch.einsum("nkst,nkt->nks", hessians, point - clients["point"])
    return {
        "value": torch.einsum("n,nk->k", weight, clients["value"]) + (penalty * point.square()).sum(-1) / 2,
        "gradient": torch.einsum("n,nks->ks", weight, gradients) + penalty * point,
        "hessian": pack(torch.einsum("n,nkst->kst", weight, hessians) + torch.diag_embed(penalty)),
        "point": point,
    }


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (like.ndim - 1))


def _fixed_part(rows: Rows, coef: Tensor) -> Tensor:
    return coef @ rows.design.mT


def _random_columns(rows: Rows, factor: Tensor) -> Tensor:
    """Z Λ [K, B, q]."""
    return torch.einsum("bq,kqr->kbr", rows.design[:, : factor.shape[-1]], factor)


def _mode_step(rows: Rows, fixed: Tensor, random: Tensor, mode: Tensor) -> tuple[Tensor, Tensor]:
    """(a step of Newton's method towards û [K, q], H [K, q, q])."""
    chances = torch.sigmoid(fixed + torch.einsum("kbq,kq->kb", random, mode))
    slope = torch.einsum("kbq,kb->kq", random, (rows.targets - chances) * rows.weight) - mode
    curvature = chances * (1 - chances) * rows.weight
    identity = torch.eye(mode.shape[-1], dtype=mode.dtype, device=mode.device)
    precision = identity + torch.einsum("kbq,kb,kbr->kqr", random, curvature, random)
    return torch.linalg.solve(precision, slope[..., None])[..., 0], precision


def _information(rows: Rows, coef: Tensor, factor: Tensor, mode: Tensor) -> Tensor:
    """X' W X − X' W Z Λ H⁻¹ Λ' Z' W X [K, d, d]."""
    fixed, random = _fixed_part(rows, coef), _random_columns(rows, factor)
    _, precision = _mode_step(rows, fixed, random, mode)
    chances = torch.sigmoid(fixed + torch.einsum("kbq,kq->kb", random, mode))
    weighted = (chances * (1 - chances) * rows.weight)[..., None] * rows.design  # [K, B, d]
    across = random.mT @ weighted
    return rows.design.mT @ weighted - across.mT @ torch.linalg.solve(precision, across)
