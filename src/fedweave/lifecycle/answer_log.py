"""Answers of a server, kept until the labels of their rows come: Parquet files of a day, which are removed in time.

A server writes a file a minute, and makes one of those of a day that is over. A kill between the two leaves answers
twice; each counts once.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.errors import BadInput, Busy
from fedweave.exported_model import name_of
from fedweave.files.atomic import check_writable, user_errors, write_parquet
from fedweave.lifecycle.ledger import lock, read_ledger
from fedweave.lifecycle.record import RowAnswers, classify, describe_answers
from fedweave.lifecycle.row_digests import ID, identify_keys

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "answers"
SCORES = "answered.csv"  # in the columns of the record
ROLE = "answers"
NUMBER, CLASS = "answer", "answer "  # column of a number; beginning of that of the probability of a class
MOST_WAITING = 10_000  # rows that are not in a file yet
DAYS = 90  # that files are kept


class AnswerLog:
    """The log of one server.

    Attributes:
        folder: of the life.
        key: columns that name a row.
        days: that files are kept.
        problem: why the last file could not be written; empty if it could.
    """

    def __init__(self, folder: Path, key: Sequence[str], days: int = DAYS) -> None:
        """Open the log.

        Raises:
            BadInput: rows have no key, so that no label could be joined, or the folder cannot be written.
        """
        if not key:
            raise BadInput("log", "rows of this life have no key, so that their labels would find no answer")
        self.folder, self.key, self.days, self.problem = folder, (*key,), days, ""
        check_writable(folder / FOLDER)
        self._waiting, self._adding, self._writing = list["pd.DataFrame"](), threading.Lock(), threading.Lock()

    def add(self, rows: "pd.DataFrame", client: str, version: int, answers: "pd.DataFrame") -> int:
        """Keep the answers to rows of one client; returns how many, as rows without a key are not kept.

        Args:
            rows: as they were asked [M].
            client: whose model answered.
            version: of the models.
            answers: probabilities of classes [M, C], or numbers [M, 1] in the column `NUMBER`.
        """
        if not {*self.key} <= {*rows.columns}:
            return 0
        named = rows[[*self.key]].notna().all(axis=1).to_numpy()
        if not named.any():
            return 0
        columns = [name if name == NUMBER else CLASS + name_of(name) for name in answers.columns]
        said = answers.set_axis(columns, axis="columns")[named].reset_index(drop=True)
        said[ID] = identify_keys(rows[named], self.key)
        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self._adding:
            self._waiting.append(said.assign(client=client, version=version, when=when))
            is_full = sum(map(len, self._waiting)) >= MOST_WAITING
        if is_full:
            self.write()
        return int(named.sum())

    def write(self) -> None:
        """Write what waits to a file. A disk that is full costs the answers that wait, and no request."""
        import pandas as pd

        with self._writing:
            with self._adding:
                waiting, self._waiting = self._waiting, []
            try:
                with user_errors():
                    forgotten = read_ledger(self.folder).forgotten  # perhaps while their answers waited
                    if kept := [one for one in waiting if one["client"].iloc[0] not in forgotten]:
                        now = datetime.now(UTC)
                        file = self.folder / FOLDER / f"{now:%Y-%m-%d}-{now:%H%M%S%f}.parquet"
                        write_parquet(file, pd.concat(kept, ignore_index=True))
                    self._rotate(f"{datetime.now(UTC):%Y-%m-%d}")
                self.problem = ""
            except BadInput as error:
                self.problem = str(error)

    def _rotate(self, today: str) -> None:
        """Make one file of each day that is over, and remove old ones."""
        oldest = f"{datetime.now(UTC) - timedelta(days=self.days):%Y-%m-%d}"
        with suppress(Busy), lock(self.folder, FOLDER):
            files = sorted((self.folder / FOLDER).glob("*.parquet"))
            for day in sorted({file.name[:10] for file in files if file.name[:10] != today}):
                whole, parts = self.folder / FOLDER / f"{day}.parquet", [one for one in files if one.name[:10] == day]
                if day >= oldest and parts != [whole]:
                    write_parquet(whole, _read(parts))
                for part in parts:
                    if part != whole or day < oldest:
                        part.unlink(missing_ok=True)


def _read(files: Sequence[Path]) -> "pd.DataFrame":
    """The answers in files, each once, in the order of time."""
    import pandas as pd

    answers = pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)
    return answers.drop_duplicates([ID, "when", "client", "version"]).sort_values("when", ignore_index=True)


def score_answers(
    folder: Path, rows: "pd.DataFrame", label: str, delivery: int, metric: str
) -> Iterator[dict[str, Any]]:
    """Scores of what was really answered: an entry per version and client, in the columns of the record.

    Of several answers to a row the last one counts; one of a model that was trained on the delivery does not.

    Args:
        folder: of the life.
        rows: that got their label with a delivery, with their `ID`.
        delivery: its number.
    """
    if not (files := sorted((folder / FOLDER).glob("*.parquet"))):
        return
    answers = _read(files)
    answers = answers[answers["version"] < delivery].drop_duplicates(ID, keep="last")
    joined = answers.merge(rows[[ID, label]], on=ID)
    for (version, client), own in joined.groupby(["version", "client"], sort=True):
        if (said := _as_row_answers(own, own[label])) is not None:
            yield {"role": ROLE, "version": version, **describe_answers(said, metric, str(client))}


def _as_row_answers(answers: "pd.DataFrame", labels: "pd.Series[Any]") -> RowAnswers | None:
    """What was said, beside the labels; None if no label is of a class that the model knows."""
    if NUMBER in answers and answers[NUMBER].notna().all():
        return RowAnswers("numbers", labels.to_numpy(dtype=np.float64), answers[NUMBER].to_numpy(dtype=np.float64))
    said = answers[[name for name in answers if name.startswith(CLASS)]].dropna(axis="columns", how="all")
    return classify(said.rename(columns=lambda name: name.removeprefix(CLASS)), labels)
