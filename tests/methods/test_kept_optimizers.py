"""One optimiser per client for the whole run: the kept state, the clients that keep it, and equivalent trainings."""

from dataclasses import replace

import pytest
import tiny
import torch

from fedweave.client.local_training import descend
from fedweave.client.solvers import SGD, Adam
from fedweave.engine.engine import run
from fedweave.engine.executors import Loop
from fedweave.engine.records import Report, Settings
from fedweave.engine.schedule import Training, cohort, participation_counts
from fedweave.engine.start import initial_model
from fedweave.tensors import trees

ROUNDS = 3
EVERYBODY = Settings(rounds=ROUNDS, seed=1, every=ROUNDS)
KEPT = Training(batch_size=4, epochs=2, keep_optimizer=True)
FRESH = replace(KEPT, keep_optimizer=False)


def last_report(name: str, settings: Settings = EVERYBODY, kind: str = "rows", **overrides: object) -> Report:
    """The last report of a run with Adam whose clients keep it, unless `overrides` differ."""
    method, federation = tiny.pair(name, kind, **{"solver": Adam(lr=0.01), "training": KEPT, **overrides})
    *_, report = run(method, federation, settings, Loop())
    return report


@pytest.mark.parametrize("name", ["local", "fedper", "fedrep", "fedaghn", "pfedme", "ditto"])
def test_without_momentum_kept_optimisers_change_nothing(name: str) -> None:
    """Plain SGD gives the same bits with kept and with fresh optimisers."""
    continued, fresh = (last_report(name, solver=SGD(lr=0.1), training=training) for training in (KEPT, FRESH))
    a, b = (trees.tree_leaves((r.state.server, r.state.clients, r.models)) for r in (continued, fresh))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_local_is_one_long_training() -> None:
    """Local with kept Adam is one Adam over the batches of all rounds."""
    task, federation = tiny.rows_task(), tiny.rows_federation()
    method = tiny.method("local", task, "rows", solver=Adam(lr=0.01), training=KEPT)
    *_, report = run(method, federation, EVERYBODY, Loop())
    model = initial_model(method, federation, EVERYBODY.seed)
    parts = [
        cohort(federation, torch.arange(5), KEPT, 2, EVERYBODY.seed, round).client_data(3) for round in range(ROUNDS)
    ]
    plan = [epoch for part in parts for epoch in part.plan]
    key = torch.zeros((), dtype=torch.int64)
    whole = descend(task.objective(parts[0]), model, plan, method.solver, key, task.params)
    for name, value in trees.at(report.state.clients, 3).items():
        torch.testing.assert_close(value, whole.model[name], rtol=1e-12, atol=1e-14)
    continued, fresh = (
        trees.to_matrix(last_report("local", training=training).models["post"]) for training in (KEPT, FRESH)
    )
    assert (continued - fresh).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["scaffold", "pfedme"])
def test_only_the_optimiser_inside_a_solver_is_kept(name: str) -> None:
    """Sums of gradients and anchors last one round. A copy for every client would take the memory of a model each."""
    assert {*last_report(name).state.optimizers["0"]} == {"m", "v", "t"}


# Phase -> its epochs, and its rounds: FedSage's generators learn in the first one, its classifier in the others; SHN's
# first stage has two.
@pytest.mark.parametrize(
    ("name", "kind", "phases"),
    [
        ("fedavg", "rows", {"0": (2, (0, 3))}),
        ("fedrep", "rows", {"0": (2, (0, 3)), "1": (2, (0, 3))}),
        ("fedpac", "rows", {"0": (1, (0, 3)), "1": (2, (0, 3))}),
        ("ditto", "rows", {"0": (2, (0, 3)), "1": (2, (0, 3))}),
        ("shn", "rows", {"0": (2, (0, 5))}),
        ("fedsage", "nodes", {"generators": (2, (0, 1)), "classifier": (2, (1, 3))}),
        ("fedpub", "nodes", {"0": (2, (0, 3))}),
        ("fedsheafhn", "nodes", {"0": (2, (0, 3))}),
    ],
)
def test_step_counts_survive_every_overwrite(
    name: str, kind: str, phases: dict[str, tuple[int, tuple[int, int]]]
) -> None:
    """Every phase has its state, including masks and received tensors. It has counted all steps of its epochs in the
    rounds in which a client took part. Absent clients take no steps, and nothing is sent.
    """
    settings = replace(EVERYBODY, participation=0.6)
    continued = last_report(name, settings, kind)
    assert {*continued.state.optimizers} == {*phases}
    batches = -(-(tiny.TASKS[kind][1]().train >= 0).sum(1) // KEPT.batch_size)
    ids = torch.arange(tiny.CLIENTS)
    for phase, (epochs, (first, end)) in phases.items():
        state = continued.state.optimizers[phase]
        counts = state["t"] if "t" in state else next(iter(state.values()))["t"]
        times = participation_counts(settings.seed, first, [tiny.CLIENTS] * (end - first), ids, 0.6)
        assert counts.tolist() == (batches * epochs * times).tolist(), phase
    assert max(end for _, (_, end) in phases.values()) == continued.state.round
    fresh = last_report(name, settings, kind, training=FRESH)
    assert (continued.bytes_up, continued.bytes_down) == (fresh.bytes_up, fresh.bytes_down)
    assert fresh.state.optimizers == {}
    if name == "fedpub":
        assert any(key.startswith("mask/") for key in continued.state.optimizers["0"]["mask"]["m"])


def test_newcomers_begin_without_moments() -> None:
    """Clients that join in the last round have taken the steps of one round."""
    state = last_report("fedper", replace(EVERYBODY, newcomers=2, join_round=2)).state
    steps = state.optimizers["0"]["t"]
    task, federation = tiny.rows_task(), tiny.rows_federation()
    plan = cohort(federation, torch.arange(5), KEPT, 2, 1, 2).counts
    per_round = torch.tensor([sum(c > 0 for epoch in client for c in epoch) for client in plan])
    assert torch.equal(steps.long(), per_round * torch.tensor([3, 3, 3, 1, 1]))
    assert task.params == (*state.optimizers["0"]["m"],)
