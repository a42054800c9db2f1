"""Rows with their clients, targets and parts."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Arrangement:
    """Clients, targets and parts of rows, whatever the rows hold.

    Attributes:
        owner: position of each row's client [M].
        names: of the clients.
        labels: class of each row [M], or None.
        classes: names of the classes.
        rows: part -> rows of each client.
        class_type: type of the labels, see `Dataset`.
        numbers: targets of each row [M, K], where they are not classes.
    """

    owner: np.ndarray
    names: tuple[str, ...]
    labels: np.ndarray | None
    classes: tuple[str, ...]
    rows: Mapping[str, tuple[np.ndarray, ...]]
    numbers: np.ndarray | None = None
    class_type: str = ""
