"""The adapters by name, with their settings, and how each is put into a model."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from torch import nn

from fedweave.errors import BadInput, choose, format_value, suggest
from fedweave.models.adapters.low_rank import adapter_name, add_low_rank, matrix_shape
from fedweave.models.base import (
    CONSTANTS,
    STATISTICS,
    add_constants,
    find_norms,
    has_running_moments,
    is_below,
    is_named,
    make_constants,
    parts,
)
from fedweave.settings import AtLeast, Size

Block = str | Mapping[str, Any] | None
"""The name of an adapter, or a mapping such as {"name": "lora", "rank": 8}, or None."""
Weights = dict[str, tuple[nn.Module, str]]
"""Path of a weight -> (its layer, its name there)."""


@dataclass(frozen=True, kw_only=True)
class TrainedPart(ABC):
    """What clients train of a model besides its head.

    Attributes:
        moves_statistics: whether the statistics of batch normalisation go on; otherwise it runs as in evaluation.
    """

    moves_statistics: ClassVar[bool] = False

    @abstractmethod
    def select(self, network: nn.Module, head: tuple[str, ...], where: str) -> set[str]:
        """Names of the parameters that are trained besides the head, after what the adapter adds to `network`.

        Raises:
            BadInput: the settings do not fit the model; `where` is their place.
        """


@dataclass(frozen=True, kw_only=True)
class Head(TrainedPart):
    """The head alone."""

    def select(self, network: nn.Module, head: tuple[str, ...], where: str) -> set[str]:
        return set()


@dataclass(frozen=True, kw_only=True)
class Bias(TrainedPart):
    """All biases (BitFit)."""

    def select(self, network: nn.Module, head: tuple[str, ...], where: str) -> set[str]:
        names = {name for name, _ in network.named_parameters() if "bias" in name.rpartition(".")[2]}
        return _found(names - _inside(names, head), "bias", where)


@dataclass(frozen=True, kw_only=True)
class Norm(TrainedPart):
    """Scale, shift and statistics of all normalisation layers."""

    moves_statistics = True

    def select(self, network: nn.Module, head: tuple[str, ...], where: str) -> set[str]:
        norms = find_norms(network)
        names = {name for name, _ in network.named_parameters() if name.rpartition(".")[0] in norms}
        return _found(names, "normalisation layer with scale and shift", where)


@dataclass(frozen=True, kw_only=True)
class Lora(TrainedPart):
    """Matrices A and B of low rank for weights W: the layer uses W + (alpha / rank) B A (LoRA)."""

    rank: Annotated[Size, "columns of B, rows of A"] = 4
    ranks: Annotated[
        list[int] | None,
        AtLeast(1),
        "ranks of the clients in their order, from the first again after the last, at most `rank`; null: all have "
        "`rank`",
    ] = None
    alpha: Annotated[
        float | None, AtLeast(1e-12), "the change of a weight is alpha / rank times B A; null: twice the rank"
    ] = None
    targets: Annotated[
        list[str] | None,
        "layers, or parts with layers in them: the last words of their names, * for any text; null: every layer below "
        "the head whose adapter has fewer numbers than its weight",
    ] = None
    trains: Annotated[
        Literal["both", "B"], "both, or B alone over one random A for all clients (FFA-LoRA, arXiv:2403.12313)"
    ] = "both"
    mix: Annotated[
        Literal["factors", "product"],
        "what a server mixes: A and B, or B A, of which it takes the nearest factors of the rank (one singular value "
        "decomposition per adapter and mixture)",
    ] = "factors"

    @property
    def scale(self) -> float:
        """alpha / rank."""
        return 2.0 if self.alpha is None else self.alpha / self.rank

    def select(self, network: nn.Module, head: tuple[str, ...], where: str) -> set[str]:
        if (largest := max(self.ranks or [0])) > self.rank:
            raise BadInput(f"{where}.ranks", f"{largest} is above rank: {self.rank}, which is the largest; raise rank")
        weights = _find_weights(network, head)
        if self.targets is None:
            chosen = self._choose(weights, _find_shared(network), where)
        elif not self.targets:
            raise BadInput(f"{where}.targets", "[] names no layer; name some, leave it out, or set adapter: head")
        else:
            chosen = _match(self.targets, weights, network, head, where)
        for path in chosen:
            self._check_rank(*weights[path], path, where)
        by_layer: dict[str, list[str]] = {}
        for path in chosen:
            by_layer.setdefault(path.rpartition(".")[0], []).append(weights[path][1])
        for path, names in by_layer.items():
            layer, trains_a = network.get_submodule(path), self.trains == "both"
            add_low_rank(layer, names, self.rank, self.scale, trains_a=trains_a, mix=self.mix, ranks=self.ranks)
        factors = ("A", "B") if self.trains == "both" else ("B",)
        return {
            f"{path}.{adapter_name(name)}.{factor}"
            for path, names in by_layer.items()
            for name in names
            for factor in factors
        }

    def _choose(self, weights: Weights, shared: Mapping[str, str], where: str) -> list[str]:
        """The weights of one layer each that have more numbers than their adapters."""
        sides = {path: matrix_shape(_tensor(*weights[path])) for path in weights if path not in shared}
        # r (m + n) < m n
        largest_ranks = {path: (rows * columns - 1) // (rows + columns) for path, (rows, columns) in sides.items()}
        if not (largest := max(largest_ranks.values(), default=0)):
            raise BadInput(where, "no weight below the head is larger than a low-rank adapter; choose another adapter")
        if largest < self.rank:
            raise BadInput(
                f"{where}.rank",
                f"{self.rank}: no weight below the head is larger than its adapter; lower the rank to {largest}",
            )
        return [path for path, rank in largest_ranks.items() if rank >= self.rank]

    def _check_rank(self, layer: nn.Module, name: str, path: str, where: str) -> None:
        rows, columns = matrix_shape(_tensor(layer, name))
        if self.rank > min(rows, columns):
            raise BadInput(
                f"{where}.rank",
                f"{self.rank}, but {path} is a matrix of {rows} x {columns}; give at most {min(rows, columns)}, or "
                "other targets",
            )


ADAPTERS: dict[str, type[TrainedPart]] = {"lora": Lora, "head": Head, "bias": Bias, "norm": Norm}


def parse(block: Block) -> TrainedPart | None:
    """The adapter of a block with right settings; None without one."""
    if block is None:
        return None
    settings = {"name": block} if isinstance(block, str) else dict(block)
    return ADAPTERS[choose(str(settings.pop("name")), ADAPTERS, "adapter.name")](**settings)


def insert(adapter: TrainedPart, network: nn.Module, head: Iterable[str], where: str) -> None:
    """Put `adapter` into `network`, and make constants of all that is not trained.

    Args:
        head: names of the modules that map features to outputs.
        where: place of the adapter in messages.

    Raises:
        BadInput: its settings do not fit the model, or a trained parameter belongs to two layers.
    """
    head = tuple(head)
    names = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    trained = _inside(names, head) | adapter.select(network, head, where)
    shared = _find_shared(network)
    if tied := sorted(trained & shared.keys()):
        raise BadInput(
            where,
            f"{tied[0]}, which would be trained, is also {shared[tied[0]]}, which would not; give each layer its own",
        )
    for name, value in network.named_parameters():
        value.requires_grad_(name in trained and value.requires_grad)
    make_constants(network)
    if not adapter.moves_statistics:
        for path, layer in network.named_modules():
            if has_running_moments(layer) and not is_below(path, head):
                add_constants(layer, STATISTICS)


def _inside(names: Iterable[str], modules: Iterable[str]) -> set[str]:
    """The `names` of tensors in one of `modules`."""
    return {name for name in names if is_below(name, modules)}


def _found(names: set[str], what: str, where: str) -> set[str]:
    if not names:
        raise BadInput(where, f"the model has no {what} below its head; choose another adapter")
    return names


def _tensor(layer: nn.Module, name: str) -> Any:
    return layer._parameters[name] if name in layer._parameters else layer._buffers[name]


def _find_weights(network: nn.Module, head: tuple[str, ...]) -> Weights:
    """The weights of at least two axes outside the head, also those that are frozen already."""
    norms = find_norms(network)
    weights: Weights = {}
    for path, layer in network.named_modules():
        tensors = {**layer._parameters, **{name: layer._buffers[name] for name in layer.__dict__.get(CONSTANTS, ())}}
        for name, value in tensors.items():
            full = f"{path}.{name}"
            if path and path not in norms and "weight" in name and value is not None and value.ndim > 1:
                weights[full] = (layer, name)
    return {path: pair for path, pair in weights.items() if not _inside({path}, head)}


def _find_shared(network: nn.Module) -> dict[str, str]:
    """Name of a tensor -> another name of the same memory."""
    names: dict[int, list[str]] = {}
    for name, value in network.state_dict(keep_vars=True).items():
        if value.numel():
            names.setdefault(value.data_ptr(), []).append(name)
    return {name: same[name == same[0]] for same in names.values() if len(same) > 1 for name in same}


def _match(targets: list[str], weights: Weights, network: nn.Module, head: tuple[str, ...], where: str) -> list[str]:
    """The weights that `targets` name.

    Raises:
        BadInput: a target names none, the head, or a weight of two layers.
    """
    shared, chosen = _find_shared(network), dict[str, None]()
    for target in targets:
        key, text = f"{where}.targets", format_value(target)
        found = [path for path in weights if is_named(path, target)]
        if not found:
            if any(is_named(name, target) for name in _inside((name for name, _ in network.named_parameters()), head)):
                raise BadInput(key, f"{text} is the head, which is trained whole; leave it out")
            layers = dict.fromkeys(path.rpartition(".")[0] for path in weights)
            similar = suggest(target, {part for layer in layers for part in parts(layer)})
            raise BadInput(key, f"{text} names no layer with a weight; {similar}choices: {', '.join(layers) or 'none'}")
        for path in found:
            if path in shared:
                raise BadInput(
                    key,
                    f"{text}: {path} is also {shared[path]}, so that an adapter would change one of them; leave it out",
                )
        chosen |= dict.fromkeys(found)
    return [path for path in weights if path in chosen]
