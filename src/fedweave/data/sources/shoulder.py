"""Shoulder exercises recorded by a smartwatch: ten people, either arm, seven exercises.

Source: D. Burns et al., "Shoulder Physiotherapy Exercise Recognition: Machine Learning the Inertial Signals from a
Smartwatch" (Physiological Measurement, 2018; arXiv 1802.01489). The part used here comes with seglearn 1.2.5 (BSD
3-Clause).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.data.base import Dataset
from fedweave.data.registry import dataset
from fedweave.data.sources.packaged import packaged_files
from fedweave.data.sources.pickles import read_arrays

WINDOW, STEP = 100, 50  # samples at 50 Hz: windows of two seconds that begin every second
MERGED = 2  # samples that become one mean: arms move slowly, and a model of half the size learns as much from the means
SIDES = ("left", "right")
EXERCISES = {
    "PEN": "pendulum",
    "ABD": "abduction",
    "FEL": "forward elevation",
    "IR": "internal rotation",
    "ER": "external rotation",
    "TRAP": "trapezius extension",
    "ROW": "upright row",
}


@dataset("shoulder", "images")
def shoulder(root: Path) -> Dataset:
    """Windows [M, 6, 1, 50] of acceleration and angular velocity in 7 exercises; a client is one arm of one person.

    `root` is not used. Rows are in the order of clients, recordings and time.
    """
    del root
    (path,) = packaged_files("shoulder")
    content = read_contents(path)
    subject, side = (np.asarray(content[key]).astype(np.int64) for key in ("subject", "side"))
    order = np.lexsort((content["y"], side, subject))
    windows = [cut_windows(np.asarray(content["X"][i])) for i in order]
    counts = [len(w) for w in windows]
    people = np.unique(subject)
    client = np.searchsorted(people, subject) * len(SIDES) + side
    return Dataset(
        "shoulder",
        "images",
        np.concatenate(windows),
        np.repeat(np.asarray(content["y"])[order].astype(np.int64), counts),
        classes=len(content["y_labels"]),
        class_names=tuple(EXERCISES[label] for label in content["y_labels"]),
        owner=np.repeat(client[order], counts),
        recording=np.repeat(np.arange(len(order)), counts),
        overlap=-(-WINDOW // STEP) - 1,
        names=tuple(f"subject {person}, {arm}" for person in people for arm in SIDES),
        group=np.tile(np.arange(len(SIDES)), len(people)),
        group_names=tuple(f"{arm} arm" for arm in SIDES),
        units=tuple(f"subject {person}" for person in people for _ in SIDES),
    )


def read_contents(path: Path) -> Mapping[str, Any]:
    """The dictionary in a NPY file that holds one pickled object, read without running any code of the file.

    Raises:
        BadInput: the file is damaged or holds anything but arrays and plain containers.
    """
    return np.asarray(read_arrays(path), dtype=object).ravel()[0]


def cut_windows(recording: np.ndarray) -> np.ndarray:
    """Windows [W, F, 1, WINDOW / MERGED] float32 of a recording [T, F] that begin every STEP samples.

    Each value is the mean of MERGED samples.
    """
    views = np.lib.stride_tricks.sliding_window_view(recording, WINDOW, axis=0)[::STEP]
    means = views.reshape(*views.shape[:2], 1, -1, MERGED).mean(-1)
    return means.astype(np.float32)
