"""Clients that forge their embeddings, and servers that stop learning when newcomers join."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import tiny
import torch
from torch import Tensor

from fedweave.engine.clients import Clients
from fedweave.engine.engine import run
from fedweave.engine.executors import Batched, Loop
from fedweave.engine.records import Report, Settings
from fedweave.errors import BadInput
from fedweave.study import spec, validate
from fedweave.tensors import trees
from fedweave.threats.attacks import Attack, choose_attackers
from tests.study.test_spec import good

SETTINGS = Settings(rounds=4, seed=2)
METHODS = ("fedsheafhn", "fedpub")


def federation(kind: str = "gaussian", scale: float = 20.0, share: float = 0.4, seed: int = 1) -> Clients:
    """The toy's subgraphs with some attackers."""
    return replace(tiny.nodes_federation(), attack=Attack(kind, scale, choose_attackers(tiny.CLIENTS, share, seed)))


def run_rounds(name: str, clients: Clients, settings: Settings = SETTINGS, **overrides: object) -> list[Report]:
    """Every round of a toy run."""
    return list(run(tiny.method(name, tiny.nodes_task(), "nodes", **overrides), clients, settings, Loop()))


def assert_equal(a: object, b: object) -> None:
    """The same bits in every leaf."""
    for x, y in zip(trees.tree_leaves(a), trees.tree_leaves(b), strict=True):
        assert torch.equal(x, y) if isinstance(x, Tensor) else x == y


def server_embeddings(name: str, report: Report) -> Tensor:
    """The embeddings on the server."""
    return report.state.server["fixed"]["x" if name == "fedsheafhn" else "embeddings"]


@pytest.mark.parametrize("name", METHODS)
def test_without_attackers_the_run_is_unchanged(name: str) -> None:
    """A share of 0 changes no bit of any state."""
    clean, attacked = run_rounds(name, tiny.nodes_federation()), run_rounds(name, federation(share=0.0))
    for a, b in zip(clean, attacked, strict=True):
        assert_equal(tuple(a.state), tuple(b.state))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ["constant", "gaussian"])
def test_attackers_replace_only_embeddings(name: str, kind: str) -> None:
    """Attackers upload a constant or noise. In the first round all other clients, and all models, are as without an
    attack.
    """
    under_attack = federation(kind)
    clean, attacked = (run_rounds(name, clients)[0] for clients in (tiny.nodes_federation(), under_attack))
    rows, honest = server_embeddings(name, attacked), server_embeddings(name, clean)
    assert torch.equal(rows[~under_attack.attack.attackers], honest[~under_attack.attack.attackers])
    assert under_attack.attack.attackers.sum() == 2
    for row in rows[under_attack.attack.attackers]:
        assert (row == row[0]).all() == (kind == "constant")
    assert not torch.equal(rows[under_attack.attack.attackers], honest[under_attack.attack.attackers])
    if name == "fedpub":  # its first mixture is made before the first upload of an embedding
        assert_equal(attacked.models["post"], clean.models["post"])


def test_an_attack_changes_no_traffic() -> None:
    """A forged embedding has as many numbers as an honest one."""
    for name in METHODS:
        both = (run_rounds(name, clients) for clients in (tiny.nodes_federation(), federation()))
        clean, attacked = ([(r.bytes_down, r.bytes_up) for r in one] for one in both)
        assert clean == attacked


def test_every_uploaded_embedding_is_replaced() -> None:
    """It is replaced on joining and in every refresh, by new draws each time."""
    under_attack = federation()
    embeddings = [
        server_embeddings("fedsheafhn", r)[under_attack.attack.attackers]
        for r in run_rounds("fedsheafhn", under_attack, Settings(rounds=5, seed=2))
    ]
    changed = [not torch.equal(a, b) for a, b in pairwise(embeddings)]
    assert changed == [False, True, False, True]
    assert all(rows.std() > 5 for rows in embeddings)


def test_forged_embeddings_have_their_distribution() -> None:
    """a · 1 with a ~ N(0, τ²) or N(0, τ² I), independent over clients and rounds, a function of client and round."""
    everybody = Attack("gaussian", 5.0, torch.ones(40, dtype=torch.bool))
    where, honest = torch.arange(40), {"embedding": torch.zeros(40, 100, dtype=torch.float64), "model": torch.ones(40)}
    rounds = [everybody.corrupt(honest, where, where, 0, r) for r in (1, 1, 2)]
    assert torch.equal(rounds[0]["embedding"], rounds[1]["embedding"])
    assert not torch.equal(rounds[0]["embedding"], rounds[2]["embedding"])
    assert abs(rounds[0]["embedding"].std() - 5.0) < 0.25
    assert rounds[0]["model"] is honest["model"]
    same = replace(everybody, kind="constant").corrupt(honest, where, where, 0, 1)["embedding"]
    assert torch.equal(same, same[:, :1].expand_as(same))
    assert 3.0 < same[:, 0].std() < 7.5
    few = everybody.corrupt(trees.take(honest, where[7:9]), where[7:9], where[7:9], 0, 1)["embedding"]
    assert torch.equal(few, rounds[0]["embedding"][7:9])


def test_a_larger_share_of_attackers_contains_a_smaller_one() -> None:
    """Shares are rounded. With nested sets, points of a curve over the share differ only in the added attackers."""
    chosen = [choose_attackers(20, share, 666) for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    assert [int(c.sum()) for c in chosen] == [0, 4, 8, 12, 16, 20]
    assert all((b | ~a).all() for a, b in pairwise(chosen))
    assert not torch.equal(choose_attackers(20, 0.4, 1), choose_attackers(20, 0.4, 2))
    assert [int(choose_attackers(10, share, 0).sum()) for share in (0.24, 0.26, 0.29)] == [2, 3, 3]


def test_executors_agree_and_newcomers_attack_too() -> None:
    """An attacker that joins later forges its embedding too. The earlier attackers do not change."""
    under_attack = federation(share=0.6, seed=3)
    settings = Settings(rounds=4, seed=1, newcomers=2, join_round=2)
    method = tiny.method("fedsheafhn", tiny.nodes_task(), "nodes", refresh=0)
    clean, *ends = (
        list(run(method, clients, settings, executor))
        for clients, executor in (
            (replace(under_attack, attack=None), Loop()),
            (under_attack, Loop()),
            (under_attack, Batched(2)),
        )
    )
    for a, b in zip(*(trees.tree_leaves(tuple(e[-1].state)) for e in ends), strict=True):
        if isinstance(a, Tensor):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
    for r in (0, -1):
        present = len(server_embeddings("fedsheafhn", clean[r]))
        replaced = (server_embeddings("fedsheafhn", ends[0][r]) != server_embeddings("fedsheafhn", clean[r])).any(1)
        assert torch.equal(replaced, under_attack.attack.attackers[:present])
    assert under_attack.attack.attackers[3:].any()
    assert not under_attack.attack.attackers[3:].all()


@pytest.mark.parametrize("name", ["fedsheafhn", "fedavg_ft", "pfedgraph", "shn"])
def test_a_frozen_server_learns_nothing_after_newcomers_joined(name: str) -> None:
    """Until then it equals a server that is not frozen. Afterwards it keeps its bits, and clients still train."""
    settings = Settings(rounds=4, seed=1, newcomers=2, join_round=3)
    kind = "nodes" if name == "fedsheafhn" else "rows"
    task, clients = (make() for make in tiny.TASKS[kind])
    method = tiny.method(name, task, kind, **({"stage1_rounds": 1} if name == "shn" else {}))
    free, frozen = (list(run(method, clients, replace(settings, freeze=freeze), Loop())) for freeze in (False, True))
    joined = 3 + sum(stage.rounds for stage in method.stages(4)[:-1])  # rounds of a warm-up come first
    before = [r for r in frozen if r.round <= joined]
    for a, b in zip(free, before, strict=False):
        assert_equal(tuple(a.state), tuple(b.state))
    after = [r.state.server for r in frozen if r.round > joined]
    for one, two in pairwise(after):
        assert_equal(one, two)
    moved = next(r.state.server for r in free if r.round > joined)
    assert any(
        not torch.equal(a, b) for a, b in zip(trees.tree_leaves(after[0]), trees.tree_leaves(moved), strict=True)
    )
    assert frozen[-1].scores["post"]["test"].shape == (tiny.CLIENTS,)
    assert math.isfinite(frozen[-1].loss)


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        ({"kind": "gaussian", "scale": 5, "share": 1.5}, ["attack.share", "1.5"]),
        ({"kind": "sybil", "scale": 5, "share": 0.5}, ["attack.kind", "sybil"]),
        ({"kind": "gaussian", "share": 0.5}, ["attack.scale", "missing"]),
        ({"kind": "gaussian", "scale": 5, "share": 0.5}, ["attack", "ditto", "fedpub"]),
    ],
)
def test_impossible_attacks_are_refused(attack: dict, words: list[str]) -> None:
    """One line names the change. An attack on embeddings needs a method with embeddings."""
    content = good()
    content["tasks"]["digits"]["attack"] = attack
    with pytest.raises(BadInput) as caught:
        validate.check(spec.parse(content))
    assert [word for word in words if word not in str(caught.value)] == []


def test_leaking_variants_cannot_be_ablations_and_freezing_needs_newcomers() -> None:
    """An ablation is a comparison, and a leaking run is in no comparison."""
    content = good()
    content["runs"]["digits-pfedgat"] = {"task": "digits", "method": "pfedgat", "set": {"gat_split": "test"}}
    study = validate.check(spec.parse(content))
    assert study.run("digits-pfedgat").options == {"gat_split": "test"}
    content["runs"]["digits-pfedgat"] = {"task": "digits", "method": "pfedgat"}
    content["ablate"] = {"feedback": {"run": "digits-pfedgat", "variants": {"test rows": {"gat_split": "test"}}}}
    with pytest.raises(BadInput, match="trains on test rows"):
        validate.check(spec.parse(content))
    content = good()
    content["tasks"]["digits"]["train"]["freeze"] = True
    with pytest.raises(BadInput, match=r"train\.freeze"):
        validate.check(spec.parse(content))
