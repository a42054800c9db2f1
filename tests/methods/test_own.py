"""The checks for users: a valid part passes within seconds, and an invalid one is named."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedweave.client.solvers import SGD
from fedweave.client.task import RowClassification
from fedweave.data import DATASETS, Dataset
from fedweave.engine.engine import run
from fedweave.engine.executors import Batched
from fedweave.engine.records import Settings
from fedweave.engine.schedule import Training
from fedweave.engine.start import initial_model
from fedweave.errors import BadInput
from fedweave.families import ClientModels, GeneratedModels, GlobalModel, SplitClient
from fedweave.families.weaving import Weaving
from fedweave.methods import METHODS
from fedweave.models import MODELS, ClientModel, build
from fedweave.models.base import check_parameters
from fedweave.tensors import trees
from fedweave.testing import check_dataset, check_method, check_model, method_checks
from fedweave.testing.federations import TASKS, rows_federation


@dataclass(frozen=True, kw_only=True)
class Sound(SplitClient, GlobalModel):
    """FedAvg."""

    label = "Sound"


@dataclass(frozen=True, kw_only=True)
class Forgetful(Sound):
    """Its step depends on how often it was called."""

    calls = []  # noqa: RUF012

    def aggregate(self, server: Any, ids: Tensor, uploads: Any, weights: Tensor) -> Any:
        self.calls.append(1)
        made = super().aggregate(server, ids, uploads, weights)
        return torch.utils._pytree.tree_map(lambda leaf: leaf + 1e-3 * len(self.calls), made)


@dataclass(frozen=True, kw_only=True)
class Misspelt(Sound):
    """Its hook has a name that nothing calls."""

    def collaborations(self, server: Any) -> Tensor:
        return torch.eye(2)[None]


@dataclass(frozen=True, kw_only=True)
class Helped(Sound):
    """Its helper has nearly the name of a hook, and is used."""

    def stage(self, server: Any) -> Any:
        return server

    def collaboration(self, server: Any) -> Tensor | None:
        return super().collaboration(self.stage(server))


@dataclass(frozen=True, kw_only=True)
class Incomplete(Sound):
    """Its server does not send a part of the model."""

    def download(self, server: Any, ids: Tensor) -> Any:
        shared, own = super().download(server, ids)
        return {name: value for name, value in shared.items() if not name.startswith(self.task.head[0])}, own


@dataclass(frozen=True, kw_only=True)
class Greedy(Sound):
    """Trains on all rows that there are."""

    def fit(self, model: Any, received: Any, data: Any) -> Any:
        shift = 1e-3 * data.arrays["x"].mean()
        return super().fit({name: value + shift for name, value in model.items()}, received, data)


@dataclass(frozen=True, kw_only=True)
class Peeking(Sound):
    """Trains on all labels that there are."""

    def fit(self, model: Any, received: Any, data: Any) -> Any:
        shift = 1e-3 * data.arrays["y"].double().mean()
        return super().fit({name: value + shift for name, value in model.items()}, received, data)


@dataclass(frozen=True, kw_only=True)
class Woven(SplitClient, ClientModels):
    """Equal weights for all clients, or those of a control."""

    label = "Woven"

    def received(self, shared: Any, own: Any) -> Any:
        return own["mixture"]

    def weights(self, server: Any, ids: Tensor) -> Tensor:
        return torch.full((len(self.task.layers), len(ids), len(server["seen"])), 1 / len(server["seen"])).double()


@dataclass(frozen=True, kw_only=True)
class Uncontrolled(Sound, Weaving):
    """Its graph ignores controls."""

    def collaboration(self, server: Any) -> Tensor:
        return torch.full((len(self.task.layers), 5, 5), 0.2)


@dataclass(frozen=True, kw_only=True)
class Keeping(Sound):
    """Keeps a layer by the name of its module."""

    @property
    def private(self) -> tuple[str, ...]:
        return ("fc",)


class Linear(ClientModel):
    """A linear map."""

    head = ("out",)

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.out = nn.Linear(int(np.prod(shape)), outputs)

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return x.flatten(1)


class Noisy(Linear):
    """Draws in evaluation."""

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return super().features(x) + torch.randn(())


class Writing(Linear):
    """Changes its inputs."""

    def features(self, x: Tensor, **options: Any) -> Tensor:
        return super().features(x.mul_(2))


class Keyless(Linear):
    """Takes no key."""

    def features(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.flatten(1)


class Headless(Linear):
    """Its head is nothing that it has."""

    head = ("fc",)


def test_methods_are_checked() -> None:
    """A valid method passes. A method with hidden state does not, and neither does an object that is not a method."""
    check_method(Sound)
    with pytest.raises(AssertionError, match="Forgetful on rows: "):
        check_method(Forgetful)
    with pytest.raises(AssertionError, match="derive it from"):
        check_method(dict)  # type: ignore[arg-type]


def test_a_misspelt_hook_is_named() -> None:
    """A helper that is used may have a similar name."""
    method_checks(Helped)
    with pytest.raises(AssertionError, match="Misspelt: nothing calls collaborations; name it collaboration, or _coll"):
        method_checks(Misspelt)


def test_a_lost_parameter_is_named() -> None:
    """An untrained parameter would be used in its place."""
    with pytest.raises(AssertionError, match=r"the model that the method returned lacks \w+\.\w+"):
        check_method(Incomplete)


def assert_broken(cls: Any, promise: str, words: str, kinds: tuple[str, ...] = tuple(TASKS)) -> None:
    """A promise is broken on `kinds` of tasks and kept on all others."""
    checks = {check.__name__.split("-")[1]: check for check in method_checks(cls) if check.__name__.endswith(promise)}
    assert {*checks} == {*TASKS}
    for kind, check in checks.items():
        if kind in kinds:
            with pytest.raises(AssertionError, match=words):
                check()
        else:
            check()


def test_training_does_not_use_values_of_other_rows() -> None:
    """Inputs and labels of rows that are neither for training nor for validation. All clients may use the nodes of a
    graph.
    """
    assert_broken(Greedy, "training_ignores_test_rows", "other values in all that is not", ("rows", "images", "series"))
    rows = [check for check in method_checks(Peeking) if check.__name__.endswith("training_ignores_test_rows")]
    for check in rows[:3]:
        with pytest.raises(AssertionError, match="other values in all that is not"):
            check()


def test_a_control_reaches_the_graph() -> None:
    """A class that never calls `controlled` gets no advice about a function of fedweave."""
    assert_broken(
        Uncontrolled,
        "controls_reach_the_graph",
        "the control of its graph has no effect on the training; pass all weights through self.controlled",
    )
    assert_broken(Woven, "controls_reach_the_graph", "", ())
    assert not [check for check in method_checks(Sound) if "controls" in check.__name__]


@dataclass(frozen=True, kw_only=True)
class FirstRows(Woven):
    """Its weights are those of the first clients, and not of `ids`."""

    def weights(self, server: Any, ids: Tensor) -> Tensor:
        distances = torch.cdist(*[server["models"][self.task.params[0]].flatten(1)] * 2)
        return torch.softmax(-distances, dim=1)[: len(ids)].expand(len(self.task.layers), -1, -1)


@dataclass(frozen=True, kw_only=True)
class Generated(SplitClient, GeneratedModels):
    """A model for each client, as it is trained."""

    label = "Generated"

    @property
    def server_solver(self) -> SGD:
        return SGD(lr=0.5)

    def begin(self, start: Any) -> Any:
        model = trees.omit(start.model, self.local_names)
        return {name: torch.ones(start.clients, dtype=value.dtype) for name, value in model.items()}, {"model": model}

    def generate(self, phi: Any, fixed: Any, ids: Tensor) -> Any:
        return {name: trees.column(phi[name][ids], value[None]) * value for name, value in fixed["model"].items()}

    def add_rows(self, phi: Any, fixed: Any, enrolled: Any, newcomers: int, start: Any) -> Any:
        return {name: torch.cat([value, torch.ones(newcomers).to(value)]) for name, value in phi.items()}, fixed


@dataclass(frozen=True, kw_only=True)
class Detached(Generated):
    """Its φ is never trained."""

    def generate(self, phi: Any, fixed: Any, ids: Tensor) -> Any:
        return super().generate({name: value.detach() for name, value in phi.items()}, fixed, ids)


@dataclass(frozen=True, kw_only=True)
class Unread(Generated):
    """It does not read a part of φ."""

    def begin(self, start: Any) -> Any:
        phi, fixed = super().begin(start)
        return {**phi, "bias": {"shift": torch.ones(1)}}, fixed


@dataclass(frozen=True, kw_only=True)
class Positional(Generated):
    """It reads the first rows of φ."""

    def generate(self, phi: Any, fixed: Any, ids: Tensor) -> Any:
        return super().generate(phi, fixed, torch.arange(len(ids)))


@dataclass(frozen=True, kw_only=True)
class Shrinking(Woven):
    """Its table has a row for each participant, not for each client."""

    def aggregate(self, server: Any, ids: Tensor, uploads: Any, weights: Tensor) -> Any:
        return {**super().aggregate(server, ids, uploads, weights), "models": uploads["model"]}


def test_rows_belong_to_the_ids_that_are_asked_for() -> None:
    """In `weights`, `generate` and `download`."""
    assert_broken(FirstRows, "rows_are_those_of_ids", "weights: the rows of clients 4, 0, 3, .*use its argument `ids`")
    assert_broken(Positional, "rows_are_those_of_ids", "generate: the rows of clients 4, 0, 3")
    assert_broken(Generated, "rows_are_those_of_ids", "", ())


def test_generated_models_have_a_gradient() -> None:
    """In all parameters of the server."""
    assert_broken(Detached, "all_parameters_learn", "generate: the models have no gradient in φ")
    assert_broken(Unread, "all_parameters_learn", "the models do not depend on bias/shift of φ")
    assert_broken(Generated, "all_parameters_learn", "", ())
    assert not [check for check in method_checks(Sound) if "learn" in check.__name__]


def test_tables_keep_their_length() -> None:
    """Partial participation shows it."""
    with pytest.raises(AssertionError, match=r"Shrinking on rows: Shrinking.aggregate: models\.\S+ is .*should be"):
        check_method(Shrinking)


def with_attributes(**attributes: Any) -> type[Any]:
    """`Sound` with further attributes in its body."""
    return dataclass(frozen=True, kw_only=True)(type("Mine", (Sound,), {**attributes, "__module__": __name__}))


@dataclass(frozen=True, kw_only=True)
class Stepped(Sound):
    """A setting and constants."""

    step: float = 0.5
    kind: ClassVar[str] = "constant"

    label = "Stepped"
    RATE = 3.0
    _rate = 2.0


def test_a_refused_data_set_says_what_is_wrong() -> None:
    """Without the type of the error, as its line is written for users."""

    def vectors(root: Path) -> Dataset:
        return Dataset("toy", "images", np.zeros((4, 3), dtype=np.float32), np.array([0, 1, 0, 1]), classes=2)

    with pytest.raises(AssertionError, match=r"^vectors: dataset toy: images must be \[M, C, H, W\]"):
        check_dataset(vectors)


@dataclass(frozen=True, kw_only=True)
class Float32(Sound):
    """Its step is of float32, whatever the type of the model."""

    def merge(self, old: Any, mean: Any) -> Any:
        ones = torch.eye(len(old["fc.bias"]))
        return {**mean, "fc.bias": ones @ mean["fc.bias"]}


def test_another_type_than_that_of_the_model_is_named() -> None:
    """With the line of the user's file, and the way out."""
    words = r"RuntimeError \(test_own.py, line \d+\): .*; the checks train in float64, so give your tensors the type of"
    with pytest.raises(AssertionError, match=words):
        check_method(Float32)


def test_a_setting_has_a_type() -> None:
    """A value without one is not a setting; a base's setting would keep its default."""
    method_checks(Stepped)
    words = r"Mine: sharpness = 5\.0 has no type, so that it is not a setting; write sharpness: float = 5\.0, or sh"
    with pytest.raises(AssertionError, match=words):
        method_checks(with_attributes(sharpness=5.0))
    changed = dataclass(frozen=True, kw_only=True)(type("Mine", (Stepped,), {"step": 0.9, "__module__": __name__}))
    assert changed().step == 0.5
    with pytest.raises(
        AssertionError, match=r"Mine: step = 0\.9 has no type, so that the setting keeps its default 0\.5"
    ):
        method_checks(changed)


@dataclass(frozen=True, kw_only=True)
class Late(Sound):
    """It has a function that nothing calls, and one that another part of this file calls."""

    def after_round(self, server: Any) -> Any:
        return server

    def read_elsewhere(self) -> int:
        return 1


def read_late(method: Late) -> int:
    """A caller outside of the class."""
    return method.read_elsewhere()


def test_a_function_that_nothing_calls_gives_a_warning() -> None:
    """It may be for callers elsewhere. Those that the class or its file calls give none."""
    with pytest.warns(UserWarning, match="Late: nothing calls after_round, which is not a hook; the closest") as caught:
        method_checks(Late)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method_checks(Helped)
        for cls in METHODS.values():
            method_checks(cls)


def test_names_that_stay_are_those_of_the_model() -> None:
    """Other names would be ignored."""
    with pytest.raises(AssertionError, match=r"Keeping\.private: 'fc' is not a parameter of the model"):
        check_method(Keeping)


def is_kept(check: Any) -> bool:
    """Whether a promise is kept."""
    try:
        check()
    except AssertionError:
        return False
    return True


def test_each_promise_is_a_test_of_its_own() -> None:
    """Each has a name. It passes if the promise is kept, and raises an error otherwise."""
    promises = {
        "executors_agree",
        "absent_clients_keep_their_bits",
        "resumed_equals_uninterrupted",
        "state_is_plain_tensors",
        "training_ignores_test_rows",
        "newcomers_join",
        "names_are_known",
        "rows_are_those_of_ids",
    }
    names = [check.__name__ for check in method_checks(METHODS["local"])]
    assert {*names} == {f"Local-{kind}-{promise}" for kind in TASKS for promise in promises}
    assert len(names) == len({*names})
    wrong = [check for check in method_checks(Forgetful) if not is_kept(check)]
    assert wrong
    assert {check.__name__.split("-")[2] for check in wrong} < promises


@pytest.mark.parametrize("name", ["mlp", "small_cnn", "lenet16"])
def test_models_of_the_package_pass(name: str) -> None:
    """These are the models for images."""
    check_model(MODELS[name], (1, 16, 16) if name == "lenet16" else (1, 8, 8))


def test_models_are_checked() -> None:
    """A valid model passes. Draws in evaluation and a wrong head are named."""
    check_model(Linear)
    with pytest.raises(AssertionError, match="Noisy: is random in evaluation"):
        check_model(Noisy)
    with pytest.raises(AssertionError, match="Headless: head names 'fc', which is not a module of it; it has out"):
        check_model(Headless)
    with pytest.raises(AssertionError, match="Writing: writes into its inputs; make new tensors"):
        check_model(Writing)
    with pytest.raises(
        AssertionError, match=r"Keyless: fails in evaluation on a batch of 4 \(TypeError: .* argument 'key'"
    ):
        check_model(Keyless)
    normalised = Linear((1, 8, 8), 3)
    normalised.norm = nn.BatchNorm1d(4)
    with pytest.raises(AssertionError, match=r"norm is a BatchNorm1d of PyTorch; use BatchNorm of fedweave\.models"):
        check_model(lambda *arguments: normalised)


class Tied(Linear):
    """Two layers with one matrix."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__(shape, outputs)
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return self.second(self.first(x.flatten(1)))


class Frozen(Linear):
    """A layer that is not to be trained."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__(shape, outputs)
        self.first = nn.Linear(64, 64).requires_grad_(False)

    features = lambda self, x, *, key=None, mask=None: self.first(x.flatten(1))  # noqa: E731


class Reused(Linear):
    """One matrix in two places."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__(shape, outputs)
        self.first = self.again = nn.Linear(64, 64)

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return F.linear(self.again(self.first(x.flatten(1))), self.first.weight)


def test_a_parameter_of_two_layers_is_refused() -> None:
    """By the check and by a run, as only the first layer would train it; one layer in two places is sound."""
    words = "first.weight and second.weight are one parameter, and only the first would be trained"
    with pytest.raises(AssertionError, match=f"Tied: {words}"):
        check_model(Tied)
    with pytest.raises(BadInput, match=f"model own: {words}"):
        check_parameters(Tied((1, 8, 8), 3), "model own")
    check_model(Reused)


def test_frozen_parameters_are_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a model with a name, as those of a module in Python: in no state, and as they were drawn."""
    check_model(Frozen)
    monkeypatch.setitem(MODELS, "partly-frozen", Frozen)
    task = RowClassification(lambda: build("partly-frozen", (1, 8, 8), 3), torch.float64)
    assert task.params == ("out.weight", "out.bias")
    assert task.buffers == ()
    drawn = {name: value.clone() for name, value in task.template.named_buffers()}
    assert [*drawn] == ["first.weight", "first.bias"]
    method = METHODS["fedavg"](task=task, solver=SGD(lr=0.1), training=Training(batch_size=4, epochs=1))
    federation, settings = rows_federation((1, 8, 8)), Settings(rounds=2, seed=5)
    *_, report = run(method, federation, settings, Batched())
    initial = initial_model(method, federation, 5)
    for name, value in task.template.named_buffers():
        assert name not in {**report.state.server["model"], **report.state.clients}
        assert torch.equal(value, drawn[name])
    assert not torch.equal(report.state.server["model"]["out.weight"], initial["out.weight"])


def test_training_is_checked_with_any_number_of_outputs() -> None:
    """Not only with as many as the toy has classes."""

    class Mixing(Linear):
        def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
            x = x.flatten(1)
            return x if key is None else x - x.mean(0)

    for outputs in (2, 3, 10):
        with pytest.raises(AssertionError, match="Mixing: gives"):
            check_model(Mixing, outputs=outputs)


def test_data_sets_are_checked() -> None:
    """Digits pass. Another data set at every loading, missing values and an empty class are named."""
    check_dataset(DATASETS["digits"])
    good = Dataset("toy", "images", np.zeros((4, 1, 2, 2), np.float32), np.array([0, 1, 0, 1]), classes=2)
    check_dataset(lambda root: good)
    draws = np.random.default_rng(0)
    other = lambda root: replace(good, x=draws.normal(size=good.x.shape).astype(np.float32))  # noqa: E731
    missing = replace(good, x=np.full_like(good.x, np.nan))
    wrong: list[tuple[Any, str]] = [
        (other, "toy: x differs when it is loaded again"),
        (
            lambda root: missing,
            r"dataset toy: nan at \[0, 0, 0, 0\], and 15 more values are not finite; replace or drop",
        ),
        (lambda root: replace(good, classes=3), "no row has class 2"),
        (lambda root: 3, "returned an object of type int; return a"),
        (lambda root: Path("gone").read_text(), "FileNotFoundError"),
    ]
    for loader, words in wrong:
        with pytest.raises(AssertionError, match=words):
            check_dataset(loader)


@pytest.mark.parametrize("field", ["x", "y", "coarse", "recording", "owner", "note", "class_names", "group_names"])
def test_every_field_of_a_data_set_is_compared(field: str) -> None:
    """This includes a field that only the second loading fills."""
    good = Dataset("toy", "images", np.zeros((4, 1, 2, 2), np.float32), np.array([0, 1, 0, 1]), classes=2)
    texts = field.endswith("names") or field == "note"
    for first, second in ((0, 1), (None, 1)):
        draws = iter([first, second])

        def loader(root: Path, draws: Any = draws) -> Dataset:
            value = next(draws)
            changed = f"{value}" if texts else np.full_like(good.x if field == "x" else good.y, value or 0)
            if field.endswith("names"):
                changed = (f"a {value}", "b")
            return good if value is None and field not in ("x", "y") else replace(good, **{field: changed})

        with pytest.raises(AssertionError, match=f"toy: {field} differs when it is loaded again"):
            check_dataset(loader)
