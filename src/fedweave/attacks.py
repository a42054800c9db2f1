"""Clients that lie about themselves: what they say of their data is replaced, everything else they do is honest.

Source: the malicious clients of FedSheafHN (Liang et al., arXiv:2405.16056, Tables 6 and 7), who replace the embedding they
upload by one number in every place, or by noise.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedweave.streams import stream
from fedweave.trees import Tree

LIARS, LIES = 11, 12  # streams hanging on the task's seed and on a run's seed
TOLD = "embedding"  # the key, in an enrolment or an upload, of what a client says about its data


Kind = Literal["constant", "gaussian"]


@dataclass(frozen=True, kw_only=True)
class AttackSpec:
    """The block `attack` of a task.

    Attributes:
        kind, scale: see `Attack`.
        share: of the clients that lie.
    """

    kind: Kind
    scale: float
    share: float

    bounds: ClassVar = {"scale": (0, None), "share": (0, 1)}


@dataclass(frozen=True)
class Attack:
    """Who lies, and how.

    Attributes:
        kind: "constant" tells a · 1 with a ~ N(0, scale²), "gaussian" tells N(0, scale² I); drawn anew every time.
        scale: τ, standard deviation.
        liars: bool [N].
    """

    kind: Kind
    scale: float
    liars: Tensor

    def select(self, positions: Tensor) -> "Attack":
        """The attack among the clients at `positions`."""
        return replace(self, liars=self.liars[positions])

    def to(self, device: torch.device | str) -> "Attack":
        """The same attack on `device`."""
        return replace(self, liars=self.liars.to(device))

    def corrupted(self, told: Tree, positions: Tensor, ids: Tensor, seed: int, round: int) -> Tree:
        """`told` [P, ...] by the clients at `positions` [P] with identities `ids` [P], the liars' rows replaced."""
        if TOLD not in told or not self.liars[positions].any():
            return told
        honest: Tensor = told[TOLD]
        size = 1 if self.kind == "constant" else honest.shape[1]
        drawn = np.stack([stream(seed, LIES, round, i).standard_normal(size) for i in ids.tolist()])
        lies = self.scale * torch.from_numpy(drawn).to(honest).expand_as(honest)
        return {**told, TOLD: torch.where(self.liars[positions][:, None], lies, honest)}


def liars(clients: int, share: float, seed: int) -> Tensor:
    """Which of `clients` lie, bool [N]: a `share` of them, rounded; those of a larger share contain those of a smaller."""
    order = stream(seed, LIARS).permutation(clients)
    chosen = torch.zeros(clients, dtype=torch.bool)
    chosen[order[: round(share * clients)]] = True
    return chosen
