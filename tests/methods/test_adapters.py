"""Every method on a model with low-rank adapters: it sees, mixes, sends and stores adapters and head alone."""

from dataclasses import replace

import pytest
import tiny
from tiny import CLASSES, rows_federation

from fedweave.client.task import RowClassification
from fedweave.engine.protocol import Method
from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.models import build
from fedweave.tensors.trees import flatten_paths
from fedweave.testing import contract

ADAPTER = {"name": "lora", "rank": 2}
NAMES = [pytest.param(name, marks=tiny.sweep(name)) for name in METHODS if tiny.suits(name, "rows")]


def method_with_adapters(name: str) -> Method:
    """A method whose clients train adapters of the two layers under the head of a perceptron."""
    task = RowClassification(
        lambda: build("mlp", (6,), CLASSES, hidden=[5, 5], adapter=ADAPTER), tiny.rows_task().dtype
    )
    assert [*task.layers] == ["fc1.lora", "fc2.lora", "fc"]
    return tiny.method(name, task, "rows")


@pytest.mark.parametrize("name", NAMES)
def test_methods_train_adapters(name: str) -> None:
    """Side by side as one after the other, from any round with the same bits, and without a constant in any state."""
    method, federation = method_with_adapters(name), rows_federation()
    reports = contract.run_rounds(method, federation)
    contract.executors_agree(method, federation, reports)
    contract.resumed_equals_uninterrupted(method, federation, reports)
    stored = {path.rpartition("/")[2] for path in flatten_paths(reports[-1].state._asdict() | {"round": {}})}
    assert stored.isdisjoint(method.task.constants)
    for model in reports[-1].models.values():
        assert {path.rpartition("/")[2] for path in flatten_paths(model)}.isdisjoint(method.task.constants)


@pytest.mark.parametrize("name", ["fedavg", "fedaghn", "pfedla", "pfedgraph"])
def test_messages_are_adapters_and_head(name: str) -> None:
    """Four bytes for each number of them; weights of a graph have one layer for each adapter."""
    method, federation = method_with_adapters(name), rows_federation()
    *_, report = contract.run_rounds(method, federation)
    numbers = sum(value.numel() for value in method.task.template.parameters())
    assert numbers == 2 * (5 + 6) + 2 * (5 + 5) + 5 * CLASSES + CLASSES
    assert report.bytes_up == 3 * 4 * numbers
    weights = report.method.collaboration(report.state.server)
    assert weights is None or len(weights) in (1, 3)


def test_fedper_shares_what_is_not_personal() -> None:
    """FedSA-LoRA: A goes to the server and back; B and the head stay."""
    method, federation = method_with_adapters("fedper"), rows_federation()
    method = replace(method, personal=("head", "*.B"))
    reports = contract.run_rounds(method, federation)
    contract.executors_agree(method, federation, reports)
    assert {*reports[-1].state.server["model"]} == {"fc1.lora.A", "fc2.lora.A"}
    assert reports[-1].bytes_up == 3 * 4 * 2 * (6 + 5)
    for personal, place in ((("fc9",), "'fc9' names no layer; choices: head, fc1.lora, fc2.lora, fc"), (("fc",), "")):
        named = replace(method, personal=personal)
        if place:
            with pytest.raises(BadInput, match=f"^fedper.personal: {place}"):
                _ = named.private
        else:
            assert named.private == named.task.head
