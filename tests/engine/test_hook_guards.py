"""A hook that writes into what it was given, reads what is not there or returns what does not fit gets one line."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.solvers import SGD
from fedweave.engine.executors import Batched, Executor, Loop, Processes
from fedweave.engine.guards.hook_calls import compare_values, guard_call
from fedweave.engine.protocol import Method
from fedweave.errors import BadInput
from fedweave.families import ClientModels, GeneratedModels, GlobalModel, SplitClient
from fedweave.methods import METHODS
from fedweave.tensors import trees
from fedweave.testing import check_method, method_checks
from tests.engine.test_guards import assert_refused, hooked, run_rounds, variant

COPY = "write into a copy, x.clone(), or use an operation that returns a new tensor, such as x + y in place of x += y"
EXECUTORS = pytest.mark.parametrize("executor", [Loop(), Batched(), Batched(2), Processes(2)], ids=repr)


def put_model(self: Any, server: Any, ids: Tensor, uploads: Any, weights: Tensor) -> Any:
    """Puts a new model into the given dictionary."""
    server.update(GlobalModel.aggregate(self, server, ids, uploads, weights))
    return server


def put_tensor(self: Any, server: Any, ids: Tensor, uploads: Any, weights: Tensor) -> Any:
    """Puts a new tensor into a dictionary in the dictionary."""
    mean = trees.weighted_mean(uploads["model"], weights)
    server["model"]["fc1.weight"] = mean["fc1.weight"]
    return dict(server)


def write_tensors(self: Any, server: Any, ids: Tensor, uploads: Any, weights: Tensor) -> Any:
    """Writes into the tensors."""
    for name, value in trees.weighted_mean(uploads["model"], weights).items():
        server["model"][name].copy_(value)
    return {**server}


def add_entry(self: Any, server: Any, ids: Tensor, uploads: Any, weights: Tensor) -> Any:
    """Adds an entry."""
    server["rounds"] = torch.ones(())
    return GlobalModel.aggregate(self, server, ids, uploads, weights)


def remove_entry(self: Any, server: Any, ids: Tensor, uploads: Any, weights: Tensor) -> Any:
    """Removes an entry."""
    server["model"].pop("fc1.bias")
    return {"model": trees.weighted_mean(uploads["model"], weights)}


def replace_part(self: Any, server: Any, ids: Tensor, uploads: Any, weights: Tensor) -> Any:
    """Puts a tensor in the place of a dictionary."""
    made = GlobalModel.aggregate(self, dict(server), ids, uploads, weights)
    server["model"] = torch.ones(())
    return made


NEW = "return a new dictionary with new tensors"


@pytest.mark.parametrize(
    ("aggregate", "change", "remedy"),
    [
        (put_model, "replaces server.model.fc1.weight", NEW),
        (put_tensor, "replaces server.model.fc1.weight", NEW),
        (add_entry, "adds server.rounds to a dictionary", NEW),
        (remove_entry, "removes server.model.fc1.bias from a dictionary", NEW),
        (replace_part, "adds server.model to a dictionary", NEW),
        (write_tensors, "writes into server.model.fc1.weight", COPY),
    ],
)
def test_a_changed_state_is_refused(aggregate: Callable[..., Any], change: str, remedy: str) -> None:
    """Downloads are made once for the same state."""
    assert_refused(variant(aggregate=aggregate), f"Mine.aggregate, or a function that it calls, {change}", remedy)


def test_an_unchanged_state_is_accepted() -> None:
    """A server that learns nothing is not an error."""
    assert len(run_rounds(variant(aggregate=lambda self, server, ids, uploads, weights: server))) == 2


def counting(**hooks: Any) -> type[Method]:
    """A method whose clients keep a number, which it adds to the model it deploys."""

    def client_update(self: Any, shared: Any, own: Any, client: Any, data: ClientData) -> Any:
        fit = self.descend({**shared}, data)
        return self.split_update(fit)._replace(client=client)

    def personalize(self: Any, shared: Any, own: Any, client: Any, data: ClientData) -> Any:
        return {name: value + client["trust"].sum() for name, value in shared.items()}

    join = lambda self, model: {"trust": torch.zeros(3, dtype=torch.float64)}  # noqa: E731
    return variant(**{"client_update": client_update, "personalize": personalize, "join": join, **hooks})


def write_and_call(hook: str, index: int, write: Callable[[Any], Any]) -> type[Method]:
    """`counting` with a hook that writes into one of its arguments first."""
    original = getattr(counting(), hook)

    def writing(self: Any, *arguments: Any) -> Any:
        write(arguments[index])
        return original(self, *arguments)

    return counting(**{hook: writing})


CLIENT_WRITES = [
    ("personalize", 2, lambda client: client["trust"].add_(1), "client.trust"),
    ("personalize", 0, lambda shared: shared["fc1.weight"].mul_(2), "shared.fc1.weight"),
    ("personalize", 3, lambda data: data.arrays["x"].mul_(2), "data.arrays.x"),
    ("client_update", 2, lambda client: client["trust"][0].fill_(5), "client.trust"),
    ("client_update", 0, lambda shared: shared["fc1.weight"].mul_(2), "shared.fc1.weight"),
    ("client_update", 3, lambda data: data.arrays["y"].fill_(1), "data.arrays.y"),
    ("predict", 0, lambda model: model["fc1.weight"].mul_(2), "model.fc1.weight"),
    ("predict", 1, lambda data: data.arrays["x"].mul_(2), "data.arrays.x"),
    ("enrol", 0, lambda model: model["fc1.weight"].mul_(2), "model.fc1.weight"),
    ("enrol", 1, lambda data: data.arrays["x"].mul_(2), "data.arrays.x"),
]
SERVER_WRITES = [
    ("init", 0, lambda start: start.model["fc1.weight"].mul_(2), "start.model.fc1.weight"),
    ("join", 0, lambda model: model["fc1.weight"].mul_(2), "model.fc1.weight"),
    ("download", 0, lambda server: server["model"]["fc1.weight"].mul_(2), "server.model.fc1.weight"),
    ("merge", 0, lambda old: old["fc1.weight"].mul_(2), "old.fc1.weight"),
    ("aggregate", 2, lambda uploads: uploads["model"]["fc1.weight"].mul_(2), "uploads.model.fc1.weight"),
    ("aggregate", 3, lambda weights: weights.div_(weights.sum()), "weights"),
    ("collaboration", 0, lambda server: server["model"]["fc1.weight"].mul_(2), "server.model.fc1.weight"),
    ("portrait", 0, lambda server: server["model"]["fc1.weight"].mul_(2), "server.model.fc1.weight"),
    ("diagnostics", 0, lambda server: server["model"]["fc1.weight"].mul_(2), "server.model.fc1.weight"),
]


@EXECUTORS
@pytest.mark.parametrize(("hook", "index", "write", "entry"), CLIENT_WRITES)
def test_hooks_of_clients_do_not_write(
    hook: str, index: int, write: Callable[[Any], Any], entry: str, executor: Executor
) -> None:
    """What they were given belongs to all clients, or to the next round; every executor refuses the write."""
    words = f"Mine.{hook}, or a function that it calls, writes into {entry}, which is used after the call; {COPY}"
    assert_refused(write_and_call(hook, index, write), words, executor=executor)


@pytest.mark.parametrize(("hook", "index", "write", "entry"), SERVER_WRITES)
def test_hooks_of_the_server_do_not_write(hook: str, index: int, write: Callable[[Any], Any], entry: str) -> None:
    """The state before a round is used after it."""
    words = f"Mine.{hook}, or a function that it calls, writes into {entry}, which is used after the call; {COPY}"
    assert_refused(write_and_call(hook, index, write), words)


@EXECUTORS
def test_a_write_of_a_sampled_client_is_refused(executor: Executor) -> None:
    """Its state is a copy of a part of the table, so that the same method would be refused in another round."""
    cls = write_and_call("client_update", 2, lambda client: client["trust"].add_(1))
    with pytest.raises(BadInput, match=r"Mine\.client_update, .* writes into client\.trust"):
        run_rounds(cls, executor, rounds=1, participation=2)


def test_a_write_into_a_model_of_all_clients_is_refused() -> None:
    """Stacked models that are equal are one tensor, which PyTorch does not write to."""

    def predict(self: Any, model: Any, data: ClientData, rows: Tensor) -> Tensor:
        model["fc1.weight"].mul_(2)
        return self.task.predict(model, data, rows)

    cls = counting(personalize=lambda self, shared, own, client, data: {**shared}, predict=predict)
    assert_refused(cls, "Mine.predict, or a function that it calls, writes into a tensor: ", COPY, executor=Batched())


@pytest.mark.parametrize("executor", [Batched(), Batched(2)], ids=repr)
def test_a_write_of_many_clients_into_one_tensor_is_refused(executor: Executor) -> None:
    """PyTorch refuses it, because the tensor has no room for several clients."""

    def personalize(self: Any, shared: Any, own: Any, client: Any, data: ClientData) -> Any:
        shared["fc1.bias"].add_(client["trust"].sum())
        return {**shared}

    words = "Mine.personalize, or a function that it calls, writes into a tensor: "
    assert_refused(counting(personalize=personalize), words, COPY, executor=executor)


def test_new_tensors_are_accepted() -> None:
    """A write into a copy is not a write into the state."""

    def personalize(self: Any, shared: Any, own: Any, client: Any, data: ClientData) -> Any:
        client["trust"] = client["trust"].clone().add_(1)
        return {name: value.clone().mul_(2) for name, value in shared.items()}

    for executor in (Loop(), Batched(), Processes(2)):
        assert len(run_rounds(counting(personalize=personalize), executor)) == 2


def test_weights_do_not_write() -> None:
    """The line names the hook of the family, and not the one that calls it."""

    def weights(self: Any, server: Any, ids: Tensor) -> Tensor:
        server["models"]["fc1.weight"].mul_(2)
        return torch.full((2, len(ids), 5), 0.2, dtype=torch.float64)

    assert_refused(hooked(SplitClient, ClientModels, weights=weights), "Mine.weights, or", "server.models.fc1.weight")


def test_generated_models_do_not_write() -> None:
    """Neither into φ nor into the fixed state."""

    def generate(self: Any, phi: Any, fixed: Any, ids: Tensor) -> Any:
        fixed["count"].add_(1)
        return {name: value.expand(len(ids), *value.shape) for name, value in phi.items()}

    cls = hooked(
        SplitClient,
        GeneratedModels,
        server_solver=property(lambda self: SGD(lr=1.0)),
        begin=lambda self, start: (start.model, {"count": torch.zeros(())}),
        generate=generate,
    )
    assert_refused(cls, "Mine.generate, or a function that it calls, writes into fixed.count, which is used after")


def kept(self: Any, shared: Any, own: Any, client: Any, data: ClientData) -> Any:
    """A round that reads the state of the client."""
    update = self.split_update(self.descend({**shared}, data))
    return update._replace(client={"trust": client["trust"] + 1})


def without_model(self: Any, shared: Any, own: Any, client: Any, data: ClientData) -> Any:
    """A round without upload."""
    return self.split_update(self.descend({**shared}, data))._replace(upload={})


@EXECUTORS
def test_a_missing_entry_is_named(executor: Executor) -> None:
    """With the entries that there are, and the line of the user's file that reads it."""
    words = "Mine.client_update, or a function that it calls (test_hook_guards.py, line "
    entries = "reads the entry 'trust', which is not there; it was given shared: fc1.weight, fc1.bias, fc.weight, fc."
    assert_refused(variant(client_update=kept), entries, "; client: nothing", executor=executor)
    assert_refused(hooked(SplitClient, GlobalModel, client_update=kept, __module__=__name__), words, executor=executor)
    words = "Mine.aggregate, or a function that it calls, reads the entry 'model', which is not there; it was given"
    assert_refused(variant(client_update=without_model), words, executor=executor)


def test_a_missing_row_is_named() -> None:
    """With the line of the user's file. Ids of clients that joined later have no row in a table that did not grow."""
    cls = hooked(
        SplitClient,
        GeneratedModels,
        server_solver=property(lambda self: SGD(lr=1.0)),
        begin=lambda self, start: (trees.broadcast(start.model, start.clients), {}),
        generate=lambda self, phi, fixed, ids: {name: value[ids] for name, value in phi.items()},
        __module__=__name__,
    )
    words = r"Mine.generate, .* \(test_hook_guards.py, line \d+\), reads a row that is not there: .*; .*add_rows"
    with pytest.raises(BadInput, match=words):
        run_rounds(cls, newcomers=2, join_round=1)


def test_an_error_without_text_is_named() -> None:
    """By its type: no line of its text is looked for."""

    def refuse(self: Any, *arguments: Any) -> Any:
        raise IndexError

    words = "reads a row that is not there: IndexError; a table of clients"
    cls = hooked(SplitClient, GlobalModel, aggregate=refuse, __module__=__name__)
    assert_refused(cls, words)


def test_an_error_of_fedweave_is_no_missing_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A built-in method with a missing entry is a defect, which needs its traceback."""
    monkeypatch.setattr(METHODS["fedavg"], "client_update", kept)
    with pytest.raises(KeyError, match="trust"):
        run_rounds(METHODS["fedavg"])


def aggregated(change: Callable[[Any], Any]) -> type[Method]:
    """FedAvg, whose server changes its new state."""
    return variant(aggregate=lambda self, *arguments: change(GlobalModel.aggregate(self, *arguments)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda server: {**server, "round": torch.ones(())}, "round is new; keep the names and shapes of Mine.init"),
        (lambda server: {"model": without(server["model"], "fc.bias")}, "model.fc.bias is missing; keep the names"),
        (
            lambda server: {"model": {n: v[:1] for n, v in server["model"].items()}},
            "model.fc1.weight is [1, 6], and should be [5, 6]; keep",
        ),
        (lambda server: {**server, "model": None}, "Mine.aggregate: model is a NoneType; give a tensor"),
        (lambda server: None, "Mine.aggregate: returned a NoneType; return a dictionary of tensors"),
    ],
)
def test_a_server_keeps_the_form_of_its_state(change: Callable[[Any], Any], words: str) -> None:
    """In all rounds: a checkpoint, and tables that newcomers enlarge, need it. The order of entries is free."""
    assert_refused(aggregated(change), "Mine.aggregate: ", words)
    assert run_rounds(aggregated(lambda server: {"model": dict(reversed(server["model"].items()))}))


def without(tree: Any, name: str) -> Any:
    """`tree` without an entry."""
    return {key: value for key, value in tree.items() if key != name}


@pytest.mark.parametrize(
    ("generate", "words"),
    [
        (
            lambda phi, ids: phi,
            "fc1.weight is [5, 5, 6], and should be [2, 5, 6]; return every parameter of self.generated_shapes",
        ),
        (lambda phi, ids: {n: v[0] for n, v in phi.items()}, "fc1.weight is [5, 6], and should be [2, 5, 6]"),
        (lambda phi, ids: {n: v[ids][..., :1] for n, v in phi.items()}, "fc1.weight is [2, 5, 1], and should be [2, 5"),
        (
            lambda phi, ids: without({n: v[ids] for n, v in phi.items()}, "fc.bias"),
            "fc.bias is missing; return every param",
        ),
        (lambda phi, ids: None, "returned a NoneType; return a dictionary of tensors"),
        (lambda phi, ids: phi["fc.bias"], "returned a Tensor; return a dictionary of tensors"),
    ],
)
def test_generated_models_are_those_of_the_asked_clients(generate: Callable[..., Any], words: str) -> None:
    """Each parameter with a row for each client."""
    cls = hooked(
        SplitClient,
        GeneratedModels,
        server_solver=property(lambda self: SGD(lr=1.0)),
        begin=lambda self, start: (trees.broadcast(start.model, start.clients), {}),
        generate=lambda self, phi, fixed, ids: generate(phi, ids),
    )
    assert_refused(cls, f"Mine.generate: {words}", rounds=1, participation=2)


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ({"download": lambda self, server, ids: server["model"]}, "Mine.download: returned a dict; return two dict"),
        (
            {"download": lambda self, server, ids: (server["model"], {"a": ids[:1]})},
            "Mine.download: a is [1], and should be [5]; return a row for each client",
        ),
        ({"download": lambda self, server, ids: (server["model"], {"a": 1.0})}, "Mine.download: a is a float; give"),
        ({"enrol": lambda self, model, data: {"a": 1.0}}, "Mine.enrol: a is a float; give a tensor"),
        ({"enrol": lambda self, model, data: None}, "Mine.enrol: returned a NoneType; return a dictionary"),
    ],
)
@EXECUTORS
def test_downloads_and_enrolments_have_their_form(hooks: dict[str, Any], words: str, executor: Executor) -> None:
    """Before a client reads them."""
    assert_refused(variant(**hooks), words, executor=executor)


@EXECUTORS
def test_a_personalized_model_is_a_dictionary(executor: Executor) -> None:
    """Also where local training does not use it."""
    words = "Mine.personalize: returned a NoneType; return a dictionary of tensors"
    assert_refused(counting(personalize=lambda self, *arguments: None), words, executor=executor)


def test_values_are_compared_on_demand() -> None:
    """A write by NumPy has no counter; NaN is not a difference."""
    state = {"a": torch.tensor([1.0, torch.nan]), "b": torch.zeros(2, dtype=torch.int64), "c": torch.ones(1) > 0}
    method = object()
    with guard_call(method, "hook", state=state):
        state["b"].numpy()[0] += 1
    with compare_values(), guard_call(method, "hook", state=state):
        pass
    for write in (lambda: np.add(state["a"].numpy(), 1, out=state["a"].numpy()), lambda: state["b"].data.add_(1)):
        with (
            pytest.raises(BadInput, match=r"object\.hook, .* writes into state\.[ab], which"),
            compare_values(),
            guard_call(method, "hook", state=state),
        ):
            write()


@pytest.mark.parametrize(
    "write",
    [
        lambda trust: trust.add_(1),
        lambda trust: trust.data.add_(1),
        lambda trust: np.add(trust.numpy(), 1, out=trust.numpy()),
    ],
)
def test_the_checks_of_methods_name_a_write(write: Callable[[Any], Any]) -> None:
    """They compare values too, and say nothing of tensors that are not close."""
    cls = write_and_call("personalize", 2, lambda client: write(client["trust"]))
    words = "Mine on rows: Mine.personalize, or a function that it calls, writes into client.trust, which is used after"
    with pytest.raises(AssertionError, match=words):
        check_method(cls)
    checks = {check.__name__: check for check in method_checks(cls)}
    for promise in ("executors_agree", "resumed_equals_uninterrupted", "training_ignores_test_rows"):
        with pytest.raises(AssertionError, match=words):
            checks[f"Mine-rows-{promise}"]()
