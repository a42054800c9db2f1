"""The protocol every method follows, and what the engine knows of a method.

A method is a frozen dataclass of hyper-parameters whose hooks are pure: state in, state out. All state is nested
dictionaries of tensors. Only `enrol`, `client_update`, `personalize` and `predict` ever see data.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedweave.client import optimizers
from fedweave.client.data import ClientData
from fedweave.client.local_training import Fit, descend
from fedweave.client.solvers import Loss, Solver
from fedweave.client.task import Task
from fedweave.engine.guards import draws_and_names as guards
from fedweave.engine.own_settings import UNBOUND, NamedSettings
from fedweave.engine.schedule import Training
from fedweave.graphs.controls import GraphControl
from fedweave.settings import Setting, describe
from fedweave.tensors import trees
from fedweave.tensors.closures import VOLATILE
from fedweave.tensors.seeding import use_seed
from fedweave.tensors.trees import Params, Tree

Server = Tree
ClientState = Tree


class Start(NamedTuple):
    """What the server knows before round 0.

    Attributes:
        model: the one common initial model.
        enrolled: what every client uploaded on joining, stacked [N, ...].
        clients: N.
        seed: seed of the server's own initialisations.
        relation: [2, R] the given client graph, or None.
        ids: [N] the clients' identities; random draws depend on them, so that the order of clients has no influence.
    """

    model: Params
    enrolled: Tree
    clients: int
    seed: int
    relation: Tensor | None
    ids: Tensor


class Enrolment(NamedTuple):
    """The result of a client's enrolment, if its private state begins with it.

    Attributes:
        upload: what is sent to the server.
        client: entries of its private state, in place of those of `Method.join`; optimisers that it keeps continue too.
    """

    upload: Tree
    client: ClientState


class Update(NamedTuple):
    """The result of one client's round.

    Attributes:
        upload: what is sent to the server.
        client: the client's private state.
        model: the model as trained in this round (evaluation point "post"); stays on the client.
        loss: mean training loss.
    """

    upload: Tree
    client: ClientState
    model: Tree
    loss: Tensor


class Stage(NamedTuple):
    """Consecutive rounds of one method; `handover` makes its server state from that of the previous stage."""

    method: "Method"
    rounds: int
    handover: Callable[[Server, Start], Server] | None = None


@dataclass(frozen=True, kw_only=True)
class Method(NamedSettings, ABC):
    """A personalized federated learning method: its settings, and what it gets when a run is built.

    Attributes:
        task: what clients learn.
        solver: the clients' optimiser.
        training: batches and epochs of a round.
        control: what replaces the collaboration graph that the method learns, or None.
    """

    task: Task = field(default=UNBOUND, repr=False)
    solver: Solver = field(default=UNBOUND, repr=False)
    training: Training = field(default=UNBOUND, repr=False)
    control: GraphControl | None = field(default=None, repr=False, metadata=VOLATILE)

    label: ClassVar[str]
    # The evaluation point that its paper reports: "pre" = before, "post" = after local training of the round.
    point: ClassVar[Literal["pre", "post"]] = "post"
    fixed_point: ClassVar[bool] = False  # whether the other point would be another method: FedAvg-FT and FedAvg
    needs: ClassVar[frozenset[str]] = frozenset()  # task capabilities without which the method makes no sense
    embeds: ClassVar[bool] = False  # whether clients upload an "embedding" of their data, on joining or later
    # Whether the server takes a weighted mean of uploaded models, which a robust rule may replace.
    averages: ClassVar[bool] = False
    # The entry of an upload that holds what the client made of the model, which a robust rule acts on; "" if none does.
    robust_part: ClassVar[str] = "model"
    # Whether this server can take a step of an optimiser in place of the mean, as a run may ask for.
    server_steps: ClassVar[bool] = False
    # Whether one party trains on the rows of all clients. Such a method is a control: an upper bound, not federated.
    pools: ClassVar[bool] = False
    # Whether downloads are mixtures of models by the weights of a graph, so that one source can be left out.
    mixes: ClassVar[bool] = False
    # Whether it leaves models behind, which predict new rows.
    has_models: ClassVar[bool] = True
    # What the record of its run says besides its settings.
    record: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    # Entries of an upload that are parameters: privacy, attacks and defences measure them from what was sent.
    parameters: ClassVar[tuple[str, ...]] = ("model",)
    # Entries of an upload that follow from numbers of training rows, which are public: privacy adds no noise to them.
    public: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def init(self, start: Start) -> Server:
        """The server's state before round 0."""

    @abstractmethod
    def download(self, server: Server, ids: Tensor) -> tuple[Tree, Tree]:
        """Server to clients `ids` [P]: (one tree broadcast to all, a tree [P, ...] of their own)."""

    @abstractmethod
    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        """One client's local round; no client axis, deterministic."""

    @abstractmethod
    def aggregate(self, server: Server, ids: Tensor, uploads: Tree, weights: Tensor) -> Server:
        """The server's step on uploads [P, ...] of clients `ids` [P]; weights [P] are training set sizes."""

    @abstractmethod
    def personalize(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Tree:
        """The model a client would deploy now: any tree that `predict` understands."""

    def at(self, seed: int, round: int) -> Self:
        """The method in one round of one repetition; they matter only for a control of its graph."""
        return self if self.control is None else replace(self, control=self.control.at(seed, round))

    @classmethod
    def settings(cls) -> tuple[Setting, ...]:
        """What users may set: every field but those that the run sets."""
        return tuple(setting for setting in describe(cls) if setting.name not in Method.__dataclass_fields__)

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the buffers that stay with the client: all, or with `bn_buffers: average` those without a mean."""
        return self.task.integer_buffers if self.training.average_buffers else self.task.buffers

    @property
    def local_names(self) -> tuple[str, ...]:
        """Names of the model that never leave a client; by default the BatchNorm buffers."""
        return self.statistics

    @property
    def mixes_plainly(self) -> bool:
        """Whether the server takes a plain mean or mixture of models, or mixes nothing.

        Low-rank adapters can then be mixed by their products, and have different ranks.
        """
        return False

    def join(self, model: Params) -> ClientState:
        """A client's private state on joining, by default what it keeps of `model`, the common initial model."""
        return trees.select(model, self.local_names)

    @property
    def network(self) -> torch.nn.Module:
        """What clients train, without values; by default the task's model."""
        return self.task.template

    @property
    def epochs(self) -> int:
        """How many epochs of minibatches a round draws."""
        return self.training.epochs

    def enrol(self, model: Params, data: ClientData) -> Tree | Enrolment:
        """What a client uploads about itself on joining, alone or with what it keeps; by default nothing."""
        return {}

    def uploads_in(self, round: int) -> bool:
        """Whether clients upload anything in `round`, which privacy accounting counts; by default they do."""
        return True

    @property
    def enrolment_epochs(self) -> int:
        """Epochs of minibatches `enrol` trains for."""
        return 0

    def predict(self, model: Tree, data: ClientData, rows: Tensor) -> Tensor:
        """Outputs [B, ...] of a personalized model in evaluation mode."""
        return self.task.predict(model, data, rows)

    def sent(self, shared: Tree, own: Tree) -> tuple[Params, Params]:
        """The parameters in a download, by name: (those for all clients, each client's own [P, ...]).

        Uploads are measured from them. By default every tensor that is not nested in a part of the download.
        """
        tensors = [{n: value for n, value in tree.items() if isinstance(value, Tensor)} for tree in (shared, own)]
        return tensors[0], tensors[1]

    def acknowledge(self, client: ClientState, upload: Tree, sent: Tree) -> ClientState:
        """States [P, ...] of clients whose `upload` became `sent` under privacy; by default what they were."""
        return client

    def traffic(self, shared: Tree, own: Tree, uploads: Tree, participants: int) -> tuple[int, int]:
        """(bytes down, bytes up) of a round over all participants."""
        return participants * trees.nbytes(shared) + trees.nbytes(own), trees.nbytes(uploads)

    def admit(self, server: Server, enrolled: Tree, newcomers: int, start: Start) -> Server:
        """Grow per-client tables for `newcomers` whose enrolment is `enrolled`; `start` describes all clients."""
        return server

    def stages(self, rounds: int) -> list[Stage]:
        """The stages of a run, each with a method and a number of rounds; by default one."""
        return [Stage(self, rounds)]

    def collaboration(self, server: Server) -> Tensor | None:
        """Who learns from whom [L, N, N]: row = learner, column = source; None for methods without such a graph."""
        return None

    def mixture_model(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Tree:
        """The model whose loss shows the value of a client's mixture; by default the one that it would deploy."""
        return self.personalize(shared, own, client, data)

    def portrait(self, server: Server) -> Tensor | None:
        """The vectors [N, D] by which the server describes clients, drawn as a map; None for methods without any."""
        return None

    def diagnostics(self, server: Server) -> dict[str, Tensor]:
        """Scalars (0-d) that describe the server's progress, by name, logged next to the scores; by default none."""
        return {}

    @property
    def needs_validation(self) -> str:
        """What clients need validation rows for, and what to do without them; empty by default: they need none."""
        return ""

    @property
    def leaks(self) -> bool:
        """Whether training reads test rows, by default not. Such results carry a label and enter no comparison."""
        return False

    def descend(
        self,
        model: Params,
        data: ClientData,
        names: tuple[str, ...] | None = None,
        *,
        loss: Loss | None = None,
        epochs: slice | None = None,
        solver: Solver | None = None,
        state: Tree | None = None,
        phase: str | None = None,
    ) -> Fit:
        """Train `names` (default: every parameter) of `model` on the client's plan with the method's solver.

        Args:
            loss, epochs: by default the task's objective on `data`, and the first `training.epochs` of the plan.
            solver, state: another optimiser, and its state to continue from.
            phase: name of the optimiser to continue with, if clients keep their optimisers. By default the first call
                of a round has the first one, the second call the second one. A kept state is used instead of `state`.
        """
        name, solver = type(self).__name__, solver or self.solver
        plan = guards.planned_epochs(name, slice(0, self.training.epochs) if epochs is None else epochs, data.plan)
        names = self.task.params if names is None else guards.trainable_names(name, names, model)
        memory = optimizers.current_memory()
        if memory is not None:
            phase, state = memory.recall(phase, solver, trees.select(model, names), state)
        fit = descend(loss or self.task.objective(data), model, plan, solver, data.key, names, state, data.padded)
        if memory is not None and phase is not None:
            memory.states[phase] = solver.keep(fit.state)
        return fit

    def split_update(self, fit: Fit, **extra: Tree) -> Update:
        """The update of a client that uploads the trained model, and `extra`, and keeps the tensors `local_names`."""
        upload = {"model": trees.omit(fit.model, self.local_names), **extra}
        return Update(upload, trees.select(fit.model, self.local_names), fit.model, fit.loss)


def init_parameters(build: Callable[[], torch.nn.Module], seed: int, dtype: torch.dtype) -> Params:
    """Parameters of a freshly built server-side module, a function of `seed`."""
    with use_seed(seed):
        module = build().to(dtype)
    return {name: value.detach().clone() for name, value in module.named_parameters()}
