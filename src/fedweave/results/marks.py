"""Words and marks for verdicts, which claim no more than the tests do."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Literal

import pandas as pd

from fedweave.results import statistics

# Every method is tested against each of them: local training, and one global model with local fine-tuning.
CONTROLS = ("Local", "FedAvg-FT")
REFERENCES = ("Local", "FedAvg", "FedAvg-FT")  # labels of runs that are controls and not methods to compare
SYMBOLS = {"better": "▲", "worse": "▽", "equivalent": "≈", "open": "?", "": ""}
MARKS = {"equivalent": "≈ ", "open": "? "}  # before the score: the result of the test against the leader
GRAPH_CONTROL = "graph control"  # in place of a verdict: a method with another graph than the one it learns
NOTHING_SHOWN = "neither a difference nor equivalence is shown"
MEANING = {
    "better": "better",
    "worse": "worse",
    "equivalent": "equivalent: the difference is within the margin",
    "open": f"open: {NOTHING_SHOWN}",
    "": "no verdict",
}


def reason_without_verdict(over: str, units: str = "clients") -> str:
    """Why a test has no verdict, in a few words.

    Args:
        over: as of `statistics.TestedPair`.
        units: what tests take as independent.
    """
    reasons = {
        statistics.ONE_SEED: "one seed",
        statistics.TWO_SEEDS: "two seeds",
        statistics.FEW_CLIENTS: f"fewer than {statistics.LEAST_CLIENTS} {units}",
        statistics.NOT_COMPARED: "scores are missing",
    }
    return f"{reasons[over]}: no verdict" if over in reasons else "no verdict"


def outcome(test: Mapping[str, Any], method: str) -> str:
    """The verdict of a test for `method`: better, worse, equivalent, open, or "" where there is none."""
    verdict = str(test["verdict"])
    return verdict if method == test["method"] else statistics.OPPOSITE.get(verdict, verdict)


def assign_marks(board: pd.DataFrame, significance: pd.DataFrame) -> dict[str, str]:
    """Method -> its one mark against the leader of the task.

    "best": leads, and is better than all others. "lead": leads, but is not shown to be better than all.
    "equivalent": as good as the leader, within the margin. "open": neither is shown. "behind": worse than the leader.
    "no verdict": none is possible, as with two seeds. "diverged": no finite score. "alone": nothing to compare with.
    "graph control": a method with another graph than the one it learns, which cannot lead.
    """
    tests = significance[significance["family"] == "leader"]
    words = {"better": "behind", "equivalent": "equivalent", "worse": "open", "open": "open", "": "no verdict"}
    marks = dict.fromkeys(board["method"], "no verdict" if len(board) > 1 else "alone")
    marks |= {test["other"]: words[outcome(test, test["method"])] for test in tests.to_dict("records")}
    finite = board[board["mean"].notna()]["method"]
    marks |= dict.fromkeys(board[board["mean"].isna()]["method"], "diverged")
    graph_controls = significance[significance["family"] == "graph"]["other"]
    marks |= dict.fromkeys({*graph_controls} & {*marks}, GRAPH_CONTROL)
    if len(finite) and len(board) > 1:
        leader = tests["method"].iloc[0] if len(tests) else finite.iloc[0]
        rest = {mark for method, mark in marks.items() if method != leader}
        marks[leader] = "best" if rest - {"diverged", GRAPH_CONTROL} == {"behind"} else "lead"
    return marks


def control_tests(
    significance: pd.DataFrame, control: str, family: Literal["controls", "newcomers"] = "controls"
) -> dict[str, dict[str, Any]]:
    """Method -> the row of its test against `control`, from the method's side, out of the tests of one task."""
    tests = significance[significance["family"] == family].to_dict("records")
    rows = {test["method"]: test for test in tests if test["other"] == control}
    swapped = {test["other"]: _read_pair(test).swap() for test in tests if test["method"] == control}
    return rows | {method: asdict(pair) for method, pair in swapped.items()}


def _read_pair(row: Mapping[str, Any]) -> statistics.TestedPair:
    """A row of the table of tests as a test."""
    return statistics.TestedPair(**{field.name: row[field.name] for field in fields(statistics.TestedPair)})


def find_test(significance: pd.DataFrame, method: str, other: str) -> tuple[statistics.TestedPair, int]:
    """(the test of two methods, from the side of `method`, the number of tests that it is corrected for).

    Against a control it is the one behind the column of the control, else the one behind the mark of the leader.

    Args:
        significance: the tests of the task of both methods.
    """
    family = "controls" if {method, other} & {*CONTROLS} else "pairs"
    tests = significance[significance["family"] == family]
    pair = tests[tests["method"].isin([method, other]) & tests["other"].isin([method, other])]
    test = _read_pair(pair.iloc[0])
    return test if test.method == method else test.swap(), int(tests["p"].notna().sum())


def control_column(control: str) -> str:
    """Name of the leaderboard's column with the outcome against `control`."""
    return "vs_" + control.lower().replace("-", "_")


def add_marks(board: pd.DataFrame, significance: pd.DataFrame) -> pd.DataFrame:
    """The leaderboard with the results of the tests: `mark` against the leader, and a column for every control."""
    parts = []
    for task, part in board.groupby("task", sort=False):
        tests = significance[significance["task"] == task]
        marks = assign_marks(part, tests)
        columns = {"mark": part["method"].map(marks)}
        for control in CONTROLS:
            words = {method: outcome(test, method) for method, test in control_tests(tests, control).items()}
            columns[control_column(control)] = [words.get(method, "") for method in part["method"]]
        parts.append(part.assign(**columns))
    return pd.concat(parts)
