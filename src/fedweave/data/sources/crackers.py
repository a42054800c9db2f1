"""Brands of crackers that 81 households bought.

Source: the table `Cracker` of the R package Ecdat: D. Jain, N. Vilcassim, P. Chintagunta, "A random-coefficients logit
brand-choice model applied to panel data" (Journal of Business & Economic Statistics, 1994).
"""

from pathlib import Path

from fedweave.data.base import Dataset
from fedweave.data.registry import dataset
from fedweave.data.sources.tables import build, read_clients

BRANDS = ("sunshine", "kleebler", "nabisco", "private")
PURCHASES = 20  # of a household, at least


@dataset("crackers", "images")
def crackers(root: Path) -> Dataset:
    """What the shop shows [M, 12, 1, 1], and which of four brands was bought; a client is a household.

    Features: of every brand, whether it is displayed, whether it is advertised, and its price. `root` is not used. Rows
    are in the order of purchases.
    """
    del root
    rows = read_clients("crackers", "id", PURCHASES)
    features = [rows[f"{kind}.{brand}"] for kind in ("disp", "feat", "price") for brand in BRANDS]
    choices = rows["choice"].map(BRANDS.index).to_numpy("int64")
    return build("crackers", rows["id"], features, ordered=True, y=choices, classes=len(BRANDS), class_names=BRANDS)
