"""Integers and truth values in a model have no mean: no method, no aggregate and no deployment averages them."""

import pytest
import torch
from hosts import Hosts, planned, rows_of, same
from tiny import ARGUMENTS, CLASSES, rows_federation, suits, sweep
from torch import Tensor, nn

from fedweave.client.solvers import SGD
from fedweave.client.task import RowClassification
from fedweave.engine.engine import run
from fedweave.engine.executors import Batched, Executor, Loop
from fedweave.engine.records import Settings
from fedweave.engine.schedule import Training
from fedweave.files.atomic import load_tensors
from fedweave.methods import METHODS
from fedweave.models import MODELS, ClientModel
from fedweave.models.base import BatchNorm
from fedweave.models.own_module import wrap
from fedweave.tensors import storage, trees
from fedweave.threats.robust import Robust

NAMES = ("order", "mask")
LARGE = 2**24 + 1  # float32 has no such number


class Masked(nn.Module):
    """Buffers of integers and truth values, and batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.tensor([1, 0, 2, 3, 4, 5]))
        self.register_buffer("mask", torch.tensor([True] * 5 + [False]))
        self.norm, self.fc1, self.fc = nn.BatchNorm1d(6), nn.Linear(6, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.fc1(self.norm(x[:, self.order] * self.mask)).relu())


def check_models(name: str, executor: Executor) -> None:
    """The buffers of all models are those of the first model, also if statistics of BatchNorm are averaged."""
    task, cls = RowClassification(wrap(Masked, (6,), CLASSES)), METHODS[name]
    training = Training(batch_size=4, drop_last=True, average_buffers=cls.averages)
    method = cls(task=task, solver=SGD(lr=0.1), training=training, **ARGUMENTS.get(name, {}))
    *_, report = run(method, rows_federation(), Settings(rounds=2, seed=1), executor)
    own = Masked().state_dict()
    for model in report.models.values():
        found = trees.flatten_paths(model)
        assert {path.rpartition("/")[2] for path in found} >= {*NAMES}
        for path, value in found.items():
            if (buffer := path.rpartition("/")[2]) in NAMES:
                assert torch.equal(value, own[buffer].expand_as(value)), path


METHODS_OF_ROWS = [name for name in METHODS if suits(name, "rows") and name != "pefll"]


@pytest.mark.parametrize("name", [pytest.param(name, marks=sweep(name)) for name in METHODS_OF_ROWS])
def test_no_method_changes_them(name: str) -> None:
    check_models(name, Loop())


@pytest.mark.parametrize("name", ["fedala", "fedavg", "fedem", "pefll", "perfedavg"])
def test_they_are_the_same_for_clients_at_once(name: str) -> None:
    check_models(name, Batched())


def equal_uploads() -> tuple[trees.Params, trees.Params]:
    """(a model, the uploads of three clients that return it)."""
    model = {"index": torch.arange(LARGE - 4, LARGE + 1), "used": torch.tensor([True, False]), "weight": torch.rand(3)}
    return model, trees.broadcast(model, 3)


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [3.0, 5.0, 9.0]])
def test_three_clients_that_return_one_model_give_this_model(weights: list[float], tmp_path) -> None:
    """By the weighted mean, by mixtures, and by robust rules."""
    model, uploads = equal_uploads()
    shares = torch.tensor(weights)
    results = [trees.weighted_mean(uploads, shares)]
    results += [
        trees.at(trees.mix_rows(uploads, torch.stack([shares, shares.flip(0)]) / shares.sum()), i) for i in (0, 1)
    ]
    for rule in ("median", "trimmed"):
        results.append(trees.at(Robust(rule=rule).apply({"model": uploads}, {"model": uploads})["model"], 0))
    with storage.use_storage(storage.Storage(tmp_path)):
        table = trees.put(trees.build_table(model, 3), torch.tensor([1]), trees.at(uploads, slice(1, 2)))
    results.append(trees.weighted_mean(table, shares))
    for result in results:
        for name in ("index", "used"):
            assert result[name].dtype == model[name].dtype
            assert torch.equal(result[name], model[name])
        torch.testing.assert_close(result["weight"], model["weight"])


def test_of_different_integers_the_largest_share_counts() -> None:
    counts = {"batches": torch.tensor([4, 9, 2])}
    assert trees.weighted_mean(counts, torch.tensor([1.0, 2.0, 3.0]))["batches"] == 2
    assert trees.weighted_mean(counts, torch.tensor([1.0, 7.0, 3.0]))["batches"] == 9


class Ordered(ClientModel):
    """Reads its values in an order, which is a buffer of integers, and normalises them."""

    head, has_batch_norm = ("fc",), True

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(LARGE, LARGE - 4, -1))
        self.norm, self.fc = BatchNorm(4), nn.Linear(16, outputs)

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        grid = x.flatten(1)[:, self.order - self.order.min()]
        return self.norm(grid[:, :, None, None].expand(-1, -1, 2, 2), key=key, mask=mask).flatten(1)


@pytest.mark.parametrize("buffers", [None, "average"])
def test_separate_hosts_keep_them(buffers: str | None, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No message holds integers of a model, and every host has those of the start."""
    monkeypatch.setitem(MODELS, "ordered", Ordered)
    monkeypatch.setattr(Ordered, "__module__", MODELS["mlp"].__module__)  # as if every host had it
    hosts = Hosts(tmp_path, planned("fedavg", rows_of(), "ordered", bn_buffers=buffers))
    calls = hosts.calls()
    assert same(hosts.run(calls).history, hosts.simulation())
    messages = [part for _, request, reply in calls.sent for part in (request.shared, reply.upload)]
    names = {name for message in messages for name in message}
    assert ("model|norm.running_mean" in names) == (buffers == "average")
    assert not any(name.endswith("order") for name in names)
    kept = [load_tensors(file) for file in sorted((tmp_path / "nodes").rglob("*.pt"))]
    orders = [value for tree in kept for path, value in trees.flatten_paths(tree).items() if path.endswith("order")]
    assert orders
    expected = torch.arange(LARGE, LARGE - 4, -1)
    assert all(torch.equal(value, expected.expand_as(value)) for value in orders)
