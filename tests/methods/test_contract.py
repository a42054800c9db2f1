"""The properties of every method, on all suitable toy tasks."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from torch.utils._pytree import tree_flatten_with_path

from fedweave.client import kernel_steps
from fedweave.engine.engine import run, run_round
from fedweave.engine.executors import Batched, Loop
from fedweave.engine.records import Report, Settings
from fedweave.engine.start import begin
from fedweave.families.weaving import Weaving
from fedweave.methods import METHODS
from fedweave.tensors import native, trees
from fedweave.tensors.trees import tree_leaves
from fedweave.testing import contract
from fedweave.testing.contract import EVERYBODY, SOME, assert_close, run_to_end

PAIRS = [(name, kind) for kind in tiny.TASKS for name in METHODS if tiny.suits(name, kind)]
KINDS = ("rows", "nodes", "images", "series")
QUICK = {pair for pair in PAIRS if pair[1] == "rows"}
QUICK |= {(name, next(k for k in KINDS if (name, k) in PAIRS)) for name in METHODS}
# Private state that no round trains: FedBABU's heads are the initial ones until each client tunes its own.
CONSTANT = {"fedbabu"}
# If half of the clients that have taken part leave a cluster, those that have not stay with either half.
TIES = {"cfl", "gcfl_plus"}


def marks(pair: tuple[str, str]) -> list[pytest.MarkDecorator]:
    """All tests of a pair run in one process, which computes `reference` once.

    Tests on rows are quick. Those on nodes, images and series belong to `make acceptance`, unless a method has no other
    task.
    """
    return [pytest.mark.xdist_group("-".join(pair)), *([] if pair in QUICK else [pytest.mark.acceptance])]


MARKED = [pytest.param(*pair, marks=marks(pair)) for pair in PAIRS]


@cache
def reference(name: str, kind: str) -> list[Report]:
    """The rounds of a run with partial participation, clients in sequence."""
    return contract.run_rounds(*tiny.pair(name, kind))


@pytest.mark.parametrize(("name", "kind"), MARKED)
def test_executors_agree(name: str, kind: str) -> None:
    """loop = batched = chunked, with partial participation and clients of different sizes, in state and scores."""
    contract.executors_agree(*tiny.pair(name, kind), reference(name, kind))


@pytest.mark.skipif(not native.find_compiler(), reason="no C++ compiler on this machine")
@pytest.mark.filterwarnings("ignore:steps run without the kernel")
@pytest.mark.parametrize(("name", "kind"), MARKED)
def test_the_kernel_agrees(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """loop = kernel, and the kernel covers whatever dense and convolutional layers do in a method."""
    programs: dict[Any, Any] = {}
    monkeypatch.setattr(kernel_steps, "_PROGRAMS", programs)
    method, federation = tiny.pair(name, kind)
    if kind == "images":  # the kernel does not move images
        method = replace(method, task=replace(method.task, augment=0))
        expected = run_to_end(method, federation, SOME, Loop())
    else:
        final = reference(name, kind)[-1]
        expected = (final.state, final.scores)
    for executor in (Batched(kernel=True), *([Loop(kernel=True)] if kind == "images" else [])):
        result = run_to_end(method, federation, SOME, executor)
        assert_close(result, expected, contract.CLOSE, f"one client at a time, and {executor}")
    if kind != "nodes":
        # FedCP draws numbers in float32 beside these in float64.
        assert (None in programs.values()) == (name == "fedcp")


@pytest.mark.parametrize(("name", "kind"), MARKED)
def test_rows_are_those_of_ids(name: str, kind: str) -> None:
    """Downloads, weights and generated models follow the order of the clients that are asked for."""
    contract.rows_are_those_of_ids(*tiny.pair(name, kind), reference(name, kind))


@pytest.mark.parametrize(("name", "kind"), MARKED)
def test_all_parameters_learn(name: str, kind: str) -> None:
    """Every parameter of a server that generates models has a gradient."""
    contract.all_parameters_learn(*tiny.pair(name, kind), reference(name, kind))


@pytest.mark.parametrize("name", ["fedah", "fedala", "fedavg", "perfedavg"])
def test_executors_agree_on_averaged_statistics(name: str) -> None:
    """A client writes to a copy of the BatchNorm statistics that all clients received, also before local training."""
    method, federation = tiny.pair(name, "images")
    method = replace(method, training=replace(method.training, average_buffers=True, drop_last=True))
    contract.executors_agree(method, federation, contract.run_rounds(method, federation))


@pytest.mark.parametrize(("name", "kind"), MARKED)
def test_absent_clients_keep_their_bits(name: str, kind: str) -> None:
    """The private state of an absent client has the same bits after the round. Both participants train."""
    method, federation = tiny.pair(name, kind)
    changed = contract.absent_clients_keep_their_bits(method, federation)
    private = tree_leaves(begin(method.stages(1)[0].method, federation, 3, Loop()).clients)
    has_optimizer = method.training.keep_optimizer and not method.pools and method.epochs != 0
    trains = (private and name not in CONSTANT) or has_optimizer
    assert changed == (2 if trains else 0)


@pytest.mark.parametrize(("name", "kind"), MARKED)
def test_relabelling_clients_relabels_the_result(name: str, kind: str) -> None:
    """Clients have no order: a permutation of clients permutes the sample of a round, private states and scores."""
    method, federation = tiny.pair(name, kind)
    settings = Settings(rounds=2, seed=1, every=2) if name in TIES else SOME
    if not tiny.equivariant(name):
        method = tiny.symmetric(method)
    if tiny.equivariant(name) and name not in TIES:
        state, scores = reference(name, kind)[-1].state, reference(name, kind)[-1].scores
    else:
        state, scores = run_to_end(method, federation, settings, Loop())
    order = torch.tensor([3, 0, 4, 1, 2])
    moved_state, moved = run_to_end(method, federation.select(order), settings, Loop())
    assert_close(moved_state.clients, trees.take(state.clients, order), 1e-8)
    assert_close(moved, trees.take(scores, order), 1e-8)


@pytest.mark.parametrize(("name", "kind"), MARKED)
def test_resumed_equals_uninterrupted(name: str, kind: str) -> None:
    """A run continued from any round's state has the bits of an uninterrupted run."""
    contract.resumed_equals_uninterrupted(*tiny.pair(name, kind), reference(name, kind))


@pytest.mark.parametrize(("name", "kind"), MARKED)
def test_state_is_plain_tensors(name: str, kind: str) -> None:
    """A file that admits only tensors can store the state."""
    contract.state_is_plain_tensors(reference(name, kind))


@pytest.mark.parametrize(("name", "kind"), MARKED)
def test_training_does_not_depend_on_test_rows(name: str, kind: str) -> None:
    """Training has the same bits without test rows, and with other ones."""
    contract.training_ignores_test_rows(*tiny.pair(name, kind), reference(name, kind))


# What the server knows of all clients together, which newcomers change.
CHANGED_BY_NEWCOMERS = {
    "direct_matrix": {"matrix"},
    "fedaghn": {"cosines"},
    "feddyn": {"drift", "clients"},
    "heurpfedla": {"heads"},
    "pfedla": {"heads"},
    "scaffold": {"control", "clients"},
}


@pytest.mark.parametrize(("name", "kind"), MARKED)
def test_newcomers_join(name: str, kind: str) -> None:
    """The last two clients join after a round and are evaluated. A round with all clients works. What the others and
    the server knew keeps its bits.
    """
    states = contract.newcomers_join(*tiny.pair(name, kind))
    before, after = (dict(tree_flatten_with_path((state.server, state.clients))[0]) for state in states)
    changed = [
        {str(key.key).partition(".")[0] for key in path[1:]}
        for path, leaf in before.items()
        if not torch.equal(after[path][tuple(slice(size) for size in leaf.shape)], leaf)
    ]
    expected = CHANGED_BY_NEWCOMERS.get(name, set())
    assert all(expected & parts for parts in changed)
    assert expected <= set().union(*changed)


@pytest.mark.parametrize("name", METHODS)
def test_names_that_stay_with_a_client_are_those_of_the_model(name: str) -> None:
    contract.names_are_known(*tiny.pair(name, first_kind(name)))


@pytest.mark.parametrize("name", [name for name, cls in METHODS.items() if issubclass(cls, Weaving)])
def test_controls_reach_the_graph(name: str) -> None:
    """After a round, with all weight on oneself and with equal weights."""
    contract.controls_reach_the_graph(*tiny.pair(name, first_kind(name)))


def first_kind(name: str) -> str:
    """The simplest kind of rows, images and nodes that a method supports."""
    return next(kind for kind in ("rows", "images", "nodes") if tiny.suits(name, kind))


@pytest.mark.parametrize("name", METHODS)
def test_one_client_is_enough_for_a_federation(name: str) -> None:
    """Without other clients, every method trains, has scores and stays finite. A graph has all weight on the client."""
    kind = first_kind(name)
    method, federation = tiny.pair(name, kind)
    *_, report = run(method, federation.select(torch.arange(1)), EVERYBODY, Loop())
    assert report.dropped == ()
    assert torch.isfinite(torch.tensor(report.loss))
    assert torch.isfinite(report.scores[method.point]["test"]).all()
    weights = report.method.collaboration(report.state.server)
    free = name == "fedsheafhn"  # its rows have any sum
    assert free or weights is None or torch.allclose(weights, torch.ones_like(weights))


PROGRAM = """
import os, sys; sys.path[:0] = sys.argv[1:]
import torch; torch.set_num_threads(1)
from test_contract import EVERYBODY, first_kind, run, tiny
from fedweave.engine.executors import Batched
for name in sorted(tiny.FAMILIES):
    next(run(*tiny.pair(name, first_kind(name)), EVERYBODY, Batched()))
    assert "torch._dynamo" not in sys.modules, name
os._exit(0)
"""


def test_a_round_imports_no_compiler() -> None:
    """In one method of each family. The compiler of PyTorch would take a second in every process."""
    folder = Path(__file__).parent
    subprocess.run([sys.executable, "-c", PROGRAM, str(folder), str(folder.parent), str(folder.parents[1])], check=True)


@pytest.mark.parametrize("name", ["shn", "ghn", "panacea"])
def test_newcomers_join_the_last_stage(name: str) -> None:
    """The round of joining counts from the beginning of the last stage. Its graph includes the newcomers."""
    method, federation = tiny.pair(name, "rows")
    settings = Settings(rounds=3, seed=1, newcomers=2, join_round=2)
    reports = [*run(method, federation, settings, Loop())]
    evaluated = [len(report.scores[method.point]["test"]) for report in reports if report.scores]
    assert evaluated == [3, 3, 5]
    assert (reports[-1].state.server["fixed"]["edges"] >= 3).any()


@pytest.mark.parametrize("name", METHODS)
def test_learns_a_separable_toy(name: str) -> None:
    """After some rounds, the accuracy is far above the share of the most frequent class."""
    kind = first_kind(name)
    method, federation = tiny.pair(name, kind)
    # With a kept Adam, FedSheafHN's embeddings and models increase each other, see test_fedsheafhn_public.
    method = replace(method, training=replace(method.training, keep_optimizer=False))
    settings = Settings(rounds=tiny.ROUNDS_TO_LEARN.get(name, 25), seed=1, every=5)
    scores = (report.scores[method.point] for report in run(method, federation, settings, Batched()) if report.scores)
    both = (torch.stack([score["val"], score["test"]]).nanmean() for score in scores)
    assert any(score > (80.0 if kind != "nodes" else 65.0) for score in both)


# The entries "Traffic" of the methods' pages, down and up, in 4-byte numbers per participant; a flag is a quarter of a
# number. P: the model; B: its body; D: width of the features; C: classes.
TRAFFIC: dict[str, Callable[[Any], tuple[float, float]]] = {
    **dict.fromkeys(("local", "central"), lambda s: (0, 0)),
    **dict.fromkeys(("fedbabu", "fedper", "fedrep"), lambda s: (s.B, s.B)),
    **dict.fromkeys(("fedamp", "heurfedamp"), lambda s: (s.P + 0.25, s.P)),
    **dict.fromkeys(("pfedgraph", "sfl"), lambda s: (2 * s.P + 0.25, s.P)),
    **dict.fromkeys(("pfedgat", "direct_matrix"), lambda s: (s.P, 2 * s.P + 1)),
    "fedas": lambda s: (s.B, s.B + 1),
    "fedaux": lambda s: (s.P + s.D + s.C * s.D,) * 2,
    "fedbn": lambda s: (s.P - s.BN,) * 2,
    "fedcp": lambda s: (s.P + 2 * s.D**2 + 6 * s.D,) * 2,
    "feddbe": lambda s: (s.P + s.D, s.P),
    "fedem": lambda s: (2 * s.P,) * 2,  # two components
    "fedfomo": lambda s: (4 * (s.P + 0.25), s.P + 5),  # the four others, and a flag for each
    "fedgta": lambda s: (s.P, s.P + 2 * 3 * s.C + 1),  # hybrid moments of three orders
    "fedpac": lambda s: (s.P + s.C * s.D + s.C / 4, s.P + 2 * s.C * s.D + s.C + 1),
    "fedproto": lambda s: (s.C * s.D + s.C / 4, s.own * s.D + s.C),
    "fedpub": lambda s: (s.P, s.P + s.D),
    "fedsage": lambda s: (s.classifier,) * 2,
    "fedsheafhn": lambda s: (s.B,) * 2,
    "gpfl": lambda s: (s.B + s.C * s.D + 2 * (s.D**2 + 3 * s.D),) * 2,  # embeddings, and two branches of the valve
    "heurpfedla": lambda s: (s.P - s.retained_layers, s.P),
    "ifca": lambda s: (2 * s.P, s.P + 2),  # two clusters
    "lg_fedavg": lambda s: (s.P - s.B,) * 2,
    "partial_pooling": lambda s: (2 * s.C * s.T, 2 * (s.C * (1 + s.T + s.T * (s.T + 1) / 2) + 1)),
    "pefll": lambda s: (s.P + s.network + 2,) * 2,  # the embedding network, and a vector of 2
    "scaffold": lambda s: (2 * s.P,) * 2,
}


@pytest.mark.parametrize("name", METHODS)
def test_traffic_is_that_of_the_page(name: str) -> None:
    """Bytes of the second round, after a first round with all clients. Methods without an entry have **2P**."""
    kind = next(k for n, k in PAIRS if n == name)
    method, federation = tiny.pair(name, kind)
    method = method.stages(1)[0].method
    state, _, _ = run_round(method, begin(method, federation, 1, Loop()), federation, EVERYBODY, Loop())
    _, report, _ = run_round(method, state, federation, EVERYBODY, Loop())
    template = method.task.template
    sizes = {n: p.numel() for n, p in template.named_parameters()}
    head = {n: size for n, size in sizes.items() if n.split(".")[0] in template.head}
    P, H, clients = sum(sizes.values()), sum(head.values()), tiny.CLIENTS
    norms = [m for m in template.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    made = SimpleNamespace(P=P, B=P - H, D=H // tiny.CLASSES - 1, C=tiny.CLASSES)
    made.BN = sum(p.numel() for m in norms for p in m.parameters())
    made.T = federation.shared["x"][0].numel() + 2 if kind == "rows" else 0  # β, and a standard deviation
    if name == "fedproto":
        labels = federation.shared["y"]
        made.own = sum(len(labels[rows[rows >= 0]].unique()) for rows in federation.train) / clients
    if name == "fedsage":
        made.classifier = sum(leaf[0].numel() for leaf in tree_leaves(state.clients["classifier"]))
    if name == "pefll":
        made.network = sum(leaf.numel() for leaf in tree_leaves(state.server["phi"]["embed"]))
    if name == "heurpfedla":
        kept = method.attach(state.server, torch.arange(clients))["retained"].sum(0).tolist()
        layers = [sum(sizes[n] for n in names) for names in method.task.layers.values()]
        made.retained_layers = sum(count * size for count, size in zip(kept, layers, strict=True)) / clients
        assert 0 < made.retained_layers < P
    expected = TRAFFIC.get(name, lambda s: (s.P, s.P))(made)
    assert (report.bytes_down, report.bytes_up) == tuple(round(4 * clients * floats) for floats in expected)
