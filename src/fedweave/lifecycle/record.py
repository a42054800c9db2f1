"""The record: rows that are new to the deployed models test them first, client by client, and then train the next ones.

Dawid, "Statistical Theory: The Prequential Approach", JRSS A 147, 1984.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.exported_model import name_of
from fedweave.files.atomic import read_json, read_table, write_atomic, write_json
from fedweave.lifecycle.drift import PREDICTION
from fedweave.lifecycle.sites import LifeModels
from fedweave.metrics import METRICS, probabilities, row_values

if TYPE_CHECKING:
    import pandas as pd

FILE = "record.csv"
DRIFTS = "drift.json"
OF_CLIENT = ("delivery", "date", "role", "version", "method", "client", "rows", "metric")
OF_SCORE = ("score", "low", "high", "calibration", "against", "difference", "variance", "coverage", "error")
COLUMNS = (*OF_CLIENT, *OF_SCORE)
SURE = 0.9  # chance that a prediction set, or an interval, has the target
DRAWS = 200  # of a bootstrap of rows
CHAMPION, CHALLENGER = "champion", "challenger"


@dataclass(frozen=True)
class RowAnswers:
    """Targets of the rows of one client, and the outputs of one model.

    Attributes:
        kind: "classes" or "numbers".
        targets: numbers of classes, or numbers [M].
        outputs: probabilities [M, C], or numbers [M].
    """

    kind: str
    targets: np.ndarray
    outputs: np.ndarray

    def score(self, metric: str, rows: np.ndarray | None = None) -> float:
        """The score of all rows, or of those with the numbers `rows`."""
        chosen = slice(None) if rows is None else rows
        return METRICS[metric].value(self.kind, self.targets[chosen], self.outputs[chosen])

    def row_scores(self, metric: str) -> np.ndarray | None:
        """The score of each row [M]; None for a metric that is no mean over rows."""
        return row_values(metric, self.targets, self.outputs)

    def coverage(self, error: float = math.nan) -> float:
        """Share of the rows whose target is in what 90 % of the model's belief is in; NaN if that is not known.

        Of classes it is the smallest set of them with this probability. Of numbers it is the prediction ± `error`.
        """
        if self.kind == "numbers":
            return math.nan if math.isnan(error) else float((np.abs(self.outputs - self.targets) <= error).mean())
        own = self.outputs[np.arange(len(self.targets)), self.targets]
        likelier = np.where(self.outputs > own[:, None], self.outputs, 0.0).sum(1)
        return float((likelier < SURE).mean())

    @property
    def error(self) -> float:
        """The absolute error that 90 % of the rows do not exceed; NaN of classes."""
        if self.kind != "numbers":
            return math.nan
        return float(np.quantile(np.abs(self.outputs - self.targets), SURE))

    def interval(self, metric: str) -> tuple[float, float]:
        """95 % interval of the score by rows: Wilson's of an accuracy, else percentiles of a bootstrap."""
        count = len(self.targets)
        if metric == "accuracy":
            from scipy.stats import binomtest

            right = int((self.outputs.argmax(1) == self.targets).sum())
            share = binomtest(right, count).proportion_ci(method="wilson")
            return 100 * float(share.low), 100 * float(share.high)
        draws = np.random.default_rng(count).integers(count, size=(DRAWS, count))
        of_rows = self.row_scores(metric)
        scores = of_rows[draws].mean(1) if of_rows is not None else [self.score(metric, rows) for rows in draws]
        if not np.isfinite(scores).any():
            return float("nan"), float("nan")
        low, high = np.nanquantile(scores, [0.025, 0.975])
        return float(low), float(high)


def answer(result: LifeModels, rows: "pd.DataFrame", client: str, label: str) -> RowAnswers | None:
    """What the model of `client` says of its rows; None where it has none. Rows of a class new to it are left out."""
    if client not in result.clients:
        return None
    if result.has_numbers:
        targets = rows[label].to_numpy(dtype=np.float64)
        return RowAnswers("numbers", targets, np.asarray(result.predict(rows, client), dtype=np.float64))
    return classify(result.predict_proba(rows, client), rows[label])


def classify(answers: "pd.DataFrame", labels: "pd.Series[Any]") -> RowAnswers | None:
    """Probabilities of classes [M, C], which name the columns, beside the labels; None if no label is one of them."""
    number = {name_of(one): i for i, one in enumerate(answers.columns)}
    targets = np.array([number.get(name_of(one), -1) for one in labels], dtype=np.int64)
    known = targets >= 0
    if not known.any():
        return None
    return RowAnswers("classes", targets[known], probabilities(answers.to_numpy(dtype=np.float64))[known])


def add_predictions(rows: "pd.DataFrame", client: str, models: LifeModels) -> "pd.DataFrame":
    """Rows with a column of what the model of their client predicts; missing where it has none."""
    import pandas as pd

    said = [
        pd.Series(models.predict(own, name), own.index)
        for name, own in rows.groupby(client, sort=False)
        if name in models.clients
    ]
    predictions = pd.concat(said) if said else pd.Series(index=rows.index)
    if not models.has_numbers:
        predictions = predictions.map(name_of)
    return rows.assign(**{PREDICTION: predictions})


def score(
    rows: "pd.DataFrame",
    client_column: str,
    label: str,
    deployed: Mapping[str, LifeModels],
    errors: Mapping[tuple[str, str], float] | None = None,
) -> list[dict[str, Any]]:
    """The scores of rows that no model has seen: an entry per client and role, in the columns from `client` on.

    Args:
        deployed: role -> its models. Those of the challenger also get the difference to the champion on the same rows:
            positive is better.
        errors: (role, client) -> `error` in the delivery before, by which intervals of numbers are made.
    """
    entries = []
    for client, own in rows.groupby(client_column, sort=True):
        said = {role: answer(result, own, str(client), label) for role, result in deployed.items()}
        for role, one in said.items():
            if one is not None:
                error = (errors or {}).get((role, str(client)), math.nan)
                entry = describe_answers(one, deployed[role].metric, str(client), error)
                both = said.get(CHAMPION) if role == CHALLENGER else None
                entries.append({"role": role, **entry, **(_compare(one, both, entry["metric"]) if both else {})})
    return entries


def describe_answers(said: RowAnswers, metric: str, client: str, error: float = math.nan) -> dict[str, Any]:
    """The score of answers to rows of one client, in the columns from `client` to `calibration`, and the last two.

    Args:
        error: in the delivery before.
    """
    low, high = said.interval(metric)
    calibration = float("nan")
    if said.kind == "classes":
        calibration = METRICS["calibration_error"].value("classes", said.targets, said.outputs)
    return {
        "client": client,
        "rows": len(said.targets),
        "metric": metric,
        "score": said.score(metric),
        "low": low,
        "high": high,
        "calibration": calibration,
        "coverage": said.coverage(error),
        "error": said.error,
    }


def _compare(challenger: RowAnswers, champion: RowAnswers, metric: str) -> dict[str, float]:
    """The difference of two models on the same rows, and its variance over rows where the score is a mean of rows."""
    sign = 1.0 if METRICS[metric].higher_is_better else -1.0
    if len(challenger.targets) != len(champion.targets):  # a class that one of them does not know
        return {}
    ours, theirs = challenger.row_scores(metric), champion.row_scores(metric)
    if ours is None or theirs is None:
        return {"difference": sign * (challenger.score(metric) - champion.score(metric)), "variance": np.nan}
    gains = sign * (ours - theirs)
    return {"difference": float(gains.mean()), "variance": float(gains.var(ddof=1)) if len(gains) > 1 else np.nan}


def read_record(folder: Path, name: str = FILE) -> "pd.DataFrame":
    """The record of a life, or another table of its form: a row per delivery, model and client.

    Raises:
        BadInput: the file is damaged.
    """
    import pandas as pd

    if not (folder / name).is_file():
        return pd.DataFrame(columns=[*COLUMNS])
    advice = "remove it, and the deliveries are scored again: fedweave challenge"
    missing = {name: [""] for name in COLUMNS if name not in ("client", "date", "role", "method", "metric")}
    options: dict[str, Any] = {"dtype": {"client": str}, "keep_default_na": False, "na_values": missing}
    table = read_table(folder / name, COLUMNS[:-2], advice, **options)
    return table.reindex(columns=[*COLUMNS])  # records of earlier versions lack the last two


def last_errors(scored: "pd.DataFrame", deployed: Mapping[str, Any], delivery: int) -> dict[tuple[str, str], float]:
    """(role, client) -> `error` of its model in the last delivery before this one that was scored.

    Args:
        scored: the record.
        deployed: role -> its models, with their `version`.
        delivery: its number.
    """
    errors: dict[tuple[str, str], float] = {}
    for role, one in deployed.items():
        own = scored[(scored["version"] == one.version) & (scored["delivery"] < delivery)].sort_values("delivery")
        errors |= {(role, name): float(error) for name, error in zip(own["client"], own["error"], strict=True)}
    return errors


def append(folder: Path, entries: list[dict[str, Any]], name: str = FILE) -> None:
    """Add rows to the record, or another table of its form, which is written whole.

    Raises:
        BadInput: the table that is there is damaged.
    """
    import pandas as pd

    if entries:
        new = pd.DataFrame(entries, columns=[*COLUMNS])
        record = read_record(folder, name)
        table = pd.concat([record, new], ignore_index=True) if len(record) else new
        write_atomic(folder / name, table.to_csv(index=False, float_format="%.10g"))


def read_drifts(folder: Path) -> dict[int, list[str]]:
    """Number of a delivery -> sentences on drift in it.

    Raises:
        BadInput: the file is damaged.
    """
    found = read_json(folder / DRIFTS, "remove it") if (folder / DRIFTS).is_file() else {}
    return {int(number): [*sentences] for number, sentences in found.items()}


def write_drifts(folder: Path, drifts: Mapping[int, Sequence[str]]) -> None:
    """Write what `read_drifts` reads."""
    write_json(folder / DRIFTS, drifts, ensure_ascii=False)
