"""Mathematics in 160 American schools, 1982.

Source: the survey High School and Beyond, as the table `Hsb82` of the R package mlmRev: S. Raudenbush, A. Bryk,
"Hierarchical Linear Models" (Sage, 2002), chapter 4.
"""

from pathlib import Path

from fedweave.data.base import Dataset
from fedweave.data.registry import dataset
from fedweave.data.sources.tables import build, read_clients


@dataset("schools", "images")
def schools(root: Path) -> Dataset:
    """What is known of a pupil [M, 5, 1, 1], and the score in mathematics; a client is a school.

    Features: minority, female, socio-economic status, its mean in the school, and whether the school is Catholic.
    `root` is not used.
    """
    del root
    rows = read_clients("schools", "school")
    features = [
        rows["minrty"] == "Yes",
        rows["sx"] == "Female",
        rows["ses"],
        rows["meanses"],
        rows["sector"] == "Catholic",
    ]
    return build("schools", rows["school"], features, targets=rows["mAch"])
