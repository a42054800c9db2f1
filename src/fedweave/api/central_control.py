"""The control on pooled rows in a comparison: where it joins, and where it is refused."""

from collections.abc import Mapping
from typing import Any

from fedweave.api.federation import Federation
from fedweave.data import fit_units
from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.study.spec import Study


def add_control(
    federation: Federation, named: dict[str, tuple[str, dict[str, Any]]], train: Mapping[str, Any]
) -> dict[str, tuple[str, dict[str, Any]]]:
    """`named` with a control that trains on pooled rows, unless one is listed or the clients' rows cannot be pooled.

    Clients with graphs of their own have no common rows, and targets in units of each client have no common scale. A
    study of attacks, privacy or the server's optimiser is about uploads, of which pooled training has none.
    """
    pooling = {name for name, cls in METHODS.items() if cls.pools and cls.__module__.startswith("fedweave.")}
    listed = any(METHODS[method].pools for method, _ in named.values())
    about_uploads = any(train.get(key) for key in ("privacy", "robust", "server_optimizer"))
    if listed or about_uploads or federation.partition.nodes is not None or not _has_common_unit(federation):
        return named
    return {**named, **{name: (name, {}) for name in sorted(pooling) if name not in named}}


def check_units(federation: Federation, named: Mapping[str, tuple[str, dict[str, Any]]], title: str) -> None:
    """Refuse training on pooled rows where rows have no common scale."""
    pooled = [name for name, (method, _) in named.items() if METHODS[method].pools]
    if pooled and not _has_common_unit(federation):
        raise BadInput(
            f"{title}: {pooled[0]}: every client has its own offset and unit of the targets, so that rows cannot be "
            "pooled; leave it out"
        )


def check_methods(study: Study) -> None:
    """Refuse a comparison of nothing but training on pooled rows."""
    methods = [item.method for item in study.runs.values()]
    if all(METHODS[method].pools for method in methods):
        raise BadInput(f"methods: {methods[0]!r} is a control on pooled rows; add a method that it is compared with")


def _has_common_unit(federation: Federation) -> bool:
    """Whether all clients' targets are scaled alike."""
    if federation.dataset.targets is None:
        return True
    numbers = fit_units(federation.dataset, federation.partition, federation.normalize)
    return all(bool((of_clients == of_clients[:1]).all()) for of_clients in numbers)
