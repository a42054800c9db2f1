"""The table of client models, to which a decorator adds a class."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from fedweave.errors import BadInput, choose, format_value
from fedweave.models import adapters
from fedweave.models.base import BODY, ClientModel, check_parameters, make_constants
from fedweave.models.padded_embedding import keep_padding
from fedweave.registry import check_name, register
from fedweave.settings import Setting, describe

C = TypeVar("C", bound=ClientModel)

MODELS: dict[str, type[ClientModel]] = {}


def model(name: str) -> Callable[[type[C]], type[C]]:
    """Enter the decorated class as the client model `name`.

    Raises:
        BadInput: on decorating what is not a `ClientModel`, or a second class for the same name.
    """
    check_name("model", name)

    def enter(cls: type[C]) -> type[C]:
        if not (isinstance(cls, type) and issubclass(cls, ClientModel)):
            raise BadInput(
                f"model {name!r}: {format_value(cls)} is not a client model; derive it from fedweave.models.ClientModel"
            )
        if missing := sorted(cls.__abstractmethods__):
            raise BadInput(f"model {name!r}: {cls.__name__} has no {', '.join(missing)}; define it")
        register(MODELS, "model", name, cls)
        return cls

    return enter


def options(name: str) -> dict[str, Any]:
    """Option names and defaults of the model called `name`."""
    return {setting.name: setting.default for setting in settings(choose(name, MODELS, "model.name"))}


def settings(name: str) -> tuple[Setting, ...]:
    """The options of the model called `name`, as its constructor describes them."""
    return describe(MODELS[name].__init__)


CAPABILITIES = {"rows": {"classes", "pooled_rows"}, "graph": {"classes", "subgraphs"}, "series": {"pooled_rows"}}


def capabilities(name: str, arguments: Mapping[str, Any]) -> frozenset[str]:
    """Properties that methods may require if clients train the model `name` with the options `arguments`."""
    cls = MODELS[choose(name, MODELS, "model.name")]
    normalised = arguments.get("batch_norm", options(name).get("batch_norm", cls.has_batch_norm))
    adapter = arguments.get("adapter")
    head_alone = "head" in (adapter, *(adapter.values() if isinstance(adapter, Mapping) else ()))
    return frozenset(
        CAPABILITIES[cls.reads] | ({"batch_norm"} if normalised else set()) | (set() if head_alone else {BODY})
    )


def build(
    name: str,
    shape: tuple[int, ...],
    outputs: int,
    *,
    categories: Sequence[int] = (),
    adapter: adapters.Block = None,
    **arguments: Any,
) -> ClientModel:
    """Make a model for inputs of `shape` (no batch axis), initialised by torch's global generator.

    Its frozen parameters become constants, see `make_constants`.

    Args:
        categories: how many codes each value of a vector has, 0 for a number, as `Dataset.categories`.
        adapter: what is trained besides the head, such as {"name": "lora", "rank": 4}; the rest is frozen.
        arguments: options of the model.

    Raises:
        BadInput: for an unknown name or option, a shape or categories that the model cannot take, or a model with wrong
            parameters (`check_parameters`) or a wrong head.
    """
    choices = options(name)
    for option in arguments:
        if not choices:
            raise BadInput(f"model.{option}: unknown; {name} has no options")
        choose(option, choices, f"model ({name}): option")
    if categories and not MODELS[name].embeds:
        alternatives = ", ".join(sorted(other for other, cls in MODELS.items() if cls.embeds))
        raise BadInput(
            f"model.name: {name!r} has no embeddings, which {sum(map(bool, categories))} categories of the data need; "
            f"use {alternatives}, or give categories one column per value (embed=False)"
        )
    network = MODELS[name](tuple(shape), outputs, *([tuple(categories)] if categories else []), **arguments)
    make_constants(network)
    if not adapter:
        check_parameters(network, f"model {name}")
    parts = dict(network.named_modules())
    if isinstance(network.head, str) or not network.head or not {*network.head} <= parts.keys():
        children = ", ".join(part for part, _ in network.named_children())
        raise BadInput(f"model {name}: head is {network.head!r}; give a tuple of its last modules, of {children}")
    if chosen := adapters.parse(adapter):
        adapters.insert(chosen, network, network.head, "model.adapter")
        check_parameters(network, f"model {name}")
    keep_padding(network)
    return network
