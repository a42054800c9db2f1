"""The path of uploads: privacy at the client, attacks, checks by the server, robust aggregation.

Nothing happens here, and no bit changes, without privacy, attack and defence if every upload is valid.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_with_path, tree_structure

from fedweave.federation.federation import Cohort
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree
from fedweave.threats.privacy import Privacy
from fedweave.threats.robust import Robust


@dataclass(frozen=True)
class UploadPath:
    """What a run does with uploads.

    Attributes:
        privacy: clipping and noise at the clients, or None.
        robust: the server's defence, or None.
    """

    privacy: Privacy | None = None
    robust: Robust | None = None


PLAIN = UploadPath()
MODELS = ("model", "head")  # what of an upload are parameters
PUBLIC = ("steps",)  # what follows from numbers of training rows, which are public


class Delivery(NamedTuple):
    """What the server accepts.

    Attributes:
        uploads: [K, ...].
        rows: int64 [K] their senders among the participants, ascending.
    """

    uploads: Tree
    rows: Tensor


def deliver_enrolment(enrolled: Tree, who: Cohort, seed: int, upload_path: UploadPath) -> Tree:
    """The clients' uploads on joining [P, ...] as they reach the server."""
    where, ids = _senders(who)
    if upload_path.privacy:
        enrolled = upload_path.privacy.protect(
            enrolled, trees.tree_map(torch.zeros_like, enrolled), ids, seed, who.round
        )
    attack = who.federation.attack
    return enrolled if attack is None else attack.corrupt(enrolled, where, ids, seed, who.round)


def deliver(
    upload: Tree, private: Tree, base: Callable[[], Tree], who: Cohort, seed: int, upload_path: UploadPath
) -> Delivery:
    """What the server accepts of a round's uploads [P, ...].

    Args:
        private: what stays with the clients [P, ...]; an upload is dropped if its client's part is not finite.
        base: gives the values that uploads start from, see `reference`.
    """
    where, ids = _senders(who)
    content, attack = upload, who.federation.attack
    if upload_path.privacy:
        hidden = upload_path.privacy.protect(trees.without(content, PUBLIC), base(), ids, seed, who.round)
        content = {name: hidden.get(name, part) for name, part in content.items()}
    arrived = content if attack is None else attack.forge(content, base, where, ids, seed, who.round)
    uploads, rows = accept(arrived, upload, private, len(where))
    if upload_path.robust and len(rows):
        uploads = upload_path.robust.apply(uploads, trees.take(base(), rows))
    return Delivery(uploads, rows)


def _senders(who: Cohort) -> tuple[Tensor, Tensor]:
    """(positions, identities) of a cohort on the device of its data."""
    where = who.positions.to(who.federation.ids.device)
    return where, who.federation.ids[where]


def accept(arrived: Tree | list[Tree], form: Tree, private: Tree, count: int) -> Delivery:
    """Those of `count` uploads with the names and shapes of `form` [P, ...] whose numbers, and those of `private`, are
    finite.
    """
    rows = torch.arange(count)
    if isinstance(arrived, list):
        expected = trees.at(form, 0)
        rows = rows[torch.tensor([_fits(one, expected) for one in arrived])]
        arrived = trees.stack([arrived[i] for i in rows.tolist()]) if len(rows) else trees.take(form, rows)
        private = trees.take(private, rows)
    sound = finite_rows((arrived, private))
    if sound is None:
        return Delivery(arrived, rows)
    good = torch.where(sound.cpu())[0]
    return Delivery(trees.take(arrived, good), rows[good])


def _fits(one: Tree, expected: Tree) -> bool:
    """Whether a single client's tree has the names, shapes and types of `expected`."""
    if tree_structure(one) != tree_structure(expected):
        return False
    pairs = zip(trees.tree_leaves(one), trees.tree_leaves(expected), strict=True)
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)


def finite_rows(tree: Tree) -> Tensor | None:
    """Which rows of a stacked tree are finite, bool [P]; None if all are, which one sum per leaf shows."""
    leaves = [leaf for leaf in trees.tree_leaves(tree) if leaf.is_floating_point() and leaf.numel()]
    if not leaves or torch.stack([leaf.sum().double() for leaf in leaves]).isfinite().all():
        return None
    rows = torch.stack([leaf.isfinite().reshape(len(leaf), -1).all(1) for leaf in leaves]).all(0)
    return None if rows.all() else rows


def reference(upload: Tree, shared: Tree, own: Tree, initial: Callable[[], Params]) -> Tree:
    """What clients were sent of what they upload, in the form of `upload` [P, ...].

    Parameters, which an upload has under one of `MODELS`, are looked up by name and shape: first in the client's
    mixture, then in its own download, then in the broadcast. A model that the server does not send is compared with the
    common initial one. Everything else is compared with zero, also a gradient, although it has the names of a model.
    """
    mixture = own.get("mixture", {}) if isinstance(own, dict) else {}
    stacked, common = _named(own) | _named(mixture), _named(shared)
    start: Params | None = None

    def look_up(path: tuple, leaf: Tensor) -> Tensor:
        nonlocal start
        if not path or path[0].key not in MODELS:
            return torch.zeros_like(leaf)
        name = str(path[-1].key)
        if name in stacked and stacked[name].shape == leaf.shape:
            return stacked[name].to(leaf)
        if name in common and common[name].shape == leaf.shape[1:]:
            return common[name].to(leaf).expand_as(leaf)
        start = initial() if start is None else start
        exists = name in start and start[name].shape == leaf.shape[1:]
        return start[name].to(leaf).expand_as(leaf) if exists else torch.zeros_like(leaf)

    return tree_map_with_path(look_up, upload)


def _named(tree: Tree) -> Params:
    """Every tensor of a tree by the last part of its path; of equal names the one least deep."""
    entries = tree.items() if isinstance(tree, dict) else ()
    tensors: Params = {}
    for _, value in entries:
        tensors |= _named(value) if isinstance(value, dict) else {}
    return tensors | {str(name): value for name, value in entries if not isinstance(value, dict)}
