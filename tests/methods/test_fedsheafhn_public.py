"""FedSheafHN as in its public code: kept optimisers, continued enrolment, generated biases; fixed lengths."""

import pytest
import tiny
import torch

from fedweave.client.local_training import descend
from fedweave.engine.engine import run
from fedweave.engine.executors import Batched, Loop
from fedweave.engine.records import Settings, State
from fedweave.engine.schedule import cohort
from fedweave.engine.start import ENROLMENT, add_newcomers, begin, initial_model
from fedweave.tensors import trees

PUBLIC = {"generated": "biases", "continued": True, "server_learning": False}
BIASES = {"gcn1.bias", "gcn2.bias"}
ROUNDS, CLIENT = 3, 2


def states(**settings: object) -> tuple[list[State], object]:
    """The states before and after every round of a run whose clients keep Adam, and the method."""
    method, federation = tiny.method("fedsheafhn", tiny.nodes_task(), "nodes", **settings), tiny.nodes_federation()
    first = begin(method, federation, 1, Loop())
    return [first, *(report.state for report in run(method, federation, Settings(ROUNDS, 1), Loop(), first))], method


def test_the_public_code_is_local_training_under_given_biases() -> None:
    """Weights and classifier are those of one long training with one Adam. Only biases are received, and nothing is
    learnt.
    """
    reached, method = states(**PUBLIC)
    federation, moments = tiny.nodes_federation(), None
    model = initial_model(method, federation, 1)
    for round, before in enumerate([None, *reached[:-1]], -1):
        stream, epochs = (ENROLMENT, method.enrolment_epochs) if round < 0 else (round, method.epochs)
        data = cohort(federation, torch.arange(5), method.training, epochs, 1, stream).client_data(CLIENT)
        if before is not None:
            sent = trees.at(method.download(before.server, torch.arange(5))[1], CLIENT)
            assert {*sent} == BIASES
            model = {**model, **sent}
        objective = method.task.objective(data)
        fit = descend(objective, model, data.plan, method.solver, data.key, method.trained_names, moments)
        model, moments = fit.model, fit.state
    private = trees.at(reached[-1].clients["model"], CLIENT)
    assert {*private} == {*method.task.params} - BIASES
    for name, value in private.items():
        torch.testing.assert_close(value, model[name], rtol=1e-9, atol=1e-12)
    assert (reached[-1].optimizers["0"]["head"]["t"] == method.enrolment_epochs + ROUNDS * method.epochs).all()
    learnt = zip(*(trees.tree_leaves(state.server["phi"]) for state in (reached[0], reached[-1])), strict=True)
    assert all(torch.equal(a, b) for a, b in learnt)


@pytest.mark.parametrize("settings", [PUBLIC, {"continued": True}], ids=["biases", "body"])
def test_newcomers_continue_from_their_own_enrolment(settings: dict) -> None:
    """A newcomer has its classifier and the steps of its enrolment. The others keep theirs, bit for bit."""
    method, federation = tiny.method("fedsheafhn", tiny.nodes_task(), "nodes", **settings), tiny.nodes_federation()
    before = begin(method, federation.select(torch.arange(3)), 1, Loop())
    after = add_newcomers(method, before, federation, 2, 1, Loop())
    whole = begin(method, federation, 1, Loop())
    for joined, alone, everybody in zip(
        *(trees.tree_leaves((s.clients, s.optimizers)) for s in (after, before, whole)), strict=True
    ):
        assert torch.equal(joined[:3], alone)
        torch.testing.assert_close(joined[3:], everybody[3:], rtol=1e-9, atol=1e-12)
    assert (after.optimizers["0"]["body"]["t"] == method.enrolment_epochs).all()


def test_embeddings_of_fixed_length_let_kept_optimisers_learn() -> None:
    """Models depend on embeddings, and embeddings on models: together they grow without bound unless the length is
    fixed.
    """
    ends = {}
    for length in ("free", "fixed"):
        method = tiny.method(
            "fedsheafhn", tiny.nodes_task(), "nodes", length=length, continued=True, lr_phi=0.01, dropout=0.0
        )
        *_, ends[length] = run(method, tiny.nodes_federation(), Settings(60, 1, every=60), Batched())
    first = begin(method, tiny.nodes_federation(), 1, Loop()).server["fixed"]["x"]
    free, fixed = (ends[length].state.server["fixed"]["x"] for length in ("free", "fixed"))
    torch.testing.assert_close(fixed.norm(dim=1), first.norm(dim=1))
    assert not torch.allclose(fixed, first)
    assert not free.norm(dim=1).lt(10 * first.norm(dim=1)).all()
    scores = ends["fixed"].scores["post"]
    assert torch.stack([scores["val"], scores["test"]]).nanmean() > 65.0
    assert ends["fixed"].loss < 0.5
