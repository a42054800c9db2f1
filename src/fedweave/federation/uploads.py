"""What crosses the wire on its way up: made private by the client, forged by a liar, checked by the server, made robust.

Nothing here happens, and no bit changes, where none of it is asked for and every upload is sound.
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
class Wire:
    """What a run does with uploads.

    Attributes:
        privacy: clipping and noise at the clients, or None.
        robust: the server's defence, or None.
    """

    privacy: Privacy | None = None
    robust: Robust | None = None


PLAIN = Wire()
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


def told(enrolled: Tree, who: Cohort, seed: int, wire: Wire) -> Tree:
    """What reaches the server of what clients say on joining [P, ...]."""
    where, ids = _senders(who)
    if wire.privacy:
        enrolled = wire.privacy.protected(enrolled, trees.tree_map(torch.zeros_like, enrolled), ids, seed, who.round)
    attack = who.federation.attack
    return enrolled if attack is None else attack.corrupted(enrolled, where, ids, seed, who.round)


def delivered(upload: Tree, kept: Tree, known: Callable[[], Tree], who: Cohort, seed: int, wire: Wire) -> Delivery:
    """What the server accepts of a round's uploads [P, ...].

    Args:
        kept: what stays with the clients [P, ...]; one whose training left the finite numbers has nothing to say.
        known: gives what the clients were sent of what they upload, see `reference`.
    """
    where, ids = _senders(who)
    sent, attack = upload, who.federation.attack
    if wire.privacy:
        hidden = wire.privacy.protected(trees.without(sent, PUBLIC), known(), ids, seed, who.round)
        sent = {name: hidden.get(name, part) for name, part in sent.items()}
    arrived = sent if attack is None else attack.forged(sent, known, where, ids, seed, who.round)
    uploads, rows = accepted(arrived, upload, kept, len(where))
    if wire.robust and len(rows):
        uploads = wire.robust.applied(uploads, trees.take(known(), rows))
    return Delivery(uploads, rows)


def _senders(who: Cohort) -> tuple[Tensor, Tensor]:
    """(positions, identities) of a cohort on the device of its data."""
    where = who.positions.to(who.federation.ids.device)
    return where, who.federation.ids[where]


def accepted(arrived: Tree | list[Tree], form: Tree, kept: Tree, count: int) -> Delivery:
    """Those of `count` uploads that have the names and shapes of `form` [P, ...], and like `kept` hold finite numbers only."""
    rows = torch.arange(count)
    if isinstance(arrived, list):
        wanted = trees.at(form, 0)
        rows = rows[torch.tensor([_fits(one, wanted) for one in arrived])]
        arrived = trees.stack([arrived[i] for i in rows.tolist()]) if len(rows) else trees.take(form, rows)
        kept = trees.take(kept, rows)
    sound = finite((arrived, kept))
    if sound is None:
        return Delivery(arrived, rows)
    good = torch.where(sound.cpu())[0]
    return Delivery(trees.take(arrived, good), rows[good])


def _fits(one: Tree, wanted: Tree) -> bool:
    """Whether a single client's tree has the names, shapes and types of `wanted`."""
    if tree_structure(one) != tree_structure(wanted):
        return False
    pairs = zip(trees.tree_leaves(one), trees.tree_leaves(wanted), strict=True)
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)


def finite(tree: Tree) -> Tensor | None:
    """Which rows of a stacked tree hold finite numbers only, bool [P]; None for all, which one sum per leaf tells."""
    leaves = [leaf for leaf in trees.tree_leaves(tree) if leaf.is_floating_point() and leaf.numel()]
    if not leaves or torch.stack([leaf.sum().double() for leaf in leaves]).isfinite().all():
        return None
    rows = torch.stack([leaf.isfinite().reshape(len(leaf), -1).all(1) for leaf in leaves]).all(0)
    return None if rows.all() else rows


def reference(upload: Tree, shared: Tree, own: Tree, initial: Callable[[], Params]) -> Tree:
    """What clients were sent of what they upload, in the form of `upload` [P, ...].

    Parameters, which an upload keeps under one of `MODELS`, are looked up by name and shape: in the mixture a client got, in its own
    download, in the broadcast; a model that the server does not send counts from the common initial one. Everything else counts from
    zero, a gradient too, although it has the names of a model.
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
        known = name in start and start[name].shape == leaf.shape[1:]
        return start[name].to(leaf).expand_as(leaf) if known else torch.zeros_like(leaf)

    return tree_map_with_path(look_up, upload)


def _named(tree: Tree) -> Params:
    """Every tensor of a tree by the last part of its path; of equal names the one least deep."""
    entries = tree.items() if isinstance(tree, dict) else ()
    found: Params = {}
    for _, value in entries:
        found |= _named(value) if isinstance(value, dict) else {}
    return found | {str(name): value for name, value in entries if not isinstance(value, dict)}
