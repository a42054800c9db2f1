"""The Prefect flow of a life: what is new is taken, the deployed models are scored on it, the champion is challenged.

Each step is a flow run of its own, with a table. It is a command that does what is left, so that a night after a week
of downtime takes every delivery in order, once, and a run that was killed is made up for by the next one.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import State, flow
from prefect.artifacts import create_table_artifact
from prefect.states import Completed

from . import host, notifications
from .flows import run_command
from .host import fail_in_one_line

if TYPE_CHECKING:
    from fedweave.lifecycle.life import Lifecycle

STEPS = ("refresh", "evaluate", "challenge")
NEWS = {"quarantined, ": "Quarantined", "drift in ": "Drifting"}  # beginning of a line -> name of the step's state
SHOWN = 30  # entries of a table


@flow(name="life-step", flow_run_name="{step} of {life}", persist_result=False)
@fail_in_one_line
def perform_step(step: str, life: str) -> State[None]:
    """Run `fedweave STEP LIFE`; its lines are the log. A delivery that was put aside, or drift, shows in the state.

    Args:
        step: refresh, evaluate or challenge.
        life: its folder, in the project.
    """
    import fedweave as fw

    lines = run_command([sys.executable, "-m", "fedweave.pipelines.commands.main", step, life], {})
    news = [(name, line) for line in lines for start, name in NEWS.items() if line.startswith(start)]
    name, line = news[-1] if news else ("Completed", lines[0] if lines else None)
    key, rows, description = tables(fw.Lifecycle(Path(life)))[STEPS.index(step)]
    create_table_artifact(rows, key=f"life-{key}", description=f"{life}: {description}")
    return Completed(name=name, message=line)


@flow(name="life", flow_run_name="{life}")
@fail_in_one_line
def night(life: str) -> str:
    """Bring a life up to date: refresh, evaluate, challenge, each with a table; a page, and an event for drift.

    Args:
        life: its folder, in the project.
    """
    import fedweave as fw
    from fedweave.lifecycle.page import build

    known = {*fw.Lifecycle(Path(life)).drifts}
    children = host.set_resources(()).children
    try:
        for step in STEPS:
            host.call(perform_step, step, life)
    except BaseException:
        children.end()
        raise
    opened = fw.Lifecycle(Path(life))
    build(opened)
    for number, sentences in opened.drifts.items():
        if sentences and number not in known:
            notifications.report_drift(life, number, sentences)
    return opened.describe_test()


def tables(life: "Lifecycle") -> list[tuple[str, list[dict[str, Any]], str]]:
    """(key, rows, description) of what arrived, how the models score, and what happened to them, newest first."""
    arrived = [
        {
            "delivery": one.number,
            "when": one.when,
            "from": one.source,
            "new": one.new,
            "corrected": one.corrections,
            "deleted": one.deletions,
            "clients joined": ", ".join(one.joined),
        }
        for one in life.deliveries.ledger.arrivals
    ]
    aside: list[dict[str, Any]] = [
        {"delivery": "quarantined", "when": one.when, "from": one.name, "why": one.reason}
        for one in life.deliveries.quarantined
    ]
    scores = [{"what": line} for line in (*life.describe_scores(life.record), *life.describe_drift())]
    events = [{"when": one.when, "what": str(one)} for one in life.roles.events]
    return [
        ("deliveries", [*aside, *reversed(arrived)][:SHOWN], "what arrived"),
        ("scores", scores[::-1][:SHOWN], "scores of new rows, before any model was trained on them, and drift"),
        ("roles", events[::-1][:SHOWN], life.describe_test()),
    ]
