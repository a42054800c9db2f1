"""The one driver of all methods: start, one round, evaluation, newcomers, and a generator of reports.

It knows the protocol, the executors and the schedule, never a method.
"""

import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.task import trimmed
from fedweave.federation.collaboration import describe_graph
from fedweave.federation.executors import Executor
from fedweave.federation.federation import Cohort, Federation
from fedweave.federation.protocol import ClientState, Method, Server, Stage, Start
from fedweave.federation.records import Downloads, Report, Settings, State
from fedweave.federation.schedule import INITIAL, SERVER, attendance, cohort, participants, viewers
from fedweave.federation.stages import enrolments, stage_at
from fedweave.federation.uploads import PLAIN, UploadPath, deliver, deliver_enrolment, finite_rows, reference
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


def describe(
    method: Method, federation: Federation, seed: int, executor: Executor, upload_path: UploadPath = PLAIN
) -> Start:
    """What the server knows before round 0: the common initial model and the clients' enrolment."""
    model = _initial(method, federation, seed)
    enrolled = _enrol(method, model, federation, torch.arange(federation.clients), seed, executor, upload_path)
    return Start(model, enrolled, federation.clients, seed * 1000 + SERVER, federation.relation, federation.ids)


def _initial(method: Method, federation: Federation, seed: int) -> Params:
    device = federation.ids.device
    return trees.tree_map(lambda t: t.to(device), method.task.init(seed * 1000 + INITIAL))


def _enrol(
    method: Method,
    model: Params,
    federation: Federation,
    positions: Tensor,
    seed: int,
    executor: Executor,
    upload_path: UploadPath,
) -> Tree:
    # Enrolment precedes round 0; its minibatches are those of "round −1", shifted because streams are non-negative.
    who = cohort(federation, positions, method.training, method.enrolment_epochs, seed, 2**31 - 1)
    return deliver_enrolment(executor.each(lambda data: method.enrol(model, data), (), who), who, seed, upload_path)


def begin(
    method: Method, federation: Federation, seed: int, executor: Executor, upload_path: UploadPath = PLAIN
) -> State:
    """The state before round 0."""
    start = describe(method, federation, seed, executor, upload_path)
    server = trees.tree_map(lambda t: t.to(federation.ids.device), method.init(start))
    return State(0, server, trees.broadcast(method.join(start.model), federation.clients))


def train(
    method: Method, state: State, who: Cohort, executor: Executor, downloads: Downloads | None = None
) -> tuple[Tree, Tree, Tree]:
    """(shared, own, updates [P]) of the cohort's local round, starting from `state`."""
    ids = who.positions.to(who.federation.ids.device)
    shared, own = (downloads or Downloads())(method, state.server, ids)

    def update(own: Tree, client: ClientState, data: ClientData) -> Tree:
        return method.client_update(shared, own, client, data)

    return shared, own, executor.each(update, (own, trees.take(state.clients, ids)), who)


def one_round(
    method: Method,
    state: State,
    federation: Federation,
    settings: Settings,
    executor: Executor,
    shadow: bool = False,
    downloads: Downloads | None = None,
) -> tuple[State, Report, Tree]:
    """One synchronous round: download, local training, aggregation.

    Args:
        shadow: also train the absent clients, on copies, so that "post" models of all clients exist.
        downloads: what was sent last, if this is one of several rounds.

    Returns:
        the new state, a report without scores, and the "post" models [N, ...] (without `shadow`: of the participants).
    """
    begun = time.perf_counter()
    positions = participants(settings.seed, state.round, federation.ids.cpu(), settings.participation)
    who = cohort(federation, positions, method.training, method.epochs, settings.seed, state.round, method.leaks)
    shared, own, updates = train(method, state, who, executor, downloads)

    def base() -> Tree:
        return reference(updates.upload, shared, own, lambda: _initial(method, federation, settings.seed))

    ids, private = positions.to(federation.ids.device), (updates.loss, updates.client)
    uploads, rows = deliver(updates.upload, private, base, who, settings.seed, settings.upload_path)
    senders, whole = trees.take(ids, rows), len(rows) == len(ids)
    server = state.server
    if len(rows) and not (settings.freeze and state.round >= settings.join_round):
        server = method.aggregate(server, senders, uploads, federation.sizes[senders])
    clients = trees.put(state.clients, senders, updates.client if whole else trees.take(updates.client, rows))
    after = State(state.round + 1, server, clients)
    loss = float(trees.take(updates.loss, rows).mean())
    dropped = () if whole else tuple(sorted({*federation.ids[ids].tolist()} - {*federation.ids[senders].tolist()}))
    traffic = method.traffic(shared, own, updates.upload, len(positions))
    report = Report(after.round, *traffic, time.perf_counter() - begun, loss, dropped, {}, {}, {}, after, method)
    models = _with_absent(method, state, who, settings, executor, updates.model) if shadow else updates.model
    return after, report, models


def _with_absent(
    method: Method, state: State, who: Cohort, settings: Settings, executor: Executor, models: Tree
) -> Tree:
    """The trained `models` [P, ...] of the cohort as [N, ...], with those of the others, had they taken part."""
    everybody = torch.arange(who.federation.clients)
    absent = everybody[~torch.isin(everybody, who.positions)]
    if not len(absent):
        return models
    others = cohort(who.federation, absent, method.training, method.epochs, settings.seed, state.round, method.leaks)
    rest = train(method, state, others, executor)[2].model
    return trees.take(trees.concat([models, rest]), torch.argsort(torch.cat([who.positions, absent])))


def evaluate(
    method: Method,
    state: State,
    federation: Federation,
    settings: Settings,
    executor: Executor,
    post: Tree | None = None,
    downloads: Downloads | None = None,
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tree]]:
    """Scores and models of every client: "pre" as deployed from `state`, "post" as given after local training."""
    who = viewers(federation, settings.seed, state.round)
    ids = torch.arange(federation.clients, device=federation.ids.device)
    shared, own = (downloads or Downloads())(method, state.server, ids)
    pre = executor.each(
        lambda own, client, data: method.personalize(shared, own, client, data), (own, state.clients), who
    )
    models = {"pre": pre} if post is None else {"pre": pre, "post": _deployable(post, pre)}

    def score(model: Tree, data: ClientData) -> dict[str, Tensor]:
        val, test = trimmed(data.val), trimmed(data.test)
        outputs = method.predict(model, data, torch.cat([val, test]))
        return {
            "val": method.task.score(outputs[: len(val)], data, val),
            "test": method.task.score(outputs[len(val) :], data, test, shared_test=True),
        }

    return {point: executor.each(score, (model,), who) for point, model in models.items()}, models


def _deployable(post: Tree, pre: Tree) -> Tree:
    """`post` [N, ...], where a client whose training left the finite numbers stays with the model it had."""
    sound = finite_rows(post)
    if sound is None:
        return post
    return trees.tree_map(lambda new, old: torch.where(trees.column(sound, new), new, old), post, pre)


def diagnose(method: Method, server: Server, group: Tensor | None) -> dict[str, float]:
    """The method's own diagnostics and those of its collaboration graph; `group` [N]: the clients' planted groups."""
    with torch.no_grad():
        weights = method.collaboration(server)
        named = method.diagnostics(server) | ({} if weights is None else describe_graph(weights, group))
    return {name: float(value) for name, value in named.items()}


def onboard(
    method: Method,
    state: State,
    federation: Federation,
    newcomers: int,
    seed: int,
    executor: Executor,
    upload_path: UploadPath = PLAIN,
) -> State:
    """Let the last `newcomers` clients of `federation` join a running federation."""
    n = federation.clients
    model = _initial(method, federation, seed)
    enrolled = _enrol(method, model, federation, torch.arange(n - newcomers, n), seed, executor, upload_path)
    start = Start(model, enrolled, n, seed * 1000 + SERVER, federation.relation, federation.ids)
    joined = trees.broadcast(method.join(model), newcomers)
    return State(
        state.round, method.admit(state.server, enrolled, newcomers, start), trees.concat([state.clients, joined])
    )


class _UploadCount:
    """How often each client has uploaded, counted from one evaluation to the next."""

    def __init__(self, settings: Settings, present: Federation, federation: Federation) -> None:
        self.settings, self.present, self.federation = settings, present, federation
        self.rounds, self.uploads = 0, torch.zeros(federation.clients, dtype=torch.int64)

    def most(self, rounds: int) -> int:
        """The largest number of uploads of a client in the first `rounds` rounds."""
        settings, new = self.settings, range(self.rounds, rounds)
        clients = [(self.present if i < settings.join_round else self.federation).clients for i in new]
        ids = self.federation.ids.cpu()
        self.uploads += attendance(settings.seed, self.rounds, clients, ids, settings.participation)
        self.rounds = rounds
        return int(self.uploads.max())


def run(
    method: Method, federation: Federation, settings: Settings, executor: Executor, resume: State | None = None
) -> Iterator[Report]:
    """All rounds of a run, one report each; `resume` continues after its round, bit for bit.

    Yields:
        a `Report` a round, with scores at evaluation points.
    """
    stages = method.stages(settings.rounds)
    *warm, last = [stage.rounds for stage in stages]
    total = sum(warm) + last
    settings = replace(settings, join_round=settings.join_round and sum(warm) + settings.join_round)
    present = (
        federation.select(torch.arange(federation.clients - settings.newcomers)) if settings.join_round else federation
    )
    state = resume or begin(stages[0].method, present, settings.seed, executor, settings.upload_path)
    downloads, uploads = Downloads(), _UploadCount(settings, present, federation)
    while state.round < total:
        stage, opens = stage_at(stages, state.round)
        state = _hand_over(stage, state, present, settings, executor) if opens else state
        if settings.join_round and state.round == settings.join_round:
            joining = (settings.newcomers, settings.seed, executor, settings.upload_path)
            state = onboard(stage.method, state, federation, *joining)
        crowd = present if state.round < settings.join_round else federation
        # A warm-up stage is not the method: only the last stage's rounds may be evaluated and reported.
        due = stage is stages[-1] and ((state.round + 1) % settings.every == 0 or state.round + 1 == total)
        state, report, post = one_round(stage.method, state, crowd, settings, executor, due, downloads)
        if due:
            scores, models = evaluate(stage.method, state, crowd, settings, executor, post, downloads)
            numbers = diagnose(stage.method, state.server, crowd.group)
            report = report._replace(scores=scores, models=models, diagnostics=numbers)
        if due and (privacy := settings.upload_path.privacy):
            spent = privacy.epsilon(uploads.most(state.round) + enrolments(stages, state.round))
            report = report._replace(diagnostics={**report.diagnostics, "epsilon": spent})
        yield report


def _hand_over(stage: Stage, state: State, federation: Federation, settings: Settings, executor: Executor) -> State:
    if stage.handover is None:
        return state
    start = describe(stage.method, federation, settings.seed, executor, settings.upload_path)
    server = trees.tree_map(lambda t: t.to(federation.ids.device), stage.handover(state.server, start))
    return state._replace(server=server)
