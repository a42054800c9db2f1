"""Sites that come and go: one that joins gets a model the same night, and one without rows for long is archived.

A site joins in the method's own way (`MethodResult.join`), while the server stays as it is: so the models of the others
do not change, and the test of a challenger goes on. It joins again when its rows have doubled, and the next training
has it from the start.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from fedweave.comparison.compare import load
from fedweave.comparison.method_result import MethodResult
from fedweave.data.partitions.splits import PARTS
from fedweave.errors import BadInput, format_count
from fedweave.exported_model import name_of
from fedweave.own_data.federation import Federation
from fedweave.results import Run, format_score

if TYPE_CHECKING:
    import pandas as pd

FOLDER, ARCHIVE = "joined", "archive"
GROWN = 2  # times as many rows, with which a site joins again


@dataclass(frozen=True)
class SiteSettings:
    """How sites come and go.

    Attributes:
        rounds: of a site that joins.
        gone_after: deliveries without rows of a site, after which it has left.
    """

    rounds: int = 10
    gone_after: int = 30

    def __post_init__(self) -> None:
        for name in ("rounds", "gone_after"):
            if (value := getattr(self, name)) < 1:
                raise BadInput(name, f"{value} is less than 1")


@dataclass(frozen=True)
class LifeModels:
    """The models of one training, and of the sites that have joined since.

    Attributes:
        trained: the models of the training.
        joined: site -> the result that has its model.
        since: site -> number of the delivery after which it joined.
    """

    trained: MethodResult
    joined: Mapping[str, MethodResult]
    since: Mapping[str, int]

    @property
    def run(self) -> Run:
        """The training."""
        return self.trained.run

    @property
    def metric(self) -> str:
        """Name of the score."""
        return str(self.run.info["metric"])

    @property
    def has_numbers(self) -> bool:
        """Whether they predict numbers, and not classes."""
        return bool(self.run.info.get("targets", "classes") == "numbers")

    @property
    def clients(self) -> tuple[str, ...]:
        """Names of the clients that have a model."""
        return (*self.trained.evaluated_clients, *self.joined)

    def predict(self, x: Any, client: Any) -> np.ndarray:
        """Predictions of the model of a client, see `MethodResult.predict`."""
        return self._of(client).predict(x, client, refit=str(client) not in self.joined)

    def predict_proba(self, x: Any, client: Any) -> "pd.DataFrame":
        """Probability of each class, see `MethodResult.predict_proba`."""
        return self._of(client).predict_proba(x, client, refit=str(client) not in self.joined)

    def export(self, folder: Path | str, client: Any) -> Path:
        """Write the model of a client to a folder of its own, see `MethodResult.export`."""
        return self._of(client).export(folder, client, refit=str(client) not in self.joined)

    def _of(self, client: Any) -> MethodResult:
        return self.joined.get(str(client), self.trained)


def list_joined(folder: Path) -> list[int]:
    """The deliveries after which sites have joined the training in a folder."""
    return sorted(int(file.parents[2].name) for file in (folder / FOLDER).glob("[0-9]*/runs/*/run.json"))


def read_models(folder: Path, method: str, joined: Sequence[int]) -> LifeModels:
    """The models of a training, and of the sites that joined after these deliveries."""
    trained = load(folder)[method]
    results, since = dict[str, MethodResult](), dict[str, int]()
    for number in joined:
        result = load(folder / FOLDER / f"{number:06}")[method]
        own = result.evaluated_clients[len(trained.evaluated_clients) :]
        results |= dict.fromkeys(own, result)
        since |= dict.fromkeys(own, number)
    return LifeModels(trained, results, since)


def find_newcomers(models: LifeModels, now: Mapping[str, int], then: Mapping[str, int]) -> list[str]:
    """Sites to join: those without a model, and those whose rows have doubled since they joined.

    Args:
        now: site -> labelled rows.
        then: the same of sites that have joined, when they did.
    """
    return [
        site
        for site, rows in sorted(now.items())
        if site not in models.trained.evaluated_clients and rows >= GROWN * then.get(site, 0)
    ]


def join(
    models: LifeModels,
    rows: "pd.DataFrame",
    columns: tuple[str, str, str],
    federation: Federation,
    rounds: int,
    folder: Path,
) -> None:
    """Let sites join the champion, in the method's own way.

    Args:
        rows: of the sites; those of classes that the champion does not know are left out.
        columns: client, label and part.
        federation: that of the training.
    """
    client, label, part = columns
    if federation.dataset.targets is None:
        rows = rows[rows[label].map(name_of).isin([*map(name_of, federation.classes)])]
    rows = with_all_parts(rows, client, part)
    if len(rows):
        models.trained.join(
            rows, client=client, label=label, split=part, rounds=rounds, freeze=True, federation=federation, out=folder
        )


def with_all_parts(rows: "pd.DataFrame", client: str, part: str) -> "pd.DataFrame":
    """The rows of clients that have some in each part; `client` and `part` are names of columns."""
    parts = rows.groupby(client)[part].nunique()
    return rows[rows[client].isin(parts.index[parts == len(PARTS)])].reset_index(drop=True)


def describe(models: LifeModels, site: str, parts: "pd.Series[str]") -> str:
    """How good the model of a site that has joined is for it; `parts` are those of its rows when it joined."""
    metric, others = models.metric, float(models.trained.scores.mean())
    score, other = (format_score(one, math.nan, metric) for one in (float(models.joined[site].scores[site]), others))
    tested = format_count(int((parts == PARTS[2]).sum()), "test row")
    return f"{site}: {metric} {score} on {tested}, after {format_count(len(parts), 'row')}; the other clients {other}."


def find_gone(rows: "pd.DataFrame", client: str, newest: int, after: int) -> Iterator[tuple[str, int]]:
    """(site, number of its last delivery) of each site that has had no rows for `after` deliveries."""
    for site, last in rows.groupby(client, sort=True)["number"].max().items():
        if newest - last >= after:
            yield str(site), int(last)


def describe_influence(models: LifeModels, site: str, train: "pd.Series[str]") -> str:
    """What the models of the others owe to a site; `train` is the site of each row that the champion was trained on."""
    if site not in models.trained.evaluated_clients:
        return "it joined later, so that the models of the others owe nothing to it"
    share = f"it has {(train == site).mean():.0%} of the rows of the champion's training"
    try:
        weights = models.trained.graph().abs()
    except BadInput:  # the method has no graph
        return share
    others = weights.drop(index=site)
    return f"{share}, and {float((others[site] / others.sum(axis=1)).mean()):.0%} of the weights of the others"


def archive(models: LifeModels, folder: Path, site: str, last: int) -> str:
    """Export the model of a site that has left; returns the name of the folder."""
    name = f"{_file_name(site)}-{last:06}"
    models.export(folder / ARCHIVE / name, site)
    return f"{ARCHIVE}/{name}"


def list_archive(folder: Path, site: str) -> list[Path]:
    """The archived models of a site."""
    return [*(folder / ARCHIVE).glob(f"{escape(_file_name(site))}-{'[0-9]' * 6}")]


def _file_name(site: str) -> str:
    return quote(site, safe="")
