"""Every method on a model with low-rank adapters: it sees, mixes, sends and stores adapters and head alone."""

from dataclasses import replace

import pytest
import tiny
import torch
from tiny import CLASSES, rows_federation

from fedweave.client.task import RowClassification
from fedweave.engine import adapter_ranks
from fedweave.engine.engine import run_round
from fedweave.engine.executors import Loop
from fedweave.engine.protocol import Method
from fedweave.engine.start import begin
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


@pytest.mark.parametrize("name", ["local", "fedavg", "fedper", "ditto", "pfedgraph"])
def test_ranks_of_clients(name: str) -> None:
    """A client has the first columns of its rank, trains them, and sends no other; the mean is that of padded zeros."""
    method, federation = method_with_adapters(name), rows_federation()
    ranks = torch.tensor([1, 2, 2, 1, 1])
    federation = replace(federation, own={**federation.own, adapter_ranks.RANKS: ranks})
    reports = contract.run_rounds(method, federation)
    contract.executors_agree(method, federation, reports)
    contract.resumed_equals_uninterrupted(method, federation, reports)
    for model in reports[-1].models.values():
        a, b = (flatten_paths(model)[f"fc1.lora.{factor}"] for factor in "AB")
        assert [int((row != 0).any(1).sum()) for row in a] == ranks.tolist()
        assert [int((row != 0).any(0).sum()) for row in b] <= ranks.tolist()


def test_bytes_and_means_of_clients_with_ranks() -> None:
    """FedAvg of everybody: bytes are those of each client's rank, and a column that few have is a mean with zeros."""
    method, federation = method_with_adapters("fedavg"), rows_federation()
    ranks = torch.tensor([1, 2, 2, 1, 1])
    ranked = replace(federation, own={adapter_ranks.RANKS: ranks})
    state = begin(method, ranked, 1, Loop())
    after, report, models = run_round(method, state, ranked, contract.EVERYBODY, Loop())
    head = 5 * CLASSES + CLASSES
    assert report.bytes_up == report.bytes_down == 4 * (5 * head + int(ranks.sum()) * (6 + 5 + 5 + 5))
    shares = (federation.sizes / federation.sizes.sum()).double()
    mean = torch.tensordot(shares, models["fc1.lora.A"], 1)
    torch.testing.assert_close(after.server["model"]["fc1.lora.A"], mean)
    assert not models["fc1.lora.A"][[0, 3, 4], 1].any()
    assert models["fc1.lora.A"][[1, 2], 1].all()
