"""Differential privacy of uploads: the exact ε, the distribution of the noise, and every method under it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from scipy.integrate import quad
from scipy.stats import norm

from fedweave.engine.engine import run
from fedweave.engine.executors import Batched, Loop
from fedweave.engine.records import Settings
from fedweave.engine.uploads import UploadPath, finite_rows
from fedweave.methods import METHODS
from fedweave.tensors import trees
from fedweave.threats.privacy import Privacy, epsilon

PRIVATE = UploadPath(privacy=Privacy(clip=1.0, noise=0.5))


def divergence(mu: float, value: float) -> float:
    """δ of N(μ, 1) from N(0, 1) at ε by numerical integration."""
    lost = lambda x: max(0.0, norm.pdf(x, mu) - math.exp(value) * norm.pdf(x))  # noqa: E731
    crossing = value / mu + mu / 2
    return quad(lost, crossing, crossing + 40, limit=400, epsabs=1e-14)[0]


@pytest.mark.parametrize(
    ("noise", "releases", "delta"), [(1.0, 1, 1e-5), (2.0, 50, 1e-5), (0.7, 3, 1e-6), (30.0, 2000, 1e-4)]
)
def test_epsilon_is_exact(noise: float, releases: int, delta: float) -> None:
    """The integral of the privacy loss equals δ there. It is below the value of Rényi accounting."""
    bound = epsilon(noise, releases, delta)
    mu = math.sqrt(releases) / noise
    assert divergence(mu, bound) == pytest.approx(delta, rel=1e-3)
    orders = np.linspace(1.01, 500, 200_000)
    renyi = orders * mu**2 / 2 + np.log((orders - 1) / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    assert 0 < bound <= renyi.min()
    assert bound > 0.8 * renyi.min()


def test_epsilon_grows_with_releases_and_falls_with_noise() -> None:
    """It is 0 without a release, and finite for the extreme settings."""
    assert epsilon(1.0, 0, 1e-5) == 0.0
    assert epsilon(1e6, 1, 0.4) == 0.0
    assert epsilon(1.0, 1, 1e-5) == pytest.approx(4.3767, abs=1e-3)
    assert epsilon(1.0, 2, 1e-5) > epsilon(1.0, 1, 1e-5) > epsilon(2.0, 1, 1e-5)
    assert math.isfinite(epsilon(1e-3, 10_000, 1e-15))


def test_noise_has_its_distribution_and_updates_their_bound() -> None:
    """Uploads are clipped around the download. The noise is z C √parts for two parts. Another client, round or seed has
    other noise.
    """
    ids, still = torch.arange(50), {"model": {"w": torch.zeros(50, 400)}, "embedding": torch.zeros(50, 30)}
    far = trees.tree_map(lambda t: t + 100.0, still)
    private = Privacy(clip=2.0, noise=1.5)
    sent = private.protect(far, still, ids, 3, 7)
    quiet = replace(private, noise=0.0).protect(far, still, ids, 3, 7)
    for part in (quiet["model"]["w"], quiet["embedding"]):
        assert torch.allclose(part.norm(dim=1), torch.full((50,), 2.0), atol=1e-5)
    noise = torch.cat(
        [(sent["model"]["w"] - quiet["model"]["w"]).flatten(), (sent["embedding"] - quiet["embedding"]).flatten()]
    )
    assert noise.std() == pytest.approx(1.5 * 2.0 * math.sqrt(2), rel=0.02)
    assert abs(noise.mean()) < 0.1
    rest = [private.protect(far, still, ids, *key)["embedding"] for key in ((3, 7), (3, 8), (4, 7))]
    assert torch.equal(rest[0], sent["embedding"])
    assert not torch.equal(rest[0], rest[1])
    assert not torch.equal(rest[0], rest[2])
    some = private.protect(trees.take(far, ids[8:10]), trees.take(still, ids[8:10]), ids[8:10], 3, 7)
    assert torch.equal(some["embedding"], sent["embedding"][8:10])


FOUR_ROUNDS = Settings(rounds=4, upload_path=PRIVATE)


@pytest.mark.parametrize("name", [pytest.param(name, marks=tiny.sweep(name)) for name in METHODS])
def test_every_method_runs_under_privacy(name: str) -> None:
    """Three rounds stay finite and have the same bits again and after a restart. ε counts rounds and enrolments."""
    kind = next(k for k in ("rows", "images", "nodes") if tiny.suits(name, k))
    task, federation = (make() for make in tiny.TASKS[kind])
    method = tiny.method(
        name, task, kind, **({"stage1_rounds": 1} if "stage1_rounds" in METHODS[name].__dataclass_fields__ else {})
    )
    settings = Settings(rounds=3, seed=1, participation=0.6, upload_path=PRIVATE)
    reports = list(run(method, federation, settings, Loop()))
    last = reports[-1]
    assert finite_rows(last.state.clients) is None
    assert all(leaf.isfinite().all() for leaf in trees.tree_leaves(last.state.server) if leaf.is_floating_point())
    *_, again = run(method, federation, settings, Loop(), reports[0].state)
    pairs = zip(trees.tree_leaves(tuple(last.state)), trees.tree_leaves(tuple(again.state)), strict=True)
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)
    epsilons = [report.diagnostics["epsilon"] for report in reports if report.diagnostics]
    assert epsilons == sorted(epsilons)
    assert again.diagnostics["epsilon"] == epsilons[-1]
    assert epsilons[-1] in {PRIVATE.privacy.epsilon(k) for k in range(len(reports) + 3)}
    assert method.pools or (epsilons[-1] == 0.0) == (last.bytes_up == 0)


def test_epsilon_counts_rounds_and_enrolments() -> None:
    """With all clients in every round, it is that of one release per round, and of one more for an enrolment."""
    for name, kind, enrolments in (("fedavg", "rows", 0), ("fedsheafhn", "nodes", 1)):
        task, federation = (make() for make in tiny.TASKS[kind])
        *_, report = run(
            tiny.method(name, task, kind), federation, Settings(rounds=4, every=4, upload_path=PRIVATE), Loop()
        )
        assert report.diagnostics["epsilon"] == PRIVATE.privacy.epsilon(4 + enrolments)


def test_rounds_without_an_upload_do_not_count() -> None:
    """ε grows with uploads only: never under local training, and not while FedSage+ trains generators."""
    local = run(tiny.method("local", tiny.rows_task(), "rows"), tiny.rows_federation(), FOUR_ROUNDS, Loop())
    assert [report.diagnostics["epsilon"] for report in local] == [0.0] * FOUR_ROUNDS.rounds
    sage = tiny.method("fedsage", tiny.nodes_task(), "nodes", generator_rounds=3)
    epsilons = [report.diagnostics["epsilon"] for report in run(sage, tiny.nodes_federation(), FOUR_ROUNDS, Loop())]
    joined = PRIVATE.privacy.epsilon
    assert epsilons == [joined(1), joined(1), joined(2), joined(3)]


def test_without_noise_and_clipping_a_run_is_the_plain_one() -> None:
    """Up to rounding. Both executors draw the same noise."""
    task, federation = (make() for make in tiny.TASKS["rows"])
    method = tiny.method("fedaghn", task, "rows")
    ends = {}
    for key, upload_path, executor in (
        ("plain", UploadPath(), Loop()),
        ("off", UploadPath(privacy=Privacy(clip=1e6, noise=0.0)), Loop()),
        ("loop", PRIVATE, Loop()),
        ("batched", PRIVATE, Batched()),
    ):
        *_, report = run(
            method, federation, Settings(rounds=3, seed=1, participation=0.6, upload_path=upload_path), executor
        )
        ends[key] = [leaf for leaf in trees.tree_leaves(tuple(report.state)) if isinstance(leaf, torch.Tensor)]
    for a, b in (("plain", "off"), ("loop", "batched")):
        for x, y in zip(ends[a], ends[b], strict=True):
            torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-8)
