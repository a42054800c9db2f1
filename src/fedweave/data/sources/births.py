"""Births in the states of the USA, 1969 to 1988.

Source: National Center for Health Statistics (public domain), as the table `Birthdays` of the R package mosaicData.
"""

from pathlib import Path

import numpy as np

from fedweave.data.base import Dataset
from fedweave.data.registry import dataset
from fedweave.data.sources.tables import read_clients

YEAR = 52  # weeks


@dataset("births", "series")
def births(root: Path) -> Dataset:
    """Log of a state's births in a week over its mean week of 1969 [51, 1043]; 50 states and the District of Columbia.

    `root` is not used.
    """
    del root
    rows = read_clients("births", "state")
    days = rows.groupby(["state", "date"])["births"].sum().unstack("date")
    weeks = days.to_numpy(float)[:, : days.shape[1] // 7 * 7].reshape(len(days), -1, 7).sum(2)
    return Dataset(
        "births",
        "series",
        np.log(weeks / weeks[:, :YEAR].mean(1, keepdims=True)).astype(np.float32),
        None,
        classes=0,
        time=np.linspace(0, 1, weeks.shape[1], dtype=np.float32),
        names=tuple(map(str, days.index)),
    )
