"""Clients that harm: they lie about their data, about what they learnt, or learn from wrong labels.

Sources: the malicious clients of FedSheafHN (Liang et al., arXiv:2405.16056, Tables 6 and 7), who replace the embedding they
upload by one number in every place, or by noise; sign flipping and Gaussian updates of Li et al., "RSA" (AAAI 2019); label
flipping c → C − 1 − c of Fang et al., "Local Model Poisoning Attacks" (USENIX Security 2020).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from fedweave.errors import BadInput
from fedweave.settings import AtLeast, Share
from fedweave.tensors import trees
from fedweave.tensors.random_streams import stream
from fedweave.tensors.trees import Tree
from fedweave.threats.privacy import normals

LIARS, LIES = 11, 12  # streams hanging on the task's seed and on a run's seed
TOLD = "embedding"  # the key, in an enrolment or an upload, of what a client says about its data

Kind = Literal["constant", "gaussian", "sign_flip", "noise", "nan", "malformed", "label_flip"]
ON_EMBEDDINGS = ("constant", "gaussian")
SCALED = (*ON_EMBEDDINGS, "sign_flip", "noise")


@dataclass(frozen=True, kw_only=True)
class AttackSpec:
    """The block `attack` of a task; for the kinds see `Attack`."""

    kind: Annotated[Kind, "what the attackers do"]
    share: Annotated[Share, "share of the clients that attack"]
    scale: Annotated[float | None, AtLeast(0), "strength, of the kinds that have one"] = None

    def checked(self, key: str) -> "AttackSpec":
        """This block, if it has a scale exactly where its kind has one.

        Raises:
            BadInput: otherwise.
        """
        if (self.scale is None) == (self.kind in SCALED):
            wrong = (
                "missing; it is how strong the attack is"
                if self.scale is None
                else f"{self.scale!r}, but {self.kind} has no strength"
            )
            raise BadInput(f"{key}.scale: {wrong}; kinds with a scale: {', '.join(SCALED)}")
        return self


@dataclass(frozen=True)
class Attack:
    """Who attacks, and how.

    Attributes:
        kind: of embeddings, drawn anew every time: "constant" tells a · 1 with a ~ N(0, scale²), "gaussian" N(0, scale² I).
            Of uploads: "sign_flip" sends the start − scale · the update, "noise" the start + N(0, scale² I), "nan" no
            numbers, "malformed" tensors of another shape. Of data: "label_flip" trains on C − 1 − y.
        scale: τ, the attack's strength.
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
        """`told` [P, ...] by the clients at `positions` [P] with identities `ids` [P], the liars' embeddings replaced."""
        if self.kind not in ON_EMBEDDINGS or TOLD not in told or not self.liars[positions].any():
            return told
        honest: Tensor = told[TOLD]
        size = 1 if self.kind == "constant" else honest.shape[1]
        drawn = np.stack([stream(seed, LIES, round, i).standard_normal(size) for i in ids.tolist()])
        lies = self.scale * torch.from_numpy(drawn).to(honest).expand_as(honest)
        return {**told, TOLD: torch.where(self.liars[positions][:, None], lies, honest)}

    def forged(
        self, upload: Tree, known: Callable[[], Tree], positions: Tensor, ids: Tensor, seed: int, round: int
    ) -> Tree | list[Tree]:
        """The uploads [P, ...] as they arrive; those of "malformed" one by one, for no tensor holds them all.

        Args:
            known: gives what the clients were sent of what they upload [P, ...].
        """
        lying = self.liars[positions]
        if self.kind == "malformed":
            return [
                _malformed(trees.at(upload, i)) if lies else trees.at(upload, i)
                for i, lies in enumerate(lying.tolist())
            ]
        if self.kind in (*ON_EMBEDDINGS, "label_flip") or not lying.any() or not trees.tree_leaves(upload):
            return self.corrupted(upload, positions, ids, seed, round)
        lies = self._lies(upload, known, ids, seed, round)
        return trees.tree_map(lambda lie, honest: torch.where(trees.column(lying, honest), lie, honest), lies, upload)

    def _lies(self, upload: Tree, known: Callable[[], Tree], ids: Tensor, seed: int, round: int) -> Tree:
        if self.kind == "nan":
            return trees.tree_map(lambda honest: torch.full_like(honest, torch.nan), upload)
        if self.kind == "sign_flip":
            return trees.tree_map(lambda honest, start: start - self.scale * (honest - start), upload, known())
        return trees.tree_map(
            lambda start, drawn: start + self.scale * drawn, known(), normals(upload, ids, seed, LIES, round)
        )


def _malformed(upload: Tree) -> Tree:
    return trees.tree_map(lambda honest: torch.cat([honest.reshape(-1), honest.reshape(-1)[:1]]), upload)


def liars(clients: int, share: float, seed: int) -> Tensor:
    """Which of `clients` lie, bool [N]: a `share` of them, rounded; those of a larger share contain those of a smaller."""
    order = stream(seed, LIARS).permutation(clients)
    chosen = torch.zeros(clients, dtype=torch.bool)
    chosen[order[: round(share * clients)]] = True
    return chosen


def flipped(y: Tensor, rows: Tensor, classes: int) -> Tensor:
    """`y` with the labels of `rows` (−1 is padding) mirrored, c → C − 1 − c, for C `classes`."""
    rows = rows[rows >= 0]
    return y.index_put((rows,), classes - 1 - y[rows])
