"""What every method promises, as checks of one method on one toy federation; each raises AssertionError."""

import io
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedweave.client.regression import Forecast
from fedweave.client.task import Task
from fedweave.engine.clients import Clients
from fedweave.engine.engine import run, run_round
from fedweave.engine.evaluation import evaluate
from fedweave.engine.executors import Batched, Executor, Loop
from fedweave.engine.guards.hook_calls import compare_values
from fedweave.engine.protocol import Method
from fedweave.engine.records import Report, Settings, State
from fedweave.engine.schedule import participants
from fedweave.engine.start import add_newcomers, begin
from fedweave.families import ClientModels, GeneratedModels
from fedweave.families.base import check_parts
from fedweave.families.weaving import all_ids
from fedweave.graphs.controls import GraphControl
from fedweave.tensors.trees import Tree, flatten_paths, tree_leaves, tree_map, unflatten_paths

SOME = Settings(rounds=3, participation=0.6, seed=1, every=3)
EVERYBODY = Settings(rounds=3, seed=1, every=3)
CLOSE = 1e-8  # relative and absolute, in double precision


def run_rounds(method: Method, federation: Clients) -> list[Report]:
    """The rounds of a run with partial participation, one client after the other: what the checks compare with.

    Raises:
        BadInput: a hook writes into what it was given, in whatever way.
    """
    with compare_values():
        return list(run(method, federation, SOME, Loop()))


def run_to_end(
    method: Method, federation: Clients, settings: Settings, executor: Executor, resume: State | None = None
) -> tuple[State, dict[str, Any]]:
    """State and scores at the end of a run."""
    *_, report = run(method, federation, settings, executor, resume)
    return report.state, report.scores


def assert_close(a: Tree, b: Tree, tolerance: float, what: str = "the results") -> None:
    """Equal structure, and leaves equal within `tolerance` of their scale."""
    left, right = tree_leaves(a), tree_leaves(b)
    assert len(left) == len(right), f"{what}: {len(left)} and {len(right)} values"
    for x, y in zip(left, right, strict=True):
        if isinstance(x, Tensor):
            torch.testing.assert_close(
                x, y, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda reason: f"{what}: {reason}"
            )
        else:
            assert x == y, f"{what}: {x!r} and {y!r}"


def executors_agree(method: Method, federation: Clients, expected: Sequence[Report]) -> None:
    """loop = batched = chunked, with partial participation and ragged clients, in state and scores.

    Chunked runs the first round, and batched all others, from the state that one client at a time reached.
    """
    first, final = expected[0], expected[-1]
    chunked = next(iter(run(method, federation, SOME, Batched(2)))).state
    assert_close(chunked, first.state, CLOSE, "one client at a time, and two at a time")
    batched = run_to_end(method, federation, SOME, Batched(), first.state)
    assert_close(batched, (final.state, final.scores), CLOSE, "one client at a time, and all at once")


def absent_clients_keep_their_bits(method: Method, federation: Clients) -> int:
    """A client that is not sampled keeps its private state bit for bit; returns how many clients changed."""
    method = method.stages(1)[0].method
    before = begin(method, federation, 3, Loop())
    settings = Settings(rounds=1, seed=3, participation=2)
    after, _, _ = run_round(method, before, federation, settings, Loop(), shadow=True)
    absent = torch.ones(len(federation.ids), dtype=torch.bool)
    absent[participants(settings.seed, before.round, federation.ids, settings.participation)] = False
    changed = torch.zeros_like(absent)
    for x, y in zip(tree_leaves(before.clients), tree_leaves(after.clients), strict=True):
        same = (x == y) | (x.isnan() & y.isnan())
        changed |= ~same.reshape(len(x), -1).all(1)
    # Pooled rows have one optimiser, which is not a client's own.
    for moments in () if method.pools else tree_leaves(after.optimizers):
        changed |= (moments != 0).reshape(len(moments), -1).any(1)
    assert not changed[absent].any(), "the private state of a client changed in a round without it"
    return int(changed.sum())


def resumed_equals_uninterrupted(method: Method, federation: Clients, expected: Sequence[Report]) -> None:
    """The round after any round's state gives the same bits as never having stopped."""
    for before, after in itertools.pairwise(expected):
        resumed = next(iter(run(method, federation, SOME, Loop(), before.state)))
        what = f"a run that continues after round {before.round}, and one without a stop"
        assert_close((resumed.state, resumed.scores), (after.state, after.scores), 0.0, what)


def state_is_plain_tensors(expected: Sequence[Report]) -> None:
    """The state survives a save that admits tensors only."""
    file, state = io.BytesIO(), expected[-1].state
    torch.save(tuple(state), file)
    file.seek(0)
    assert_close(torch.load(file, weights_only=True), tuple(state), 0.0, "a saved state, and the state")


def training_ignores_test_rows(method: Method, federation: Clients, expected: Sequence[Report]) -> None:
    """Without test rows, and with other ones of other values, training is the same bit for bit."""
    without_test = replace(federation, test=torch.full_like(federation.test, -1))
    first = next(iter(run(method, without_test, SOME, Loop()))).state
    assert_close(first, expected[0].state, 0.0, "training without test rows, and training")
    changed = replace(change_unseen_values(federation, method.task), test=federation.val)
    trained = run_to_end(method, changed, SOME, Loop())[0]
    what = "training with other test rows and other values in all that is not for training or validation, and training"
    assert_close(trained, expected[-1].state, 0.0, what)


def change_unseen_values(federation: Clients, task: Task) -> Clients:
    """`federation` with other values wherever no client has a training or validation row.

    In a graph, only the labels change, because training may read the features of all nodes.
    """
    if "nodes" in federation.own:
        labels = federation.own["y"]
        places = torch.cat([federation.train, federation.val], dim=1)
        seen = torch.zeros_like(labels, dtype=torch.bool)
        for i, rows in enumerate(places):
            seen[i, rows[rows >= 0]] = True
        return replace(federation, own={**federation.own, "y": torch.where(seen, labels, labels.max() - labels)})
    rows = torch.cat([federation.train.flatten(), federation.val.flatten()])
    return replace(federation, shared={**federation.shared, **_change_values(federation.shared, rows[rows >= 0], task)})


def _change_values(arrays: dict[str, Tensor], rows: Tensor, task: Task) -> dict[str, Tensor]:
    """Other values of inputs and targets except at `rows`; in a series, except in the windows that start there."""
    x = arrays["x"]
    if isinstance(task, Forecast):
        windows = rows[:, None] + torch.arange(task.window + task.horizon)
        return {"x": (1 - 3 * x).flatten().index_copy(0, windows.flatten(), x.flatten()[windows.flatten()]).view_as(x)}
    y = arrays["y"]
    changed = {"x": 1 - 3 * x, "y": y.max() - y}
    return {name: value.index_copy(0, rows, arrays[name][rows]) for name, value in changed.items()}


def names_are_known(method: Method, federation: Clients) -> None:
    """Names that stay with the client are those of the model, and not all of them."""
    for stage in method.stages(SOME.rounds):
        check_parts(stage.method, "of the toy task", "private")


def rows_are_those_of_ids(method: Method, federation: Clients, expected: Sequence[Report]) -> None:
    """What a client receives depends on who it is, and not on its place among the clients that are asked for."""
    report, device = expected[-1], federation.ids.device
    method, server = report.method, report.state.server
    order = torch.tensor([2, 0, 1], device=device)
    some, everybody = torch.arange(len(federation.ids), device=device)[[0, 3, 4]], all_ids(federation.ids)
    for hook, rows_of in _row_hooks(method, server).items():
        with torch.no_grad():
            sorted_rows = rows_of(some)
            assert all(len(leaf) == len(some) for leaf in tree_leaves(sorted_rows)), (
                f"{hook}: has not one row for each of {len(some)} clients; return the rows of `ids`"
            )
            what = f"{hook}: the rows of clients 4, 0, 3, and of the same clients in order; use its argument `ids`"
            assert_close(rows_of(some[order]), tree_map(lambda leaf: leaf[order], sorted_rows), CLOSE, what)
            if getattr(method, "rowwise", False):
                what = f"{hook}: the rows of three clients, and of them among all clients, though the class is rowwise"
                assert_close(sorted_rows, tree_map(lambda leaf: leaf[some], rows_of(everybody)), CLOSE, what)


def _row_hooks(method: Method, server: Tree) -> dict[str, Callable[[Tensor], Tree]]:
    """The hooks that have a row for each client, the innermost first, as functions of ids."""
    hooks: dict[str, Callable[[Tensor], Tree]] = {}
    if isinstance(method, ClientModels):
        hooks["weights"] = lambda ids: method.weights(server, ids).transpose(0, 1)
    if isinstance(method, GeneratedModels):
        hooks["generate"] = lambda ids: method.generate(server["phi"], server["fixed"], ids)
    return {**hooks, "download": lambda ids: method.download(server, ids)[1]}


def all_parameters_learn(method: Method, federation: Clients, expected: Sequence[Report]) -> None:
    """Generated models depend on all of φ, so that every server parameter is trained."""
    method, server = expected[-1].method, expected[-1].state.server
    if not isinstance(method, GeneratedModels) or not type(method).gradient.__module__.startswith("fedweave.families"):
        return  # a gradient of its own need not go through `generate`
    penalised = flatten_paths(method.regularise(server["phi"], server["fixed"]))
    phi = {name: leaf.detach() for name, leaf in flatten_paths(server["phi"]).items()}
    learned = {name: leaf.requires_grad_() for name, leaf in phi.items() if leaf.is_floating_point()}
    with torch.enable_grad():
        models = method.generate(unflatten_paths(phi), server["fixed"], all_ids(federation.ids))
        sums = [model.sum() for model in models.values() if model.requires_grad]
        assert sums or not learned, (
            "generate: the models have no gradient in φ, which would never be trained; leave out detach, no_grad, "
            ".data and numbers of Python"
        )
        slopes = torch.autograd.grad(sums, [*learned.values()], allow_unused=True) if sums else ()
    unused = [name for name, slope in zip(learned, slopes, strict=True) if slope is None and name not in penalised]
    assert not unused, (
        f"generate: the models do not depend on {unused[0]} of φ, which would never be trained; move it to the fixed "
        "state if it is a constant"
    )


def newcomers_join(method: Method, federation: Clients) -> tuple[State, State]:
    """The last two clients join after a round, are evaluated, and a round with everybody works.

    Returns:
        The states before and after they have joined.
    """
    clients = len(federation.ids)
    method = method.stages(1)[0].method
    present = federation.select(torch.arange(clients - 2))
    before, _, _ = run_round(method, begin(method, present, 1, Loop()), present, EVERYBODY, Loop())
    after = add_newcomers(method, before, federation, 2, 1, Loop())
    scores, _ = evaluate(method, after, federation, EVERYBODY, Loop())
    assert scores["pre"]["test"].shape == (clients,), "not every client has a score after two have joined"
    state, report, _ = run_round(method, after, federation, EVERYBODY, Loop())
    assert torch.isfinite(torch.tensor(report.loss)), "the loss is not finite after two clients have joined"
    weights = method.collaboration(state.server)
    assert weights is None or weights.shape[1:] == (clients, clients), "the graph has not one row and column a client"
    return before, after


def controls_reach_the_graph(method: Method, federation: Clients) -> None:
    """A control of the graph takes the place of what the server learns."""
    clients = len(federation.ids)
    for kind, expected in (("self", torch.eye(clients)), ("uniform", torch.full((clients, clients), 1 / clients))):
        controlled = replace(method, control=GraphControl(kind))
        *_, report = run(controlled, federation, replace(EVERYBODY, rounds=1), Loop())
        weights = report.method.collaboration(report.state.server)
        # Some layers of a client may be out of the graph's reach: the common body of FedPAC, layers that it retains.
        rows = [] if weights is None else [torch.isclose(weights, expected.to(weights), atol=1e-6).all(-1)]  # [L, N]
        reached = all(bool(layers.any(0).all()) for layers in rows)
        assert reached, f"a control of the graph ({kind}) has no effect; pass the weights through self.controlled"
