"""The value of an edge of a collaboration graph: what a client's validation loss gains by one source."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedweave.client.data import ClientData, remove_padding
from fedweave.engine import adapter_ranks
from fedweave.engine.clients import Clients
from fedweave.engine.executors import Executor
from fedweave.engine.guards.hook_calls import data_of, guard_call
from fedweave.engine.protocol import ClientState, Method
from fedweave.engine.records import DownloadCache, EdgeValue, State
from fedweave.engine.schedule import evaluation_cohort
from fedweave.graphs.controls import GraphControl
from fedweave.tensors import dropout_keys, trees
from fedweave.tensors.trees import Tree


class _Measurement(NamedTuple):
    """Validation losses [K] of the evaluated clients at their mixtures, and their rows [L, K, N] of the graph."""

    losses: Tensor
    weights: Tensor


def edge_values(
    method: Method, state: State, federation: Clients, seed: int, executor: Executor, sources: int
) -> tuple[EdgeValue, ...]:
    """Leave-one-source-out gains of `sources` random edges per evaluated client that has validation rows.

    The gain of source j for client i is the validation loss of i's mixture without j, minus the loss with j. Without
    j, the other weights are scaled up to sum 1. The gain is positive where j helps. Sources are drawn among all other
    clients, whatever their weight. The result is empty for a method whose downloads are not mixtures.
    """
    if not method.mixes or federation.clients < 3:
        return ()
    complete, clients = _measure(method, state, federation, seed, executor), federation.clients
    key = dropout_keys.fold(dropout_keys.key(seed), state.round)
    learners, has_val = federation.sample, (federation.val[federation.sample] >= 0).any(1).tolist()
    draws = dropout_keys.uniform_rows(key, learners, clients) + 2.0 * (learners[:, None] == torch.arange(clients))
    order = draws.argsort(dim=1)[:, : min(sources, clients - 1)].to(federation.ids.device)
    values = []
    for chosen in order.T:
        sources_of = chosen.new_zeros(clients).index_copy(0, learners.to(chosen.device), chosen)
        without = replace(method, control=GraphControl("without", base=method.control, sources=sources_of))
        gains = (_measure(without, state, federation, seed, executor).losses - complete.losses).tolist()
        weights = complete.weights.mean(0).gather(1, chosen[:, None])[:, 0].tolist()
        rows = zip(learners.tolist(), chosen.tolist(), weights, gains, has_val, strict=True)
        values += [EdgeValue(state.round, i, j, weight, gain) for i, j, weight, gain, valid in rows if valid]
    return tuple(values)


def _measure(method: Method, state: State, federation: Clients, seed: int, executor: Executor) -> _Measurement:
    ids = federation.sample.to(federation.ids.device)
    shared, own = DownloadCache()(method, state.server, ids)

    def loss(own: Tree, client: ClientState, data: ClientData) -> Tensor:
        rows = remove_padding(data.val)
        model = method.mixture_model(*adapter_ranks.cut(method.task, shared, own, client, data))
        return method.task.mean_loss(method.predict(model, data, rows), data, rows)

    cohort = evaluation_cohort(federation, seed, state.round, positions=federation.sample)
    clients = trees.take(state.clients, ids)
    given = {"shared": shared, "own": own, "client": clients, "data": data_of(cohort)}
    with torch.no_grad(), guard_call(method, "mixture_model", **given):
        weights = method.collaboration(state.server)
        losses = executor.map(loss, (own, clients), cohort)
    assert weights is not None  # a method that mixes has a graph
    return _Measurement(losses, weights[:, ids])
