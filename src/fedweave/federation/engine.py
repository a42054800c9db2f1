"""The one driver of all methods: one round, its evaluation, and a generator of reports.

It knows the protocol, the executors and the schedule, never a method.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedweave.client import optimizers
from fedweave.client.data import ClientData, remove_padding
from fedweave.federation import guards, predictions, sent_downloads
from fedweave.federation.accounting import Accountant
from fedweave.federation.collaboration import describe_graph, is_recordable
from fedweave.federation.edge_values import edge_values
from fedweave.federation.executors import Executor
from fedweave.federation.federation import Cohort, Federation
from fedweave.federation.graph_quality import MEANING, quality
from fedweave.federation.protocol import ClientState, Method, Server
from fedweave.federation.records import DownloadCache, Report, Settings, State
from fedweave.federation.schedule import cohort, evaluation_cohort, participants
from fedweave.federation.start import add_newcomers, begin, hand_over, initial_model
from fedweave.federation.timeline import Timeline
from fedweave.federation.uploads import deliver, finite_rows, protect_uploads, reference
from fedweave.tensors import trees
from fedweave.tensors.storage import use_storage
from fedweave.tensors.trees import Tree


class LocalRound(NamedTuple):
    """A local round: downloads (for all, of each), updates [P, ...], states [P, ...] of optimisers that are kept."""

    shared: Tree
    own: Tree
    updates: Tree
    optimizers: Tree


class ReceivedUploads(NamedTuple):
    """What has left clients [P, ...] and stayed with them [P, ...], what the server accepts [K, ...], and whose."""

    sent: Tree
    private: Tree
    uploads: Tree
    rows: Tensor


def train(
    method: Method, state: State, who: Cohort, executor: Executor, downloads: DownloadCache | None = None
) -> LocalRound:
    """The cohort's local round, starting from `state`."""
    ids = who.positions.to(who.federation.ids.device)
    shared, own = (downloads or DownloadCache())(method, state.server, ids)

    def update(own: Tree, client: ClientState, states: Tree, data: ClientData) -> Tree:
        with optimizers.optimizer_memory(states if method.training.keep_optimizer else None) as memory:
            done = method.client_update(shared, own, client, data)
        return done, memory.states if memory else {}

    private = (own, trees.take(state.clients, ids), trees.take(state.optimizers, ids))
    return LocalRound(shared, own, *executor.map(update, private, who))


def run_round(
    method: Method,
    state: State,
    federation: Federation,
    settings: Settings,
    executor: Executor,
    shadow: bool = False,
    downloads: DownloadCache | None = None,
) -> tuple[State, Report, Tree]:
    """One synchronous round: download, local training, aggregation.

    Args:
        shadow: also train the absent clients, on copies, so that "post" models of all evaluated clients exist.
        downloads: what was sent last, if this is one of several rounds.

    Returns:
        the new state, a report without scores, and the "post" models [K, ...] of the evaluated clients
        (without `shadow`: of the participants).
    """
    begun = time.perf_counter()
    evaluated = len(federation.sample)
    federation = federation.pooled_federation if method.pools else federation
    positions = participants(settings.seed, state.round, federation.ids.cpu(), settings.participation)
    who = cohort(federation, positions, method.training, method.epochs, settings.seed, state.round, method.leaks)
    trained = train(method, state, who, executor, downloads)
    updates = trained.updates
    arrived = _deliver_uploads(method, trained, who, settings)
    after = _next_state(method, state, trained, arrived, who, settings)
    loss = float(trees.take(updates.loss, arrived.rows).mean())
    ids, whole = federation.ids.cpu()[positions], len(arrived.rows) == len(positions)
    dropped = () if whole else tuple(sorted({*ids.tolist()} - {*ids[arrived.rows].tolist()}))
    traffic = method.traffic(trained.shared, trained.own, arrived.sent, len(positions))
    report = Report(after.round, *traffic, time.perf_counter() - begun, loss, dropped, {}, {}, {}, after, method)
    if not shadow:
        return after, report, updates.model
    if method.pools:
        return after, report, trees.broadcast(trees.at(updates.model, 0), evaluated)
    return after, report, _add_absent_models(method, state, who, settings, executor, updates.model)


def _deliver_uploads(method: Method, trained: LocalRound, who: Cohort, settings: Settings) -> ReceivedUploads:
    """What became of the uploads of a local round on their way to the server."""
    shared, own, updates, _ = trained
    seed, path = settings.seed, settings.upload_path

    def base() -> Tree:
        return reference(method, updates.upload, shared, own, lambda: initial_model(method, who.federation, seed))

    sent = protect_uploads(updates.upload, base, who, seed, path.privacy, method.public)
    private = method.acknowledge(updates.client, updates.upload, sent) if path.privacy else updates.client
    uploads, rows = deliver(sent, (updates.loss, private), base, who, seed, path.robust, method.robust_part)
    return ReceivedUploads(sent, private, uploads, rows)


def _next_state(
    method: Method, state: State, trained: LocalRound, arrived: ReceivedUploads, who: Cohort, settings: Settings
) -> State:
    """The state after a round: of clients whose upload was not accepted, as before."""
    federation, rows = who.federation, arrived.rows
    ids = who.positions.to(federation.ids.device)
    senders, server, new = trees.take(ids, rows), state.server, (arrived.private, trained.optimizers)
    if len(rows) and not (settings.freeze and state.round >= settings.join_round):
        server = _aggregate(method, server, (ids, trained.own), senders, arrived.uploads, federation.sizes[senders])
    private, memory = new if len(rows) == len(ids) else trees.take(new, rows)
    memory = optimizers.put(state.optimizers, senders, memory, federation.clients)
    return State(state.round + 1, server, trees.put(state.clients, senders, private), memory)


def _aggregate(
    method: Method, server: Server, sent: tuple[Tensor, Tree], senders: Tensor, uploads: Tree, sizes: Tensor
) -> Server:
    """The server's state after the `uploads` of `senders`; `sent` are the own downloads of the round, by client."""
    weights = torch.ones_like(sizes) if method.training.uniform_mean else sizes
    with sent_downloads.store(server, *sent), guards.forbid_changes(server, type(method).__name__):
        return method.aggregate(server, senders, uploads, weights)


def _add_absent_models(
    method: Method, state: State, who: Cohort, settings: Settings, executor: Executor, models: Tree
) -> Tree:
    """The models [K, ...] of the evaluated clients: of `models` [P, ...] if they trained, else had they taken part."""
    sample, there = who.federation.sample, who.positions
    if not (wanted := torch.isin(there, sample)).all():
        there, models = there[wanted], trees.take(models, wanted.nonzero()[:, 0])
    absent = sample[~torch.isin(sample, there)]
    if not len(absent):
        return models
    others = cohort(who.federation, absent, method.training, method.epochs, settings.seed, state.round, method.leaks)
    rest = train(method, state, others, executor).updates.model
    return trees.take(trees.concat([models, rest]), torch.argsort(torch.cat([there, absent])))


def evaluate(
    method: Method,
    state: State,
    federation: Federation,
    settings: Settings,
    executor: Executor,
    post: Tree | None = None,
    downloads: DownloadCache | None = None,
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tree]]:
    """Scores and models of the evaluated clients [K]: "pre" as deployed from `state`, "post" [K, ...] as given after
    local training.
    """
    who = evaluation_cohort(federation, settings.seed, state.round, positions=federation.sample)
    ids = federation.sample.to(federation.ids.device)
    shared, own = (downloads or DownloadCache())(method, state.server, ids)
    pre = executor.map(
        lambda own, client, data: method.personalize(shared, own, client, data),
        (own, trees.take(state.clients, ids)),
        who,
    )
    models = {"pre": pre} if post is None else {"pre": pre, "post": _replace_nonfinite(post, pre)}

    def scores(model: Tree) -> dict[str, Tensor]:
        if method.task.scoring is not None:
            return predictions.scores(method, model, executor, who)
        return executor.map(score, (model,), who)

    def score(model: Tree, data: ClientData) -> dict[str, Tensor]:
        val, test = remove_padding(data.val), method.task.scored_rows(data, remove_padding(data.test))
        outputs = method.predict(model, data, torch.cat([val, test]))
        return {
            "val": method.task.score(outputs[: len(val)], data, val),
            "test": method.task.score(outputs[len(val) :], data, test, shared_test=True),
        }

    first = scores(models["pre"])
    others = {p: first if trees.equal(model, pre) else scores(model) for p, model in models.items() if p != "pre"}
    return {"pre": first, **others}, models


def _replace_nonfinite(post: Tree, pre: Tree) -> Tree:
    """`post` [K, ...], where a client whose training left the finite numbers stays with the model it had."""
    sound = finite_rows(post)
    if sound is None:
        return post
    return trees.tree_map(lambda new, old: torch.where(trees.column(sound, new), new, old), post, pre)


def diagnose(method: Method, server: Server, federation: Federation) -> dict[str, float]:
    """The method's own diagnostics, and what its collaboration graph shows of the clients of `federation`.

    A graph of very many clients is neither made nor described.
    """
    with torch.no_grad():
        whole = is_recordable(len(method.task.layers), federation.clients)
        weights = method.collaboration(server) if whole else None
        if weights is not None:
            guards.check_graph(type(method).__name__, weights, len(method.task.layers), federation.clients)
        named = method.diagnostics(server) | ({} if weights is None else describe_graph(weights))
    numbers = {name: float(value) for name, value in named.items()}
    if weights is None:
        return numbers
    truth = (None if t is None else t.cpu().numpy() for t in (federation.group, federation.divergence))
    shown = quality(weights.detach().cpu().numpy(), *truth)
    return numbers | {MEANING[name]: value for name, value in shown.items()}


def run(
    method: Method, federation: Federation, settings: Settings, executor: Executor, resume: State | None = None
) -> Iterator[Report]:
    """All rounds of a run, one report each; `resume` continues after its round, bit for bit.

    Yields:
        a `Report` a round, with scores at evaluation points.
    """
    timeline = Timeline.of(method, federation, settings)
    settings = timeline.settings
    joining = (settings.newcomers, settings.seed, executor, settings.upload_path)
    first, founders = timeline.stages[0].method, timeline.founders
    with use_storage(settings.storage), guards.forbid_unkeyed_draws(type(first).__name__):
        state = resume or begin(first, founders, settings.seed, executor, settings.upload_path)
    downloads, accountant = DownloadCache(), Accountant(timeline)
    current: Method | None = None
    while state.round < timeline.rounds:
        (stage, opens), crowd = timeline.stage(state.round), timeline.federation(state.round)
        # The same object as in the evaluation before, as downloads are reused for the same method only.
        method = stage.method.at(settings.seed, state.round) if opens or current is None else current
        due = timeline.evaluates(state.round)
        with use_storage(settings.storage), guards.forbid_unkeyed_draws(type(method).__name__):
            state = hand_over(stage, state, founders, settings, executor) if opens else state
            state = add_newcomers(method, state, crowd, *joining) if timeline.joins(state.round) else state
            state, report, post = run_round(method, state, crowd, settings, executor, due, downloads)
        method = current = stage.method.at(settings.seed, state.round)
        if due:
            with guards.forbid_unkeyed_draws(type(method).__name__):
                scores, models = evaluate(method, state, crowd, settings, executor, post, downloads)
            numbers = diagnose(method, state.server, crowd) | accountant.privacy_loss(state.round)
            report = report._replace(scores=scores, models=models, diagnostics=numbers)
        if settings.edges and state.round == timeline.rounds:
            values = edge_values(method, state, crowd, settings.seed, executor, settings.edges)
            report = report._replace(edges=values)
        yield report._replace(method=method)
