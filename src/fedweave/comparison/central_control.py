"""The control that trains on pooled rows: when a comparison adds it, and when it is refused."""

from collections.abc import Mapping
from typing import Any

from fedweave.data import fit_units
from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.own_data.federation import Federation
from fedweave.study.spec import StudySpec


def add_control(
    federation: Federation, entries: dict[str, tuple[str, dict[str, Any]]], train: Mapping[str, Any]
) -> dict[str, tuple[str, dict[str, Any]]]:
    """`entries` with a control that trains on pooled rows, unless one is listed or the clients' rows cannot be pooled.

    Clients with graphs of their own have no common rows, and targets in units of each client have no common scale. A
    study of attacks, privacy or the server's optimiser is about uploads, of which pooled training has none.
    """
    pooling_methods = {name for name, cls in METHODS.items() if cls.pools and cls.__module__.startswith("fedweave.")}
    has_pooled = any(METHODS[method].pools for method, _ in entries.values())
    about_uploads = any(train.get(key) for key in ("privacy", "robust", "server_optimizer"))
    if has_pooled or about_uploads or federation.partition.nodes is not None or not _has_common_unit(federation):
        return entries
    return {**entries, **{name: (name, {}) for name in sorted(pooling_methods) if name not in entries}}


def check_units(federation: Federation, entries: Mapping[str, tuple[str, dict[str, Any]]], title: str) -> None:
    """Refuse training on pooled rows where rows have no common scale."""
    pooled = [name for name, (method, _) in entries.items() if METHODS[method].pools]
    if pooled and not _has_common_unit(federation):
        raise BadInput(
            f"{title}: {pooled[0]}: every client has its own offset and unit of the targets, so that rows cannot be "
            "pooled; leave it out"
        )


def check_methods(study: StudySpec) -> None:
    """Refuse a comparison of nothing but training on pooled rows."""
    methods = [item.method for item in study.runs.values()]
    if all(METHODS[method].pools for method in methods):
        raise BadInput(f"methods: {methods[0]!r} is a control on pooled rows; add a method that it is compared with")


def _has_common_unit(federation: Federation) -> bool:
    """Whether all clients' targets are scaled alike."""
    if federation.dataset.targets is None:
        return True
    numbers = fit_units(federation.dataset, federation.partition, federation.normalize)
    return all(bool((values == values[:1]).all()) for values in numbers)
