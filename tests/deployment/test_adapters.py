"""Adapters on separate hosts: each host makes the frozen body itself, and messages have adapters and head alone."""

from pathlib import Path
from typing import Any

import pytest
from hosts import Hosts, planned, rows_of, same

from fedweave.errors import BadInput


def hosts_with(folder: Path, method: str, secure: bool = False, **settings: Any) -> Hosts:
    """An exported run of a perceptron with low-rank adapters."""
    adapter = {"name": "lora", "rank": 2, **settings}
    model = {"name": "mlp", "hidden": [8, 8], "adapter": adapter}
    return Hosts(folder, planned(method, rows_of(), model=model), secure=secure)


@pytest.mark.parametrize("settings", [{}, {"mix": "product"}], ids=["factors", "product"])
def test_hosts_have_the_bits_of_the_simulation(settings: dict[str, Any], tmp_path: Path) -> None:
    """No message has a frozen weight."""
    hosts = hosts_with(tmp_path, "pfedgraph", **settings)
    calls = hosts.calls()
    assert same(hosts.run(calls).history, hosts.simulation())
    names = {name for _, request, _ in calls.sent for name in {**request.shared, **request.own}}
    assert all(any(name.endswith(word) for name in names) for word in ("fc1.lora.A", "fc2.lora.B", "fc.weight"))
    assert not any(name.endswith(("fc1.weight", "fc1.bias", "fc2.weight")) for name in names)


def test_what_hosts_cannot_mix(tmp_path: Path) -> None:
    """A masked sum has no products, and a host knows no rank of its own."""
    assert hosts_with(tmp_path / "a", "fedavg", secure=True).secure
    with pytest.raises(BadInput, match="secure aggregation gives the server the mean only, but that of fedavg needs"):
        hosts_with(tmp_path / "b", "fedavg", secure=True, mix="product")
    with pytest.raises(BadInput, match=r"model.adapter.ranks: hosts have adapters of one rank; leave it out"):
        hosts_with(tmp_path / "c", "fedavg", ranks=[1, 2])
