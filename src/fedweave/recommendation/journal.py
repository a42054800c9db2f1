"""The decisions of a recommendation on disk, so that a second call in the same folder does not make them again."""

import hashlib
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedweave.errors import BadInput
from fedweave.files.atomic import read_json, write_json
from fedweave.recommendation.costs import Schedule

FILE = "journal.json"


@dataclass(frozen=True)
class Journal:
    """Decisions that depend on measured time.

    Attributes:
        path: of the file.
        request: hash of the request.
    """

    path: Path
    request: str

    @classmethod
    def open(cls, folder: Path, request: Any) -> "Journal":
        """The journal in `folder` of a request, which is plain data.

        Raises:
            BadInput: the folder holds a recommendation of another request.
        """
        text = json.dumps(request, sort_keys=True, default=str)
        journal = cls(folder / FILE, hashlib.sha256(text.encode()).hexdigest()[:16])
        if journal._content().get("request", journal.request) != journal.request:
            raise BadInput(
                f"{folder}: holds a recommendation for other data, methods or settings, or by other code; "
                "choose another folder"
            )
        return journal

    def _content(self) -> dict[str, Any]:
        return read_json(self.path, "remove it, and decisions are made anew") if self.path.is_file() else {}

    def _write(self, **entries: Any) -> None:
        content = {**self._content(), "request": self.request, **entries}
        write_json(self.path, content)

    @property
    def spent_seconds(self) -> float:
        """Seconds of all calls so far."""
        return float(self._content().get("spent", 0.0))

    @contextmanager
    def add_duration(self) -> Iterator[None]:
        """Add the seconds of the block of this context, also if it fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add_seconds(time.perf_counter() - start)

    def add_seconds(self, seconds: float) -> None:
        """Add the seconds of a part of a call."""
        self._write(spent=self.spent_seconds + seconds)

    @property
    def schedule(self) -> Schedule | None:
        """How much is trained; None before that is decided."""
        stored = self._content().get("schedule")
        if stored is None:
            return None
        return Schedule(stored["settings"], stored["rounds"], tuple(stored["seeds"]), tuple(stored["rungs"]))

    def record_schedule(self, schedule: Schedule, estimate: float, budget: float) -> None:
        """Record the schedule, its estimated seconds, and the budget; the rungs of another schedule are deleted."""
        reset: dict[str, Any] = {} if schedule == self.schedule else {"rungs": {}}
        self._write(schedule=asdict(schedule), estimate=estimate, budget=budget, **reset)

    @property
    def budget(self) -> float:
        """Seconds that the schedule had to fit into."""
        return float(self._content().get("budget", math.inf))

    @property
    def estimate(self) -> float:
        """Seconds that the schedule was estimated to take."""
        return float(self._content().get("estimate", float("nan")))

    def rung_outcome(self, number: int) -> tuple[list[str], pd.DataFrame] | None:
        """(names of the candidates that continue, table) of a rung that has ended."""
        stored = self._content().get("rungs", {}).get(str(number))
        return None if stored is None else (stored["left"], pd.DataFrame(stored["table"]))

    def record_rung(self, number: int, remaining: list[str], table: pd.DataFrame) -> None:
        """Record the outcome of a rung."""
        rungs = self._content().get("rungs", {})
        rows = json.loads(table.to_json(orient="records", double_precision=15))
        self._write(rungs={**rungs, str(number): {"left": remaining, "table": rows}})
