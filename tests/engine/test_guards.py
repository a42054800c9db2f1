"""An error of a user's method that raises no exception of its own: one line names the class and the way out."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor
from torch.nn import functional as F

import fedweave as fw
from fedweave.client.data import ClientData
from fedweave.client.solvers import SGD
from fedweave.client.task import RowClassification
from fedweave.engine.engine import run
from fedweave.engine.executors import Batched, Executor, Loop
from fedweave.engine.guards import draws_and_names
from fedweave.engine.protocol import Method
from fedweave.engine.records import Report, Settings
from fedweave.engine.schedule import Training
from fedweave.errors import BadInput
from fedweave.families import ClientModels, GeneratedModels, GlobalModel, SplitClient
from fedweave.families.mixtures import LearnedMixtures
from fedweave.methods import METHODS
from fedweave.models.mlp import MLP
from fedweave.runs import build
from fedweave.tensors import trees
from fedweave.testing import check_method
from tests.runs.test_diagnostics import prepare_run


@dataclass(frozen=True, kw_only=True)
class Mine(SplitClient, GlobalModel):
    """FedAvg-FT."""

    label = "Mine"


def run_rounds(
    cls: type[Method], executor: Executor | None = None, task: Any = None, rounds: int = 2, **settings: Any
) -> list[Report]:
    """A run on the toy of vectors."""
    training = {"solver": SGD(lr=0.1), "training": Training(batch_size=4, epochs=1)}
    method = cls(task=task or tiny.rows_task(), **training)
    return [*run(method, tiny.rows_federation(), Settings(rounds=rounds, **settings), executor or Loop())]


def assert_refused(cls: type[Method], *words: str, **how: Any) -> None:
    """A run of `cls` ends with one line that contains `words`."""
    with pytest.raises(BadInput) as caught:
        run_rounds(cls, **how)
    assert not [word for word in words if word not in str(caught.value)], str(caught.value)


def hooked(*bases: type, **hooks: Any) -> type[Any]:
    """A method `Mine` of some families."""
    return dataclass(frozen=True, kw_only=True)(type("Mine", bases, {"label": "Mine", **hooks}))


def variant(**hooks: Any) -> type[Any]:
    """`Mine` with other hooks."""
    return hooked(Mine, **hooks)


def training_method(*names: Any, **options: Any) -> type[Method]:
    """`Mine` with other arguments of `descend`."""
    return variant(fit=lambda self, model, received, data: self.descend(model, data, *names, **options))


def test_unknown_names_are_not_trained() -> None:
    """The same holds for a text and for no names."""
    unknown = "Mine: descend: 'fc1.weigth' is not a parameter of the model; did you mean 'fc1.weight'?"
    for executor in (Loop(), Batched()):
        assert_refused(training_method(("fc1.bias", "fc1.weigth")), unknown, "self.task.params", executor=executor)
    assert_refused(training_method("head"), "Mine: descend: 'head' is not a tuple of names", "self.task.head")
    assert_refused(training_method(()), "Mine: descend: there are no parameters to train")


def test_epochs_that_a_round_does_not_draw_are_refused() -> None:
    """They would train nothing."""
    for executor in (Loop(), Batched()):
        words = "Mine: descend: epochs 1 to 5, but a round draws 1; return more from Mine.epochs"
        assert_refused(training_method(epochs=slice(1, 5)), words, executor=executor)
    tuned = variant(
        personalize=lambda self, shared, own, client, data: self.descend({**shared, **client}, data).model,
        client_update=lambda self, shared, own, client, data: self.split_update(
            self.descend({**shared, **client}, data)
        ),
    )
    assert_refused(tuned, "Mine: descend: epochs 0 to 1, but a round draws 0; train in client_update", "fine_tune")
    assert len(run_rounds(training_method(epochs=slice(0, None)))) == 2
    assert_refused(training_method(epochs=3), "Mine: descend: epochs 3 is not a slice; for example slice(0, 1)")


@pytest.mark.parametrize(
    ("result", "words"),
    [(None, "Mine.fit: returned a NoneType; return what self.descend returns"), ({}, "Mine.fit: returned a dict")],
)
def test_local_training_must_return_a_fit(result: Any, words: str) -> None:
    """A fit is the result of `descend`, and not the model alone."""
    assert_refused(variant(fit=lambda self, model, received, data: result), words)


@pytest.mark.parametrize("executor", [Loop(), Batched(), Batched(kernel=True)])
@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda value, buffers: value, "descend: the loss returned a tensor [] alone; return (the mean over the rows"),
        (lambda value, buffers: (value[None], buffers), "descend: the loss returned a tensor [1]; return (the mean"),
        (lambda value, buffers: (2.0, buffers), "descend: the loss returned a float; return"),
        (lambda value, buffers: (value, None), "the buffers by name), as self.task.objective(data) does"),
        (lambda value, buffers: (value.detach(), buffers), "descend: the loss has no gradient, so that nothing is tr"),
    ],
)
def test_a_loss_must_return_a_scalar_and_buffers(result: Callable[..., Any], words: str, executor: Executor) -> None:
    """All executors refuse other results."""

    def fit(self: Any, model: Any, received: Any, data: Any) -> Any:
        objective = self.task.objective(data)
        return self.descend(model, data, loss=lambda *arguments: result(*objective(*arguments)))

    assert_refused(variant(fit=fit), words, executor=executor)


def without_first(mean: Any) -> Any:
    """A model without one of its tensors."""
    return dict([*mean.items()][1:])


@pytest.mark.parametrize(
    ("merge", "words"),
    [
        (lambda mean: None, "returned a NoneType; return the tensors of the new model by name"),
        (without_first, "fc1.weight is missing; keep names, shapes and types of old"),
        (lambda mean: {**mean, "more": torch.ones(1)}, "more is new; keep names"),
        (
            lambda mean: {n: v[None] for n, v in mean.items()},
            "fc1.weight is [1, 5, 6] of torch.float64, and should be [5",
        ),
        (lambda mean: {n: v.half() for n, v in mean.items()}, "fc1.weight is [5, 6] of torch.float16, and should be"),
        (lambda mean: {n: v.numpy() for n, v in mean.items()}, "fc1.weight is a ndarray, and should be"),
    ],
)
def test_a_merged_model_must_have_the_form_of_the_old_one(merge: Callable[..., Any], words: str) -> None:
    """The same names, shapes and types."""
    assert_refused(variant(merge=lambda self, old, mean: merge(mean)), "Mine.merge: " + words)


@pytest.mark.parametrize(
    ("weights", "given"),
    [
        (None, "a NoneType"),
        (np.ones((2, 5, 5)), "a ndarray"),
        (torch.ones(5, 5, dtype=torch.float64), "[5, 5] of torch.float64"),
        (torch.ones(1, 5, 5, dtype=torch.float64), "[1, 5, 5] of torch.float64"),
        (torch.ones(2, 5, 5, dtype=torch.float32), "[2, 5, 5] of torch.float32"),
    ],
)
def test_weights_must_fit_the_models(weights: Any, given: str) -> None:
    """Layers, learners and sources, in the type of the models."""
    cls = hooked(SplitClient, ClientModels, weights=lambda self, server, ids: weights)
    assert_refused(
        cls, f"Mine.weights: {given}; return a tensor [2, 5, 5] of torch.float64: layers, learners (ids), sources"
    )


def test_weights_before_the_first_upload_are_finite() -> None:
    """A softmax over the clients that have uploaded has no source yet; no rate of learning would help."""

    def weights(self: Any, server: Any, ids: Tensor) -> Tensor:
        logits = torch.zeros(len(self.task.layers), len(ids), len(server["seen"]), dtype=self.task.dtype)
        return torch.softmax(logits.masked_fill(~server["seen"], -torch.inf), dim=-1)

    cls = hooked(SplitClient, ClientModels, weights=weights)
    assert_refused(cls, "Mine.weights: not finite before the first upload", "server['seen'] | ~server['seen'].any()")


@pytest.mark.parametrize("families", [(SplitClient, ClientModels), (SplitClient, GeneratedModels)])
def test_a_server_needs_something_to_mix_or_to_generate(families: tuple[type, ...]) -> None:
    """Not if clients keep every parameter; it is refused before any training, and by the checks of methods."""
    hooks = dict.fromkeys(("weights", "begin", "generate"), lambda *given: None)
    hooks["server_solver"] = property(hooks["begin"])
    cls = hooked(*families, **hooks, private=property(lambda self: self.task.params))
    federation = fw.Federation.from_dataset("digits", "dirichlet", clients=3, beta=0.5)
    with pytest.raises(BadInput, match="Mine keeps every parameter of the model mlp at the client"):
        fw.fit(cls(), federation, model="mlp", rounds=1)
    with pytest.raises(AssertionError, match="Mine keeps every parameter of the model of the toy task"):
        check_method(cls)


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        (
            {"init": lambda self, start: {"model": start.model, "rate": 0.5}},
            "Mine.init: rate is a float; give a tensor",
        ),
        ({"init": lambda self, start: {"a": {"b": [np.ones(2)]}}}, "Mine.init: a.b.0 is a ndarray; give a tensor"),
        ({"init": lambda self, start: None}, "Mine.init: returned a NoneType; return a dictionary of tensors"),
        ({"join": lambda self, model: {"trust": 0.5}}, "Mine.join: trust is a float; give a tensor"),
    ],
)
def test_states_are_tensors(hooks: dict[str, Any], words: str) -> None:
    """They are stacked over clients, moved to a device, and saved."""
    assert_refused(variant(**hooks), words)


@pytest.mark.parametrize("executor", [Loop(), Batched()])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda update: tuple(update),
            "Mine.client_update: returned a tuple; return Update(upload, client, model, loss)",
        ),
        (lambda update: update._replace(loss=0.5), "Mine.client_update: loss is a float; give a tensor"),
        (lambda update: update._replace(upload={"model": None}), "Mine.client_update: upload.model is a NoneType"),
        (lambda update: update._replace(client={}), "Mine.client_update: client.trust is missing; keep the names"),
        (
            lambda update: update._replace(client={**update.client, "new": update.loss}),
            "Mine.client_update: client.new is new; keep the names and shapes of Mine.join",
        ),
        (
            lambda update: update._replace(client={"trust": update.loss.expand(3)}),
            "Mine.client_update: client.trust is [3], and should be []; keep the names",
        ),
    ],
)
def test_an_update_has_the_form_of_the_state_before(
    change: Callable[[Any], Any], words: str, executor: Executor
) -> None:
    """In both executors, before the states of the clients are stacked."""

    def client_update(self: Any, shared: Any, own: Any, client: Any, data: ClientData) -> Any:
        update = Mine.client_update(self, shared, own, {}, data)
        return change(update._replace(client={"trust": client["trust"] + 1}))

    hooks = {"join": lambda self, model: {"trust": torch.tensor(0.5)}, "client_update": client_update}
    personalize = {"personalize": lambda self, shared, own, client, data: shared}
    assert_refused(variant(**hooks, **personalize), words, executor=executor)


@pytest.mark.parametrize("read", [lambda loss: 1 if loss > 1 else 2, lambda loss: loss.item()])
def test_values_of_stacked_clients_cannot_be_read(read: Callable[[Tensor], Any]) -> None:
    """One at a time they can; the message names the line."""

    def fit(self: Any, model: Any, received: Any, data: ClientData) -> Any:
        result = self.descend(model, data)
        read(result.loss)
        return result

    run_rounds(variant(fit=fit))
    assert_refused(variant(fit=fit), "test_guards.py, line ", "reads the value of a tensor", executor=Batched())


@pytest.mark.parametrize(
    ("value", "given"),
    [
        ({"trust": torch.ones(3)}, "trust is [3] of torch.float32"),
        ({"trust": "high"}, "trust is a str"),
        ({"trust": None}, "trust is a NoneType"),
        (None, "returned a NoneType; return numbers by name"),
    ],
)
def test_diagnostics_are_numbers(value: Any, given: str) -> None:
    """One for each name."""
    assert_refused(variant(diagnostics=lambda self, server: value), f"Mine.diagnostics: {given}")


@pytest.mark.parametrize(
    ("hook", "value", "words"),
    [
        ("private", ("hidden0",), "Mine.private: 'hidden0' is not a parameter of the model"),
        ("private", ("out.weigth",), "Mine.private: 'out.weigth' is not a parameter of the model"),
        ("private", "fc", "Mine.private: 'fc' is not a tuple of names; for example self.task.head"),
        ("local_names", ("fc",), "Mine.local_names: 'fc' is not a parameter of the model"),
        ("local_names", None, "Mine.local_names: None is not a tuple"),
    ],
)
def test_unknown_local_names_are_refused(hook: str, value: Any, words: str) -> None:
    """They are refused before any training."""
    cls = variant(**{hook: property(lambda self: value)})
    federation = fw.Federation.from_dataset("digits", "dirichlet", clients=3, beta=0.5)
    with pytest.raises(BadInput) as caught:
        fw.fit(cls(), federation, model="mlp", rounds=1)
    assert words in str(caught.value)


def test_a_prepared_run_refuses_unknown_local_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A study, too, refuses them: its models exist when a run is prepared."""
    monkeypatch.setattr(METHODS["fedper"], "private", property(lambda self: ("fc1",)))
    with pytest.raises(BadInput, match=r"FedPer\.private: 'fc1' is not a parameter .*did you mean 'fc1\."):
        prepare_run("fedper", {"name": "iid"})


def test_all_methods_are_checked_before_the_first_one_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison ends within a second."""
    monkeypatch.setattr(METHODS["fedper"], "private", property(lambda self: ("fc1",)))
    monkeypatch.setattr(build, "_prepare_split", lambda *_: pytest.fail("a run was prepared"))
    federation = fw.Federation.from_dataset("digits", "dirichlet", clients=3, beta=0.5)
    with pytest.raises(BadInput, match=r"FedPer\.private: 'fc1'"):
        fw.compare(federation, ["local", "fedper"], model="mlp", rounds=1, seeds=1, tune=0)


def drawing_method(draw: Callable[[], object]) -> type[Method]:
    """`Mine` with a draw in its training."""

    def fit(self: Any, model: Any, received: Any, data: ClientData) -> Any:
        draw()
        return self.descend(model, data)

    return variant(fit=fit)


DRAWS = {"torch": lambda: torch.randn(1), "numpy": lambda: np.random.rand(), "python": random.random}  # noqa: NPY002


@pytest.mark.parametrize("source", DRAWS)
def test_draws_without_a_key_are_refused(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws from a global generator are refused. With other threads, which may draw, there is a warning."""
    monkeypatch.setattr(draws_and_names, "_is_only_thread", lambda: True)
    words = "Mine: draws random numbers without a key (in round 1)"
    assert_refused(drawing_method(DRAWS[source]), words, "data.key", "dropout_keys.uniform")
    monkeypatch.setattr(draws_and_names, "_is_only_thread", lambda: False)
    with pytest.warns(UserWarning, match="Mine, or another thread, draws random numbers"):
        run_rounds(drawing_method(DRAWS[source]))


def test_threads_of_progress_bars_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads may draw."""
    bar = type("TMonitor", (threading.Thread,), {"__module__": "tqdm._monitor"})()
    for threads, alone in (((), True), ((bar,), True), ((bar, threading.Thread()), False)):
        monkeypatch.setattr(threading, "enumerate", lambda threads=threads: [threading.main_thread(), *threads])
        assert draws_and_names._is_only_thread() == alone


def test_draws_of_a_start_and_of_an_evaluation_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes a run without training."""
    monkeypatch.setattr(draws_and_names, "_is_only_thread", lambda: True)

    def personalize(self: Any, shared: Any, own: Any, client: Any, data: ClientData) -> Any:
        return {name: value + (0 if len(data.plan) else 1e-3 * torch.rand(())) for name, value in shared.items()}

    def init(self: Any, start: Any) -> Any:
        return {"model": trees.tree_map(torch.randn_like, start.model)}

    words, remedy = "Mine: draws random numbers without a key", "seeding.use_seed(start.seed)"
    assert_refused(variant(personalize=personalize), f"{words} (in the evaluation after round 1)")
    assert_refused(variant(init=init), f"{words} (before round 1)", remedy)


class Dropping(MLP):
    """Drops out without a key."""

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return F.dropout(super().features(x, key=key, mask=mask), 0.5, key is not None)


@pytest.mark.parametrize("executor", [Loop(), Batched()])
def test_draws_of_a_model_are_refused(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is the same under both executors."""
    monkeypatch.setattr(draws_and_names, "_is_only_thread", lambda: True)
    task = RowClassification(lambda: Dropping((6,), tiny.CLASSES, hidden=5), torch.float64)
    assert_refused(
        Mine, "Mine: draws random numbers without a key", "dropout_keys.dropout", executor=executor, task=task
    )


def test_other_errors_are_unchanged() -> None:
    """An error that is not a draw is not reported as one."""

    def broken() -> None:
        raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        run_rounds(drawing_method(broken))


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (torch.eye(5)[None], "[1, 5, 5] of torch.float32; return a tensor [2, 5, 5]: layers, learners, sources"),
        (torch.ones(2, 4, 5), "[2, 4, 5] of torch.float32; return"),
        (np.ones((2, 5, 5)), "a ndarray; return a tensor [2, 5, 5]"),
        (torch.full((2, 5, 5), torch.nan), ""),
    ],
)
def test_a_graph_must_have_the_shape_of_layers_and_clients(graph: Any, words: str) -> None:
    """It is refused at the first evaluation. The report names a graph that is not finite."""
    cls = variant(collaboration=lambda self, server: graph)
    if words:
        assert_refused(cls, "Mine.collaboration: " + words, rounds=1)
    else:
        assert len(run_rounds(cls, rounds=1)) == 1


def test_an_import_may_draw(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that draws at its import, as scikit-learn's do, is not an error of the method. The next draw is."""
    (tmp_path / "drawing_module.py").write_text("import random\n\nrandom.random()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(draws_and_names, "_is_only_thread", lambda: True)
    with draws_and_names.forbid_unkeyed_draws("Mine"):
        import drawing_module  # noqa: F401
    with pytest.raises(BadInput, match="Mine: draws random numbers"), draws_and_names.forbid_unkeyed_draws("Mine"):
        random.random()


def mixing(weights: Callable[[int, int, int], Tensor], late: bool = False) -> type[Method]:
    """A method whose `weights` are a function of the numbers of layers, learners and sources.

    If `late`, they are uniform before the first upload.
    """

    def hook(self: Any, server: Any, ids: Tensor) -> Tensor:
        counts = len(self.task.layers), len(ids), len(server["seen"])
        if late and not server["seen"].any():
            return torch.full(counts, 1 / counts[2], dtype=self.task.dtype)
        return weights(*counts).to(self.task.dtype)

    return hooked(SplitClient, ClientModels, weights=hook)


def learning(weights: Callable[[int, int, int], Tensor]) -> type[Method]:
    """The same for a method that learns its weights."""
    return hooked(
        LearnedMixtures,
        learnables=lambda self, start: {"row": torch.zeros(start.clients, dtype=self.task.dtype)},
        weights=lambda self, phi, fixed, ids: (
            weights(len(self.task.layers), len(ids), len(phi["row"])).to(self.task.dtype) + 0 * phi["row"]
        ),
    )


NO_MIXTURES = [
    (lambda *shape: torch.ones(shape), "row 0 of layer 0 has the sum 5"),
    (lambda *shape: torch.full(shape, 0.1), "row 0 of layer 0 has the sum 0.5"),
    (lambda *shape: torch.tensor([1.5, -0.5, 0, 0, 0]).expand(shape), "row 0 of layer 0 has the weight -0.5"),
]


@pytest.mark.parametrize(("weights", "words"), NO_MIXTURES)
def test_rows_of_weights_are_mixtures(weights: Callable[[int, int, int], Tensor], words: str) -> None:
    """Their weights are at least 0 and have the sum 1, in the first round and in later ones."""
    for cls in (mixing(weights), mixing(weights, late=True), learning(weights)):
        assert_refused(cls, f"Mine.weights: {words}; a row is a mixture of sources", "divide it by its sum")


def test_weights_of_a_diverged_run_are_no_mistake_of_the_method() -> None:
    """A rate of learning may be too high. Such rounds are recorded, and the run ends as usual."""
    reports = run_rounds(mixing(lambda *shape: torch.full(shape, torch.nan), late=True))
    assert len(reports) == 2


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (lambda *shape: torch.full(shape, torch.nan), "Mine.weights: not finite before the first upload"),
        (lambda layers, learners, sources: torch.ones(learners, sources), "Mine.weights: [1, 5] of torch.float64"),
    ],
)
def test_learned_weights_are_checked_before_round_0(weights: Callable[[int, int, int], Tensor], words: str) -> None:
    """For one learner."""
    assert_refused(learning(weights), words)


@pytest.mark.parametrize("hook", ["personalize", "received", "feedback"])
def test_a_hook_without_a_result_is_named(hook: str) -> None:
    """A client's model, its part from the server, and its further uploads are dictionaries of tensors."""
    cls = variant(**{hook: lambda self, *given: None})
    for executor in (Loop(), Batched()):
        assert_refused(cls, f"Mine.{hook}: returned a NoneType; return a dictionary of tensors", executor=executor)


@pytest.mark.parametrize(
    ("portrait", "words"),
    [
        (torch.zeros(5), "[5] of torch.float32"),
        (torch.zeros(3, 2), "[3, 2] of torch.float32"),
        (torch.zeros(5, 2, dtype=torch.int64), "[5, 2] of torch.int64"),
        ([0.0] * 5, "a list"),
    ],
)
def test_a_portrait_has_a_vector_for_each_client(portrait: Any, words: str) -> None:
    """Its shape is checked where a round is evaluated; None is not a portrait."""
    cls = variant(portrait=lambda self, server: portrait)
    assert_refused(cls, f"Mine.portrait: {words}; return a tensor [5, D] of floats: one vector for each of 5 clients")
    assert run_rounds(variant(portrait=lambda self, server: None))
