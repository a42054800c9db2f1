"""The downloads of this round, for a step of the server that needs them again."""

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
    """Inside of this block, `find` returns `own`, the clients' own downloads [P, ...]."""
    token = _SENT.set(SentDownloads(server, ids, own))
    try:
        yield
    finally:
        _SENT.reset(token)


def find(server: Tree, ids: Tensor) -> Tree | None:
    """The own downloads [P, ...] of clients `ids`, if they were made from exactly this state and stored; else None."""
    sent = _SENT.get()
    return sent.own if sent and sent.server is server and torch.equal(sent.ids, ids) else None
