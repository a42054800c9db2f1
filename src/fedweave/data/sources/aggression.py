"""Would you curse, scold or shout? 316 people answer 24 questions each.

Source: the table `VerbAgg` of the R package lme4: P. De Boeck, M. Wilson, "Explanatory Item Response Models" (Springer,
2004); K. Vansteelandt's study.
"""

from pathlib import Path

from fedweave.data.base import Dataset
from fedweave.data.registry import dataset
from fedweave.data.sources.tables import build, one_hot, read_clients


@dataset("aggression", "images")
def aggression(root: Path) -> Dataset:
    """What a question is about [M, 10, 1, 1], and the answer "no" or "yes"; a client is a person.

    Features: the behaviour (three), the scene (four), whether one would do or only want it, and the person's sex and
    trait anger. "Perhaps" counts as yes. `root` is not used.
    """
    del root
    rows = read_clients("aggression", "id")
    person = [rows["Gender"] == "F", rows["Anger"]]
    features = [one_hot(rows["btype"]), one_hot(rows["item"].str[:2]), rows["mode"] == "do", *person]
    y = (rows["r2"] == "Y").to_numpy("int64")
    return build("aggression", rows["id"], features, y=y, classes=2, class_names=("no", "yes"))
