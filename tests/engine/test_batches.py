"""A batch size above the rows of the largest client gives one batch of all its rows, at the cost of these rows."""

import numpy as np
import pytest
import torch

from fedweave.data.base import Partition
from fedweave.engine.schedule import LANES, Training, cohort
from fedweave.runs import repetition
from fedweave.study import spec
from tests.data.test_bad_data import SETS, rows
from tests.study.test_spec import good

DRAWN = np.random.default_rng(0).permutation(600)
SIZES = (7, 45, 60)
TRAIN = rows(*(DRAWN[60 * i : 60 * i + size].tolist() for i, size in enumerate(SIZES)))
EVALUATED = [rows(*(DRAWN[start + 5 * i : start + 5 * i + 5].tolist() for i in range(3))) for start in (300, 400)]


def prepared(batch_size: int, executor: str) -> repetition.PreparedRun:
    """Two rounds of FedAvg on clients of 7, 45 and 60 rows."""
    content = good("fedavg")
    content["tasks"]["digits"]["train"] |= {"rounds": 2, "batch_size": batch_size, "executor": executor}
    return repetition.prepare(spec.parse(content).run("a"), SETS["digits"], Partition(TRAIN, *EVALUATED))


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_every_larger_batch_size_gives_the_same_result(executor: str) -> None:
    """All bits are equal. Plans are padded to multiples of a number, of which 100 and 500 are none."""
    histories = [repetition.run_repetition(prepared(size, executor), 0) for size in (LANES, 100, 500, 2**31 - 1)]
    assert all(history.scores == histories[0].scores for history in histories)
    losses = [[row.train_loss for row in history.ledger] for history in histories]
    assert all(values == losses[0] for values in losses)


def test_a_plan_is_no_wider_than_the_largest_client() -> None:
    """Up to the rounding of its padding. It has every row once per epoch. Smaller batches are unchanged."""
    federation = prepared(32, "loop").federation
    positions = torch.arange(3)
    plan = cohort(federation, positions, Training(batch_size=2**31 - 1, epochs=2), 2, 0, 1).plan
    assert plan.shape == (3, 2, 1, LANES)
    assert [[sorted(epoch[epoch >= 0].tolist()) for epoch in client] for client in plan] == [
        [sorted(r.tolist())] * 2 for r in TRAIN
    ]
    assert cohort(federation, positions, Training(batch_size=32), 1, 0, 1).plan.shape == (3, 1, 2, 32)
    assert cohort(federation, positions, Training(batch_size=0), 1, 0, 1).plan.shape == (3, 1, 1, max(SIZES))
