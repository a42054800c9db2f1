"""Methods that must be equal at the limits of their hyper-parameters."""

from collections.abc import Callable

import pytest
import tiny
import torch

from fedweave.engine.engine import run
from fedweave.engine.executors import Loop
from fedweave.engine.protocol import Method
from fedweave.engine.records import Report, Settings
from fedweave.engine.schedule import Training

SETTINGS = Settings(rounds=3, seed=2)


def last_report(name: str, kind: str = "rows", **overrides: object) -> Report:
    """The last report of a method on a toy task."""
    task, federation = (make() for make in tiny.TASKS[kind])
    *_, report = run(tiny.method(name, task, kind, **overrides), federation, SETTINGS, Loop())
    return report


def deployed_models(report: Report) -> torch.Tensor:
    """The models of the reported point [N, P], with BatchNorm statistics."""
    models = report.models[report.method.point]
    return torch.cat([models[name].flatten(1) for name in sorted(models)], dim=1)


REDUCTIONS: dict[str, tuple[Callable[[], Report], Callable[[], Report]]] = {
    "FedProx(mu=0) = FedAvg": (lambda: last_report("fedprox", mu=0.0), lambda: last_report("fedavg")),
    "MOON(mu=0) = FedAvg": (lambda: last_report("moon", mu=0.0), lambda: last_report("fedavg")),
    "Ditto(lam=0) = Local": (lambda: last_report("ditto", lam=0.0, personal_epochs=2), lambda: last_report("local")),
    "FedAMP(lam=0) = Local": (lambda: last_report("fedamp", lam=0.0), lambda: last_report("local")),
    "FedAMP(detached) = Local": (lambda: last_report("fedamp", detached=True), lambda: last_report("local")),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_method_equals_its_simpler_method(name: str) -> None:
    """Both methods give the same personalized models."""
    left, right = (side() for side in REDUCTIONS[name])
    point = left.method.point
    a = deployed_models(left)
    b = torch.cat([right.models[point][n].flatten(1) for n in sorted(right.models[point])], dim=1)
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_a_penalty_changes_the_results() -> None:
    """The reductions above are not trivial: with the penalty, results differ."""
    plain = deployed_models(last_report("local"))
    for name, overrides in {"ditto": {"lam": 1.0, "personal_epochs": 2}, "fedamp": {"lam": 1.0}}.items():
        assert (deployed_models(last_report(name, **overrides)) - plain).abs().max() > 1e-3


def test_one_client_is_centralised_training() -> None:
    """FedAvg with a single client is that client's local training."""
    task, federation = tiny.rows_task(), tiny.rows_federation().select(torch.tensor([1]))
    reports = {
        name: list(run(tiny.method(name, task, "rows"), federation, SETTINGS, Loop()))[-1]
        for name in ("fedavg", "local")
    }
    torch.testing.assert_close(
        deployed_models(reports["fedavg"]), deployed_models(reports["local"]), rtol=1e-12, atol=0
    )


def test_full_batch_equals_one_step() -> None:
    """One epoch of full-batch training is one step on the mean loss."""
    task, federation = tiny.rows_task(), tiny.rows_federation()
    whole = run_with(tiny.method("local", task, "rows", training=Training(batch_size=0, epochs=1)), federation)
    large = run_with(tiny.method("local", task, "rows", training=Training(batch_size=1000, epochs=1)), federation)
    torch.testing.assert_close(whole, large, rtol=1e-10, atol=1e-12)


def run_with(method: Method, federation) -> torch.Tensor:
    """Deployed models after one round."""
    *_, report = run(method, federation, Settings(rounds=1, seed=2), Loop())
    return deployed_models(report)


def test_uniform_averaging_is_the_plain_mean() -> None:
    """Uploads of clients with different numbers of rows have the same weight."""
    task, federation = tiny.rows_task(), tiny.rows_federation()
    method = tiny.method("fedavg", task, "rows", training=Training(batch_size=4, uniform_mean=True))
    *_, report = run(method, federation, Settings(rounds=1, seed=2), Loop())
    plain = {name: value.mean(0) for name, value in report.models["post"].items()}
    for name, value in report.state.server["model"].items():
        torch.testing.assert_close(value, plain[name], rtol=1e-12, atol=1e-14)
