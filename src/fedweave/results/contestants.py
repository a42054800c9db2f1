"""What a board says of contestants: runs whose code fedweave does not know."""

from collections.abc import Iterable

from fedweave.results.runs import Run


def contestant_notes(runs: Iterable[Run]) -> list[str]:
    """A line for each contestant: what is not equal to the methods beside it. Its label says how it ran."""
    notes = []
    for run in runs:
        if about := run.info.get("contestant"):
            unequal = "; ".join(map(str, about.get("unequal", ())))
            notes.append(f"{run.printed_label} brought its own code: {unequal}.")
    return notes
