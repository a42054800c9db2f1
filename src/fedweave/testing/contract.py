"""What every method promises, as checks of one method on one toy federation; each raises AssertionError."""

import io
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedweave.client.regression import Forecast
from fedweave.client.task import Task
from fedweave.families.base import check_local_names
from fedweave.federation.engine import run, run_round
from fedweave.federation.evaluation import evaluate
from fedweave.federation.executors import Batched, Executor, Loop
from fedweave.federation.federation import Federation
from fedweave.federation.graph_controls import GraphControl
from fedweave.federation.protocol import Method
from fedweave.federation.records import Report, Settings, State
from fedweave.federation.schedule import participants
from fedweave.federation.start import add_newcomers, begin
from fedweave.federation.write_guards import compare_values
from fedweave.tensors.trees import Tree, tree_leaves

SOME = Settings(rounds=3, participation=0.6, seed=1, every=3)
EVERYBODY = Settings(rounds=3, seed=1, every=3)
CLOSE = 1e-8  # relative and absolute, in double precision


def run_rounds(method: Method, federation: Federation) -> list[Report]:
    """The rounds of a run with partial participation, one client after the other: what the checks compare with.

    Raises:
        BadInput: a hook writes into what it was given, in whatever way.
    """
    with compare_values():
        return list(run(method, federation, SOME, Loop()))


def run_to_end(
    method: Method, federation: Federation, settings: Settings, executor: Executor, resume: State | None = None
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


def executors_agree(method: Method, federation: Federation, expected: Sequence[Report]) -> None:
    """loop = batched = chunked, with partial participation and ragged clients, in state and scores.

    Chunked runs the first round, and batched all others, from the state that one client at a time reached.
    """
    first, final = expected[0], expected[-1]
    chunked = next(iter(run(method, federation, SOME, Batched(2)))).state
    assert_close(chunked, first.state, CLOSE, "one client at a time, and two at a time")
    batched = run_to_end(method, federation, SOME, Batched(), first.state)
    assert_close(batched, (final.state, final.scores), CLOSE, "one client at a time, and all at once")


def absent_clients_keep_their_bits(method: Method, federation: Federation) -> int:
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
    # Pooled rows have one optimiser, which is no client's own.
    for moments in () if method.pools else tree_leaves(after.optimizers):
        changed |= (moments != 0).reshape(len(moments), -1).any(1)
    assert not changed[absent].any(), "the private state of a client changed in a round without it"
    return int(changed.sum())


def resumed_equals_uninterrupted(method: Method, federation: Federation, expected: Sequence[Report]) -> None:
    """The round after any round's state gives the same bits as never having stopped."""
    for before, after in itertools.pairwise(expected):
        resumed = next(iter(run(method, federation, SOME, Loop(), before.state)))
        what = f"a run that goes on after round {before.round}, and one without a stop"
        assert_close((resumed.state, resumed.scores), (after.state, after.scores), 0.0, what)


def state_is_plain_tensors(expected: Sequence[Report]) -> None:
    """The state survives a save that admits tensors only."""
    file, state = io.BytesIO(), expected[-1].state
    torch.save(tuple(state), file)
    file.seek(0)
    assert_close(torch.load(file, weights_only=True), tuple(state), 0.0, "a saved state, and the state")


def training_ignores_test_rows(method: Method, federation: Federation, expected: Sequence[Report]) -> None:
    """Without test rows, and with other ones of other values, training is the same bit for bit."""
    without_test = replace(federation, test=torch.full_like(federation.test, -1))
    first = next(iter(run(method, without_test, SOME, Loop()))).state
    assert_close(first, expected[0].state, 0.0, "training without test rows, and training")
    changed = replace(change_unseen_values(federation, method.task), test=federation.val)
    trained = run_to_end(method, changed, SOME, Loop())[0]
    what = "training with other test rows and other values in all that is not for training or validation, and training"
    assert_close(trained, expected[-1].state, 0.0, what)


def change_unseen_values(federation: Federation, task: Task) -> Federation:
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


def names_are_known(method: Method, federation: Federation) -> None:
    """Names that stay with the client are those of the model."""
    for stage in method.stages(SOME.rounds):
        check_local_names(stage.method)


def newcomers_join(method: Method, federation: Federation) -> None:
    """The last two clients join after a round, are evaluated, and a round with everybody works."""
    clients = len(federation.ids)
    method = method.stages(1)[0].method
    present = federation.select(torch.arange(clients - 2))
    state, _, _ = run_round(method, begin(method, present, 1, Loop()), present, EVERYBODY, Loop())
    state = add_newcomers(method, state, federation, 2, 1, Loop())
    scores, _ = evaluate(method, state, federation, EVERYBODY, Loop())
    assert scores["pre"]["test"].shape == (clients,), "not every client has a score after two have joined"
    state, report, _ = run_round(method, state, federation, EVERYBODY, Loop())
    assert torch.isfinite(torch.tensor(report.loss)), "the loss is not finite after two clients have joined"
    weights = method.collaboration(state.server)
    assert weights is None or weights.shape[1:] == (clients, clients), "the graph has not one row and column a client"


def controls_reach_the_graph(method: Method, federation: Federation) -> None:
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
