"""Which client holds which rows: the table of partition rules, to which a decorator adds a function."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, get_args

from fedweave.data.base import Dataset, Kind, Partition
from fedweave.data.partitions import checks
from fedweave.data.partitions.checks import check_integer
from fedweave.errors import BadInput, choose, describe_error, format_value, relocate
from fedweave.registry import check_name, error_line, register, users_file
from fedweave.settings import REQUIRED, Setting, describe

Rule = Callable[..., Partition]
R = TypeVar("R", bound=Rule)


class RuleTraits(NamedTuple):
    """What a rule declares.

    Attributes:
        kinds: of data sets that it can distribute.
        owners: its clients are those of the data set, so their number is not free.
        shared_test: clients of one group have test rows in common.
    """

    kinds: tuple[str, ...]
    owners: bool = False
    shared_test: bool = False

    def fits(self, dataset: Dataset) -> bool:
        """Whether the rule can distribute `dataset`."""
        return dataset.kind in self.kinds and (not self.owners or dataset.kind != "images" or dataset.owner is not None)


PARAMETERS = ("dataset", "clients", "seed")  # what every rule is called with, in this order
PARTITIONS: dict[str, Rule] = {}
TRAITS: dict[str, RuleTraits] = {}


def rule(
    name: str, kinds: Sequence[Kind] = get_args(Kind), *, owners: bool = False, shared_test: bool = False
) -> Callable[[R], R]:
    """Enter the decorated function as the partition `name`, for data sets of `kinds`.

    A rule takes the data set, the number of clients, a seed, and its options as keywords with defaults, each described
    at its parameter as in `fedweave.settings`; it returns a `Partition`. Its draws come from
    `fedweave.tensors.random_streams.stream(seed, ...)`. `owners` and `shared_test` are explained at `RuleTraits`.

    Raises:
        BadInput: on decorating what is not a function, or a second rule for the same name.
    """
    check_name("partition", name)

    def enter(function: R) -> R:
        if isinstance(function, type) or not callable(function):
            raise BadInput(
                f"partition {name!r}: {format_value(function)} is not a rule; write a function that returns a Partition"
            )
        if missing := [key for key in PARAMETERS if key not in inspect.signature(function).parameters]:
            raise BadInput(f"partition {name!r}: has no parameter {missing[0]}; a rule takes {', '.join(PARAMETERS)}")
        register(PARTITIONS, "partition", name, function)
        chosen = tuple(choose(kind, get_args(Kind), f"partition {name!r}: kinds") for kind in kinds)
        TRAITS[name] = RuleTraits(chosen, owners, shared_test)
        return function

    return enter


def partition(
    dataset: Dataset, name: str, clients: int | None = None, seed: int | None = None, **options: Any
) -> Partition:
    """Distribute the rows of `dataset` over `clients` clients by the rule `name` of PARTITIONS.

    Where the clients are those of the data set (`RuleTraits.owners`), their number may be left out.

    Raises:
        BadInput: an unknown rule or option, a missing or impossible value, a rule that does not fit the data set, or
            that returned what is not a partition of it.
    """
    function = PARTITIONS[choose(name, PARTITIONS, "partition.name")]
    known = {setting.name: setting for setting in settings(name)}
    for key in options:
        choose(key, [*known, *PARAMETERS[1:]], "partition")
    if not TRAITS[name].fits(dataset):
        fitting = ", ".join(key for key in PARTITIONS if TRAITS[key].fits(dataset))
        raise BadInput(f"partition.name: {name} does not fit {dataset.name} ({dataset.kind}); choices: {fitting}")
    if clients is None and TRAITS[name].owners:
        clients = dataset.natural_clients or None  # a data set without owners has none of its own
    clients = check_integer("clients", clients, 1, None if TRAITS[name].owners else len(dataset.x))
    seed = check_integer("seed", seed, 0)
    for key, value in options.items():
        known[key].check(value, f"partition.{key}")
    missing = [key for key, setting in known.items() if setting.default is REQUIRED and key not in options]
    if missing:
        raise BadInput(f"partition.{missing[0]}: missing; {name} needs a value")
    file = users_file(function)
    where = f"partition {name!r}" + (f" of {file}" if file else "")
    result = _apply_rule(function, (dataset, clients, seed), options, where)
    return checks.check_partition(result, dataset, None if TRAITS[name].owners else clients, where)


def _apply_rule(function: Rule, arguments: tuple[Any, ...], options: Mapping[str, Any], where: str) -> Partition:
    """What a rule returns. One of a user is called twice, because its draws must depend on the seed alone."""
    is_own = users_file(function) is not None
    try:
        with relocate({"partition": where} if is_own else {}):  # the class Partition does not know the rule
            result = function(*arguments, **options)
            if is_own:
                checks.check_determinism(result, function(*arguments, **options), where)
        return result
    except BadInput:
        raise
    except Exception as error:  # the code of a user can raise anything
        line = error_line(function, error)
        if line is None:
            raise
        reason = describe_error(error)
        raise BadInput(f"{where}: failed in line {line} ({reason}); correct it there") from error


def splits(block: Mapping[str, Any], where: str = "partition") -> tuple[dict[str, Any], ...]:
    """The arguments of `partition` of every split that a task's block names: one per entry of `seeds`, or only one.

    Raises:
        BadInput: `seeds` is not a list of different seeds, or `seed` is given too.
    """
    if "seeds" not in block:
        return (dict(block),)
    rest, seeds = {name: value for name, value in block.items() if name != "seeds"}, block["seeds"]
    if "seed" in block:
        raise BadInput(f"{where}: seed {format_value(block['seed'])} and seeds {format_value(seeds)}: give one of them")
    if not isinstance(seeds, list | tuple) or not seeds:
        raise BadInput(
            f"{where}.seeds: {format_value(seeds)} must be a list of seeds, one per split, such as [1, 2, 3]"
        )
    for seed in seeds:
        check_integer("seeds", seed, 0, block=where)
    if len({*seeds}) < len(seeds):
        raise BadInput(f"{where}.seeds: {format_value(seeds)} has a seed twice, which would be the same split")
    return tuple({**rest, "seed": seed} for seed in seeds)


def settings(name: str) -> tuple[Setting, ...]:
    """The options of the rule `name`, as its parameters describe them."""
    function = PARTITIONS[name]
    parts = [function.func, *function.args] if isinstance(function, partial) else [function]
    return tuple(setting for part in parts for setting in describe(part))


def default_options(name: str) -> dict[str, Any]:
    """Options of the rule `name` and their defaults; a required one has `fedweave.settings.REQUIRED`."""
    return {setting.name: setting.default for setting in settings(name)}
