"""Stars that 182 people gave to films.

Source: MovieLens, the small data set of 2016, as the table `movielens` of the R package dslabs: F. M. Harper, J. A.
Konstan, "The MovieLens Datasets: History and Context" (ACM Transactions on Interactive Intelligent Systems, 2015).
"""

from pathlib import Path

from fedweave.data.base import Dataset
from fedweave.data.registry import dataset
from fedweave.data.sources.tables import build, read_clients

LEAST, RATINGS = 150, 50  # ratings of a person, and those that are taken, at equal steps through time


@dataset("movies", "images")
def movies(root: Path) -> Dataset:
    """Year and genres of a film [M, 20, 1, 1], and its stars, 0.5 to 5; a client is a person.

    Ratings of films without a year are left out. `root` is not used. Rows are in the order of time.
    """
    del root
    rows = read_clients("movies", "userId", LEAST, RATINGS, order="timestamp")
    genres = rows["genres"].str.get_dummies("|").drop(columns="(no genres listed)", errors="ignore")
    return build("movies", rows["userId"], [rows["year"], genres], ordered=True, targets=rows["rating"])
