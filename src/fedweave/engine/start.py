"""How clients and servers start: the common initial model, enrolment, the state before round 0, and newcomers."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedweave.client import optimizers
from fedweave.client.data import ClientData
from fedweave.engine import server_hooks
from fedweave.engine.clients import Clients
from fedweave.engine.executors import Executor
from fedweave.engine.guards import returned
from fedweave.engine.guards.hook_calls import data_of, guard_call
from fedweave.engine.protocol import ClientState, Enrolment, Method, Stage, Start
from fedweave.engine.records import Settings, State
from fedweave.engine.schedule import INITIAL, SERVER, cohort
from fedweave.engine.uploads import PLAIN, UploadPath, deliver_enrolment
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree

ENROLMENT = 2**31 - 1  # stands for "round −1", because numbers of random streams are not negative


class StackedEnrolments(NamedTuple):
    """Enrolments, stacked [P, ...]: uploads as delivered, entries of private states, states of kept optimisers."""

    upload: Tree
    client: Tree
    optimizers: Tree


def initial_model(method: Method, federation: Clients, seed: int) -> Params:
    """The one model that all clients start from, on the device of the data."""
    device = federation.ids.device
    return trees.tree_map(lambda t: t.to(device), method.task.init(seed * 1000 + INITIAL))


def _enrol_all(
    method: Method, federation: Clients, seed: int, executor: Executor, upload_path: UploadPath, round: int = 0
) -> tuple[Start, StackedEnrolments]:
    """What the server knows before `round`, the first one of a stage, and what all clients enrolled with."""
    model, everybody = initial_model(method, federation, seed), torch.arange(federation.clients)
    enrolled = _enrol(method, model, federation, everybody, seed, executor, upload_path, round)
    return _start(model, enrolled, federation, seed), enrolled


def _start(model: Params, enrolled: StackedEnrolments, federation: Clients, seed: int) -> Start:
    n = federation.clients
    return Start(model, enrolled.upload, n, seed * 1000 + SERVER, federation.relation, federation.ids)


def begin(method: Method, federation: Clients, seed: int, executor: Executor, upload_path: UploadPath = PLAIN) -> State:
    """The state before round 0."""
    start, clients, states = admission(method, federation, seed, executor, upload_path)
    server = trees.tree_map(lambda t: t.to(federation.ids.device), server_hooks.init(method, start))
    return State(0, server, clients, states)


def admission(
    method: Method, federation: Clients, seed: int, executor: Executor, upload_path: UploadPath = PLAIN
) -> tuple[Start, ClientState, Tree]:
    """The result of joining: (what the server learns, private states [N, ...], states of kept optimisers)."""
    start, enrolled = _enrol_all(method, federation, seed, executor, upload_path)
    return start, _private_states(method, start.model, enrolled, federation.clients), enrolled.optimizers


def hand_over(stage: Stage, state: State, federation: Clients, settings: Settings, executor: Executor) -> State:
    """The state at the beginning of `stage`: the last state, with the server that `stage.handover` makes, if any."""
    if stage.handover is None:
        return state
    start, _ = _enrol_all(stage.method, federation, settings.seed, executor, settings.upload_path, state.round)
    server = server_hooks.hand_over(stage, state.server, start)
    server = trees.tree_map(lambda t: t.to(federation.ids.device), server)
    return state._replace(server=server)


def add_newcomers(
    method: Method,
    state: State,
    federation: Clients,
    newcomers: int,
    seed: int,
    executor: Executor,
    upload_path: UploadPath = PLAIN,
) -> State:
    """Let the last `newcomers` clients of `federation` join a running federation."""
    n = federation.clients
    model = initial_model(method, federation, seed)
    enrolled = _enrol(method, model, federation, torch.arange(n - newcomers, n), seed, executor, upload_path)
    start = _start(model, enrolled, federation, seed)
    clients = _private_states(method, model, enrolled, newcomers)
    moments = optimizers.add_newcomers(state.optimizers, newcomers)
    server = server_hooks.admit(method, state.server, enrolled.upload, newcomers, start)
    return State(
        state.round,
        server,
        trees.concat([state.clients, clients]),
        optimizers.put(moments, torch.arange(n - newcomers, n, device=federation.ids.device), enrolled.optimizers, n),
    )


def _private_states(method: Method, model: Params, enrolled: StackedEnrolments, clients: int) -> Tree:
    """Private states [clients, ...] on joining."""
    with guard_call(method, "join", model=model):
        state = method.join(model)
    returned.check_tensors(f"{type(method).__name__}.join", state)
    states = trees.build_table(state, clients)
    return {**states, **enrolled.client} if enrolled.client else states


def _enrol(
    method: Method,
    model: Params,
    federation: Clients,
    positions: Tensor,
    seed: int,
    executor: Executor,
    upload_path: UploadPath,
    round: int = 0,
) -> StackedEnrolments:
    """Enrolments of the clients at `positions`; noise and forgeries are new in each stage, by its first `round`."""
    participants = cohort(federation, positions, method.training, method.enrolment_epochs, seed, ENROLMENT)

    def enrol_client(data: ClientData) -> Tree:
        with optimizers.optimizer_memory({} if method.training.keep_optimizer else None) as memory:
            enrolment = method.enrol(model, data)
        returned.check_tensors(f"{type(method).__name__}.enrol", enrolment)
        if not isinstance(enrolment, Enrolment):
            return enrolment, {}, {}
        return enrolment.upload, enrolment.client, memory.states if memory else {}

    with guard_call(method, "enrol", model=model, data=data_of(participants)):
        upload, client, states = executor.map(enrol_client, (), participants)
    senders = replace(participants, round=ENROLMENT - round)
    return StackedEnrolments(deliver_enrolment(upload, senders, seed, upload_path, method.public), client, states)
