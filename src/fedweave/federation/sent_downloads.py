"""What the server sent in this round, for a step of the server that needs it again."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor

from fedweave.tensors.trees import Tree


class SentDownloads(NamedTuple):
    """Downloads [P, ...] of clients `ids` [P], made from the state `server`."""

    server: Tree
    ids: Tensor
    own: Tree


_SENT: ContextVar[SentDownloads | None] = ContextVar("sent", default=None)


@contextmanager
def store(server: Tree, ids: Tensor, own: Tree) -> Iterator[None]:
    """Inside this block, `find` gives `own`, each client's own download."""
    token = _SENT.set(SentDownloads(server, ids, own))
    try:
        yield
    finally:
        _SENT.reset(token)


def find(server: Tree, ids: Tensor) -> Tree | None:
    """The own downloads [P, ...] of clients `ids` from this very state; None where nobody has kept them."""
    sent = _SENT.get()
    return sent.own if sent and sent.server is server and torch.equal(sent.ids, ids) else None
