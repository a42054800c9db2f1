"""Baselines at the limits of their hyper-parameters, where they must equal simpler methods."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import tiny
import torch
from naive import FED, SEED, build_method, last_report, models, server
from torch import Tensor

from fedweave.engine.engine import run
from fedweave.engine.executors import Batched, Loop
from fedweave.engine.records import Settings
from fedweave.tensors import trees

EQUAL = replace(FED, train=FED.train[:, :6])  # six training rows each: unweighted and weighted means agree


def sides(a: Callable[[], Tensor], b: Callable[[], Tensor]) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """A named pair, for readability below."""
    return a, b


NO_VALIDATION = replace(FED, val=torch.full_like(FED.val, -1))
ALONE = FED.select(torch.tensor([1]))
UNRELATED = replace(EQUAL, relation=None)
REDUCTIONS = {
    "FedProx-FT(mu=0) = FedAvg-FT": sides(
        lambda: models(last_report("fedprox_ft", mu=0.0)), lambda: models(last_report("fedavg_ft"))
    ),
    "FedProx-FT trains as FedProx": sides(
        lambda: server(last_report("fedprox_ft", mu=0.5)), lambda: server(last_report("fedprox", mu=0.5))
    ),
    "Per-FedAvg(alpha=0) = FedAvg": sides(
        lambda: server(last_report("perfedavg", "images", alpha=0.0)), lambda: server(last_report("fedavg", "images"))
    ),
    "Per-FedAvg(HF, alpha=0) = FedAvg": sides(
        lambda: models(last_report("perfedavg", variant="hf", alpha=0.0)), lambda: models(last_report("fedavg"))
    ),
    "pFedMe(lam=0) trains theta as FedAvg-FT": sides(
        lambda: models(last_report("pfedme", rounds=1, lam=0.0, mu=0.0, inner_steps=1, inner_lr=0.1)),
        lambda: models(last_report("fedavg_ft", rounds=1)),
    ),
    "pFedMe(beta=0) = pFedMe(lam=0): nothing but the first model": sides(
        lambda: server(last_report("pfedme", beta=0.0)), lambda: server(last_report("pfedme", lam=0.0))
    ),
    "CFL without splits = FedAvg-FT": sides(
        lambda: models(last_report("cfl", "rows", EQUAL, eps1=0.0)),
        lambda: models(last_report("fedavg_ft", "rows", EQUAL)),
    ),
    "HeurFedAMP(omega=1, lam=0) = Local": sides(
        lambda: models(last_report("heurfedamp", omega=1.0, lam=0.0)), lambda: models(last_report("local"))
    ),
    "HeurFedAMP from u_i, omega=1, lam=0 = Local": sides(
        lambda: models(last_report("heurfedamp", omega=1.0, lam=0.0, begin_at="mixture")),
        lambda: models(last_report("local")),
    ),
    "HeurFedAMP(detached) = Local": sides(
        lambda: models(last_report("heurfedamp", detached=True)), lambda: models(last_report("local"))
    ),
    "FedALA in round 0 = FedAvg": sides(
        lambda: models(last_report("fedala", rounds=1)), lambda: models(last_report("fedavg", rounds=1))
    ),
    "FedALA(eta=0) = FedAvg": sides(
        lambda: models(last_report("fedala", "images", eta=0.0, tensors=0)),
        lambda: models(last_report("fedavg", "images")),
    ),
    "FedPAC(lam=0) of one client = FedRep": sides(
        lambda: models(last_report("fedpac", "rows", ALONE, lam=0.0, head_epochs=2)),
        lambda: models(last_report("fedrep", "rows", ALONE, head_epochs=2)),
    ),
    "FedFomo without validation rows = Local": sides(
        lambda: models(last_report("fedfomo", "rows", NO_VALIDATION)),
        lambda: models(last_report("local", "rows", NO_VALIDATION)),
    ),
    "pFedGraph(alpha -> inf, lam=0) = FedAvg-FT": sides(
        lambda: models(last_report("pfedgraph", alpha=1e12, lam=0.0)), lambda: models(last_report("fedavg_ft"))
    ),
    "SFL with endless propagation = FedAvg": sides(
        lambda: models(last_report("sfl", "rows", UNRELATED, layers=64, lam_u=0.0, lam_g=0.0), "pre"),
        lambda: models(last_report("fedavg", "rows", UNRELATED), "pre"),
    ),
    "SFL(detached) = SFL without penalties": sides(
        lambda: models(last_report("sfl", detached=True)), lambda: models(last_report("sfl", lam_u=0.0, lam_g=0.0))
    ),
    "SFL(gamma=0) deploys the own model": sides(
        lambda: models(last_report("sfl", gamma=0.0), "pre"), lambda: models(last_report("sfl", gamma=0.0), "post")
    ),
    "SFL*(beta=0) = SFL": sides(
        lambda: models(last_report("sfl", learned_graph=True, beta=0.0)), lambda: models(last_report("sfl"))
    ),
    "Panacea without generator = GHN with trained vectors": sides(
        lambda: models(last_report("panacea", "nodes", generator_weight=0.0)),
        lambda: models(last_report("ghn", "nodes", **{**tiny.ARGUMENTS["panacea"], "train_x": True})),
    ),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_baseline_equals_its_simpler_method(name: str) -> None:
    """Both methods give the same models."""
    left, right = (side() for side in REDUCTIONS[name])
    torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "kind", "off", "on"),
    [
        ("heurfedamp", "rows", {"lam": 0.0}, {"lam": 1.0}),
        ("fedala", "rows", {"eta": 0.0}, {}),
        ("fedpac", "rows", {"lam": 0.0}, {}),
        ("pfedgraph", "rows", {"lam": 0.0}, {"lam": 0.1}),
        ("pfedgraph", "rows", {"alpha": 1e12}, {}),
        ("fedcp", "rows", {"lam": 0.0}, {}),
        ("sfl", "rows", {"learned_graph": False}, {"learned_graph": True}),
        ("panacea", "rows", {"generator_weight": 0.0}, {}),
        ("perfedavg", "rows", {"variant": "fo"}, {"variant": "hf", "alpha": 0.1}),
        ("fedpub", "nodes", {"detached": True}, {}),
        ("fedrod", "rows", {"local_generic": True}, {}),
        ("pfedme", "rows", {"eval_w": True}, {}),
        ("fedpac", "rows", {"head_lr": 0.05}, {}),
        ("heurfedamp", "rows", {"origin": "initial"}, {}),
        ("fedfomo", "rows", {"models": 1}, {}),
        ("pfedgraph", "rows", {"repel": True}, {}),
    ],
)
def test_settings_change_the_results(name: str, kind: str, off: dict, on: dict) -> None:
    """The reductions are not trivial: for other values of the hyper-parameters, results differ."""
    a, b = (trees.tree_leaves(last_report(name, kind, **settings).models["post"]) for settings in (off, on))
    assert max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True) if x.is_floating_point()) > 1e-6


def test_executors_agree_for_other_values_than_the_defaults() -> None:
    """The options differ from the defaults, which the tests of the contract use."""
    for name, kind, settings in [
        ("perfedavg", "images", {"variant": "hf", "alpha": 0.05}),
        ("fedala", "rows", {"start_epochs": 13}),
        ("sfl", "rows", {"learned_graph": True}),
        ("fedsage", "nodes", {"generator_rounds": 2}),
        ("fedpac", "rows", {"head_lr": 0.05}),
        ("heurfedamp", "rows", {"begin_at": "mixture"}),
    ]:
        method, federation, some = (
            build_method(name, kind, **settings),
            tiny.TASKS[kind][1](),
            Settings(rounds=2, participation=0.6, seed=SEED),
        )
        states = [list(run(method, federation, some, executor))[-1].state for executor in (Loop(), Batched(2))]
        for a, b in zip(*(trees.tree_leaves(tuple(state)) for state in states), strict=True):
            torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=1e-8, atol=1e-9)
