"""The data of one client, as its code reads them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fedweave.tensors import dropout_keys
from fedweave.tensors.closures import VOLATILE
from fedweave.tensors.trees import is_mapped


@dataclass(frozen=True)
class ClientData:
    """The data of one client.

    Attributes:
        arrays: what the task reads: "x", "y" (all rows of the data set, or the client's own nodes), for subgraphs
            "edges" [3, E], "weight" [E] and "nodes" [V] (True for real nodes), and for sparse features "cells" [3, ...]
            and "values"; for shared test sets "test_weight" [C]; for weighted losses "class_weight" [C].
        plan: epochs of steps of training rows, [E, S, B]; rows of −1 are padding.
        train, val, test: rows, padded with −1. `test` is empty whenever client code trains, unless its method leaks.
        key: 0-d key of this client in this round.
        round: number of the round, from 0.
        size: number of training rows, 0-d float.
        padded: whether the plan may hold rows of −1.
    """

    arrays: dict[str, Tensor]
    plan: Sequence[Iterable[Tensor]] | Tensor = field(metadata=VOLATILE)
    train: Tensor
    val: Tensor
    test: Tensor
    key: Tensor
    round: int = field(metadata=VOLATILE)
    size: Tensor
    padded: bool


def batches(data: ClientData, size: int, drop_last: bool) -> list[Tensor]:
    """The training rows in their order, in batches [size]; size 0 gives one batch. Under `vmap` padded with −1.

    Args:
        drop_last: leave out the incomplete last batch of a client with at least `size` rows (BatchNorm needs two rows).
    """
    size, count = min(size or len(data.train), len(data.train)), data.size.long()
    if drop_last:
        count = torch.where(count >= size, count - count % size, count)
    position = torch.arange(len(data.train), device=data.train.device)
    rows = remove_padding(torch.where(position < count, data.train, -1))
    return [*(F.pad(rows, (0, -len(rows) % size), value=-1) if is_mapped() else rows).split(size)]


def shuffled_batches(data: ClientData, size: int, drop_last: bool, *purpose: int) -> list[Tensor]:
    """`batches` of the training rows in an order that depends on the client's key and on `purpose`."""
    draws = dropout_keys.uniform(dropout_keys.fold(data.key, *purpose), data.train.shape)
    rows = data.train[draws.masked_fill(data.train < 0, 2.0).argsort(stable=True)]
    return batches(replace(data, train=rows), size, drop_last)


def remove_padding(rows: Tensor) -> Tensor:
    """`rows` without padding; unchanged under `vmap`, where shapes cannot depend on data."""
    return rows if is_mapped() else rows[rows >= 0]
