"""Differential privacy of what clients send: every upload is clipped and noised before it leaves the client.

The guarantee protects one client's uploads from the server and everyone who sees its results. Two runs are neighbours
if one client's uploads differ completely: in one of them it sends "no update" instead, noise included. The server
knows who takes part in a round, so no amplification by sampling is claimed.
Source: clipping and noise as in McMahan et al., "Learning Differentially Private Recurrent Language Models" (ICLR
2018), applied by the client; the composition is exact (Balle, Wang, "Improving the Gaussian Mechanism", ICML 2018,
theorem 8).
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedweave.errors import BadInput
from fedweave.settings import Between
from fedweave.tensors import trees
from fedweave.tensors.random_streams import stream
from fedweave.tensors.trees import Tree

NOISE = 13  # random stream of a run's seed


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The block `train.privacy`. The norm of a model is its distance from the model that the client received."""

    clip: Annotated[float, Between(1e-9, 1e9), "C, largest norm of what a client sends in one part of an upload"]
    noise: Annotated[float, Between(1e-3, 1e6), "z, standard deviation of the noise over the norm of all that is sent"]
    delta: Annotated[float, Between(1e-15, 0.5), "δ of the guarantee (ε, δ)"] = 1e-5

    def protect(self, content: Tree, base: Tree, ids: Tensor, seed: int, round: int) -> Tree:
        """`content` [P, ...] clipped around `base` [P, ...], with noise that depends on (seed, round, client).

        The entries of a dictionary are parts: each is clipped to C, and all get noise of z C √parts, which is z times
        the largest norm that they can have together.

        Raises:
            BadInput: a part holds whole numbers or truth values, to which no noise can be added.
        """
        if not isinstance(content, dict):
            return self.protect({"": content}, {"": base}, ids, seed, round)[""]
        parts = [name for name, part in content.items() if trees.tree_leaves(part)]
        if not parts:
            return content
        _check_real(content, parts)
        clipped = {name: clip_rows(content[name], base[name], torch.tensor(self.clip)) for name in parts}
        scale = self.noise * self.clip * math.sqrt(len(parts))
        noise = normals(clipped, ids, seed, NOISE, round)
        return {**content, **trees.tree_map(lambda value, number: value + scale * number, clipped, noise)}

    def epsilon(self, releases: int) -> float:
        """ε after a client has sent something `releases` times."""
        return epsilon(self.noise, releases, self.delta)


def _check_real(content: Tree, parts: Collection[str]) -> None:
    """Refuse `parts` with a tensor that is not of floating point."""
    for name in parts:
        if not all(leaf.is_floating_point() for leaf in trees.tree_leaves(content[name])):
            raise BadInput(
                "train.privacy",
                f"the entry {name!r} of an upload is not of floating point, so that it gets no noise; "
                "upload real numbers, or list it in the method's `public` if it follows from numbers of rows",
            )


def epsilon(noise: float, releases: int, delta: float) -> float:
    """The smallest ε for which `releases` Gaussian mechanisms of multiplier `noise` are (ε, `delta`)-private together.

    They are as private as one mechanism whose mean moves by μ = √releases / noise standard deviations, for which
    δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).
    """
    from scipy.optimize import brentq
    from scipy.special import log_ndtr, ndtr

    if not releases or not noise:
        return math.inf if releases else 0.0
    mu = math.sqrt(releases) / noise

    def excess(value: float) -> float:
        return float(ndtr(mu / 2 - value / mu) - np.exp(value + log_ndtr(-mu / 2 - value / mu))) - delta

    if excess(0.0) <= 0:
        return 0.0
    # Concentrated privacy of μ²/2 bounds ε from above (Bun, Steinke 2016, proposition 1.3).
    limit = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1e-9
    return float(brentq(excess, 0.0, limit))


def clip_rows(part: Tree, base: Tree, bound: Tensor) -> Tree:
    """`part` [P, ...] moved towards `base` so that no row is farther from it than `bound`."""
    updates = trees.sub(part, base)
    norms = trees.norms(updates)
    scale = (bound.to(norms) / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1.0)
    return trees.tree_map(lambda b, m: b + m * trees.column(scale, m), base, updates)


def normals(tree: Tree, ids: Tensor, *purpose: int) -> Tree:
    """Independent standard normal numbers in the shape of `tree` [P, ...], drawn by (`purpose`, id of the client)."""
    leaves, form = tree_flatten(tree)
    sizes = [leaf[0].numel() for leaf in leaves]
    rows = torch.from_numpy(np.stack([stream(*purpose, i).standard_normal(sum(sizes)) for i in ids.tolist()]))
    numbers = (part.reshape(leaf.shape).to(leaf) for part, leaf in zip(rows.split(sizes, dim=1), leaves, strict=True))
    return tree_unflatten([*numbers], form)
