"""The servers' memory of clients: affinities (FedFomo), heads (FedPAC), prototypes, bodies by trace (FedAS)."""

from dataclasses import replace

import pytest
import tiny
import torch
from naive import FED, SEED, build_method, first_uploads

from fedweave.client.solvers import SGD
from fedweave.engine.engine import run_round
from fedweave.engine.executors import Loop
from fedweave.engine.records import Settings
from fedweave.engine.schedule import evaluation_cohort
from fedweave.engine.start import admission, begin
from fedweave.families.heads import class_statistics, head_weights
from fedweave.tensors import dropout_keys, trees

EVERYBODY, ONE_ROUND = torch.arange(tiny.CLIENTS), Settings(rounds=1, seed=SEED)


@pytest.mark.parametrize("raw", [False, True])
def test_affinities_add_up(raw: bool) -> None:
    """A_ij grows by w_j for every model j that client i got and for its own, or by the score with `raw_affinity`."""
    method = build_method("fedfomo", models=3, raw_affinity=raw)
    state, _, _ = run_round(method, begin(method, FED, SEED, Loop()), FED, ONE_ROUND, Loop())
    server = {**state.server, "affinity": 0.5 + torch.rand(5, 5, generator=torch.Generator().manual_seed(0)).double()}
    state = state._replace(server=server)
    picks, live = method.picks(server, EVERYBODY)
    _, own, uploads = first_uploads(method, state)
    expected = server["affinity"].clone()
    for i in range(tiny.CLIENTS):
        data = evaluation_cohort(FED, SEED, 0).client_data(i)
        scores = method._scores(trees.at(own, i), trees.at(state.clients, i), data)
        shares = scores.clamp(min=0) / scores.clamp(min=0).sum().clamp(min=1e-12)
        for slot, j in enumerate(picks[i].tolist()):
            assert live[i, slot]
            expected[i, j] += (scores if raw else shares)[slot]
        expected[i, i] += (scores if raw else shares)[-1]
    after = method.aggregate(server, EVERYBODY, uploads, FED.sizes)
    torch.testing.assert_close(after["affinity"], expected)
    assert (after["affinity"] - server["affinity"]).abs().max() > 1e-3


def test_exploration_decays() -> None:
    """In round r a slot is random with probability ε − r · decay, and never from round ε / decay on."""
    method = build_method("fedfomo", models=1, epsilon=0.8, decay=0.1)
    server = {**begin(method, FED, SEED, Loop()).server, "seen": torch.ones(5, dtype=torch.bool)}
    server["affinity"] = torch.tensor([9.0, 1, 3, 2, 8]).expand(5, 5).double()
    for r, expected in ((0, 0.8), (4, 0.4), (8, 0.0), (20, 0.0)):
        others = 0
        for key in range(300):
            drawn = {**server, "round": torch.tensor(r), "key": dropout_keys.key(key)}
            others += int(method.picks(drawn, torch.tensor([0]))[0][0, 0] != 4)
        assert abs(others / 300 - expected * 3 / 4) < 4 * (3 / 16 / 300) ** 0.5 * (expected > 0) + 1e-9


@pytest.mark.parametrize("weighted", [True, False])
def test_fedpac_server(weighted: bool) -> None:
    """h and V are those of the received body, and class means those of the trained body. Heads are mixed by rows."""
    method = build_method("fedpac", weighted=weighted)
    state, _, _ = run_round(method, begin(method, FED, SEED, Loop()), FED, ONE_ROUND, Loop())
    shared, own, uploads = first_uploads(method, state)
    for i in range(tiny.CLIENTS):
        data = evaluation_cohort(FED, SEED, 0).client_data(i)
        received = {**shared["model"], **trees.at(own, i)}
        trained = {**trees.at(uploads["model"], i), **trees.at(uploads["head"], i)}
        for model, names in ((received, ("h", "variance")), (trained, ("means", "counts"))):
            statistics = class_statistics(method.task, model, data)
            for name in names:
                torch.testing.assert_close(uploads[name][i], statistics[name])
    after = method.aggregate(state.server, EVERYBODY, uploads, FED.sizes)
    alpha = head_weights(uploads["variance"], uploads["h"])
    assert (alpha - alpha.T).abs().max() > 1e-3
    for name, heads in uploads["head"].items():
        expected = torch.stack([sum(alpha[i, j] * heads[j] for j in range(5)) for i in range(5)])
        torch.testing.assert_close(after["heads"][name], expected)
    counts = uploads["counts"] if weighted else (uploads["counts"] > 0).double()
    for c in range(tiny.CLASSES):
        prototype = sum(n * mean for n, mean in zip(counts[:, c], uploads["means"][:, c], strict=True))
        torch.testing.assert_close(after["prototypes"][c], prototype / counts[:, c].sum())
    body, head = method.collaboration(after)
    torch.testing.assert_close(head, alpha)
    torch.testing.assert_close(body, (FED.sizes / FED.sizes.sum()).double().expand(5, 5))


def test_the_head_of_fedpac_may_have_an_optimiser_of_its_own() -> None:
    """SGD with momentum and decay of its own where `head_lr` is given."""
    settings = {"head_lr": 0.2, "head_momentum": 0.7, "head_decay": 0.01}
    assert build_method("fedpac", **settings).head_solver == SGD(lr=0.2, momentum=0.7, weight_decay=0.01)
    plain = build_method("fedpac")
    assert plain.head_solver == plain.solver


def test_a_prototype_does_not_change_while_no_client_has_its_class() -> None:
    """It is kept and not changed. A class that comes later is added."""
    method, ids = build_method("fedproto"), torch.arange(2)
    server = method.init(admission(method, FED, SEED, Loop())[0])
    means = torch.arange(30.0, dtype=torch.float64).reshape(2, 3, 5)
    first = torch.tensor([[2.0, 0.0, 0.0], [6.0, 1.0, 0.0]], dtype=torch.float64)
    server = method.aggregate(server, ids, {"prototypes": means, "counts": first}, FED.sizes[:2])
    assert server["defined"].tolist() == [True, True, False]
    torch.testing.assert_close(server["prototypes"][0], 0.25 * means[0, 0] + 0.75 * means[1, 0])
    second = torch.tensor([[0.0, 0.0, 3.0], [0.0, 4.0, 0.0]], dtype=torch.float64)
    after = method.aggregate(server, ids, {"prototypes": -means, "counts": second}, FED.sizes[:2])
    assert after["defined"].all()
    torch.testing.assert_close(after["prototypes"], torch.stack([server["prototypes"][0], -means[1, 1], -means[0, 2]]))


def test_traces_that_are_negative_by_noise_have_no_weight() -> None:
    """If all are negative, the bodies have equal weights."""
    method = build_method("fedas")
    bodies = {"fc1.weight": torch.tensor([[2.0], [4.0], [9.0]], dtype=torch.float64)}
    for traces, expected in (([1.0, -5.0, 3.0], 7.25), ([-1.0, -2.0, 0.0], 5.0)):
        upload = {"model": bodies, "trace": torch.tensor(traces, dtype=torch.float64)}
        model = method.aggregate({}, torch.arange(3), upload, FED.sizes[:3])["model"]
        assert float(model["fc1.weight"]) == pytest.approx(expected)


def test_the_alignment_of_fedas_has_no_class_weights() -> None:
    """It is not a classification: every class of a batch counts once, for any class weights of the run."""
    method, data = build_method("fedas", align_lr=0.1), evaluation_cohort(FED, SEED, 0).client_data(0)
    weighted = replace(data, arrays={**data.arrays, "class_weight": torch.tensor([0.1, 5.0, 2.0]).double()})
    client, shared = (method.task.init(seed) for seed in (1, 2))
    body = {name: value for name, value in shared.items() if name not in method.task.head}
    plain, other = (method.personalize(body, {}, client, one) for one in (data, weighted))
    assert all(torch.equal(plain[name], other[name]) for name in plain)
    assert not any(torch.equal(plain[name], value) for name, value in body.items())
