"""Scores of separate groups of clients: newcomers, attackers, and the rest."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from fedweave.results.marks import CONTROLS, control_column, control_tests, outcome
from fedweave.results.quantities import rounds_before_join, run_columns, summarise_seeds
from fedweave.results.runs import Run, Study

NEWCOMERS = "newcomers"  # name of the group of clients that joined late
JOINED = "joined"  # point of their scores as received in their first round
_LABELS = ["run", "task", "dataset", "setting", "method", "metric", "cohort", "clients", "point", "reported"]
COLUMNS = [*_LABELS, "mean", "std", "seeds", *map(control_column, CONTROLS)]


def newcomers(runs: Sequence[Run]) -> set[int]:
    """The clients of a task that joined late in all `runs`; none where nobody did."""
    return set.intersection(*({*(run.info.get("cohorts") or {}).get(NEWCOMERS, ())} for run in runs))


def cohorts(study: Study, selected: pd.DataFrame, significance: pd.DataFrame) -> pd.DataFrame:
    """Test scores of separate groups of clients, at both points and the selected round, and those of newcomers also
    as received in their first round (`JOINED`).

    The outcome against Local and FedAvg-FT stands at the reported point of newcomers: a test over them alone, on the
    same rows.

    Args:
        selected: the table of `clients`: the selected round of every run, seed and client.
        significance: the tests of all tasks.
    """
    rows: list[dict[str, Any]] = []
    for run in study.runs:
        rounds = selected[selected["run"] == run.name][["seed", "client", "round"]]
        tests = significance[significance["task"] == run.task]
        for name, members in (run.info.get("cohorts") or {}).items():
            for point, scores in _points(run, name, members, rounds):
                # A seed or client that has diverged counts as NaN, as a mean without it would be too good.
                means = scores.groupby("seed")["value"].mean(skipna=False).reindex(run.seeds)
                score, reported = summarise_seeds(means.tolist()), point == run.info["point"]
                labels = {"metric": run.info["metric"], "cohort": name, "clients": len(members), "point": point}
                numbers = {"mean": score["value"], "std": score["std"], "seeds": score["seeds"]}
                verdicts = _verdicts(run, tests) if reported and name == NEWCOMERS else {}
                rows.append({**run_columns(run), **labels, "reported": reported, **numbers, **verdicts})
    return pd.DataFrame(rows, columns=COLUMNS).fillna(dict.fromkeys(map(control_column, CONTROLS), ""))


def _points(run: Run, cohort: str, members: Sequence[int], rounds: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """(point, test scores of `members`), each client in its reported round [seed, client, round]."""
    tests = run.evaluations[(run.evaluations["split"] == "test") & run.evaluations["client"].isin(members)]
    if cohort == NEWCOMERS:
        joined = tests[(tests["round"] == rounds_before_join(run) + 1) & (tests["point"] == "pre")]
        if len(joined):
            yield JOINED, joined
    for point, part in tests.groupby("point"):
        yield str(point), part.merge(rounds, on=["seed", "client", "round"])


def _verdicts(run: Run, tests: pd.DataFrame) -> dict[str, str]:
    found = {control: control_tests(tests, control, "newcomers").get(run.label) for control in CONTROLS}
    return {control_column(control): outcome(test, run.label) for control, test in found.items() if test}
