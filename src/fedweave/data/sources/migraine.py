"""Diaries of 90 patients with migraine.

Source: data that T. Kostecki-Dillon collected, as the table `KosteckiDillon` of the R package carData:
T. Kostecki-Dillon, G. Monette, P. Wong, "Pine trees, comas and migraines" (1999).
"""

from pathlib import Path

from fedweave.data.base import Dataset
from fedweave.data.registry import dataset
from fedweave.data.sources.tables import build, one_hot, read_clients

DAYS = 21  # in a diary, at least


@dataset("migraine", "images")
def migraine(root: Path) -> Dataset:
    """What is known of a day [M, 12, 1, 1], and whether the head aches; a client is a patient.

    Features: headache on the last day in the diary, days since the treatment began, whether it has begun, quality of
    the air, age, female, medication and kind of migraine. The first day of a diary is left out. `root` is not used.
    Rows are in the order of days.
    """
    del root
    rows = read_clients("migraine", "id", DAYS)
    aches = rows["headache"] == "yes"
    before = aches.groupby(rows["id"]).shift()
    rows, aches, before = (part[before.notna()] for part in (rows, aches, before))
    person = [rows["airq"], rows["age"], rows["sex"] == "female", one_hot(rows["medication"]), one_hot(rows["hatype"])]
    features = [before == True, rows["time"], rows["time"] >= 0, *person]  # noqa: E712 (an object column)
    y = aches.to_numpy("int64")
    return build("migraine", rows["id"], features, ordered=True, y=y, classes=2, class_names=("no", "headache"))
