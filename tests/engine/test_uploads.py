"""The path of uploads: invalid ones are dropped and reported, robust rules act on forged ones, valid ones are
unchanged.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from fedweave.client.solvers import SGD
from fedweave.engine.clients import Clients
from fedweave.engine.engine import run, run_round, train
from fedweave.engine.evaluation import evaluate
from fedweave.engine.executors import Batched, Loop
from fedweave.engine.protocol import Method
from fedweave.engine.records import Settings, State
from fedweave.engine.schedule import Cohort, cohort
from fedweave.engine.start import begin
from fedweave.engine.uploads import UploadPath, finite_rows, protect_uploads, reference
from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.runs import federations
from fedweave.study import spec, validate
from fedweave.tensors import trees
from fedweave.tensors.trees import Tree
from fedweave.threats.attacks import Attack, flip_labels
from fedweave.threats.privacy import Privacy
from fedweave.threats.robust import Robust
from tests.study.test_spec import good, refused

SETTINGS = Settings(rounds=3, seed=2)
ATTACKER = 1


def objects(name: str, **overrides: object) -> tuple[Method, Clients]:
    """A method and a toy federation that it supports."""
    kind = next(k for k in ("rows", "images", "nodes") if tiny.suits(name, k))
    method, federation = tiny.pair(name, kind, **overrides)
    return method.stages(3)[0].method, federation


def train_all(method: Method, federation: Clients, state: State, round: int = 0) -> tuple[Cohort, Any, Tree]:
    """All clients, their updates of a round from `state`, and what their uploads are measured from."""
    everybody = torch.arange(federation.clients)
    participants = cohort(federation, everybody, method.training, method.epochs, 2, round, method.leaks)
    shared, own, updates, _ = train(method, state, participants, Loop())
    base = reference(method, updates.upload, shared, own, lambda: method.task.init(2002))
    return participants, updates, base


def add_attack(federation: Clients, kind: str, scale: float = 0.0, *ids: int) -> Clients:
    """The federation with attackers, by default client 1."""
    attackers = torch.isin(torch.arange(federation.clients), torch.tensor(ids or (ATTACKER,)))
    return replace(federation, attack=Attack(kind, scale, attackers))


def equal_bits(a: Tree, b: Tree) -> bool:
    """The same bits in every leaf."""
    pairs = zip(trees.tree_leaves(a), trees.tree_leaves(b), strict=True)
    return all(torch.equal(x, y) if isinstance(x, Tensor) else x == y for x, y in pairs)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=tiny.sweep(name)) for name in METHODS if not METHODS[name].pools]
)
@pytest.mark.parametrize("kind", ["nan", "malformed"])
def test_an_invalid_upload_has_no_effect(name: str, kind: str) -> None:
    """The server learns only from the others, the sender keeps its private state, and the report names the sender."""
    method, federation = objects(name)
    before = begin(method, federation, 2, Loop())
    after, report, _ = run_round(method, before, add_attack(federation, kind), SETTINGS, Loop())
    senders = torch.tensor([i for i in range(federation.clients) if i != ATTACKER or name == "local"])
    _, updates, _ = train_all(method, federation, before)
    upload, clients = trees.take(updates.upload, senders), trees.take(updates.client, senders)
    assert report.dropped == (() if name == "local" else (ATTACKER,))
    assert equal_bits(after.server, method.aggregate(before.server, senders, upload, federation.sizes[senders]))
    assert equal_bits(after.clients, trees.put(before.clients, senders, clients))
    assert name == "local" or equal_bits(trees.at(after.clients, ATTACKER), trees.at(before.clients, ATTACKER))
    if name != "local" and not before.optimizers:
        assert not any(leaf[ATTACKER].any() for leaf in trees.tree_leaves(after.optimizers))
    assert report.loss == float(updates.loss[senders].mean())


@pytest.mark.parametrize("kind", ["nan", "malformed"])
def test_without_a_valid_upload_the_server_does_not_change(kind: str) -> None:
    """The loss is NaN, which ends the run."""
    method, federation = objects("fedavg")
    before = begin(method, federation, 2, Loop())
    after, report, _ = run_round(method, before, add_attack(federation, kind, 0.0, *range(5)), SETTINGS, Loop())
    assert equal_bits(after.server, before.server)
    assert report.dropped == (0, 1, 2, 3, 4)
    assert np.isnan(report.loss)


@pytest.mark.parametrize("executor", [Loop(), Batched()], ids=["loop", "batched"])
@pytest.mark.parametrize("name", ["fedavg_ft", "local", "ditto", "pfedhn", "fedamp"])
def test_a_client_that_diverges_has_no_effect_on_others(name: str, executor: object) -> None:
    """Its upload is dropped in every round, it deploys its earlier model, and everything else stays finite."""
    method, federation = objects(name)
    x = federation.shared["x"].clone()
    x[federation.train[ATTACKER][federation.train[ATTACKER] >= 0]] *= 1e200
    *_, report = run(method, replace(federation, shared={**federation.shared, "x": x}), SETTINGS, executor)
    assert report.dropped == (ATTACKER,)
    assert np.isfinite(report.loss)
    assert finite_rows(report.models["post"]) is None
    assert finite_rows((report.state.clients, report.models["pre"])) is None
    assert all(value.isfinite().all() for scores in report.scores.values() for value in scores.values())


@pytest.mark.parametrize("executor", [Loop(), Batched()], ids=["loop", "batched"])
def test_a_model_that_is_not_finite_has_no_score(executor: object) -> None:
    """Otherwise the first class would have its largest output, and the score would be the share of that class."""
    method, federation = objects("fedavg")
    state = begin(method, federation, 2, Loop())
    broken = state._replace(
        server=trees.tree_map(lambda t: t * torch.nan if t.is_floating_point() else t, state.server)
    )
    scores, _ = evaluate(method, broken, federation, SETTINGS, executor)
    assert all(value.isnan().all() for value in scores["pre"].values())


@pytest.mark.parametrize("name", METHODS)
def test_the_reference_of_an_upload_is_the_download(name: str) -> None:
    """A client without training uploads the model that `reference` returns."""
    still = {"pfedme": {"beta": 0.0}, "fedsage": {"generator_rounds": 0}, "fedas": {"align_lr": 0.0}}.get(name, {})
    method, federation = objects(name, solver=SGD(lr=0.0), **still)
    state = begin(method, federation, 2, Loop())
    _, updates, base = train_all(method, federation, state)
    assert trees.nbytes(base) == trees.nbytes(updates.upload)
    # The first two start from more than their download, and others send no model.
    if name not in ("fedfomo", "fedpub") and "model" in updates.upload:
        for sent, back in zip(
            trees.tree_leaves(base["model"]), trees.tree_leaves(updates.upload["model"]), strict=True
        ):
            torch.testing.assert_close(sent, back, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("gat_grad", ["client_grad", "delta", "spsa"])
def test_only_models_are_measured_from_the_download(gat_grad: str) -> None:
    """A gradient has the names of a model but counts from zero. Models for probes do not hide the downloaded one."""
    method, federation = objects("pfedgat", solver=SGD(lr=0.0), gat_grad=gat_grad)
    state = begin(method, federation, 2, Loop())
    for _ in range(2):
        state = run_round(replace(method, solver=SGD(lr=0.1)), state, federation, SETTINGS, Loop())[0]
    _, updates, base = train_all(method, federation, state, 2)
    for name, part in base.items():
        if name == "model":
            torch.testing.assert_close(part, updates.upload[name])
        else:
            assert not any(leaf.any() for leaf in trees.tree_leaves(part)), name


def test_numbers_of_steps_are_public() -> None:
    """They follow from numbers of rows. If they were clipped, they would scale the gradient that the server derives
    from an update.
    """
    method, federation = objects("pfedgat", gat_grad="delta")
    state = begin(method, federation, 2, Loop())
    participants, updates, base = train_all(method, federation, state)
    sent = protect_uploads(updates.upload, lambda: base, participants, 2, Privacy(clip=0.1, noise=1.0), method.public)
    assert [*sent] == [*updates.upload]
    assert torch.equal(sent["steps"], updates.upload["steps"])
    assert not equal_bits(sent["model"], updates.upload["model"])


def uploads(count: int = 7) -> tuple[Tree, Tree]:
    """Random models [P, ...] and their starting points."""
    g = torch.Generator().manual_seed(count)
    models = [
        {"model": {n: torch.randn(count, *s, generator=g) for n, s in (("a", (4, 3)), ("b", (5,)))}} for _ in range(2)
    ]
    return models[0], models[1]


def test_robust_centres_against_numpy_and_scipy() -> None:
    """The median and the trimmed mean. The centre replaces every upload."""
    from scipy.stats import trim_mean

    for count in (6, 7):
        sent, base = uploads(count)
        for rule, truth in (
            (Robust(rule="median"), lambda v: np.median(v, axis=0)),
            (Robust(rule="trimmed", trim=1 / count), lambda v: trim_mean(v, 1.01 / len(v), axis=0)),
            (Robust(rule="trimmed", trim=0.0), lambda v: v.mean(0)),
        ):
            actual = rule.apply(sent, base)["model"]
            for name, value in sent["model"].items():
                assert np.allclose(actual[name].numpy(), truth(value.numpy())[None], atol=1e-6)


@pytest.mark.parametrize(
    ("count", "trim", "left"), [(7, 0.1, 5), (7, 0.2, 3), (10, 0.1, 8), (25, 0.28, 11), (4, 0.5, 2)]
)
def test_a_trimmed_share_is_rounded_up(count: int, trim: float, left: int) -> None:
    """0.28 of 25 clients are 7, although the floating-point product is slightly larger. The middle always remains."""
    values = torch.arange(float(count)) ** 3
    middle = values[(count - left) // 2 : (count + left) // 2].mean()
    assert Robust(rule="trimmed", trim=trim).centre(values.flip(0)) == middle


def test_clipping_shortens_long_updates_only() -> None:
    """They are shortened to the given length, or to the median one, and keep their direction."""
    sent, base = uploads()
    length = lambda tree: trees.to_matrix(trees.sub(tree["model"], base["model"])).norm(dim=1)  # noqa: E731
    before = length(sent)
    for bound, limit in ((4.0, 4.0), (None, float(before.median()))):
        after = length(Robust(rule="clip", bound=bound).apply(sent, base))
        assert torch.allclose(after, before.clamp(max=limit), atol=1e-5)


@pytest.mark.parametrize("name", [name for name in METHODS if not METHODS[name].pools])
def test_clipping_reaches_the_upload_of_every_method(name: str) -> None:
    """The declared part of an upload is shortened. A method without such a part uploads no tensor of the model."""
    method, federation = objects(name)
    _, updates, base = train_all(method, federation, begin(method, federation, 2, Loop()))
    part = method.robust_part
    if not part:
        assert not any(isinstance(value, dict) for value in updates.upload.values())
        return
    clipped = Robust(rule="clip", bound=1e-3).apply(updates.upload, base, part)
    assert trees.norms(trees.sub(updates.upload[part], base[part])).max() > 1e-2
    assert trees.norms(trees.sub(clipped[part], base[part])).max() <= 1e-3 * (1 + 1e-6)


def test_one_attacker_changes_a_mean_more_than_robust_centres() -> None:
    """With a large flipped update, only the mean loses accuracy."""
    method, federation = objects("fedavg")
    attacked = add_attack(federation, "sign_flip", 50.0)
    scores = {}
    for rule in (None, Robust(rule="median"), Robust(rule="trimmed", trim=0.2), Robust(rule="clip")):
        *_, report = run(
            method, attacked, Settings(rounds=15, seed=2, every=15, upload_path=UploadPath(robust=rule)), Loop()
        )
        scores[rule.rule if rule else "mean"] = float(report.scores["pre"]["test"].mean())
    assert min(scores[rule] for rule in ("median", "trimmed", "clip")) > scores["mean"] + 15


@pytest.mark.parametrize("name", ["fedavg", "fedamp", "pfedhn", "fedfomo"])
def test_forged_updates_follow_their_definition(name: str) -> None:
    """Sign flip mirrors the update at the start, and noise replaces it. Honest uploads and traffic are unchanged."""
    method, federation = objects(name)
    state = begin(method, federation, 2, Loop())
    _, updates, base = train_all(method, federation, state)
    ids = torch.arange(5)
    flips = add_attack(federation, "sign_flip", 2.0).attack.forge(updates.upload, lambda: base, ids, ids, 2, 0)
    noise = add_attack(federation, "noise", 0.5).attack.forge(updates.upload, lambda: base, ids, ids, 2, 0)
    honest = torch.arange(5) != ATTACKER
    for value, start, flip, forged in zip(*map(trees.tree_leaves, (updates.upload, base, flips, noise)), strict=True):
        assert torch.equal(flip[honest], value[honest])
        assert torch.equal(forged[honest], value[honest])
        assert torch.allclose(flip[ATTACKER], start[ATTACKER] - 2 * (value[ATTACKER] - start[ATTACKER]))
    moved = torch.cat(
        [(a - b)[ATTACKER].flatten() for a, b in zip(trees.tree_leaves(noise), trees.tree_leaves(base), strict=True)]
    )
    assert 0.42 < moved.std() < 0.58
    assert abs(moved.mean()) < 0.1
    clean, bad = (
        run_round(method, state, f, SETTINGS, Loop())[1] for f in (federation, add_attack(federation, "sign_flip", 2.0))
    )
    assert (clean.bytes_up, clean.bytes_down) == (bad.bytes_up, bad.bytes_down)


@pytest.mark.parametrize("kind", ["nan", "sign_flip", "noise"])
def test_integers_and_booleans_are_not_forged(kind: str) -> None:
    """They keep their type, also for honest clients."""
    sent = {"model": torch.ones(5, 3), "counts": torch.arange(5), "flags": torch.ones(5, 2, dtype=torch.bool)}
    attack = add_attack(tiny.rows_federation(), kind, 2.0).attack
    base, ids = trees.tree_map(torch.zeros_like, sent), torch.arange(5)
    forged = attack.forge(sent, lambda: base, ids, ids, 0, 0)
    assert equal_bits({**forged, "model": 0}, {**sent, "model": 0})
    assert not torch.equal(forged["model"][ATTACKER], sent["model"][ATTACKER])
    assert torch.equal(forged["model"][ATTACKER + 1 :], sent["model"][ATTACKER + 1 :])


def test_privacy_refuses_integers() -> None:
    """Noise would turn them into real numbers. Public entries get no noise."""
    sent, ids = {"model": torch.ones(5, 3), "counts": torch.arange(5)}, torch.arange(5)
    with pytest.raises(BadInput, match=r"train\.privacy: the entry 'counts' of an upload is not of floating point"):
        Privacy(clip=1.0, noise=1.0).protect(sent, trees.tree_map(torch.zeros_like, sent), ids, 0, 0)
    participants = cohort(
        tiny.rows_federation(), ids, tiny.method("fedavg", tiny.rows_task(), "rows").training, 1, 0, 0
    )
    base = lambda: {"model": torch.zeros(5, 3)}  # noqa: E731
    protected = protect_uploads(sent, base, participants, 0, Privacy(clip=1.0, noise=1.0), ("counts",))
    assert torch.equal(protected["counts"], sent["counts"])


def test_labels_of_training_rows_are_flipped() -> None:
    """c becomes C − 1 − c in the given rows only. Padding is unchanged."""
    y, rows = torch.tensor([0, 1, 2, 2, 0]), torch.tensor([0, 3, -1])
    assert flip_labels(y, rows, 3).tolist() == [2, 1, 2, 0, 0]
    assert flip_labels(y, rows, 5).tolist() == [4, 1, 2, 2, 0]
    assert y.tolist() == [0, 1, 2, 2, 0]


@pytest.mark.parametrize("task", ["digits", "graph"])
def test_label_flipping_changes_only_training_labels_of_attackers(task: str) -> None:
    """This holds for images and for subgraphs."""
    from fedweave import data

    content = good("fedavg", task)
    content["tasks"][task]["attack"] = {"kind": "label_flip", "share": 0.3}
    run_ = validate.check(spec.parse(content)).run("a")
    dataset = data.load(run_.task.dataset, "unused")
    plain = federations.build_federation(dataset, data.partition(dataset, **run_.task.partition), "none")
    if "y" in plain.own:  # an attacker whose subgraph lacks the last class
        few = plain.own["y"].clamp(max=torch.where(torch.arange(plain.clients) % 2 == 0, 7, 9)[:, None])
        plain = replace(plain, own={**plain.own, "y": few})
    flipped = federations.add_attackers(plain, run_.task)
    assert flipped.attack.attackers.sum() == 3
    for i, attacks in enumerate(flipped.attack.attackers.tolist()):
        before, after = (f.shared["y"] if "y" in f.shared else f.own["y"][i] for f in (plain, flipped))
        for part in ("train", "val", "test"):
            rows = getattr(plain, part)[i]
            rows = rows[rows >= 0]
            expected = 9 - before[rows] if attacks and part == "train" else before[rows]
            assert torch.equal(after[rows], expected), (i, part)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("attack", {"kind": "sign_flip", "share": 0.2}, ["attack.scale", "missing"]),
        ("attack", {"kind": "label_flip", "share": 0.2, "scale": 3}, ["attack.scale", "3", "no strength"]),
        ("attack", {"kind": "sign_flip", "share": 0.2, "scale": -1}, ["attack.scale", "-1", "at least 0"]),
        ("robust", {"rule": "krum"}, ["train.robust.rule", "krum", "median"]),
        ("robust", {"rule": "trimmed", "trim": 0.7}, ["train.robust.trim", "0.7"]),
        ("robust", {"rule": "median"}, ["train.robust.rule median", "fedamp", "fedavg"]),
        ("privacy", {"clip": 1.0}, ["train.privacy.noise", "missing"]),
        ("privacy", {"clip": 0, "noise": 1.0}, ["train.privacy.clip", "0"]),
        ("privacy", {"clip": 1.0, "noise": 1.0, "delta": 2}, ["train.privacy.delta", "2"]),
    ],
)
def test_impossible_upload_paths_are_refused(path: str, value: dict, words: list[str]) -> None:
    """One line names the key, the value and the way out."""
    content = good("fedamp")
    block = content["tasks"]["digits"]
    (block if path == "attack" else block["train"])[path] = value
    with refused(*words):
        validate.check(spec.parse(content))


def test_a_resumed_run_has_the_same_forgeries() -> None:
    """Noise depends on round and client, so a resumed run gives the same bits."""
    method, federation = objects("fedavg")
    settings = replace(SETTINGS, participation=0.6)
    reports = list(run(method, add_attack(federation, "noise", 0.3), settings, Loop()))
    states: list[State] = [report.state for report in reports]
    *_, again = run(method, add_attack(federation, "noise", 0.3), settings, Loop(), states[0])
    assert equal_bits(tuple(again.state), tuple(states[-1]))
