"""Mixtures of adapters by their products: exact where the rank is enough, and the nearest of their rank otherwise."""

from dataclasses import replace

import pytest
import tiny
import torch
from tiny import CLASSES, rows_federation

from fedweave.client.task import RowClassification
from fedweave.engine.protocol import Method
from fedweave.errors import BadInput
from fedweave.families.base import check_adapters
from fedweave.graphs.products import mix_products
from fedweave.methods import METHODS
from fedweave.models import build
from fedweave.testing import contract

pytestmark = pytest.mark.usefixtures("seeded")
PAIRS = (("A", "B"),)


def products(models: dict[str, torch.Tensor]) -> torch.Tensor:
    """B A of every client [N, out, in]."""
    return models["B"] @ models["A"]


def test_a_mixture_of_clients_that_share_a_space_is_exact() -> None:
    """Clients with turned factors of one product: the mean of the factors loses it, that of the products does not."""
    a, b = tiny.numbers(1, 2, 6), tiny.numbers(1, 5, 2)
    turns = torch.linalg.qr(tiny.numbers(4, 2, 2))[0]
    models = {"A": turns @ a, "B": b @ turns.mT}
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.0, 1.0, 0.0, 0.0]])
    mixed = mix_products(weights, models, PAIRS)
    torch.testing.assert_close(products(mixed), (b @ a).expand(2, -1, -1), rtol=1e-6, atol=1e-6)
    factors = {name: torch.tensordot(weights.to(value), value, 1) for name, value in models.items()}
    assert (products(factors)[0] - products(mixed)[0]).norm() > 0.1 * (b @ a).norm()
    lengths = mixed["A"].square().sum(-1)
    torch.testing.assert_close(lengths, a.square().sum(-1).mean().expand_as(lengths), rtol=1e-6, atol=1e-6)


def test_a_mixture_is_the_nearest_of_its_rank() -> None:
    """The error is that of the singular values that are cut (Eckart and Young), with many and with few clients."""
    for clients in (2, 7):
        models = {"A": tiny.numbers(clients, 2, 6), "B": tiny.numbers(clients, 5, 2)}
        weights = torch.rand(1, clients, dtype=torch.float64).softmax(-1)
        whole = torch.tensordot(weights, products(models), 1)[0]
        error = (products(mix_products(weights, models, PAIRS))[0] - whole).norm()
        torch.testing.assert_close(error, torch.linalg.svdvals(whole)[2:].norm())


def test_untrained_adapters_can_learn() -> None:
    """While all B are 0, A keeps its length; as zero, neither would have a gradient."""
    models = {"A": tiny.numbers(3, 2, 6), "B": torch.zeros(3, 5, 2, dtype=torch.float64)}
    mixed = mix_products(torch.full((1, 3), 1 / 3), models, PAIRS)
    assert not mixed["B"].any()
    torch.testing.assert_close(mixed["A"].square().sum(), models["A"].square().sum((1, 2)).mean(), rtol=1e-6, atol=1e-6)


def method_with_products(name: str) -> Method:
    """A method on a perceptron whose adapters are mixed by their products."""
    adapter = {"name": "lora", "rank": 2, "mix": "product"}
    make = lambda: build("mlp", (6,), CLASSES, hidden=[5, 5], adapter=adapter)  # noqa: E731
    return tiny.method(name, RowClassification(make, torch.float64), "rows")


@pytest.mark.parametrize("name", ["fedavg", "fedper", "ditto", "pfedgraph", "fedamp"])
def test_methods_mix_products(name: str) -> None:
    """What clients receive has the mean, or the mixture, of their products; executors agree, and runs continue."""
    method, federation = method_with_products(name), rows_federation()
    reports = contract.run_rounds(method, federation)
    contract.executors_agree(method, federation, reports)
    contract.resumed_equals_uninterrupted(method, federation, reports)
    a, b = method.task.products_to_mix[0]
    ids = torch.arange(5)
    models = {"fc1.lora.A": tiny.numbers(5, 2, 6), "fc1.lora.B": tiny.numbers(5, 5, 1).expand(-1, -1, 2).clone()}
    assert (a, b) == tuple(models)
    state = reports[-1].state
    if method.mixes:
        server = {**state.server, "models": {**state.server["models"], **models}}
        received = method.download(server, ids)[1]["mixture"]
        layer = [*method.task.layers].index("fc1.lora")
        rows = method.mixture(server, ids).expand(3, -1, -1)[layer]  # type: ignore[attr-defined]
    else:
        uploads = {"model": {**{n: v.expand(5, *v.shape) for n, v in state.server["model"].items()}, **models}}
        rows = torch.tensor([[0.1, 0.3, 0.2, 0.3, 0.1]])
        received = method.aggregate(state.server, ids, uploads, 40 * rows[0])["model"]
        received = {name: value[None] for name, value in received.items()}
    expected = mix_products(rows, models, ((a, b),))
    torch.testing.assert_close(received[b] @ received[a], expected[b] @ expected[a], rtol=1e-5, atol=1e-6)


def test_methods_that_mix_in_another_way_are_refused() -> None:
    """The line names the method and the two ways out; local training mixes nothing."""
    for name in ("fedaghn", "scaffold", "fedem", "fedadam", "pfedhn"):
        method = method_with_products(name)
        with pytest.raises(BadInput, match=f"^runs.a: model.adapter has mix: product, .*{method.label} takes none"):
            check_adapters(method, "runs.a")
    for name in ("local", "fedavg", "central"):
        check_adapters(method_with_products(name), "runs.a")
    with pytest.raises(BadInput, match="a plain mean or mixture of A and B, and FedPer takes none"):
        check_adapters(replace(method_with_products("fedper"), personal=("*.B",)), "runs.a")
    unmixed = replace(method_with_products("fedavg"), task=tiny.rows_task())
    assert not unmixed.task.products_to_mix
    assert "fedavg" in METHODS
