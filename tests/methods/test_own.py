"""The checks for users: what is sound passes in seconds, and what is broken is named."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedweave.data import DATASETS, Dataset
from fedweave.families import GlobalModel, SplitClient
from fedweave.methods import METHODS
from fedweave.models import MODELS, ClientModel
from fedweave.testing import check_dataset, check_method, check_model, method_checks
from fedweave.testing.federations import TASKS


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
    """Its server loses a part of the model."""

    def merge(self, old: Any, mean: Any) -> Any:
        return {name: value for name, value in mean.items() if not name.startswith(self.task.head[0])}


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


class Headless(Linear):
    """Its head is nothing that it has."""

    head = ("fc",)


def test_methods() -> None:
    """A sound one passes, one with a memory of its own does not, and what is no method says so."""
    check_method(Sound)
    with pytest.raises(AssertionError, match="Forgetful on rows: "):
        check_method(Forgetful)
    with pytest.raises(AssertionError, match="derive it from"):
        check_method(dict)  # type: ignore[arg-type]


def test_a_misspelt_hook_is_named() -> None:
    """A helper that is used may have nearly the same name."""
    method_checks(Helped)
    with pytest.raises(AssertionError, match="Misspelt: nothing calls collaborations; name it collaboration, or _coll"):
        method_checks(Misspelt)


def test_a_lost_parameter_is_named() -> None:
    """An untrained one would be used in its place."""
    with pytest.raises(AssertionError, match=r"the model that the method returned lacks \w+\.\w+"):
        check_method(Incomplete)


def kept(check: Any) -> bool:
    """Whether a promise is kept."""
    try:
        check()
    except AssertionError:
        return False
    return True


def test_as_parameters() -> None:
    """Each promise is a test of its own, with a name; one that is kept passes, and one that is not raises."""
    promises = {
        "executors_agree", "absent_clients_keep_their_bits", "resumed_equals_uninterrupted", "state_is_plain_tensors",
        "training_ignores_test_rows", "newcomers_join",
    }  # fmt: skip
    names = [check.__name__ for check in method_checks(METHODS["local"])]
    assert {*names} == {f"Local-{kind}-{promise}" for kind in TASKS for promise in promises}
    assert len(names) == len({*names})
    broken = [check for check in method_checks(Forgetful) if not kept(check)]
    assert broken
    assert {check.__name__.split("-")[2] for check in broken} < promises


@pytest.mark.parametrize("name", ["mlp", "small_cnn", "lenet16"])
def test_models_of_the_package(name: str) -> None:
    """Those for images pass."""
    check_model(MODELS[name], (1, 16, 16) if name == "lenet16" else (1, 8, 8))


def test_models() -> None:
    """A sound one passes; draws in evaluation and a wrong head are named."""
    check_model(Linear)
    with pytest.raises(AssertionError, match="Noisy: two evaluations of one batch differ"):
        check_model(Noisy)
    with pytest.raises(AssertionError, match="Headless: head names 'fc', which is no module of it; it has out"):
        check_model(Headless)


def test_data_sets() -> None:
    """Digits pass; another data set every time, missing values and an empty class are named."""
    check_dataset(DATASETS["digits"])
    good = Dataset("toy", "images", np.zeros((4, 1, 2, 2), np.float32), np.array([0, 1, 0, 1]), classes=2)
    check_dataset(lambda root: good)
    draws = np.random.default_rng(0)
    other = lambda root: replace(good, x=draws.normal(size=good.x.shape).astype(np.float32))  # noqa: E731
    missing = replace(good, x=np.full_like(good.x, np.nan))
    wrong: list[tuple[Any, str]] = [
        (other, "toy: x differs when it is loaded again"),
        (lambda root: missing, "toy"),
        (lambda root: replace(good, classes=3), "no row has class 2"),
        (lambda root: 3, "returned a int; return a"),
        (lambda root: Path("gone").read_text(), "FileNotFoundError"),
    ]
    for loader, words in wrong:
        with pytest.raises(AssertionError, match=words):
            check_dataset(loader)


@pytest.mark.parametrize("field", ["x", "y", "coarse", "recording", "owner", "note", "class_names", "group_names"])
def test_every_field_of_a_data_set_is_compared(field: str) -> None:
    """Also one that only the second loading fills."""
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
