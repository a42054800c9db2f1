"""Settings with which methods follow a paper or its public code where the default does not."""

from dataclasses import replace

import pytest
import tiny
import torch
from naive import FED, build_method

from fedweave.client.solvers import SGD, Adam
from fedweave.data.partitions.splits import chronological_parts, parse_split, part_sizes
from fedweave.engine.engine import run, run_round
from fedweave.engine.executors import Loop
from fedweave.engine.records import Settings
from fedweave.engine.schedule import Training
from fedweave.engine.start import begin
from fedweave.errors import BadInput
from fedweave.families.validated_mixtures import _plain_steps
from fedweave.methods import METHODS
from fedweave.runs.row_checks import check_validation
from fedweave.study.search_spaces import derive_space
from fedweave.tensors import trees
from fedweave.tensors.gradients import pull_back
from tests.generated_models import EVERYBODY, fixture
from tests.trained import study


def test_epochs_of_a_second_model_are_those_of_the_task() -> None:
    """Ditto's personal model and FedRep's head train as long as the rest, unless a number is given."""
    task = tiny.rows_task()
    for epochs in (1, 3):
        training = Training(epochs=epochs)
        ditto, fedrep = (METHODS[name](task=task, training=training) for name in ("ditto", "fedrep"))
        assert (ditto.epochs, fedrep.epochs) == (epochs, 2 * epochs)
        assert replace(fedrep, head_epochs=5).epochs == 5 + epochs
        assert replace(ditto, personal_epochs=5).epochs == 5
    federation, settings = tiny.rows_federation(), Settings(2, 1, every=2)
    for name, epochs_of in (("ditto", {"personal_epochs": 2}), ("fedrep", {"head_epochs": 2})):
        ends = [
            [*run(tiny.method(name, task, "rows", **one), federation, settings, Loop())][-1].models["post"]
            for one in (epochs_of, dict.fromkeys(epochs_of, 0))
        ]
        assert all(torch.equal(a, b) for a, b in zip(*map(trees.tree_leaves, ends), strict=True))


def test_cfl_waits_for_a_tenth_of_the_rounds() -> None:
    """200 rounds give the 20 of the papers. A given number is used."""
    cfl = METHODS["cfl"]
    assert [cfl().stages(rounds)[0].method.first_split for rounds in (200, 20, 6)] == [20, 2, 0]
    assert cfl(first_split=7).stages(200)[0].method.first_split == 7


def test_search_spaces_have_usable_values_only() -> None:
    """pFedMe's steps on the envelope are stable for lr_p λ < 2. The search for HeurFedAMP's penalty varies λ only."""
    pfedme, heurfedamp = (derive_space(name) for name in ("pfedme", "heurfedamp"))
    assert pfedme["inner_lr"]["high"] * pfedme["lam"]["high"] < 2
    assert ("lam" in heurfedamp, "alpha" in heurfedamp) == (True, False)


def test_fedamp_never_leaves_the_mixtures() -> None:
    """For any step α_K, rows are weights with sum 1."""
    for alpha in (1.0, 20.0, 1e4):
        method = build_method("fedamp", alpha=alpha)
        state, _, _ = run_round(method, begin(method, FED, 1, Loop()), FED, Settings(1, 1), Loop())
        weights = method.weights(state.server, EVERYBODY)[0]
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(1), torch.ones(5, dtype=weights.dtype))
        assert (weights.diagonal() > 0.5).all() == (alpha == 1.0)


def test_sequential_steps_of_a_hypernetwork() -> None:
    """With one participant: the usual step. With several: steps in sequence, each from the end of the last one."""
    method, _, state = fixture("pfedhn", server_clip=0.0)
    stepwise, server = replace(method, sequential=True), state.server
    sent = method.download(server, EVERYBODY)[1]
    g = torch.Generator().manual_seed(0)
    moved = {name: 0.1 * torch.randn(v.shape, generator=g, dtype=v.dtype) for name, v in sent.items()}
    uploads, weights = {"model": trees.tree_map(torch.add, sent, moved)}, torch.ones(5)
    first = EVERYBODY[:1]
    alone = [m.aggregate(server, first, trees.take(uploads, first), weights[:1]) for m in (method, stepwise)]
    after = server
    for i in range(5):
        gradient = pull_back(
            lambda phi, s=after, i=i: stepwise.generate(phi, s["fixed"], EVERYBODY[i : i + 1]),
            after["phi"],
            lambda _, i=i: {name: -v[i : i + 1] for name, v in moved.items()},
        )[0]
        # By hand, the same optimiser on flat names.
        flat = {f"hyper/{n}": v.clone() for n, v in after["phi"]["hyper"].items()} | {
            "embedding": after["phi"]["embedding"].clone()
        }
        slope = {f"hyper/{n}": v for n, v in gradient["hyper"].items()} | {"embedding": gradient["embedding"]}
        flat, optimizer = stepwise.server_solver.step(flat, slope, after["optimizer"])
        hyper = {n.removeprefix("hyper/"): v for n, v in flat.items() if n != "embedding"}
        after = {**after, "phi": {"embedding": flat["embedding"], "hyper": hyper}, "optimizer": optimizer}
    together = stepwise.aggregate(server, EVERYBODY, uploads, weights)
    for left, right in (alone, (together, after)):
        for name, value in left["phi"]["hyper"].items():
            torch.testing.assert_close(value, right["phi"]["hyper"][name], rtol=1e-8, atol=1e-10)
    mean = method.aggregate(server, EVERYBODY, uploads, weights)
    assert not torch.allclose(together["phi"]["embedding"], mean["phi"]["embedding"])


@pytest.mark.parametrize("name", ["shn", "panacea"])
def test_a_single_stage_begins_from_the_initial_vectors(name: str) -> None:
    """There is no warm-up, so these are all rounds."""
    method = tiny.method(name, tiny.rows_task(), "rows", single_stage=True)
    assert [(stage.method, stage.rounds) for stage in method.stages(3)] == [(method, 3)]
    reports = [*run(method, tiny.rows_federation(), Settings(2, 1), Loop())]
    assert len(reports) == 2
    assert all(report.scores for report in reports)


def test_deep_sheaves_have_edge_weights() -> None:
    """This holds from as many layers on as `weights_from` says, unless it is 0."""
    weighted = {
        (depth, start): any("gate" in name for name, _ in method.encoder(3)().named_parameters())
        for depth, start in ((2, 0), (2, 16), (16, 0), (16, 16), (1, 1))
        for method in [tiny.method("shn", tiny.rows_task(), "rows", depth=depth, weights_from=start)]
    }
    assert weighted == {(2, 0): False, (2, 16): False, (16, 0): False, (16, 16): True, (1, 1): True}


def test_shn_reaches_definition_a_4() -> None:
    """No ELU behind the lift, no ε, no I in the normalisation, no edge weights; the defaults have the first three."""
    printed = {"lift_act": "none", "use_eps": False, "augmented": False}
    encoders = [tiny.method("shn", tiny.rows_task(), "rows", **settings).encoder(3) for settings in ({}, printed)]
    reference = {"elu": True, "eps": True, "augmented": True, "gate": False}
    parts = [
        {
            "elu": module.lift_act(torch.tensor(-1.0)) != -1.0,
            "eps": module.layers[0].eps is not None,
            "augmented": module.learners[0].augmented,
            "gate": module.learners[0].gate is not None,
        }
        for module in (encoder() for encoder in encoders)
    ]
    assert parts == [reference, dict.fromkeys(reference, False)]


def test_retained_layers_have_gradients_as_in_algorithm_2() -> None:
    """The value is that of the client, bit for bit. The derivative is that of the mixture."""
    method, _, state = fixture("heurpfedla", retain=1)
    learning, phi, fixed = replace(method, learn_retained=True), state.server["phi"], state.server["fixed"]
    values = [m.generate(phi, fixed, EVERYBODY) for m in (method, learning)]
    assert all(torch.equal(values[0][name], values[1][name]) for name in values[0])
    cotangent = {name: torch.ones_like(v) for name, v in values[0].items()}
    slopes = [
        pull_back(lambda p, m=m: m.generate(p, fixed, EVERYBODY), phi, lambda _: cotangent)[0]["network"]["heads.bias"]
        for m in (method, learning, replace(method, retain=0))
    ]
    torch.testing.assert_close(slopes[1], slopes[2])
    assert not torch.allclose(slopes[0], slopes[2])


def test_delta_feedback_corrects_for_momentum() -> None:
    """Steps of SGD with momentum on a constant gradient count like plain steps. Adam's steps are refused."""
    for momentum in (0.0, 0.5, 0.9):
        solver, params, state = SGD(lr=0.1, momentum=momentum), {"w": torch.zeros(1, dtype=torch.float64)}, {}
        state = solver.init(params)
        for steps in range(1, 6):
            params, state = solver.step(params, {"w": torch.ones(1, dtype=torch.float64)}, state)
            plain = _plain_steps(torch.tensor(float(steps), dtype=torch.float64), momentum)
            torch.testing.assert_close(params["w"][0], -0.1 * plain)
    with pytest.raises(BadInput, match="gat_grad: 'delta' reads gradients off steps of SGD, not of adam"):
        METHODS["pfedgat"](solver=Adam(lr=0.1), gat_grad="delta")


def test_pfedgraphs_summed_term_is_the_longer_one() -> None:
    """cos(w, v) ‖v‖ for every v of the server."""
    method = build_method("pfedgraph", lam=0.3)
    state, _, _ = run_round(method, begin(method, FED, 1, Loop()), FED, Settings(1, 1), Loop())
    v = trees.at(method.download(state.server, EVERYBODY)[1]["direction"], 0)
    length = torch.cat([t.flatten() for t in v.values()]).norm()
    scaled = build_method("pfedgraph", lam=0.3 / float(length), summed=True)
    ends = [run_round(m, state, FED, Settings(1, 1), Loop())[2] for m in (method, scaled)]
    first, second = (trees.to_matrix(end)[0] for end in ends)
    torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-11)


def test_an_empty_validation_part_is_accepted_if_no_part_needs_it() -> None:
    """`val: 0` gives no row. It is refused if rounds, or a method, need validation rows."""
    split = parse_split({"train": 0.7, "val": 0, "test": 0.3}, 0.1, tested=True)
    for rows in range(2, 40):
        train, val, test = part_sizes(rows, split, "client 0")
        assert (val, train + test) == (0, rows)
        parts = chronological_parts(rows, split, "client 0") if rows > 2 else ()
        assert sorted(i for part in parts for i in range(rows)[part]) == [*range(rows)][: rows if parts else 0]
    with pytest.raises(BadInput, match="must give a share to train and val"):
        parse_split({"train": 1.0}, 0.0, tested=False)
    federation = tiny.rows_federation()
    without = replace(federation, val=federation.val[:, :0])
    some = replace(federation, val=torch.where(torch.arange(5)[:, None] == 3, -1, federation.val))
    for select, words in (("best_val_round", "needs validation rows, but no client has any"), ("last", "")):
        run_ = study("images", {"local": {}, "knn_per": {}}, select=select).run("blobs-local")
        local = tiny.method("local", tiny.rows_task(), "rows")
        check_validation(run_, local, some)
        if words:
            with pytest.raises(BadInput, match=words):
                check_validation(run_, local, without)
        else:
            check_validation(run_, local, without)
        knn = tiny.method("knn_per", tiny.rows_task(), "rows")
        with pytest.raises(BadInput, match="client 3 has no validation rows, which choose mix; set mix"):
            check_validation(run_, knn, some)
        check_validation(run_, replace(knn, mix=0.5), some)
        with pytest.raises(BadInput, match=r"client 3 has no validation rows, by which clients weigh .* use local"):
            check_validation(run_, tiny.method("fedfomo", tiny.rows_task(), "rows"), some)
        sage = tiny.method("fedsage", tiny.nodes_task(), "nodes")
        with pytest.raises(BadInput, match=r"client 3 has no validation rows, of which some .* hidden_share: 0"):
            check_validation(run_, sage, some)
        check_validation(run_, replace(sage, hidden_share=0.0), some)
