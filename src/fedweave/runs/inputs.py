"""The data and the model of a task in memory."""

from collections.abc import Callable
from typing import NamedTuple

from fedweave.data import Dataset, Partition
from fedweave.models import ClientModel


class Inputs(NamedTuple):
    """A task's data and clients in memory, where no file and no registered name stands for them.

    Attributes:
        dataset, partition: the data, and which client holds which rows.
        model: makes client models; None means the task's model by name.
    """

    dataset: Dataset
    partition: Partition
    model: Callable[[], ClientModel] | None = None
