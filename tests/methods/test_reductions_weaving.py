"""Methods that learn mixtures must equal simpler ones at the limits of their hyper-parameters."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import tiny
import torch

from fedweave.engine.clients import Clients
from fedweave.engine.engine import run
from fedweave.engine.executors import Loop
from fedweave.engine.records import Report, Settings
from fedweave.engine.start import begin
from fedweave.tensors import trees

SETTINGS = Settings(rounds=3, seed=2)


def equal_sizes() -> Clients:
    """The toy with six training rows per client, so that means by size are plain means."""
    federation = tiny.rows_federation()
    return replace(federation, train=federation.train[:, :6])


def last(name: str, federation: Clients | None = None, blank: bool = False, **overrides: object) -> Report:
    """The last report; `blank` sets the server's networks to zero before the first round."""
    task, federation = tiny.rows_task(), federation or tiny.rows_federation()
    method = tiny.method(name, task, "rows", **overrides)
    state = begin(method, federation, SETTINGS.seed, Loop())
    if blank:
        state = state._replace(server={**state.server, "phi": trees.tree_map(torch.zeros_like, state.server["phi"])})
    *_, report = run(method, federation, SETTINGS, Loop(), state)
    return report


REDUCTIONS: dict[str, tuple[Callable[[], Report], Callable[[], Report]]] = {
    "FedAGHN(p -> inf) = Local": (lambda: last("fedaghn", p0=1e14, p="frozen"), lambda: last("local")),
    "HeurpFedLA(everything retained) = Local": (lambda: last("heurpfedla", retain=99), lambda: last("local")),
    "HeurpFedLA(k = 0) = pFedLA": (lambda: last("heurpfedla", retain=0), lambda: last("pfedla")),
    "pFedGAT(uniform) = FedAvg-FT": (
        lambda: last("pfedgat", equal_sizes(), blank=True, server_lr=0.0),
        lambda: last("fedavg_ft", equal_sizes()),
    ),
    "Direct matrix(lr = 0) = FedAvg-FT": (
        lambda: last("direct_matrix", equal_sizes(), server_lr=0.0),
        lambda: last("fedavg_ft", equal_sizes()),
    ),
    "Direct matrix by logits(lr = 0) = FedAvg-FT": (
        lambda: last("direct_matrix", equal_sizes(), server_lr=0.0, rows="logits"),
        lambda: last("fedavg_ft", equal_sizes()),
    ),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_method_equals_its_simpler_method(name: str) -> None:
    """Both methods give the same models after local training."""
    left, right = (trees.to_matrix(side().models["post"]) for side in REDUCTIONS[name])
    # FedAvg's shares are single precision numbers, and a fifth is not one of them.
    tolerance = 1e-6 if "FedAvg" in name else 1e-9
    torch.testing.assert_close(left, right, rtol=tolerance, atol=0.1 * tolerance)


def test_the_reductions_are_not_trivial() -> None:
    """With their defaults, the methods differ from the simpler ones."""
    local, average = (trees.to_matrix(last(name).models["post"]) for name in ("local", "fedavg_ft"))
    for name in ("fedaghn", "pfedla", "heurpfedla", "pfedgat", "direct_matrix"):
        models = trees.to_matrix(last(name).models["post"])
        assert (models - local).abs().max() > 1e-3
        assert (models - average).abs().max() > 1e-4
