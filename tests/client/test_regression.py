"""Regression of rows: targets have one unit in training and another one in scores."""

from dataclasses import replace

import pytest
import tiny
import torch

from fedweave.client.regression import RowRegression
from fedweave.engine.schedule import evaluation_cohort
from fedweave.models import build


def test_scores_are_in_the_unit_of_the_targets() -> None:
    """The loss is the MSE of (target − offset) / unit, the score that of the targets. Each client has its own unit."""
    plain, g = tiny.rows_federation(), torch.Generator().manual_seed(0)
    targets = torch.randn(len(plain.shared["y"]), 2, generator=g, dtype=torch.float64)
    offset, unit = (torch.rand(5, 2, generator=g, dtype=torch.float64) + 1 for _ in range(2))
    shared, own = {"x": plain.shared["x"], "targets": targets}, {"offset": offset, "unit": unit}
    task = RowRegression(lambda: build("mlp", (6,), 2, hidden=5), torch.float64)
    cohort = evaluation_cohort(replace(plain, shared=shared, own=own), 0, 0)
    for i in (0, 3):
        data, rows = cohort.client_data(i), plain.test[i]
        real = rows[rows >= 0]
        outputs = torch.randn(len(rows), 2, generator=g, dtype=torch.float64)
        mine, learned = outputs[: len(real)], (targets[real] - offset[i]) / unit[i]
        assert float(task.mean_loss(outputs, data, rows)) == pytest.approx(float((mine - learned).square().mean()))
        gap = mine * unit[i] + offset[i] - targets[real]
        assert float(task.score(outputs, data, rows)) == pytest.approx(float(gap.square().mean()))
        torch.testing.assert_close(task.in_unit(mine, data), mine * unit[i] + offset[i])
    assert task.score(outputs, data, torch.full_like(rows, -1)).isnan()
