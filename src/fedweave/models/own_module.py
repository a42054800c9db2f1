"""Any nn.Module as a client model: training mode, keys, masks, batch normalisation and the head."""

import copy
import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, jit, nn
from torch.nn.parameter import is_lazy

from fedweave.errors import BadInput, describe_error
from fedweave.models import adapters
from fedweave.models.base import (
    CONSTANTS,
    ClientModel,
    add_constants,
    check_parameters,
    check_trainable,
    make_constants,
)
from fedweave.models.context import ForwardContext
from fedweave.models.inputs import Layout, OneModule, call, describe, shapes
from fedweave.models.keyed_functions import KeyedFunctions, may_draw
from fedweave.models.keyed_layers import make_keyed
from fedweave.models.pretrained import digests
from fedweave.models.source import code_of, digest_text, find_reads, find_values, is_users, source_of
from fedweave.tensors.attention import plain_attention
from fedweave.tensors.seeding import use_seed

MAKER = "the function that makes it"


class _HeadInput(Exception):
    """Carries the input of the head out of a forward pass."""


class WrappedModule(ClientModel):
    """A user's module with the interface of client models.

    It shares the dictionaries of the module, so parameters keep their names, and a state dictionary of one can be
    loaded into the other. `head` holds the name of the layer that maps features to outputs.
    """

    inner: nn.Module
    maker: "OwnModule"
    context: ForwardContext
    parts: list[nn.Module]

    def __init__(self, module: nn.Module, maker: "OwnModule") -> None:
        super().__init__()
        context = make_keyed(module, maker.name)
        for table in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[table] = module.__dict__[table]
        add_constants(self, module.__dict__.get(CONSTANTS, ()))
        self.__dict__ |= {
            "inner": module,
            "context": context,
            "maker": maker,
            "head": (maker.head,),
            "parts": [module, *(layer for layer in module.modules() if layer is not module)],
        }
        module.eval()

    def forward(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Outputs of the module for rows [B, ...]; a key makes it a training pass."""
        with self._forward_pass(key, mask):
            return self.maker.call(self.inner, x)

    @property
    def splits(self) -> bool:
        return self.maker.splits

    def get_submodule(self, target: str) -> nn.Module:
        """A layer of the module, also one with the name of an attribute of client models, such as "head"."""
        return self.inner.get_submodule(target)

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Input of the head [B, D]."""

        def stop(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
            raise _HeadInput(inputs[0])

        handle = self.inner.get_submodule(self.head[0]).register_forward_pre_hook(stop)
        try:
            self.forward(x, key=key, mask=mask)
        except _HeadInput as stopped:
            return stopped.args[0]
        finally:
            handle.remove()
        raise BadInput(
            f"model: {self.maker.name}: forward never calls the head {self.head[0]!r}; name another: head='...'"
        )

    def classify(self, h: Tensor) -> Tensor:
        """Outputs [B, C] from features [B, D].

        Raises:
            BadInput: the outputs of the module are not those of its head alone.
        """
        if not self.maker.splits:
            raise BadInput(
                f"model: {self.maker.name}: this method applies the head {self.head[0]!r} alone, "
                "but the model's outputs are not those of its head; end with it, or name another: head='...'"
            )
        return self.inner.get_submodule(self.head[0])(h)

    @contextmanager
    def _forward_pass(self, key: Tensor | None, mask: Tensor | None) -> Iterator[None]:
        """Run one forward pass of the module, which is in evaluation mode outside of training passes."""
        self.context.key, self.context.mask = key, mask
        training = key is not None
        if training:
            self._set_mode(True)
        try:
            with KeyedFunctions(key) if training and self.maker.functional else nullcontext():  # type: ignore[arg-type]
                yield
        finally:
            self.context.key = self.context.mask = None
            if training:
                self._set_mode(False)

    def _set_mode(self, training: bool) -> None:
        for layer in self.parts:
            layer.training = training


@dataclass(frozen=True)
class OwnModule:
    """Makes client models of one kind; torch's global generator gives the random numbers.

    Attributes:
        make: returns the user's module, newly initialised.
        name: name of the model in messages and tables.
        shape: shape of one input, without the batch axis.
        windows: whether inputs [T, C] are stored as [C, 1, T].
        head: name of the head.
        functional: whether functions such as F.dropout run in forward, which then need a key.
        splits: whether the outputs of the module are those of its head.
        code: hash of the model's structure, of its source, and of the values of an instance.
        inputs: of a module with several inputs, which are stored as one vector.
        trained: the adapter that is trained besides the head, or None to train all that is not frozen.
        reads: what the code reads from outside of it, by name, see `find_reads`; under `MAKER` the function itself.
    """

    make: Callable[[], nn.Module]
    name: str
    shape: tuple[int, ...]
    windows: bool
    head: str
    functional: bool
    splits: bool
    code: str
    inputs: Layout = ()
    trained: adapters.TrainedPart | None = None
    reads: Mapping[str, str] = field(default_factory=dict)

    def __call__(self) -> ClientModel:
        """A client model."""
        module = _prepare(self.make(), self.shape, self.name, self.inputs)
        if self.trained:
            adapters.insert(self.trained, module, [self.head], "adapter")
        return WrappedModule(module, self)

    def call(self, module: nn.Module, x: Tensor) -> Tensor:
        """Outputs of the module for stored rows [B, ...], which it gets in the shape of its inputs, [B, *shape]."""
        if self.windows:
            return module(x.flatten(2).transpose(1, 2))
        return call(module, x.reshape(x.shape[0], *self.shape), self.inputs)


def wrap(
    model: Any,
    shape: tuple[int, ...],
    outputs: int,
    head: str | None = None,
    windows: bool = False,
    inputs: Layout = (),
    adapter: adapters.Block = None,
) -> OwnModule:
    """What makes client models of `model` for inputs of `shape` and `outputs` outputs.

    Args:
        model: a callable (shape, outputs) -> nn.Module, a class of modules with these or no arguments, or a module;
            every repetition starts from the values of such a module.
        head: name of the layer that maps features to outputs; default: the last layer with parameters that runs.
        windows: whether inputs [T, C] are stored as [C, 1, T].
        inputs: of rows with several inputs, whose shapes a callable gets in place of `shape`.
        adapter: what is trained besides the head, such as {"name": "lora", "rank": 4}; the rest is frozen.

    Raises:
        BadInput: `model` gives no module, the module fails on an input, or one of its layers cannot be adapted.
    """
    make, name = _module_factory(model, shapes(inputs) or shape, outputs)
    with use_seed(0):
        module = _build_module(make, name)
        if isinstance(module, ClientModel):
            raise BadInput(f"model: {name}: is a client model already; give its name or the class in MODELS")
        module = _prepare(module, shape, name, inputs)
        check_trainable(module, f"model: {name}")
        if not adapter:
            check_parameters(module, f"model: {name}")
        code = _hash(module, model if isinstance(model, nn.Module) else None, inputs)
        reads = _find_reads(module, model)
        make_keyed(module, name)
        head_name, functional, splits = _inspect(module, shape, name, head, inputs)
        trained = adapters.parse(adapter)
        result = OwnModule(make, name, shape, windows, head_name, functional, splits, code, inputs, trained, reads)
        if trained:
            check_parameters(result(), f"model: {name}")
    return result


def _module_factory(model: Any, shape: Any, outputs: int) -> tuple[Callable[[], nn.Module], str]:
    if isinstance(model, nn.Module):
        return lambda: copy.deepcopy(model), type(model).__name__
    if not callable(model):
        raise BadInput(
            f"model: {model!r} is not a name, module or callable; give 'mlp', or lambda shape, outputs: Net(...)"
        )
    name = str(getattr(model, "__name__", type(model).__name__)).strip("<>")
    try:
        inspect.signature(model).bind(shape, outputs)
    except TypeError:
        try:
            inspect.signature(model).bind()
        except TypeError as error:
            raise BadInput(
                f"model: {name}: takes neither (shape, outputs) nor nothing; use lambda shape, outputs: {name}(...)"
            ) from error
        return model, name
    return lambda: model(shape, outputs), name


def _build_module(make: Callable[[], nn.Module], name: str) -> nn.Module:
    try:
        module = make()
    except Exception as error:
        raise BadInput(f"model: {name}: cannot be built ({describe_error(error)})") from error
    if not isinstance(module, nn.Module):
        raise BadInput(f"model: {name}: gives {type(module).__name__}, not an nn.Module; return the module")
    if isinstance(module, jit.ScriptModule):
        raise BadInput(f"model: {name}: gives a program of TorchScript; return the module that it was made of")
    return module


def _prepare(module: nn.Module, shape: tuple[int, ...], name: str, inputs: Layout) -> nn.Module:
    """`module` with initialised parameters in named layers; frozen ones become constants."""
    if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        with torch.no_grad():
            _run(module, torch.zeros(2, *shape), name, inputs)
    make_constants(module)
    if not module._parameters:
        return module
    layers = OrderedDict(model=module)
    return OneModule(layers) if inputs else nn.Sequential(layers)


def _inspect(
    module: nn.Module, shape: tuple[int, ...], name: str, head: str | None, inputs: Layout
) -> tuple[str, bool, bool]:
    """(name of the head, whether functional dropout runs, whether the outputs of the module are those of the head)."""
    layers = dict(module.named_modules())
    owners = [layer_name for layer_name, layer in layers.items() if layer._parameters]
    if head is not None and (head not in layers or not any(True for _ in layers[head].parameters())):
        raise BadInput(_head_error(head, f"is not a layer of {name} with trained parameters", filter(None, owners)))
    calls: list[tuple[str, Any]] = []
    frozen = [path for path, layer in layers.items() if CONSTANTS in layer.__dict__ and not [*layer.parameters()]]
    candidates = [path for path in layers if path and path in (*owners, *frozen, head)]
    handles = [layers[p].register_forward_hook(lambda *args, p=p: calls.append((p, args[2]))) for p in candidates]
    with torch.no_grad(), _DropoutDetector() as dropout:
        outputs = _run(module, torch.rand(2, *shape), name, inputs)
    for handle in handles:
        handle.remove()
    order = [layer_name for layer_name, _ in calls]
    if head is not None and head not in order:
        raise BadInput(_head_error(head, f"does not run in the forward of {name}", dict.fromkeys(order)))
    if head is None and order and order[-1] in frozen:
        raise BadInput(
            f"model: {name}",
            f"{order[-1]!r}, which gives the outputs, is frozen, but clients train the head; call requires_grad_(True) "
            f"on it, or name a trained layer: head={next(filter(None, reversed(owners)))!r}",
        )
    # A network with parameters of its own, such as a class token, ends after its head and returns the head's output.
    head_name = head or next((name for name, output in calls if output is calls[-1][1]), owners[-1])
    head_outputs = [output for layer_name, output in calls if layer_name == head_name]
    splits = (
        len(head_outputs) == 1
        and all(isinstance(x, Tensor) for x in (*head_outputs, outputs))
        and torch.equal(head_outputs[0], outputs)
    )
    return head_name, dropout.is_called, splits


def _head_error(head: str, reason: str, choices: Iterable[str]) -> str:
    return f"head: {head!r} {reason}; choices: {', '.join(choices)}"


class _DropoutDetector(torch.overrides.TorchFunctionMode):
    """Notes whether functional dropout is called outside of dropout layers."""

    is_called = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.is_called = self.is_called or may_draw(func)
        return func(*args, **(kwargs or {}))


def _run(module: nn.Module, x: Tensor, name: str, inputs: Layout) -> Any:
    try:
        with plain_attention:
            return call(module.eval(), x, inputs)
    except BadInput:
        raise
    except Exception as error:
        given = f"[B, {', '.join(map(str, x.shape[1:]))}]"
        shape = f" of shape {[*x.shape]}"
        if inputs:
            shape, given = "", describe(inputs)
        raise BadInput(
            f"model: {name}: fails on inputs{shape} ({describe_error(error)}); it is given batches {given}"
        ) from error


def _hash(module: nn.Module, values: nn.Module | None, inputs: Layout) -> str:
    """A hash of the structure of the model and of its inputs, the source of its classes, the files that its weights
    come from, and `values`, if the user gave an instance.

    Lazy layers of an instance have no values yet: each repetition draws them.
    """
    content = hashlib.sha256((repr(module) + (repr(inputs) if inputs else "") + "".join(digests(module))).encode())
    for kind in dict.fromkeys(type(layer) for layer in module.modules()):
        if not kind.__module__.startswith("torch."):
            content.update(source_of(kind).encode())
    for name, value in values.state_dict().items() if values is not None else ():
        if is_lazy(value):
            continue
        content.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return content.hexdigest()[:16]


def _find_reads(module: nn.Module, model: Any) -> dict[str, str]:
    """What the code of a model reads from outside of it, and the plain attributes of its layers, which no hash has."""
    kinds = dict.fromkeys(type(layer) for layer in module.modules() if is_users(type(layer)))
    reads = find_reads([*kinds, *([] if isinstance(model, nn.Module) else [model])])
    if isinstance(model, FunctionType):
        # The lines of a lambda hold the call around it.
        reads[MAKER] = digest_text(code_of(model.__code__) if "<" in model.__name__ else source_of(model))
    return reads | find_values(module.modules())
