"""Methods at the limits of their hyper-parameters, where they must equal simpler methods."""

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
from fedweave.engine.schedule import Training
from fedweave.engine.start import begin
from fedweave.tensors import trees

EQUAL = replace(FED, train=FED.train[:, :6])  # six training rows each: unweighted and weighted means agree
NO_VALIDATION = replace(FED, val=torch.full_like(FED.val, -1))
ALONE = FED.select(torch.tensor([1]))
UNRELATED = replace(EQUAL, relation=None)
WITHOUT_MIXING = {"layers": 64, "lam_u": 0.0, "lam_g": 0.0}


def of(name: str, *places: object, point: str = "post", **settings: object) -> Callable[[], Tensor]:
    """The personalized models of a method; `places` and `settings` are those of `last_report`."""
    return lambda: models(last_report(name, *places, **settings), point)


def served(name: str, *places: object, **settings: object) -> Callable[[], Tensor]:
    """The one model of a method's server."""
    return lambda: server(last_report(name, *places, **settings))


def blank_pfedgat() -> Tensor:
    """pFedGAT whose networks are zero before the first round, and stay so."""
    method = build_method("pfedgat", server_lr=0.0)
    state = begin(method, EQUAL, SEED, Loop())
    state = state._replace(server={**state.server, "phi": trees.tree_map(torch.zeros_like, state.server["phi"])})
    *_, report = run(method, EQUAL, Settings(rounds=3, seed=SEED), Loop(), state)
    return models(report)


REDUCTIONS: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]] = {
    "FedProx(mu=0) = FedAvg": (of("fedprox", mu=0.0, point="pre"), of("fedavg", point="pre")),
    "MOON(mu=0) = FedAvg": (of("moon", mu=0.0, point="pre"), of("fedavg", point="pre")),
    "Ditto(lam=0) = Local": (of("ditto", lam=0.0, personal_epochs=2, point="pre"), of("local", point="pre")),
    "FedAMP(lam=0) = Local": (of("fedamp", lam=0.0, point="pre"), of("local", point="pre")),
    "FedAMP(detached) = Local": (of("fedamp", detached=True, point="pre"), of("local", point="pre")),
    "one epoch of full batches is one step": (
        of("local", rounds=1, point="pre", training=Training(batch_size=0, epochs=1)),
        of("local", rounds=1, point="pre", training=Training(batch_size=1000, epochs=1)),
    ),
    "FedProx-FT(mu=0) = FedAvg-FT": (of("fedprox_ft", mu=0.0), of("fedavg_ft")),
    "FedProx-FT trains as FedProx": (served("fedprox_ft", mu=0.5), served("fedprox", mu=0.5)),
    "Per-FedAvg(alpha=0) = FedAvg": (served("perfedavg", "images", alpha=0.0), served("fedavg", "images")),
    "Per-FedAvg(HF, alpha=0) = FedAvg": (of("perfedavg", variant="hf", alpha=0.0), of("fedavg")),
    "pFedMe(lam=0) trains theta as FedAvg-FT": (
        of("pfedme", rounds=1, lam=0.0, mu=0.0, inner_steps=1, inner_lr=0.1),
        of("fedavg_ft", rounds=1),
    ),
    "pFedMe(beta=0) = pFedMe(lam=0): nothing but the first model": (
        served("pfedme", beta=0.0),
        served("pfedme", lam=0.0),
    ),
    "CFL without splits = FedAvg-FT": (of("cfl", "rows", EQUAL, eps1=0.0), of("fedavg_ft", "rows", EQUAL)),
    "HeurFedAMP(omega=1, lam=0) = Local": (of("heurfedamp", omega=1.0, lam=0.0), of("local")),
    "HeurFedAMP from u_i, omega=1, lam=0 = Local": (
        of("heurfedamp", omega=1.0, lam=0.0, begin_at="mixture"),
        of("local"),
    ),
    "HeurFedAMP(detached) = Local": (of("heurfedamp", detached=True), of("local")),
    "FedALA in round 0 = FedAvg": (of("fedala", rounds=1), of("fedavg", rounds=1)),
    "FedALA(eta=0) = FedAvg": (of("fedala", "images", eta=0.0, tensors=0), of("fedavg", "images")),
    "FedPAC(lam=0) of one client = FedRep": (
        of("fedpac", "rows", ALONE, lam=0.0, head_epochs=2),
        of("fedrep", "rows", ALONE, head_epochs=2),
    ),
    "FedFomo without validation rows = Local": (
        of("fedfomo", "rows", NO_VALIDATION),
        of("local", "rows", NO_VALIDATION),
    ),
    "pFedGraph(alpha -> inf, lam=0) = FedAvg-FT": (of("pfedgraph", alpha=1e12, lam=0.0), of("fedavg_ft")),
    "SFL with endless propagation = FedAvg": (
        of("sfl", "rows", UNRELATED, point="pre", **WITHOUT_MIXING),
        of("fedavg", "rows", UNRELATED, point="pre"),
    ),
    "SFL(detached) = SFL without penalties": (of("sfl", detached=True), of("sfl", lam_u=0.0, lam_g=0.0)),
    "SFL(gamma=0) deploys the own model": (of("sfl", gamma=0.0, point="pre"), of("sfl", gamma=0.0)),
    "SFL*(beta=0) = SFL": (of("sfl", learned_graph=True, beta=0.0), of("sfl")),
    "Panacea without generator = GHN with trained vectors": (
        of("panacea", "nodes", generator_weight=0.0),
        of("ghn", "nodes", **{**tiny.ARGUMENTS["panacea"], "train_x": True}),
    ),
    "FedAGHN(p -> inf) = Local": (of("fedaghn", p0=1e14, p="frozen"), of("local")),
    "HeurpFedLA(everything retained) = Local": (of("heurpfedla", retain=99), of("local")),
    "HeurpFedLA(k = 0) = pFedLA": (of("heurpfedla", retain=0), of("pfedla")),
    "pFedGAT(uniform) = FedAvg-FT": (blank_pfedgat, of("fedavg_ft", "rows", EQUAL)),
    "Direct matrix(lr = 0) = FedAvg-FT": (
        of("direct_matrix", "rows", EQUAL, server_lr=0.0),
        of("fedavg_ft", "rows", EQUAL),
    ),
    "Direct matrix by logits(lr = 0) = FedAvg-FT": (
        of("direct_matrix", "rows", EQUAL, server_lr=0.0, rows="logits"),
        of("fedavg_ft", "rows", EQUAL),
    ),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_method_equals_its_simpler_method(name: str) -> None:
    """Both give the same models, with BatchNorm statistics."""
    left, right = (side() for side in REDUCTIONS[name])
    torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)


def test_one_client_is_centralised_training() -> None:
    """FedAvg with a single client is that client's local training."""
    left, right = (of(name, "rows", ALONE, point="pre")() for name in ("fedavg", "local"))
    torch.testing.assert_close(left, right, rtol=1e-12, atol=0)


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


def test_methods_differ_from_their_simpler_methods() -> None:
    local, average = of("local")(), of("fedavg_ft")()
    for name in ("fedaghn", "pfedla", "heurpfedla", "pfedgat", "direct_matrix"):
        trained = of(name)()
        assert (trained - local).abs().max() > 1e-3
        assert (trained - average).abs().max() > 1e-4
    plain = of("local", point="pre")()
    for method in (of("ditto", lam=1.0, personal_epochs=2, point="pre"), of("fedamp", lam=1.0, point="pre")):
        assert (method() - plain).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("perfedavg", "images", {"variant": "hf", "alpha": 0.05}),
        ("fedala", "rows", {"start_epochs": 13}),
        ("sfl", "rows", {"learned_graph": True}),
        ("fedsage", "nodes", {"generator_rounds": 2}),
        ("fedpac", "rows", {"head_lr": 0.05}),
        ("heurfedamp", "rows", {"begin_at": "mixture"}),
    ],
)
def test_executors_agree_for_other_values_than_the_defaults(name: str, kind: str, settings: dict) -> None:
    """The tests of the contract use the defaults."""
    method, federation = build_method(name, kind, **settings), tiny.TASKS[kind][1]()
    some = Settings(rounds=2, participation=0.6, seed=SEED)
    states = [list(run(method, federation, some, executor))[-1].state for executor in (Loop(), Batched(2))]
    for a, b in zip(*(trees.tree_leaves(tuple(state)) for state in states), strict=True):
        torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=1e-8, atol=1e-9)


def test_uniform_averaging_is_the_plain_mean() -> None:
    """Uploads of clients with different numbers of rows have the same weight."""
    report = last_report("fedavg", rounds=1, training=Training(batch_size=4, uniform_mean=True))
    plain = {name: value.mean(0) for name, value in report.models["post"].items()}
    for name, value in report.state.server["model"].items():
        torch.testing.assert_close(value, plain[name], rtol=1e-12, atol=1e-14)
