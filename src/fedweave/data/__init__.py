"""Data sets, partitions and normalisation: arrays in, indices out."""

from collections.abc import Callable
from pathlib import Path

from fedweave.data.base import Dataset, Partition, load_dataset, load_partition, save_dataset, save_partition
from fedweave.data.facts import check, check_finite, check_fits
from fedweave.data.normalise import NORMALISATIONS, normalise
from fedweave.data.partitions.registry import PARTITIONS, accepted, partition
from fedweave.data.sources import citation, compcars, digits, images, income, shoulder, traffic, weather
from fedweave.data.sources.retrieval import complete, download, require
from fedweave.data.summary import describe, summary
from fedweave.errors import BadInput, choose

DATASETS: dict[str, Callable[[Path], Dataset]] = (
    digits.LOADERS
    | shoulder.LOADERS
    | income.LOADERS
    | images.LOADERS
    | citation.LOADERS
    | traffic.LOADERS
    | weather.LOADERS
    | compcars.LOADERS
)


def load(name: str, root: Path | str) -> Dataset:
    """Read the data set `name` of DATASETS from its files below `root`, which are checked first.

    Raises:
        BadInput: an unknown name, a missing or damaged file, or content that is not the data set.
    """
    loader = DATASETS[choose(name, DATASETS, "dataset")]
    require(name, Path(root))
    try:
        return check(loader(Path(root)))
    except BadInput:
        raise
    except Exception as error:  # a file that is not what its name says can raise nearly anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadInput(
            f"dataset {name}: its files below {root} cannot be read ({reason}); run the download stage again"
        ) from error


__all__ = [
    "DATASETS",
    "NORMALISATIONS",
    "PARTITIONS",
    "Dataset",
    "Partition",
    "accepted",
    "check_finite",
    "check_fits",
    "complete",
    "describe",
    "download",
    "load",
    "load_dataset",
    "load_partition",
    "normalise",
    "partition",
    "save_dataset",
    "save_partition",
    "summary",
]
