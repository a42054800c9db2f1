"""Outputs without a model, from the training rows of a client."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import tiny
import torch

from fedweave.client.controls import control_outputs
from fedweave.client.regression import RowForecast, RowRegression
from fedweave.engine.schedule import evaluation_cohort
from fedweave.metrics import log_loss
from fedweave.models import build

FED = tiny.rows_federation()
TRAIN, TEST = (rows[1][rows[1] >= 0] for rows in (FED.train, FED.test))


def test_the_control_of_classes_has_the_shares_of_training_rows() -> None:
    """With one more row of each class."""
    data = evaluation_cohort(FED, 0, 0).client_data(1)
    outputs = control_outputs(tiny.rows_task(), data, TEST)
    shares = (torch.bincount(FED.shared["y"][TRAIN], minlength=3).double() + 1) / (len(TRAIN) + 3)
    assert {name: rows.tolist() for name, rows in outputs.items()} == {"Majority class": [shares.tolist()] * len(TEST)}


def test_a_class_that_training_rows_lack_is_not_impossible() -> None:
    """Small clients of one mixture: shares alone would have a log-loss far above that of the pooled shares."""
    draws = np.random.default_rng(0)
    y = torch.from_numpy(draws.choice(3, size=(200, 16), p=[0.6, 0.3, 0.1]))
    losses = []
    for mine in y:
        data = SimpleNamespace(arrays={"y": torch.cat([mine, torch.tensor([2])])}, train=torch.arange(8))
        (outputs,) = control_outputs(tiny.rows_task(), data, torch.arange(8, 16)).values()
        assert outputs.argmax(1).unique().tolist() == [int(torch.bincount(mine[:8], minlength=3).argmax())]
        losses.append(log_loss(mine[8:].numpy(), outputs.numpy()))
    pooled = torch.bincount(y[:, :8].flatten()).double() / y[:, :8].numel()
    assert np.mean(losses) < 1.1 * log_loss(y[:, 8:].flatten().numpy(), pooled.expand(200 * 8, 3).numpy())


def test_several_numbers_have_a_mean_each() -> None:
    """A mean over all of them would mix, for example, a price and an age."""
    targets = torch.stack([torch.arange(len(FED.shared["y"])), 1000.0 - torch.arange(len(FED.shared["y"]))], 1).double()
    shared = {"x": FED.shared["x"], "targets": targets}
    units = {"offset": torch.zeros(5, 2, dtype=torch.float64), "unit": torch.ones(5, 2, dtype=torch.float64)}
    data = evaluation_cohort(replace(FED, shared=shared, own=units), 0, 0).client_data(1)
    task = RowRegression(lambda: build("mlp", (6,), 2, hidden=5), torch.float64)
    outputs = control_outputs(task, data, TEST)
    torch.testing.assert_close(outputs["Training mean"], targets[TRAIN].mean(0).expand(len(TEST), 2))
    assert [*outputs] == ["Training mean"]


def test_the_last_value_of_every_channel_is_repeated() -> None:
    """Windows of two channels. The second and then the first one are continued for two steps each."""
    g = torch.Generator().manual_seed(0)
    windows, targets = (torch.randn(len(FED.shared["y"]), *s, generator=g).double() for s in ((2, 1, 3), (4,)))
    units = {"offset": torch.zeros(5, 4, dtype=torch.float64), "unit": torch.ones(5, 4, dtype=torch.float64)}
    data = evaluation_cohort(replace(FED, shared={"x": windows, "targets": targets}, own=units), 0, 0).client_data(1)
    task = RowForecast(lambda: build("mlp", (2, 1, 3), 4, hidden=5), torch.float64, channels=(1, 0))
    outputs = control_outputs(task, data, TEST)
    torch.testing.assert_close(outputs["Last value"], windows[TEST][:, [1, 1, 0, 0], 0, 2])
    torch.testing.assert_close(outputs["Training mean"], targets[TRAIN].mean(0).expand(len(TEST), 4))


def test_the_controls_of_a_sensor_are_its_last_value_and_its_mean() -> None:
    """The mean is over all values that it forecasts in training."""
    federation, task = tiny.series_federation(), tiny.series_task()
    data = evaluation_cohort(federation, 0, 0).client_data(2)
    train, test = (rows[2][rows[2] >= 0] for rows in (federation.train, federation.test))
    series = federation.shared["x"][2]
    starts = test - 2 * len(series)
    outputs = control_outputs(task, data, test)
    torch.testing.assert_close(outputs["Last value"], series[starts + 2][:, None].expand(-1, 2))
    values = torch.stack([series[train - 2 * len(series) + step] for step in (3, 4)])
    torch.testing.assert_close(outputs["Training mean"], values.mean().expand(len(test), 2))
