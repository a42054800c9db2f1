"""Malicious clients: they forge what they upload, or learn from wrong labels.

Sources: the malicious clients of FedSheafHN (Liang et al., arXiv:2405.16056, Tables 6 and 7), who replace their
embedding by one number in every element, or by noise; sign flipping and Gaussian updates of Li et al., "RSA"
(AAAI 2019); label flipping c → C − 1 − c of Fang et al., "Local Model Poisoning Attacks" (USENIX Security 2020).
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

ATTACKERS, FORGERIES = 11, 12  # random streams of the partition's seed, and of a run's seed
EMBEDDING = "embedding"  # the key, in an enrolment or an upload, of a client's embedding of its data

Kind = Literal["constant", "gaussian", "sign_flip", "noise", "nan", "malformed", "label_flip"]
ON_EMBEDDINGS = ("constant", "gaussian")
SCALED = (*ON_EMBEDDINGS, "sign_flip", "noise")


@dataclass(frozen=True, kw_only=True)
class AttackSpec:
    """The block `attack` of a task; for the kinds see `Attack`."""

    kind: Annotated[Kind, "what the attackers do"]
    share: Annotated[Share, "share of the clients that attack"]
    scale: Annotated[float | None, AtLeast(0), "strength, of the kinds that have one"] = None

    def check(self, key: str) -> "AttackSpec":
        """This block.

        Raises:
            BadInput: the kind needs a scale and there is none, or the other way round.
        """
        if (self.scale is None) == (self.kind in SCALED):
            missing = "missing; it is how strong the attack is"
            problem = missing if self.scale is None else f"{self.scale!r}, but {self.kind} has no strength"
            raise BadInput(f"{key}.scale", f"{problem}; kinds with a scale: {', '.join(SCALED)}")
        return self


@dataclass(frozen=True)
class Attack:
    """Who attacks, and how.

    Attributes:
        kind: of embeddings, new every time: "constant" sends a · 1 with a ~ N(0, scale²), "gaussian" N(0, scale² I).
            Of uploads: "sign_flip" sends the start − scale · the update, "noise" the start + N(0, scale² I), "nan" no
            numbers, "malformed" tensors of another shape. Of data: "label_flip" trains on C − 1 − y.
        scale: τ, the attack's strength.
        attackers: bool [N].
    """

    kind: Kind
    scale: float
    attackers: Tensor

    def select(self, positions: Tensor) -> "Attack":
        """The attack among the clients at `positions`."""
        return replace(self, attackers=self.attackers[positions])

    def to(self, device: torch.device | str) -> "Attack":
        """The same attack on `device`."""
        return replace(self, attackers=self.attackers.to(device))

    def corrupt(self, enrolled: Tree, positions: Tensor, ids: Tensor, seed: int, round: int) -> Tree:
        """`enrolled` [P, ...] of the clients at `positions` [P] with identities `ids` [P], with forged embeddings."""
        if self.kind not in ON_EMBEDDINGS or EMBEDDING not in enrolled or not self.attackers[positions].any():
            return enrolled
        honest: Tensor = enrolled[EMBEDDING]
        size = 1 if self.kind == "constant" else honest.shape[1]
        noise = np.stack([stream(seed, FORGERIES, round, i).standard_normal(size) for i in ids.tolist()])
        forgeries = self.scale * torch.from_numpy(noise).to(honest).expand_as(honest)
        return {**enrolled, EMBEDDING: torch.where(self.attackers[positions][:, None], forgeries, honest)}

    def forge(
        self, upload: Tree, downloads: Callable[[], Tree], positions: Tensor, ids: Tensor, seed: int, round: int
    ) -> Tree | list[Tree]:
        """The uploads [P, ...] as they arrive; for "malformed" a list, because the shapes differ.

        Args:
            downloads: gives what the server sent to these clients, in the form of `upload`, [P, ...].
        """
        is_attacker = self.attackers[positions]
        if self.kind == "malformed":
            return [
                _corrupt_shapes(trees.at(upload, i)) if attacks else trees.at(upload, i)
                for i, attacks in enumerate(is_attacker.tolist())
            ]
        if self.kind in (*ON_EMBEDDINGS, "label_flip") or not is_attacker.any() or not trees.tree_leaves(upload):
            return self.corrupt(upload, positions, ids, seed, round)
        forgeries = self._forgeries(upload, downloads, ids, seed, round)
        return trees.tree_map(
            lambda forged, honest: torch.where(trees.column(is_attacker, honest), forged, honest), forgeries, upload
        )

    def _forgeries(self, upload: Tree, downloads: Callable[[], Tree], ids: Tensor, seed: int, round: int) -> Tree:
        """Forged uploads of all clients; tensors of whole numbers or truth values stay as they are."""

        def forge(rule: Callable[..., Tensor], *others: Tree) -> Tree:
            def forge_tensor(honest: Tensor, *rest: Tensor) -> Tensor:
                return rule(honest, *rest) if honest.is_floating_point() else honest

            return trees.tree_map(forge_tensor, upload, *others)

        if self.kind == "nan":
            return forge(lambda honest: torch.full_like(honest, torch.nan))
        if self.kind == "sign_flip":
            return forge(lambda honest, start: start - self.scale * (honest - start), downloads())
        noise = normals(upload, ids, seed, FORGERIES, round)
        return forge(lambda _, start, noise: start + self.scale * noise, downloads(), noise)


def _corrupt_shapes(upload: Tree) -> Tree:
    return trees.tree_map(lambda honest: torch.cat([honest.reshape(-1), honest.reshape(-1)[:1]]), upload)


def choose_attackers(clients: int, share: float, seed: int) -> Tensor:
    """Which of `clients` attack, bool [N]: a `share` of them, rounded; a larger share contains a smaller one."""
    order = stream(seed, ATTACKERS).permutation(clients)
    chosen = torch.zeros(clients, dtype=torch.bool)
    chosen[order[: round(share * clients)]] = True
    return chosen


def flip_labels(y: Tensor, rows: Tensor, classes: int) -> Tensor:
    """`y` with the labels of `rows` (−1 is padding) mirrored, c → C − 1 − c, for C `classes`."""
    rows = rows[rows >= 0]
    return y.index_put((rows,), classes - 1 - y[rows])
