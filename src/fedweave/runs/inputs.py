"""The data and the model of a task: in memory, or in the files that the earlier stages wrote."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedweave import data
from fedweave.data import Dataset, Partition
from fedweave.methods import METHODS
from fedweave.models import ClientModel
from fedweave.study.schema import TaskSpec
from fedweave.study.spec import RunSpec

DATA = Path("data")


class Inputs(NamedTuple):
    """A task's data and clients in memory, where no file and no registered name stands for them.

    Attributes:
        dataset, partition: the data, and which client holds which rows.
        model: makes client models; None means the task's model by name.
    """

    dataset: Dataset
    partition: Partition
    model: Callable[[], ClientModel] | None = None


def data_folders(task: TaskSpec, name: str, root: Path) -> tuple[Path, Path]:
    """(features of the data set, partition of the task)."""
    return root / "features" / task.dataset, root / "partitions" / name


def load_inputs(run: RunSpec, root: Path = DATA) -> tuple[Dataset, Partition]:
    """The data set and partition that the earlier stages wrote.

    Raises:
        BadInput: when they are not there or damaged.
    """
    folder = data_folders(run.task, run.name, root)[1]
    return _load_dataset(run, root), data.load_partition(folder / "partition.npz")


def partition_inputs(run: RunSpec) -> tuple[Dataset, Partition]:
    """The data set that the earlier stages wrote, and its first split, partitioned in memory as the run's task says.

    Raises:
        BadInput: when it is missing or damaged, or cannot be partitioned so.
    """
    dataset = _load_dataset(run, DATA)
    return dataset, data.partition(dataset, **data.splits(run.task.partition)[0])


def _load_dataset(run: RunSpec, root: Path) -> Dataset:
    """The data set of a run; with its raw rows for code from elsewhere alone."""
    return data.load_dataset(data_folders(run.task, run.name, root)[0], raw=not METHODS[run.method].has_models)
