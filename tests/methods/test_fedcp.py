"""FedCP: its gate, the distance of features, the features that it compares, and its uploads."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from naive import FED, SEED, build_method

from fedweave.client.solvers import SGD
from fedweave.engine.engine import run_round
from fedweave.engine.executors import Loop
from fedweave.engine.records import Settings
from fedweave.engine.schedule import evaluation_cohort
from fedweave.engine.start import begin
from fedweave.families import penalties
from fedweave.tensors import dropout_keys, trees


def test_fedcp_gate_splits_features() -> None:
    """With equal heads the gate cancels: s_p + s_g = 1, so logits are W z + 2 b. Its noise is Gumbel-softmax noise."""
    method = build_method("fedcp")
    state = begin(method, FED, SEED, Loop())
    model = method.personalize(
        method.download(state.server, torch.arange(1))[0],
        {},
        trees.at(state.clients, 0),
        evaluation_cohort(FED, 0, 0).client_data(0),
    )
    data, rows = evaluation_cohort(FED, 0, 0).client_data(0), torch.arange(7)
    plain = method.task.predict(model["model"], data, rows)
    torch.testing.assert_close(
        method.predict(model, data, rows), plain + model["head"]["fc.bias"], rtol=1e-10, atol=1e-12
    )
    draws = dropout_keys.uniform(dropout_keys.key(3), (20000, 2)).clamp(min=2.0**-25).double()
    scores = torch.tensor([1.0, 0.0]) + -(-draws.log()).log()
    assert float((scores.argmax(1) == 0).double().mean()) == pytest.approx(1 / (1 + np.exp(-1.0)), abs=0.015)


def test_fedcp_discrepancy() -> None:
    """MMD² equals its double sum, is 0 for equal samples, and ignores padding."""
    g = torch.Generator().manual_seed(0)
    x, y = (3 * torch.randn(6, 4, generator=g, dtype=torch.float64) for _ in range(2))
    kernel = lambda a, b: sum(np.exp(-float((a - b).square().sum()) / (2 * w)) for w in (10, 15, 20, 50))  # noqa: E731
    expected = np.mean(
        [[kernel(x[i], x[j]) + kernel(y[i], y[j]) - 2 * kernel(x[i], y[j]) for j in range(6)] for i in range(6)]
    )
    assert float(penalties.discrepancy(x, y, None)) == pytest.approx(expected, rel=1e-9)
    assert float(penalties.discrepancy(x, x, None)) == pytest.approx(0.0, abs=1e-12)
    mask = torch.tensor([True] * 4 + [False] * 2)
    torch.testing.assert_close(penalties.discrepancy(x, y, mask), penalties.discrepancy(x[:4], y[:4], None))


def test_fedcp_compares_features_of_the_same_image() -> None:
    """Before the first step the own body is the global one. With augmentation too, both get the same shifted rows, and
    λ has no effect.
    """
    task, federation = tiny.rows_task("cnn"), tiny.rows_federation((1, 8, 8))
    losses = []
    for lam in (0.0, 5.0):
        method = tiny.method("fedcp", replace(task, augment=2), "images", lam=lam, solver=SGD(lr=0.0))
        state = begin(method, federation, SEED, Loop())
        losses.append(run_round(method, state, federation, Settings(rounds=1, seed=SEED), Loop())[1].loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_fedcp_uploads_the_middle_of_both_heads() -> None:
    """A client uploads (H_p + H_g) / 2 and keeps H_p."""
    method, alone = build_method("fedcp"), FED.select(torch.tensor([1]))
    before = begin(method, alone, SEED, Loop())
    after, _, _ = run_round(method, before, alone, Settings(rounds=1, seed=SEED), Loop())
    for name in method.task.head:
        middle = 0.5 * (after.clients[name][0] + before.server["model"][name])
        torch.testing.assert_close(after.server["model"][name], middle)
    assert not torch.equal(after.server["model"]["gate/weight"], before.server["model"]["gate/weight"])
