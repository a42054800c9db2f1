"""Parts of a federation: without its test rows, for the race, and with fewer training rows, for the learning curve."""

from dataclasses import replace

import numpy as np

from fedweave.data import Partition
from fedweave.errors import BadInput, format_count
from fedweave.own_data.arrays import partition_block
from fedweave.own_data.federation import Federation
from fedweave.tensors.random_streams import stream


def drop_test_rows(federation: Federation) -> Federation:
    """`federation` without any test row, so that nothing of a race can depend on one.

    Raises:
        BadInput: a client has no validation rows.
    """
    empty = [name for name, rows in zip(federation.names, federation.partition.val, strict=True) if not len(rows)]
    if empty:
        raise BadInput(
            f"recommend(): {format_count(len(empty), 'client')} without validation rows, such as {empty[0]!r}, and a "
            'race is decided on them; give a split with some, such as shares={"train": 0.5, "val": 0.2, "test": 0.3}'
        )
    partition = federation.partition
    no_rows = tuple(np.empty(0, dtype=np.int64) for _ in partition.test)
    return _replace_partition(federation, replace(partition, test=no_rows, test_weight=None))


def subsample_training(federation: Federation, share: float) -> Federation:
    """`federation` with a `share` of every client's training rows, at least one. Smaller shares are parts of larger
    ones.
    """
    partition = federation.partition
    subsets = tuple(_subsample(rows, share, client) for client, rows in enumerate(partition.train))
    return _replace_partition(federation, replace(partition, train=subsets))


def _subsample(rows: np.ndarray, share: float, client: int) -> np.ndarray:
    order = stream(client, len(rows)).permutation(len(rows))
    return np.asarray(np.sort(rows[order[: max(1, int(np.ceil(share * len(rows))))]]))


def _replace_partition(federation: Federation, partition: Partition) -> Federation:
    return replace(federation, partition=partition, partition_block=partition_block(federation.dataset, partition))
