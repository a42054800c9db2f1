"""Executors and memory: a chunk that does not fit is halved with one warning, and its size is remembered. Only the
number of clients at once changes.
"""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from fedweave.client.task import RowClassification, Task
from fedweave.engine import executors
from fedweave.engine.engine import run_round
from fedweave.engine.evaluation import evaluate
from fedweave.engine.executors import Batched, Executor, Loop, describe
from fedweave.engine.records import Settings
from fedweave.engine.schedule import evaluation_cohort
from fedweave.engine.start import begin
from fedweave.errors import BadInput
from fedweave.models.mlp import MLP
from fedweave.tensors.trees import tree_leaves

room = {"clients": 0, "refused": 0}
"""How many clients the memory holds at once, and how often it was full."""


class Narrow(torch.autograd.Function):
    """The identity on a device with memory for `room["clients"]` clients at once."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        del ctx, inputs, output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int | None]:
        if info.batch_size > room["clients"]:
            room["refused"] += 1
            raise torch.OutOfMemoryError("no room")
        return Narrow.apply(x), dims[0]


class NarrowMLP(MLP):
    """A small perceptron whose activations are on that device."""

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return Narrow.apply(super().features(x, key=key, mask=mask))


@pytest.fixture(autouse=True)
def memory() -> None:
    """No attempt has failed yet, and there is memory for no client unless a test sets a number."""
    room.update(clients=0, refused=0)


def rounds(executor: Executor, count: int = 2) -> list[Tensor]:
    """State, scores and models of a few rounds with four of the five clients, and their evaluation."""
    task, federation = (
        RowClassification(lambda: NarrowMLP((6,), tiny.CLASSES, hidden=5), torch.float64),
        tiny.rows_federation(),
    )
    method, settings = (
        replace(tiny.method("ditto", tiny.rows_task(), "rows"), task=task),
        Settings(rounds=count, participation=0.8),
    )
    state = begin(method, federation, 0, executor)
    for _ in range(count):
        state = run_round(method, state, federation, settings, executor)[0]
    return [
        leaf
        for leaf in tree_leaves((state, evaluate(method, state, federation, settings, executor)))
        if isinstance(leaf, Tensor)
    ]


@pytest.mark.parametrize("executor", [Batched(), Batched(3)], ids=describe)
@pytest.mark.parametrize("clients", [1, 2, 3])
def test_full_memory_changes_only_the_chunk(executor: Batched, clients: int) -> None:
    """If fewer clients fit than requested, the result is that of the loop."""
    expected, executor = rounds(Loop()), replace(executor, fitted=[])
    room["clients"] = clients
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        actual = rounds(executor)
    for a, b in zip(expected, actual, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-10, atol=1e-12, equal_nan=True)


def test_a_smaller_chunk_warns_once_and_is_used_again() -> None:
    """Four participants, memory for two: one attempt fails with one warning, and every later round starts with two."""
    executor = Batched()
    room["clients"] = 2
    with pytest.warns(
        UserWarning, match=r"^4 clients at once do not fit into the GPU's memory; continuing with 2 at once$"
    ) as warned:
        rounds(executor, 3)
    assert [str(w.message) for w in warned if "at once" in str(w.message)] == [str(warned[0].message)]
    assert room["refused"] == 1
    assert describe(executor) == "batched, 2 clients at once"
    assert executor == Batched()


def test_evaluation_takes_as_many_clients_as_a_limit_of_rows_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory for the rows of two clients, an evaluation that may take these never fails for want of memory."""
    task = RowClassification(lambda: NarrowMLP((6,), tiny.CLASSES, hidden=5), torch.float64)
    method, federation = replace(tiny.method("local", tiny.rows_task(), "rows"), task=task), tiny.rows_federation()
    state, settings = begin(method, federation, 0, Loop()), Settings(rounds=1)
    rows = federation.val.shape[1] + federation.test.shape[1]
    monkeypatch.setattr(executors, "EVALUATED", 3 * rows - 1)
    room["clients"] = 2
    scores = evaluate(method, state, federation, settings, Batched())[0]["pre"]["test"]
    assert room["refused"] == 0
    expected = evaluate(method, state, federation, settings, Loop())[0]["pre"]["test"]
    torch.testing.assert_close(scores, expected, rtol=1e-12, atol=0)


def test_the_chunk_is_halved_until_it_fits() -> None:
    """It is reduced from four clients to two, then to one."""
    executor = Batched()
    room["clients"] = 1
    with pytest.warns(UserWarning, match="continuing with 1 at once"):
        rounds(executor, 1)
    assert room["refused"] == 2


def test_an_error_for_one_client_names_the_settings_to_change() -> None:
    """It ends with one line of BadInput."""
    with pytest.raises(
        BadInput, match=r"train\.chunk.*not even 1 client.*train\.batch_size.*train\.executor.*train\.device"
    ):
        rounds(Batched())


def test_other_errors_are_not_caught() -> None:
    """Only a lack of memory leads to another attempt."""

    def wrong(data: object) -> Tensor:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        Batched().map(wrong, (), evaluation_cohort(tiny.rows_federation(), 0, 0))


@pytest.mark.parametrize(("name", "passes"), [("local", 1), ("fedavg", 2)])
def test_equal_models_are_evaluated_once(name: str, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of Local deploys its trained model. With FedAvg it gets the mean."""
    calls, predict = [], Task.predict

    def counted(task: Task, *inputs: Any) -> Tensor:
        calls.append(inputs)
        return predict(task, *inputs)

    federation, settings = tiny.rows_federation(), Settings(rounds=1)
    method = tiny.method(name, tiny.rows_task(), "rows")
    state = begin(method, federation, 0, Loop())
    state, _, trained = run_round(method, state, federation, settings, Loop(), shadow=True)
    monkeypatch.setattr(Task, "predict", counted)
    scores, models = evaluate(method, state, federation, settings, Loop(), trained)
    assert len(calls) == passes * tiny.CLIENTS
    assert models.keys() == scores.keys() == {"pre", "post"}
    assert (passes == 1) == torch.equal(scores["pre"]["test"], scores["post"]["test"])


def test_rows_of_classes_without_weight_are_not_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of two classes is tested on the rows of these. The score is that on all rows of a shared set."""
    federation, task = tiny.rows_federation(), tiny.rows_task()
    rows = torch.arange(len(federation.shared["y"])).expand(tiny.CLIENTS, -1)
    weight = torch.zeros(tiny.CLIENTS, tiny.CLASSES, dtype=torch.float64)
    weight[:, :2] = torch.tensor([0.25, 0.75])
    shared = replace(federation, test=rows, own={**federation.own, "test_weight": weight})
    method = tiny.method("local", task, "rows")
    state, counts, predict = begin(method, shared, 0, Loop()), [], Task.predict
    full = evaluate(method, state, shared, Settings(rounds=1), Batched())[0]["pre"]["test"]

    def counted(task: Task, model: Any, data: Any, rows: Tensor) -> Tensor:
        counts.append(len(rows))
        return predict(task, model, data, rows)

    monkeypatch.setattr(Task, "predict", counted)
    part = evaluate(method, state, shared, Settings(rounds=1), Loop())[0]["pre"]["test"]
    torch.testing.assert_close(part, full, rtol=1e-12, atol=0)
    real = (federation.val >= 0).sum(1) + (federation.shared["y"] < 2).sum()
    assert counts == real.tolist()
