"""Outputs that are not finite, of targets that are: the clients that are left out for them are counted and named."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedweave as fw
from fedweave import report, results
from fedweave.results.references import missing_score_note
from tests.fake_results import leaders_line

QUIET: dict[str, Any] = {"rounds": 3, "seeds": 2, "progress": False, "device": "cpu", "executor": "loop"}
NAMES = ["Ann", "Bob", "Cy", "Dan"]
OWNER = np.repeat(NAMES, 60)
LINE = r"1 of 4 clients left out of every mean and test, because outputs of the models .* not finite: Dan\. Look for"


class MaskedMean(nn.Module):
    """In evaluation a mean over the values of a row that are not 0: NaN where there are none."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = (x != 0).sum(1, keepdim=True).clamp(min=int(self.training))
        return self.fc(self.body(x).relu() * (3 / count) * count / 3)


def people(zeros: int, of_last: str = "") -> fw.Federation:
    """Clients with 60 rows; the last `zeros` rows are padded whole, and the last client's may have one class."""
    draws = np.random.default_rng(8)
    x = draws.normal(size=(240, 3)).astype(np.float32)
    y = np.where(x[:, 0] + 0.3 * draws.normal(size=240) > 0.0, "yes", "no")
    x[240 - zeros :] = 0.0
    y[OWNER == "Dan"] = of_last or y[OWNER == "Dan"]
    return fw.Federation.from_arrays(x, y, client=OWNER, name="people", normalize="none")


@pytest.fixture(scope="module")
def padded() -> fw.Comparison:
    with pytest.warns(UserWarning, match=LINE):
        return fw.compare(people(30), ["local", "fedavg"], model=MaskedMean, **QUIET, tune=0)


@pytest.mark.usefixtures("undrawn")
def test_the_clients_are_counted_and_named(padded: fw.Comparison) -> None:
    """Means are over the other clients. The report says so too."""
    assert padded["local"].scores.isna()[NAMES].tolist() == [False] * 3 + [True]
    study = padded.study
    assert missing_score_note([*study.runs]) == ""
    pd.testing.assert_series_equal(
        padded.leaderboard().set_index("method")["mean"].sort_index(),
        pd.Series({name: padded[name].scores.drop("Dan").mean() for name in ("fedavg", "local")}),
        check_names=False,
    )
    assert "not finite: Dan" in leaders_line(study, results.compute_tables(study)).text
    folder = study.folder
    assert "not finite: Dan" in report.build(folder, folder / "partitions").read_text(encoding="utf-8")


@pytest.mark.parametrize("metric", ["log_loss", "roc_auc"])
def test_also_by_other_metrics(padded: fw.Comparison, metric: str) -> None:
    """Stored predictions are scored by them; Dan's rows define both."""
    assert any("not finite: Dan" in line for line in padded.with_metric(metric).warnings)


def test_nothing_is_said_of_rows_that_do_not_define_the_metric() -> None:
    """Dan's rows are of one class, so that he has no area under the curve, whatever the outputs are."""
    done = fw.compare(people(0, "no"), ["local"], model=MaskedMean, metric="roc_auc", **QUIET, tune=0)
    assert any("1 of 4 clients has no roc_auc" in line for line in done.warnings)
    assert not [line for line in done.warnings if "not finite" in line]
