"""The path of uploads: privacy at the client, attacks, checks by the server, robust aggregation.

Without privacy, attack and defence, a valid upload passes unchanged to the last bit.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_with_path, tree_structure

from fedweave.engine.clients import Cohort
from fedweave.engine.protocol import Method
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


class Delivery(NamedTuple):
    """What the server accepts.

    Attributes:
        uploads: [K, ...].
        rows: int64 [K] their senders among the participants, ascending.
    """

    uploads: Tree
    rows: Tensor


def deliver_enrolment(
    enrolled: Tree, cohort: Cohort, seed: int, upload_path: UploadPath, public: Collection[str] = ()
) -> Tree:
    """The clients' uploads on joining [P, ...] as they reach the server; `public` as in `protect_uploads`."""
    sent = protect_uploads(
        enrolled, lambda: trees.tree_map(torch.zeros_like, enrolled), cohort, seed, upload_path.privacy, public
    )
    attack = cohort.federation.attack
    return sent if attack is None else attack.corrupt(sent, *_senders(cohort), seed, cohort.round)


def protect_uploads(
    upload: Tree,
    base: Callable[[], Tree],
    cohort: Cohort,
    seed: int,
    privacy: Privacy | None,
    public: Collection[str] = (),
) -> Tree:
    """What leaves the clients of `upload` [P, ...]: clipped and with noise; without privacy, the upload itself.

    Args:
        base: returns the values from which uploads are measured, see `reference`.
        public: entries of the upload that get no noise, see `Method.public`.
    """
    if privacy is None:
        return upload
    content = trees.omit(upload, public) if public else upload
    protected = privacy.protect(content, base(), _senders(cohort)[1], seed, cohort.round)
    return {**upload, **protected} if public else protected


def deliver(
    sent: Tree,
    private: Tree,
    base: Callable[[], Tree],
    cohort: Cohort,
    seed: int,
    robust: Robust | None = None,
    part: str = "model",
) -> Delivery:
    """What the server accepts of a round's uploads.

    Args:
        sent: what left the clients [P, ...].
        private: what stays with the clients [P, ...]; an upload is dropped if its client's part is not finite.
        base: returns the values from which uploads are measured, see `reference`.
        robust, part: the server's defence, or None, and the entry of an upload that it acts on.
    """
    positions, ids = _senders(cohort)
    attack = cohort.federation.attack
    received = sent if attack is None else attack.forge(sent, base, positions, ids, seed, cohort.round)
    uploads, rows = accept(received, sent, private, len(positions))
    if robust and len(rows):
        uploads = robust.apply(uploads, trees.take(base(), rows), part)
    return Delivery(uploads, rows)


def _senders(cohort: Cohort) -> tuple[Tensor, Tensor]:
    """(positions, identities) of a cohort on the device of its data."""
    positions = cohort.positions.to(cohort.federation.ids.device)
    return positions, cohort.federation.ids[positions]


def accept(received: Tree | list[Tree], form: Tree, private: Tree, count: int) -> Delivery:
    """The uploads, of `count`, with the names and shapes of `form` [P, ...] whose numbers are finite.

    The numbers that stay with the client, `private` [P, ...], have to be finite too.
    """
    rows = torch.arange(count)
    if isinstance(received, list):
        expected = trees.at(form, 0)
        rows = rows[torch.tensor([_fits(upload, expected) for upload in received])]
        received = trees.stack([received[i] for i in rows.tolist()]) if len(rows) else trees.take(form, rows)
        private = trees.take(private, rows)
    is_finite = finite_rows((received, private))
    if is_finite is None:
        return Delivery(received, rows)
    finite = torch.where(is_finite.cpu())[0]
    return Delivery(trees.take(received, finite), rows[finite])


def _fits(upload: Tree, expected: Tree) -> bool:
    """Whether one client's upload has the names, shapes and types of `expected`."""
    if tree_structure(upload) != tree_structure(expected):
        return False
    pairs = zip(trees.tree_leaves(upload), trees.tree_leaves(expected), strict=True)
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)


def finite_rows(tree: Tree) -> Tensor | None:
    """Which rows of a stacked tree are finite, bool [P]; None if all are, which one sum per leaf shows."""
    leaves = [leaf for leaf in trees.tree_leaves(tree) if leaf.is_floating_point() and leaf.numel()]
    if not leaves or torch.stack([leaf.sum().double() for leaf in leaves]).isfinite().all():
        return None
    rows = torch.stack([leaf.isfinite().reshape(len(leaf), -1).all(1) for leaf in leaves]).all(0)
    return None if rows.all() else rows


def reference(method: Method, upload: Tree, shared: Tree, own: Tree, initial: Callable[[], Params]) -> Tree:
    """The values from which uploads are measured, in the form of `upload` [P, ...].

    The method declares which entries of an upload are parameters and which parameters it has sent. A parameter is
    measured from the value that was sent, or from the common initial model if none was sent. Everything else, such as
    a gradient, is measured from zero.
    """
    common, personal = method.sent(shared, own)
    initial_values: Params = {}

    def look_up(path: tuple, leaf: Tensor) -> Tensor:
        if not path or path[0].key not in method.parameters:
            return torch.zeros_like(leaf)
        name = str(path[-1].key)
        if name in personal:
            return personal[name].to(leaf)
        if name not in common and not initial_values:
            initial_values.update(initial())
        value = common[name] if name in common else initial_values.get(name)
        return torch.zeros_like(leaf) if value is None else value.to(leaf).expand_as(leaf)

    return tree_map_with_path(look_up, upload)
