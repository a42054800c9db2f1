"""Which client holds which rows: the table of rules, into which a function enters by a decorator at its definition."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, get_args

from fedweave.data.base import Dataset, Kind, Partition
from fedweave.data.partitions.options import integer
from fedweave.errors import BadInput, choose
from fedweave.registry import check_name, register

Rule = Callable[..., Partition]
R = TypeVar("R", bound=Rule)

PARTITIONS: dict[str, Rule] = {}
KINDS: dict[str, tuple[str, ...]] = {}  # of data sets that a rule can deal


def rule(name: str, kinds: Sequence[Kind] = get_args(Kind)) -> Callable[[R], R]:
    """Enter the decorated function as the partition `name`, for data sets of `kinds`.

    A rule takes the data set, the number of clients, a seed, and its options as keywords with defaults; it returns a
    `Partition`. Its draws come from `fedweave.tensors.random_streams.stream(seed, ...)`.

    Raises:
        BadInput: on decorating what is no function, or a second rule for the same name.
    """
    check_name("partition", name)

    def enter(function: R) -> R:
        if isinstance(function, type) or not callable(function):
            raise BadInput(f"partition {name!r}: {function!r} is no rule; write a function that returns a Partition")
        register(PARTITIONS, "partition", name, function)
        KINDS[name] = tuple(choose(kind, get_args(Kind), f"partition {name!r}: kinds") for kind in kinds)
        return function

    return enter


def partition(
    dataset: Dataset, name: str, clients: int | None = None, seed: int | None = None, **options: Any
) -> Partition:
    """Distribute the rows of `dataset` over `clients` clients by the rule `name` of PARTITIONS.

    Raises:
        BadInput: an unknown rule or option, a missing or impossible value, or a rule that does not fit the
            data set.
    """
    deal = PARTITIONS[choose(name, PARTITIONS, "partition.name")]
    clients = integer("clients", clients, 1, None if name == "natural" else len(dataset.x))
    seed = integer("seed", seed, 0)
    fitting = [key for key in PARTITIONS if dataset.kind in KINDS[key]]
    if name not in fitting or (name == "natural" and dataset.kind == "images" and dataset.owner is None):
        raise BadInput(f"partition.name: {name} does not fit {dataset.name} ({dataset.kind}); choices: {fitting}")
    options_of_rule = accepted(name)
    for key in options:
        choose(key, options_of_rule, "partition")
    missing = [
        key for key, default in options_of_rule.items() if default is inspect.Parameter.empty and key not in options
    ]
    if missing:
        raise BadInput(f"partition.{missing[0]}: missing; {name} needs a value")
    return deal(dataset, clients, seed, **options)


def accepted(name: str) -> dict[str, Any]:
    """Options of the rule `name` and their defaults; a required one has `inspect.Parameter.empty`."""
    deal = PARTITIONS[name]
    functions = [deal.func, *deal.args] if isinstance(deal, partial) else [deal]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [p for f in functions for p in inspect.signature(f).parameters.values() if p.kind is keyword]
    return {p.name: p.default for p in parameters}
