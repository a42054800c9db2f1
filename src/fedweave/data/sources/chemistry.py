"""A-level chemistry in 116 local education authorities of England, 1997.

Source: the table `Chem97` of the R package mlmRev: M. Yang, A. Fielding, H. Goldstein, "Multilevel ordinal models for
examination grades" (Statistical Modelling, 2003).
"""

from pathlib import Path

from fedweave.data.base import Dataset
from fedweave.data.registry import dataset
from fedweave.data.sources.tables import build, read_clients

PUPILS = 60  # of an authority, at equal steps through its schools


@dataset("chemistry", "images")
def chemistry(root: Path) -> Dataset:
    """What is known of a pupil [M, 3, 1, 1], and the points in chemistry; a client is an education authority.

    Features: mean score of the earlier exams, female, and age in months around 18.5 years. `root` is not used.
    """
    del root
    rows = read_clients("chemistry", "lea", PUPILS, PUPILS)
    return build(
        "chemistry", rows["lea"], [rows["gcsescore"], rows["gender"] == "F", rows["age"]], targets=rows["score"]
    )
