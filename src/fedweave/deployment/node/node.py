"""What a node does with a message: the client's hooks of the method, on its own rows and its own state."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedweave.client import optimizers
from fedweave.client.controls import control_outputs
from fedweave.deployment.node import client_data
from fedweave.deployment.stored_states import MODEL, StoredStates
from fedweave.deployment.wire import tensors
from fedweave.deployment.wire.messages import Reply, Request
from fedweave.deployment.wire.spec import AppSpec
from fedweave.engine import engine, evaluation
from fedweave.engine.clients import Clients
from fedweave.engine.executors import Loop, choose_device, set_precision
from fedweave.engine.protocol import Method
from fedweave.engine.records import State
from fedweave.engine.schedule import cohort, evaluation_cohort
from fedweave.engine.start import admission, initial_model
from fedweave.engine.uploads import deliver_enrolment, finite_rows, protect_uploads, reference
from fedweave.errors import BadInput, choose, relocate
from fedweave.files.atomic import save_tensors
from fedweave.tensors import trees
from fedweave.tensors.trees import Tree

DEVICES = ("cpu", "cuda", "auto")
ONLY_CLIENT = torch.zeros(1, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Node:
    """One client on its own host.

    Attributes:
        spec: of the federation.
        federation: the client's data, on the device of the training.
        store: its private state, on the CPU, as is everything that leaves the node.
        device: of the training.
    """

    spec: AppSpec
    federation: Clients
    store: StoredStates
    device: str = "cpu"

    def answer(self, request: Request) -> Reply:
        """The reply to a request.

        Raises:
            BadInput: the request does not fit the specification, or the state cannot be read.
            UndeclaredTensor: the reply would hold a tensor that the specification does not declare.
        """
        kinds = {"who": self._identify, "enrol": self._enrol, "train": self._train, "finish": self._finish}
        if request.kind not in kinds:
            raise BadInput("message", f"{request.kind!r} is unknown; it is one of {', '.join(kinds)}")
        return kinds[request.kind](request)

    def _identify(self, request: Request) -> Reply:
        """Who this is."""
        del request
        return Reply(self.facts)

    def _enrol(self, request: Request) -> Reply:
        """Who this is, and what the method uploads on joining; the first private state is stored."""
        version, stage = int(request.config["round"]), int(request.config["stage"])
        method = self.spec.timeline.stages[stage].method
        start, clients, states = admission(method, self.federation, self.spec.seed, Loop())
        enrolled = to_device(start.enrolled, "cpu")
        senders = evaluation_cohort(self.federation.to("cpu"), self.spec.seed, 0, testing=False)
        path = self.spec.settings.upload_path
        # The noise is new every time, see `_fit`.
        sent = deliver_enrolment(enrolled, senders, secrets.randbits(62), path, method.public)
        upload = tensors.flatten(trees.at(sent, 0))
        tensors.check(tensors.form_of(upload), self.spec.enrolment_form(stage), "enrolment")
        if request.config["joins"] and self.store.load_newest(version) is None:
            self.store.save(version, to_device({"clients": clients, "optimizers": states}, "cpu"))
        return Reply({**self.facts, **self._controls()}, upload)

    def _train(self, request: Request) -> Reply:
        config, round = request.config, int(request.config["round"])
        stage, _ = self.spec.timeline.stage(min(round, self.spec.timeline.rounds - 1))
        private = self.store.load_newest(round) or self._initial_state()
        private = to_device(private, self.device)
        state = State(round, {}, private["clients"], private["optimizers"])
        shared = to_device(tensors.unflatten(request.shared), self.device)
        own = self._to_stacked_tree(request.own)
        numbers: dict[str, Any] = dict(self.facts)
        if config["evaluate"]:
            evaluated_own = self._to_stacked_tree(request.evaluated) if config["apart"] else own
            last_method = self.spec.timeline.stage(round - 1)[0].method
            numbers |= self._evaluate(last_method, state, shared, evaluated_own)
        upload: dict[str, torch.Tensor] = {}
        if config["train"]:
            numbers |= {"loss": 0.0, "sound": False}
            fit_numbers, upload = self._fit(stage.method, state, (shared, own), bool(config["takes_part"]))
            numbers |= fit_numbers
        self._remove_old_files(config)
        return Reply(numbers, upload)

    def _fit(
        self, method: Method, state: State, downloads: tuple[Tree, Tree], takes_part: bool
    ) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Local training of one round: (numbers, upload). A client that does not take part only stores the model."""
        round, epochs = state.round, method.epochs
        participants = cohort(
            self.federation, ONLY_CLIENT, method.training, epochs, self.spec.seed, round, method.leaks
        )
        trained = engine.train(method, state, participants, Loop(), lambda *_: downloads)  # type: ignore[arg-type]
        updates = to_device(trained.updates, "cpu")
        self.store.save(round + 1, updates.model, "post")
        if not takes_part:
            return {}, {}

        def base() -> Tree:
            initial = lambda: initial_model(method, self.federation, self.spec.seed)  # noqa: E731
            return to_device(reference(method, trained.updates.upload, trained.shared, trained.own, initial), "cpu")

        # The noise is new every time: the server could subtract noise that it can predict or that it has seen before.
        privacy = self.spec.settings.upload_path.privacy
        sent = protect_uploads(updates.upload, base, participants, secrets.randbits(62), privacy, method.public)
        client_state = method.acknowledge(updates.client, updates.upload, sent) if privacy else updates.client
        sound = finite_rows((sent, updates.loss, client_state)) is None
        loss = float(updates.loss[0])
        if not sound:
            return {"loss": loss, "sound": False}, {}
        optimizer_states = to_device(optimizers.put(state.optimizers, ONLY_CLIENT, trained.optimizers, 1), "cpu")
        clients = trees.put(to_device(state.clients, "cpu"), ONLY_CLIENT, client_state)
        upload = tensors.flatten(trees.at(sent, 0))
        tensors.check(tensors.form_of(upload), self.spec.upload_form(round), f"upload of round {round + 1}")
        self.store.save(round + 1, {"clients": clients, "optimizers": optimizer_states})
        return {"loss": loss, "sound": True}, upload

    def _evaluate(self, method: Method, state: State, shared: Tree, own: Tree) -> dict[str, float]:
        """Scores after a round: of the model as it is now, and of the one after local training."""
        post = self.store.load(state.round, "post")
        post = None if post is None else to_device(post, self.device)
        settings = self.spec.settings
        scores, models = evaluation.evaluate(
            method,
            state,
            self.federation,
            settings,
            Loop(),
            post,
            lambda *_: (shared, own),  # type: ignore[arg-type]
        )
        self.store.save(state.round, to_device(models, "cpu"), "evaluated")
        return {f"{point}/{part}": float(v[0]) for point, parts in scores.items() for part, v in parts.items()}

    def _to_stacked_tree(self, flat: Mapping[str, torch.Tensor]) -> Tree:
        """This client's part of a message as a stacked tree [1, ...], on the device of the training."""
        return trees.tree_map(lambda t: t[None].to(self.device), tensors.unflatten(flat))

    def _finish(self, request: Request) -> Reply:
        """Keep the model of the chosen round as model.pt, which stays on this node."""
        chosen, point = int(request.config["round"]), str(request.config["point"])
        models = self.store.load(chosen, "evaluated")
        if models is not None:
            content = {"round": chosen, "point": point, "model": trees.at(models.get(point, models["pre"]), 0)}
            save_tensors(self.store.folder / MODEL, content)
        return Reply({**self.facts, "kept": models is not None})

    def _initial_state(self) -> dict[str, Tree]:
        """The first private state of a client: the node has none yet, or has lost its disk."""
        _, clients, states = admission(self.spec.timeline.stages[0].method, self.federation, self.spec.seed, Loop())
        return {"clients": clients, "optimizers": states}

    def _remove_old_files(self, config: Mapping[str, Any]) -> None:
        """Remove files that are not needed any more, even if the server goes back to its checkpoint."""
        self.store.remove_older("state", int(config["checkpoint"]))
        self.store.remove_older("post", int(config["checkpoint"]))
        self.store.remove_older("evaluated", int(config["checkpoint"]), int(config["chosen"]))

    @property
    def facts(self) -> dict[str, Any]:
        """The client's identity and its numbers of rows."""
        rows = {f"rows/{part}": int((getattr(self.federation, part) >= 0).sum()) for part in ("train", "val", "test")}
        return {"client": int(self.federation.ids[0]), **rows}

    def _controls(self) -> dict[str, float]:
        """Scores of rules without a model, on the test rows, for the results board."""
        task, data = self.spec.task, evaluation_cohort(self.federation, 0, 0).client_data(0)
        rows = data.test[data.test >= 0]
        if task.scoring is not None or not len(rows):
            return {}
        outputs = control_outputs(task, data, rows)
        return {
            f"control/{name}": float(task.score(out, data, rows, shared_test=True)) for name, out in outputs.items()
        }


def open_node(spec: AppSpec, data: Path, state: Path, device: str = "cpu") -> Node:
    """The node with the data in the file `data` and the state below the folder `state`, which trains on `device`.

    Raises:
        BadInput: the file is no client's of this federation, or there is no such device here.
    """
    device_name, file = device_of(device), client_data.read(data)
    set_precision(device_name, spec.run.train.precision == "tf32")
    store = StoredStates(state / spec.short_hash / str(file.client), spec.hash)
    store.prepare()
    return Node(spec, client_data.build_federation(file, spec).to(device_name), store, device_name)


def device_of(name: str) -> str:
    """The device called `name`; "auto" is a GPU where there is one.

    Raises:
        BadInput: an unknown name, or "cuda" without a GPU.
    """
    choose(name, DEVICES, "device")
    with relocate({"train.device": "device"}):
        return choose_device(name)


def to_device(tree: Tree, device: str) -> Tree:
    """The tree on `device`."""
    return trees.tree_map(lambda t: t.to(device), tree)
