"""The value of an edge of a collaboration graph: what a client's validation loss gains by one source."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedweave.client.data import ClientData, remove_padding
from fedweave.federation.executors import Executor
from fedweave.federation.federation import Federation
from fedweave.federation.graph_controls import GraphControl
from fedweave.federation.protocol import ClientState, Method
from fedweave.federation.records import EdgeValue, State
from fedweave.federation.schedule import evaluation_cohort
from fedweave.tensors import dropout_keys, trees
from fedweave.tensors.trees import Tree


class _Measurement(NamedTuple):
    """Validation losses [K] of the evaluated clients at the mixtures that a method makes, and their rows [L, K, N] of
    its graph.
    """

    losses: Tensor
    weights: Tensor


def edge_values(
    method: Method, state: State, federation: Federation, seed: int, executor: Executor, sources: int
) -> tuple[EdgeValue, ...]:
    """Leave-one-source-out gains of `sources` random edges per evaluated client that has validation rows; none where
    downloads are no mixtures.

    The gain of source j for client i is the validation loss of i's mixture without j, its other weights scaled up to
    sum 1, minus that with j. It is positive where j helps. Sources are drawn among all others, whatever their weight.
    """
    if not method.mixes or federation.clients < 3:
        return ()
    whole, count = _measure(method, state, federation, seed, executor), federation.clients
    key = dropout_keys.fold(dropout_keys.key(seed), state.round)
    learners, judged = federation.sample, (federation.val[federation.sample] >= 0).any(1).tolist()
    draws = dropout_keys.uniform_rows(key, learners, count) + 2.0 * (learners[:, None] == torch.arange(count))
    order = draws.argsort(dim=1)[:, : min(sources, count - 1)].to(federation.ids.device)
    values = []
    for picked in order.T:
        sources_of = picked.new_zeros(count).index_copy(0, learners.to(picked.device), picked)
        without = replace(method, control=GraphControl("without", base=method.control, sources=sources_of))
        gains = (_measure(without, state, federation, seed, executor).losses - whole.losses).tolist()
        weights = whole.weights.mean(0).gather(1, picked[:, None])[:, 0].tolist()
        rows = zip(picked.tolist(), weights, gains, strict=True)
        pairs = zip(learners.tolist(), rows, judged, strict=True)
        values += [EdgeValue(state.round, i, j, weight, gain) for i, (j, weight, gain), known in pairs if known]
    return tuple(values)


def _measure(method: Method, state: State, federation: Federation, seed: int, executor: Executor) -> _Measurement:
    ids = federation.sample.to(federation.ids.device)
    shared, own = method.download(state.server, ids)

    def loss(own: Tree, client: ClientState, data: ClientData) -> Tensor:
        rows = remove_padding(data.val)
        model = method.mixture_model(shared, own, client, data)
        return method.task.mean_loss(method.predict(model, data, rows), data, rows)

    who = evaluation_cohort(federation, seed, state.round, positions=federation.sample)
    with torch.no_grad():
        weights = method.collaboration(state.server)
        losses = executor.map(loss, (own, trees.take(state.clients, ids)), who)
    assert weights is not None  # a method that mixes has a graph
    return _Measurement(losses, weights[:, ids])
