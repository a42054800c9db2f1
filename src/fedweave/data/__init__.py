"""Data sets, partitions and normalisation: arrays in, indices out.

The files of `sources` define loaders, those of `partitions` rules. A decorator enters each of them in its table.
"""

from importlib import import_module
from pkgutil import iter_modules

from fedweave.data import partitions, sources
from fedweave.data.base import Dataset, Partition
from fedweave.data.facts import check_finite
from fedweave.data.loading import load
from fedweave.data.normalisation import NORMALISATIONS, Scaling, fit_scaling, normalise
from fedweave.data.partitions.checks import check_fits
from fedweave.data.partitions.registry import PARTITIONS, default_options, partition, splits
from fedweave.data.registry import DATASETS, KINDS
from fedweave.data.sources.retrieval import download, find_intact_files, require_files
from fedweave.data.storage import load_dataset, load_partition, save_dataset, save_partition
from fedweave.data.summary import describe, summary
from fedweave.data.units import fit_units

for package in (sources, partitions):
    for file in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{file.name}")
