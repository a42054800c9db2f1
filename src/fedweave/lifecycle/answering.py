"""Answers of a life's champion, which may move between two requests."""

import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave.errors import BadInput
from fedweave.lifecycle.answer_log import NUMBER, AnswerLog
from fedweave.lifecycle.life import Lifecycle
from fedweave.lifecycle.roles import Deployed
from fedweave.lifecycle.sites import LifeModels

if TYPE_CHECKING:
    import pandas as pd

RECORDING = threading.Lock()  # warnings go to one list for all threads of a process; models take turns anyway


@dataclass(frozen=True)
class ChampionAnswer:
    """What the champion says of some rows, in their order.

    Attributes:
        predictions: labels, or numbers [M].
        probabilities: name of a class -> its probability [M]; None for numbers.
        deployed: whose answers they are.
        logged: how many rows are kept until their label comes.
        warnings: which of their values may be misread, such as a number in another unit.
    """

    predictions: list[Any]
    probabilities: list[dict[str, float]] | None
    deployed: Deployed
    logged: int
    warnings: list[str]


class ServedChampion:
    """The champion of a life. Each request is answered by one model, which was the champion when the request came.

    While a new champion is being loaded, and if it cannot be loaded, the one before answers.
    """

    def __init__(self, life: Lifecycle, log: AnswerLog | None = None) -> None:
        """Load the champion.

        Raises:
            BadInput: there is none, or its models are damaged.
        """
        self.life, self.log, self.problem = life, log, ""
        self._loading = threading.Lock()
        self._now = self._load()

    def _load(self) -> tuple[Deployed, LifeModels]:
        deployed = self.life.roles.champion  # read once, as it may move
        models = self.life.champion if deployed is None else self.life.load(deployed)  # the first is refused
        assert deployed is not None
        models.trained.deployed_run()
        return deployed, models

    def champion(self) -> tuple[Deployed, LifeModels]:
        """The champion, newly loaded if it has moved or a site has joined."""
        try:
            if self._loading.acquire(blocking=False):
                try:
                    self._now = self._load()
                finally:
                    self._loading.release()
            self.problem = ""
        except (BadInput, OSError) as error:
            self.problem = str(error)
        return self._now

    def answer(self, rows: "pd.DataFrame") -> ChampionAnswer:
        """Predictions for rows as the source has them, without their label; those of several clients together.

        Raises:
            BadInput: a row without its client, of a client without a model, or with columns or values that the model
                does not know.
        """
        import pandas as pd

        deployed, champion = self.champion()
        notes = list[str]()
        terms = self.life.settings.terms
        if terms.client not in rows:
            raise BadInput("rows", f"have no column {terms.client!r}, which names the client")
        rows = rows.reset_index(drop=True)
        parts = {}
        for client, own in rows.groupby(terms.client, sort=False, dropna=False):
            if str(client) not in champion.clients:
                raise BadInput(f"client {client!r}", f"has no model of version {deployed.version} yet")
            with RECORDING, warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                parts[str(client)] = _predict(champion, own, client)
            notes += [f"client {client!r}: {one.message}" for one in caught]
        logged = 0
        if self.log is not None:
            logged = sum(
                self.log.add(rows.loc[said.index], name, deployed.version, said) for name, said in parts.items()
            )
        table = pd.concat(parts.values()).sort_index()
        if champion.has_numbers:
            return ChampionAnswer(table[NUMBER].tolist(), None, deployed, logged, notes)
        labels = table.columns.to_numpy()[table.to_numpy().argmax(1)].tolist()
        shares = table.set_axis([*map(str, table.columns)], axis="columns").to_dict("records")
        return ChampionAnswer(labels, shares, deployed, logged, notes)


def _predict(champion: LifeModels, rows: "pd.DataFrame", client: Any) -> "pd.DataFrame":
    """Probabilities of classes, or numbers in one column, for rows of one client."""
    import pandas as pd

    if champion.has_numbers:
        return pd.DataFrame({NUMBER: np.asarray(champion.predict(rows, client), dtype=np.float64)}, rows.index)
    return champion.predict_proba(rows, client)
