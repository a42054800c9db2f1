"""The loop that runs every method: one round, and a generator of reports.

It knows the protocol, the executors and the schedule, never a method.
"""

import math
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedweave.client import optimizers
from fedweave.client.data import ClientData
from fedweave.engine import adapter_ranks, schedule, sent_downloads, server_hooks
from fedweave.engine.accounting import Accountant
from fedweave.engine.clients import Clients, Cohort
from fedweave.engine.edge_values import edge_values
from fedweave.engine.evaluation import diagnose, evaluate, portray
from fedweave.engine.executors import Executor
from fedweave.engine.guards import draws_and_names as guards
from fedweave.engine.guards import returned
from fedweave.engine.guards.hook_calls import data_of, guard_call
from fedweave.engine.guards.unused_control import ControlWatch
from fedweave.engine.protocol import ClientState, Method, Server, Update
from fedweave.engine.records import DownloadCache, Report, Settings, State
from fedweave.engine.start import add_newcomers, begin, hand_over, initial_model
from fedweave.engine.timeline import Timeline
from fedweave.engine.uploads import deliver, protect_uploads, reference
from fedweave.processes.parallel import release_memory
from fedweave.tensors import recordings, trees
from fedweave.tensors.products import use_fast_products
from fedweave.tensors.storage import store_rows, use_storage
from fedweave.tensors.tables import find_stored
from fedweave.tensors.trees import Tree

GAP = 2**25  # bytes of a tensor that leaves a gap in memory which no smaller one fills


class LocalRound(NamedTuple):
    """The result of the clients' local training.

    Attributes:
        shared, own: the downloads: one for all clients, and one for each client [P, ...].
        updates: what `client_update` returned, stacked [P, ...].
        optimizers: states [P, ...] of the clients' optimisers, if they are kept.
    """

    shared: Tree
    own: Tree
    updates: Tree
    optimizers: Tree


class ReceivedUploads(NamedTuple):
    """Uploads of a round.

    Attributes:
        sent: what left the participants [P, ...].
        private: what stayed with them [P, ...].
        uploads: what the server accepts [K, ...].
        rows: int64 [K] the senders of `uploads` among the participants.
    """

    sent: Tree
    private: Tree
    uploads: Tree
    rows: Tensor


def train(
    method: Method, state: State, cohort: Cohort, executor: Executor, downloads: DownloadCache | None = None
) -> LocalRound:
    """The cohort's local round, starting from `state`."""
    ids, hook = cohort.positions.to(cohort.federation.ids.device), f"{type(method).__name__}.client_update"
    shared, own = (downloads or DownloadCache())(method, state.server, ids)

    def update(own: Tree, client: ClientState, states: Tree, data: ClientData) -> Tree:
        with optimizers.optimizer_memory(states if method.training.keep_optimizer else None) as memory:
            result = method.client_update(*adapter_ranks.cut(method.task, shared, own, client, data))
        returned.check_type(hook, result, Update, f"Update({', '.join(Update._fields)})")
        returned.check_tensors(hook, result)
        before, after = returned.shapes({"client": client}), returned.shapes({"client": result.client})
        returned.check_form(hook, after, before, f"keep the names and shapes of {type(method).__name__}.join")
        return result, memory.states if memory else {}

    clients, states = trees.take(state.clients, ids), trees.take(state.optimizers, ids)
    guard = guard_call(method, "client_update", shared=shared, own=own, client=clients, data=data_of(cohort))
    with guard, use_fast_products([*method.network.parameters()]):
        return LocalRound(shared, own, *executor.map(update, (own, clients, states), cohort, _keep_private))


def _keep_private(result: tuple[Update, Tree]) -> tuple[Update, Tree]:
    """A client's result with everything but the upload in the files of the current storage, if there is one."""
    update, states = result
    private = (update.client, update.model, states)
    client, model, states = kept = store_rows(private)
    new = (leaf for leaf in trees.tree_leaves(private) if find_stored(leaf) is None)
    if kept is not private and any(leaf.nbytes >= GAP for leaf in new):
        release_memory()  # small tensors that stay between large ones that go would waste it
    return update._replace(client=client, model=model), states


def run_round(
    method: Method,
    state: State,
    federation: Clients,
    settings: Settings,
    executor: Executor,
    shadow: bool = False,
    downloads: DownloadCache | None = None,
) -> tuple[State, Report, Tree]:
    """One synchronous round: download, local training, aggregation.

    Args:
        shadow: also train the absent clients that are evaluated, on copies, so that they have "post" models too.
        downloads: what was sent last, if this is one of several rounds.

    Returns:
        the new state, a report without scores, and the "post" models [K, ...] of the evaluated clients
        (without `shadow`: of the participants).
    """
    start_time = time.perf_counter()
    evaluated_count = len(federation.sample)
    federation = federation.pooled_federation if method.pools else federation
    positions = schedule.participants(settings.seed, state.round, federation.ids.cpu(), settings.participation)
    cohort = _training_cohort(method, federation, positions, settings.seed, state.round)
    local_round = train(method, state, cohort, executor, downloads)
    updates = local_round.updates
    received = _deliver_uploads(method, local_round, cohort, settings)
    new_state = _next_state(method, state, local_round, received, cohort, settings)
    loss = float(trees.take(updates.loss, received.rows).mean())
    ids, complete = federation.ids.cpu()[positions], len(received.rows) == len(positions)
    dropped = () if complete else tuple(sorted({*ids.tolist()} - {*ids[received.rows].tolist()}))
    traffic = _count_bytes(method, local_round, received, cohort)
    seconds = time.perf_counter() - start_time
    report = Report(new_state.round, *traffic, seconds, loss, dropped, {}, {}, {}, new_state, method)
    if not shadow:
        return new_state, report, updates.model
    if method.pools:
        return new_state, report, trees.broadcast(trees.at(updates.model, 0), evaluated_count)
    return new_state, report, _add_absent_models(method, state, cohort, settings, executor, updates.model)


def _count_bytes(method: Method, local_round: LocalRound, received: ReceivedUploads, cohort: Cohort) -> tuple[int, int]:
    """(bytes down, bytes up) of a round over all participants."""
    shared, own, sent = local_round.shared, local_round.own, received.sent
    down, up = method.traffic(shared, own, sent, len(cohort))
    ranks = cohort.federation.own.get(adapter_ranks.RANKS)
    ranks = None if ranks is None or method.pools else ranks[cohort.positions.to(ranks.device)]
    down -= adapter_ranks.unsent_bytes(method.task, ranks, shared, own)
    return down, up - adapter_ranks.unsent_bytes(method.task, ranks, {}, sent)


def _training_cohort(method: Method, federation: Clients, positions: Tensor, seed: int, round: int) -> Cohort:
    """The clients at `positions` with their minibatches of `round`."""
    return schedule.cohort(federation, positions, method.training, method.epochs, seed, round, method.leaks)


def _deliver_uploads(method: Method, local_round: LocalRound, cohort: Cohort, settings: Settings) -> ReceivedUploads:
    """The uploads of a local round, as they left the clients and as the server accepts them."""
    shared, own, updates, _ = local_round
    seed, path = settings.seed, settings.upload_path

    def base() -> Tree:
        return reference(method, updates.upload, shared, own, lambda: initial_model(method, cohort.federation, seed))

    sent = protect_uploads(updates.upload, base, cohort, seed, path.privacy, method.public)
    private = method.acknowledge(updates.client, updates.upload, sent) if path.privacy else updates.client
    uploads, rows = deliver(sent, (updates.loss, private), base, cohort, seed, path.robust, method.robust_part)
    return ReceivedUploads(sent, private, uploads, rows)


def _next_state(
    method: Method, state: State, local_round: LocalRound, received: ReceivedUploads, cohort: Cohort, settings: Settings
) -> State:
    """The state after a round; clients whose upload was not accepted keep the state that they had."""
    federation, rows = cohort.federation, received.rows
    ids = cohort.positions.to(federation.ids.device)
    senders, server, trained = trees.take(ids, rows), state.server, (received.private, local_round.optimizers)
    if len(rows):
        frozen = settings.freeze and state.round >= settings.join_round
        server = _aggregate(
            method, server, (ids, local_round.own), senders, received.uploads, federation.sizes[senders], frozen
        )
    private, memory = trained if len(rows) == len(ids) else trees.take(trained, rows)
    memory = optimizers.put(state.optimizers, senders, memory, federation.clients)
    return State(state.round + 1, server, trees.put(state.clients, senders, private), memory)


def _aggregate(
    method: Method,
    server: Server,
    sent: tuple[Tensor, Tree],
    senders: Tensor,
    uploads: Tree,
    sizes: Tensor,
    frozen: bool,
) -> Server:
    """The server's state after the `uploads` of `senders`; `sent` are the own downloads of the round, by client."""
    weights = torch.ones_like(sizes) if method.training.uniform_mean else sizes
    with sent_downloads.store(server, *sent):
        return server_hooks.aggregate(method, server, senders, uploads, weights, sent[1], frozen)


def _add_absent_models(
    method: Method, state: State, cohort: Cohort, settings: Settings, executor: Executor, models: Tree
) -> Tree:
    """The "post" models [K, ...] of the evaluated clients.

    Those of participants are in `models` [P, ...]. Absent clients are trained here, on copies.
    """
    sample, positions = cohort.federation.sample, cohort.positions
    if not (is_evaluated := torch.isin(positions, sample)).all():
        positions, models = positions[is_evaluated], trees.take(models, is_evaluated.nonzero()[:, 0])
    absent = sample[~torch.isin(sample, positions)]
    if not len(absent):
        return models
    absent_cohort = _training_cohort(method, cohort.federation, absent, settings.seed, state.round)
    absent_models = train(method, state, absent_cohort, executor).updates.model
    return trees.take(trees.concat([models, absent_models]), torch.argsort(torch.cat([positions, absent])))


def run(
    method: Method, federation: Clients, settings: Settings, executor: Executor, resume: State | None = None
) -> Iterator[Report]:
    """All rounds of a run; `resume` is a state to continue from, with the same results bit for bit.

    Yields:
        a `Report` for each round, with scores where the round is evaluated.
    """
    timeline = Timeline.of(method, federation, settings)
    settings = timeline.settings
    join_settings = (settings.newcomers, settings.seed, executor, settings.upload_path)
    first_method, founders = timeline.stages[0].method, timeline.founders
    for stage in timeline.stages:
        stage.method.task.template.to(federation.ids.device)  # constants are used from there
    with use_storage(settings.storage), guards.forbid_unkeyed_draws(type(first_method).__name__, "before round 1"):
        state = resume or begin(first_method, founders, settings.seed, executor, settings.upload_path)
    downloads, accountant = DownloadCache(), Accountant(timeline)
    current: Method | None = None
    watch = ControlWatch()
    while state.round < timeline.rounds:
        (stage, begins), present = timeline.stage(state.round), timeline.federation(state.round)
        # The same object as in the evaluation before, as downloads are reused for the same method only.
        method = stage.method.at(settings.seed, state.round) if begins or current is None else current
        evaluates = timeline.evaluates(state.round)
        with (
            use_storage(settings.storage),
            recordings.enable(executor.recorded),
            guards.forbid_unkeyed_draws(type(method).__name__, f"in round {state.round + 1}"),
            watch.observe(method.control),
        ):
            state = hand_over(stage, state, founders, settings, executor) if begins else state
            state = add_newcomers(method, state, present, *join_settings) if timeline.joins(state.round) else state
            state, report, post = run_round(method, state, present, settings, executor, evaluates, downloads)
        method = current = stage.method.at(settings.seed, state.round)
        if evaluates:
            when = f"in the evaluation after round {state.round}"
            with (
                use_storage(settings.storage),
                recordings.enable(executor.recorded),
                guards.forbid_unkeyed_draws(type(method).__name__, when),
                watch.observe(method.control),
            ):
                scores, models = evaluate(method, state, present, settings, executor, post, downloads)
            numbers = diagnose(method, state.server, present) | accountant.privacy_loss(state.round)
            vectors = portray(method, state.server, present)
            report = report._replace(scores=scores, models=models, diagnostics=numbers, portrait=vectors)
        # Of a resumed run the rounds before are not known.
        if resume is None and state.round == timeline.rounds and math.isfinite(report.loss):
            watch.check(type(method).__name__, method.control)
        if settings.edges and state.round == timeline.rounds:
            values = edge_values(method, state, present, settings.seed, executor, settings.edges)
            report = report._replace(edges=values)
        yield report._replace(method=method)
