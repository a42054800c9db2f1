"""Logistic mixed-effects models by Laplace's approximation over rounds (Bates et al., 2015; Breslow & Clayton, 1993).

Client i has logit P(y = 1) = X_i β + Z_i b_i with b_i = Λ u_i, u_i ~ N(0, I), where Z_i are the first q columns of X_i.
With h(u) = Σ_j log p(y_j | u) − u'u / 2, û = argmax h and H = I + Λ' Z_i' W Z_i Λ at û, W = p (1 − p), its
log-likelihood is approximately h(û) − log|H| / 2. All K models (one a class) have the leading axis.

A client sends the value, the gradient and the Hessian of the negative of it in (β, Λ); the server adds them up and
takes a step of Newton's method. The gradient is exact, also through û. So are the rows of the Hessian of Λ; in those of
β, X' W X − X' W Z Λ H⁻¹ Λ' Z' W X, the derivative of log|H| is left out, which changes the path and not the optimum.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedweave.families.mixed_effects import Rows, count_columns, entries, pack, start_point, unpack
from fedweave.families.trust_region import newton_step
from fedweave.tensors.gradients import derivative_along
from fedweave.tensors.trees import Tree, column

MODE_STEPS = 25  # of the search for û
START = 0.5  # standard deviation of random effects before the first step
FURTHEST = 1.0  # longest change of a standard deviation in one step
UNKNOWN = torch.finfo(torch.float64).max  # a value that none is worse than


def find_mode(rows: Rows, coef: Tensor, factor: Tensor) -> Tensor:
    """û [K, q] for β [K, d] and Λ [K, q, q], by as many steps as it can take."""
    mode = coef.new_zeros(*factor.shape[:2])
    for _ in range(MODE_STEPS):
        mode, _ = improve_mode(rows, coef, factor, mode)
    return mode


def improve_mode(rows: Rows, coef: Tensor, factor: Tensor, mode: Tensor) -> tuple[Tensor, Tensor]:
    """(a point nearer to û than `mode` [K, q], the distance [K] in logits), by a damped step of Newton's method.

    The damping is that of functions whose third derivative is bounded by M times the second one, here with the longest
    row of Z Λ as M (Sun & Tran-Dinh, Mathematical Programming 178, 2019, arXiv:1703.04599, Theorem 2 with ν = 2).
    """
    at = _Point.of(rows, coef, factor, mode)
    step, bound = at.step, (at.random.square().sum(-1).sqrt() * (rows.weight > 0)).amax(-1)
    size = (bound * step.square().sum(-1).sqrt()).clamp(min=1e-12)
    return mode + (torch.log1p(size) / size)[:, None] * step, size


def _log_likelihood(rows: Rows, at: "_Point") -> Tensor:
    """Laplace's approximation [K] at û."""
    fit = ((rows.targets * at.logits - softplus(at.logits)) * rows.weight).sum(-1)
    log_determinant = 2 * torch.linalg.cholesky(at.precision).diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return fit - at.mode.square().sum(-1) / 2 - log_determinant / 2


def client_terms(rows: Rows, coef: Tensor, factor: Tensor, mode: Tensor, slopes: str) -> Tree:
    """ "value" [K], "gradient" [K, T] and "hessian" [K, T (T + 1) / 2] of a client's −log-likelihood in (β, Λ).

    Args:
        mode: û [K, q].
    """
    i, j = entries(factor.shape[-1], slopes, coef.device)

    def gradient(factor: Tensor) -> Tensor:
        moved = mode + _Point.of(rows, coef, factor, mode).step  # of Λ: û, and its derivative exactly
        return -_slopes(_Point.of(rows, coef, factor, moved), i, j)

    at = _Point.of(rows, coef, factor, mode)
    directions = torch.zeros(len(i), *factor.shape[1:], dtype=factor.dtype, device=factor.device)
    directions[torch.arange(len(i), device=i.device), i, j] = 1.0
    scale_rows = torch.stack([derivative_along(gradient, factor, one) for one in directions], -2)  # [K, k, T]
    upper = torch.cat([_information(at), scale_rows[..., : coef.shape[-1]].mT], -1)
    hessian = pack(torch.cat([upper, scale_rows], -2))
    value = -_log_likelihood(rows, at)
    return {"value": value, "gradient": -_slopes(at, i, j), "hessian": hessian, "rows": rows.weight.sum()}


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
    best = {name: torch.where(column(is_worse, value), state["best"][name], value) for name, value in total.items()}
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


class _Point(NamedTuple):
    """A client's rows at (β, Λ, u): X [B, d], Z Λ [K, B, q], u [K, q], logits, the residuals (y − p) and the weights W
    [K, B], p (1 − p) (1 − 2 p) [K, B], and H [K, q, q]; rows of padding have weight 0.
    """

    design: Tensor
    random: Tensor
    mode: Tensor
    logits: Tensor
    residuals: Tensor
    weights: Tensor
    thirds: Tensor
    precision: Tensor

    @classmethod
    def of(cls, rows: Rows, coef: Tensor, factor: Tensor, mode: Tensor) -> "_Point":
        random = _random_columns(rows, factor)
        logits = coef @ rows.design.mT + torch.einsum("kbq,kq->kb", random, mode)
        chances = torch.sigmoid(logits)
        weights = chances * (1 - chances) * rows.weight
        identity = torch.eye(mode.shape[-1], dtype=mode.dtype, device=mode.device)
        precision = identity + torch.einsum("kbq,kb,kbr->kqr", random, weights, random)
        residuals = (rows.targets - chances) * rows.weight
        return cls(rows.design, random, mode, logits, residuals, weights, weights * (1 - 2 * chances), precision)

    @property
    def step(self) -> Tensor:
        """A step of Newton's method towards û [K, q]."""
        slope = torch.einsum("kbq,kb->kq", self.random, self.residuals) - self.mode
        return torch.linalg.solve(self.precision, slope[..., None])[..., 0]


def _random_columns(rows: Rows, factor: Tensor) -> Tensor:
    """Z Λ [K, B, q]."""
    return torch.einsum("bq,kqr->kbr", rows.design[:, : factor.shape[-1]], factor)


def _slopes(at: _Point, i: Tensor, j: Tensor) -> Tensor:
    """The gradient [K, T] of the log-likelihood at û in β and the entries (i, j) of Λ.

    h is stationary in u. In log|H| = log|I + Σ_b W_b z_b z_b'|, with z_b the rows of Z Λ, the logits move W by `bend`,
    û moves the logits by z_b' dû, and Λ moves z_b itself; H dû is the derivative of Σ_b z_b (y − p)_b.
    """
    lean = torch.linalg.solve(at.precision, at.random.mT).mT  # H⁻¹ z_b [K, B, q]
    bend = (at.random * lean).sum(-1) * at.thirds / 2
    pull = torch.einsum("kbq,kb->kq", lean, bend)
    each = at.residuals - bend + at.weights * torch.einsum("kbq,kq->kb", at.random, pull)  # slope of each logit
    rest = at.residuals[..., None] * pull[:, None] + at.weights[..., None] * lean
    scales = torch.einsum("bi,kbj->kij", at.design[:, : at.mode.shape[-1]], each[..., None] * at.mode[:, None] - rest)
    return torch.cat([each @ at.design, scales[:, i, j]], -1)


def _information(at: _Point) -> Tensor:
    """X' W X − X' W Z Λ H⁻¹ Λ' Z' W X [K, d, d]."""
    weighted = at.weights[..., None] * at.design  # [K, B, d]
    across = at.random.mT @ weighted
    return at.design.mT @ weighted - across.mT @ torch.linalg.solve(at.precision, across)
