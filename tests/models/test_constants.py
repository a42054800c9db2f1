"""Frozen parameters are constants: one for all clients, in the module, in no model, state, message or checkpoint."""

from dataclasses import replace

import pytest
import torch
from tiny import CLASSES, rows_federation
from torch import nn

from fedweave.client.solvers import SGD
from fedweave.client.task import RowClassification
from fedweave.engine.engine import run
from fedweave.engine.executors import Batched, Executor, Loop, Processes
from fedweave.engine.records import Report, Settings
from fedweave.engine.schedule import INITIAL, Training
from fedweave.methods import METHODS
from fedweave.models.own_module import wrap
from fedweave.tensors import trees

WIDTH, SEED = 7, 1


def with_frozen_body(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A body with random frozen weights under a head."""
    body = nn.Sequential(nn.Linear(shape[0], WIDTH), nn.Tanh())
    return nn.Sequential(body.requires_grad_(False), nn.Linear(WIDTH, outputs))


def last_report(method: str, task: RowClassification, executor: Executor, features: bool = False) -> Report:
    """The last report of two rounds; with `features`, rows are those of the frozen body."""
    federation = rows_federation()
    if features:
        body = RowClassification(wrap(with_frozen_body, (6,), CLASSES), task.dtype).template.get_submodule("0")
        federation = replace(federation, shared={**federation.shared, "x": body(federation.shared["x"].to(task.dtype))})
    training = Training(batch_size=4, epochs=1)
    *_, report = run(
        METHODS[method](task=task, solver=SGD(lr=0.1), training=training),
        federation,
        Settings(rounds=2, seed=SEED),
        executor,
    )
    return report


@pytest.mark.parametrize("executor", [Loop(), Batched(), Processes(2)], ids=["loop", "batched", "processes"])
@pytest.mark.parametrize("method", ["fedavg", "fedaghn"])
def test_training_over_a_frozen_body_is_training_on_its_features(method: str, executor: Executor) -> None:
    """With the same bytes and states; the body is in no state, and the same after training."""
    task = RowClassification(wrap(with_frozen_body, (6,), CLASSES), torch.float64)
    head, start = nn.Sequential(nn.Linear(WIDTH, CLASSES)), task.init(SEED * 1000 + INITIAL)
    head[0].load_state_dict({name: start[f"1.{name}"].float() for name in ("weight", "bias")})
    before = {name: value.clone() for name, value in task.template.named_buffers()}
    over_body = last_report(method, task, executor)
    alone = last_report(method, RowClassification(wrap(head, (WIDTH,), CLASSES), torch.float64), Loop(), True)
    for point, model in over_body.models.items():
        assert model.keys() == {"1.weight", "1.bias"}
        for name, value in model.items():
            torch.testing.assert_close(value, alone.models[point][f"0.{name[2:]}"])
    assert (over_body.bytes_down, over_body.bytes_up) == (alone.bytes_down, alone.bytes_up)
    states = [trees.nbytes((report.state.server, report.state.clients)) for report in (over_body, alone)]
    assert states[0] == states[1]
    assert before.keys() == {*task.constants}
    assert all(torch.equal(dict(task.template.named_buffers())[name], value) for name, value in before.items())


def test_random_frozen_weights_are_the_same_for_all_repetitions() -> None:
    """A repetition draws what it trains, and no constant."""
    first, second = (RowClassification(wrap(with_frozen_body, (6,), CLASSES)) for _ in range(2))
    for name in first.constants:
        assert torch.equal(first.template.get_buffer(name), second.template.get_buffer(name))
    assert not torch.equal(first.init(0)["1.weight"], first.init(1)["1.weight"])
