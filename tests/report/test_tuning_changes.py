"""The change of a score by tuning: in points, as a share of an error, and otherwise as a difference."""

from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedweave.report import optional_files, tuning

SCORES = st.floats(-1e3, 1e3)


def compute_change(declared: float, tuned: float, **info: Any) -> tuple[float, str]:
    trials = pd.DataFrame({"value": [declared, tuned]})
    search: Any = optional_files.Tuning("r", None, trials, [], {}, tuned, 1, {}, {})  # type: ignore[arg-type]
    return tuning._change(search, info)


@given(SCORES, SCORES)
def test_a_better_score_is_a_positive_change(declared: float, tuned: float) -> None:
    """This includes scores of 0 and below."""
    value, kind = compute_change(declared, tuned, metric="r2", higher_is_better=True)
    assert (value > 0) == (tuned > declared)
    assert kind == tuning.ABSOLUTE


@given(st.floats(0, 1e3), st.floats(0, 1e3))
def test_an_error_changes_by_a_share_of_itself(declared: float, tuned: float) -> None:
    value, kind = compute_change(declared, tuned, metric="mse", higher_is_better=False)
    expected = 100 * (tuned - declared) / declared if declared else tuned
    assert value == pytest.approx(expected)
    assert ("%" in kind) == (declared > 0)


def test_small_changes_of_a_score_show() -> None:
    assert "became 0.021 higher in the median" in tuning._change_sentence(tuning.ABSOLUTE, [(0.021, "a")])
