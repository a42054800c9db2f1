"""A graph of a user's method: its control takes effect, and its weights have the right form, or one line says so."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

import fedweave as fw
from fedweave.client.solvers import SGD
from fedweave.engine.engine import run
from fedweave.engine.executors import Loop
from fedweave.engine.records import Settings
from fedweave.engine.schedule import Training
from fedweave.families import GeneratedModels, SplitClient, Weaving
from fedweave.graphs.controls import GraphControl


@dataclass(frozen=True, kw_only=True)
class Own(Weaving, SplitClient, GeneratedModels):
    """Mixtures by a matrix that the server trains; its weights do not reach the control."""

    label = "Own"
    server_solver = SGD(lr=0.1)

    def begin(self, start: Any) -> Any:
        models = {name: torch.stack([start.model[name]] * start.clients) for name in self.generated_shapes}
        return {"matrix": torch.zeros(start.clients, start.clients, dtype=self.task.dtype)}, {"models": models}

    def weights(self, phi: Any, ids: Tensor) -> Tensor:
        return torch.softmax(phi["matrix"][ids], dim=-1).expand(len(self.task.layers), -1, -1)

    def generate(self, phi: Any, fixed: Any, ids: Tensor) -> Any:
        return self.mix_models(self.weights(phi, ids), fixed["models"])

    def collaboration(self, server: Any) -> Tensor:
        return self.weights(server["phi"], torch.arange(tiny.CLIENTS))


class Recorded(Own):
    """The control is recorded and not used."""

    def collaboration(self, server: Any) -> Tensor:
        return self.controlled(super().collaboration(server), torch.arange(tiny.CLIENTS))


class Used(Own):
    """The control is used."""

    def weights(self, phi: Any, ids: Tensor) -> Tensor:
        return self.controlled(super().weights(phi, ids), ids)


class Late(Own):
    """Every round has the same weights, and those of the last one alone go through the control."""

    def weights(self, phi: Any, ids: Tensor) -> Tensor:
        learned = super().weights(phi, ids)
        return self.controlled(learned, ids) if self.control and self.control.round else learned


def run_two_rounds(cls: type[Own], word: str = "", **settings: Any) -> list[Any]:
    method = cls(task=tiny.rows_task(), solver=SGD(lr=0.1), training=Training(batch_size=4, epochs=1))
    method = replace(method, control=GraphControl(word) if word else None)
    return [*run(method, tiny.rows_federation(), Settings(rounds=2, **settings), Loop())]


def test_a_graph_that_begins_late_is_controlled_then() -> None:
    assert len(run_two_rounds(Late, "uniform")) == 2


@pytest.mark.parametrize("word", ["uniform", "self", "shuffled"])
@pytest.mark.parametrize("cls", [Own, Recorded])
def test_a_control_without_effect_is_refused(cls: type[Own], word: str) -> None:
    """Its scores would be those of the learned graph, under the name of the control."""
    assert len(run_two_rounds(cls)) == len(run_two_rounds(Used, word)) == 2
    words = f"{cls.__name__}: the control of its graph has no effect on the training; pass all weights through self"
    with pytest.raises(fw.BadInput, match=words):
        run_two_rounds(cls, word)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda weights: weights[0], r"\[5, 5\] of torch\.float64"),
        (lambda weights: weights[:, :, :3], r"\[2, 5, 3\] of torch\.float64"),
        (lambda weights: weights.float(), r"\[2, 5, 5\] of torch\.float32"),
    ],
)
def test_weights_that_mix_no_models_are_named(change: Callable[[Tensor], Tensor], found: str) -> None:
    """With their form and the right one."""

    class Misshapen(Own):
        def weights(self, phi: Any, ids: Tensor) -> Tensor:
            return change(super().weights(phi, ids))

    right = r"return a tensor \[2 or 1, P, 5\] of torch\.float64: layers, learners \(ids\), sources, as the"
    with pytest.raises(fw.BadInput, match=rf"Misshapen\.mix_models: weights: {found}; {right} models"):
        run_two_rounds(Misshapen)
