"""Notes on clients without a score: because outputs are not finite, or their rows do not define the metric."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fedweave.errors import format_count
from fedweave.results.references import missing_score_note, name_clients, sampling_note
from fedweave.results.runs import Run


def client_notes(runs: Sequence[Run], table: pd.DataFrame) -> list[str]:
    """Sentences on the clients of a task that are not evaluated or have no score.

    Args:
        runs: all of the task that are compared.
        table: a table of `results.clients`, which leaves clients without a score out.
    """
    notes = (sampling_note(runs), missing_score_note(runs), _nonfinite_outputs_note(runs, table))
    return [note for note in notes if note]


def _nonfinite_clients(runs: Sequence[Run], table: pd.DataFrame) -> list[str]:
    """Names of the clients that have no score with any of the `runs` of a task, though a rule without a model has one.

    That score needs the same test rows and the same metric, so the outputs of the models are what is not finite.
    """
    empty: Mapping[str, list[float | None]] = {}
    rules = next((run.info["controls"] for run in runs if run.info.get("controls")), empty)
    if not rules:
        return []
    values = np.array([*rules.values()], dtype=np.float64)  # [rules, evaluated clients]; a missing score is NaN
    is_defined = np.isfinite(values).min(axis=0).tolist()
    scored = {*table["client"][table["task"] == runs[0].task]}
    clients = zip(runs[0].evaluated_clients, is_defined, strict=True)
    return [runs[0].client_names[client] for client, defined in clients if defined and client not in scored]


def _nonfinite_outputs_note(runs: Sequence[Run], table: pd.DataFrame) -> str:
    """A sentence that counts them; empty if there are none."""
    names = _nonfinite_clients(runs, table)
    if not names:
        return ""
    count = format_count(len(runs[0].evaluated_clients), "client")
    return (
        f"{runs[0].task}: {len(names)} of {count} left out of every mean and test, because outputs of the models for "
        f"their test rows are not finite: {name_clients(names)}. Look for a mean over nothing, such as a row that is "
        "padded whole, a division by 0, or a logarithm."
    )
