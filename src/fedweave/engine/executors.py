"""Executors map a one-client function over the clients of a cohort.

`Loop` runs plain PyTorch, one client after the other, and `Processes` a client on every core. `Batched` runs `chunk`
clients at once under `torch.func.vmap`. All give the same stacked result. The chunk changes memory only, and is reduced
where a GPU is too small.
"""

import gc
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fedweave.client.data import ClientData
from fedweave.client.execution_mode import ExecutionMode, NotCovered, use_mode
from fedweave.engine.clients import Cohort
from fedweave.engine.guards import draws_and_names as guards
from fedweave.errors import BadInput
from fedweave.models.base import has_weights, weight_count
from fedweave.models.gcn import GraphConv
from fedweave.models.gru import GRUCell, Readout
from fedweave.processes import forks
from fedweave.tensors import native, recordings, trees
from fedweave.tensors.convolutions import use_products
from fedweave.tensors.mapping import map_stacked
from fedweave.tensors.trees import Tree

Keep = Callable[[Tree], Tree]
LARGE = 100_000  # parameters
RECORDED = 5_000_000  # parameters up to which steps are recorded on a GPU
FORKED = 5_000_000  # parameters up to which a core computes one client, and not a part of all products
# Local steps of a client in a repetition from which on the kernel runs. A step saves 1.2 to 2.4 ms of small MLPs and
# 20 ms of GRUs. So recording has paid after 25 steps, and building the library, once on a machine, after 300 to 5,000.
# The limit is the same where it has been built: the kernel rounds differently, and a result must not depend on what ran
# before.
LONG = 1_000
# Layers with weights whose steps are faster by the kernel; those of images have no normalisation beside them.
COVERED = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, GRUCell, Readout)
COVERED_WITHOUT_IMAGES = (nn.LayerNorm, nn.BatchNorm1d, nn.RNNBase, nn.MultiheadAttention)
LARGE_IMAGES = 1_000_000  # parameters up to which the kernel is faster than PyTorch's own convolutions
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
KERNEL = ExecutionMode(kernel=True, alone=True)
EVALUATED = 100_000  # rows that stacked clients evaluate at once: a recurrent model keeps 10 kB for each of them


class Executor(ABC):
    """Maps a function of ONE client over stacked arguments.

    Attributes:
        kernel: run the steps of local training by the kernel, where it covers them.
        recorded: on a GPU, replay steps of clients and of the server's networks as CUDA graphs.
    """

    kernel: bool = False
    recorded: bool = False

    @abstractmethod
    def map(
        self, function: Callable[..., Tree], stacked: tuple[Tree, ...], cohort: Cohort, keep: Keep = lambda tree: tree
    ) -> Tree:
        """[function(*args_i, data_i) for every client i], stacked along a new leading axis [P, ...].

        Args:
            function: takes one slice of every tree in `stacked`, then a `ClientData`; returns a tree of tensors.
            stacked: trees with a leading axis [P, ...].
            cohort: the P participants.
            keep: stores what a client returned before the next client begins; of no use to stacked clients.
        """

    def for_evaluation(self, cohort: Cohort) -> "Executor":
        """This executor, for a function that takes all validation and test rows of a client of `cohort` at once."""
        return self


@dataclass(frozen=True)
class Loop(Executor):
    """One client after the other, without padding; with `kernel`, what it does not cover runs as without it.

    So does code that works for one client alone, as it reads the value of a tensor. An error with another reason is
    raised again.
    """

    kernel: bool = field(default=False, kw_only=True)

    def map(
        self, function: Callable[..., Tree], stacked: tuple[Tree, ...], cohort: Cohort, keep: Keep = lambda tree: tree
    ) -> Tree:
        def run_client(i: int) -> Tree:
            args = trees.read_at(stacked, i)
            if self.kernel:
                with suppress(NotCovered, BadInput, RuntimeError):
                    stack = trees.tree_map(lambda t: t[None], args)
                    return _take_only(_run_stacked(function, stack, cohort.chunk(i, i + 1), KERNEL), args)
            return function(*args, cohort.client_data(i))

        results = map(keep, self._map_clients(run_client, len(cohort)))
        return trees.stack(trees.collect_for_stack(results, len(cohort)))

    def _map_clients(self, run_client: Callable[[int], Tree], count: int) -> Iterator[Tree]:
        return map(run_client, range(count))


@dataclass(frozen=True)
class Processes(Loop):
    """As `Loop`, but with several clients at once: one thread for each, in a process of its own.

    The results of two clients or more have the same bits for every number of processes.

    Attributes:
        count: the most processes.
    """

    count: int = 1

    def _map_clients(self, run_client: Callable[[int], Tree], count: int) -> Iterator[Tree]:
        processes = min(self.count, count)
        return forks.map_jobs(run_client, count, processes) if processes > 1 else map(run_client, range(count))


@dataclass(frozen=True)
class Batched(Executor):
    """`chunk` clients at once; fewer, from then on, if they do not fit into a GPU's memory.

    Attributes:
        chunk: clients per chunk, 0 for all of them.
        kernel: run the steps of local training by a kernel, one client after the other, where it covers them.
        recorded: on a GPU, replay them as CUDA graphs.
        fitted: the largest chunk that fits into memory, once a larger one has failed; empty before that.
    """

    chunk: int = 0
    kernel: bool = False
    recorded: bool = False
    fitted: list[int] = field(default_factory=list, compare=False)

    def map(
        self, function: Callable[..., Tree], stacked: tuple[Tree, ...], cohort: Cohort, keep: Keep = lambda tree: tree
    ) -> Tree:
        requested_size = size = min([self.chunk or len(cohort), *self.fitted])
        parts, start = [], 0
        while start < len(cohort):
            part = cohort.chunk(start, min(start + size, len(cohort)))
            rows = slice(start, start + len(part))
            slices = tuple(trees.tree_map(lambda t, rows=rows: t[rows], tree) for tree in stacked)
            try:
                parts.append(_run_stacked(function, slices, part, ExecutionMode(self.kernel, self.recorded)))
                start += len(part)
            except torch.OutOfMemoryError:
                size = halve(len(part))
            if size < len(part):  # not inside `except`, where the exception keeps the memory of the failed attempt
                recordings.clear()
                gc.collect()
                torch.cuda.empty_cache()
        if size < requested_size:
            self.fitted[:] = [size]
            warnings.warn(
                f"{requested_size} clients at once do not fit into the GPU's memory; continuing with {size} at once",
                stacklevel=2,
            )
        return trees.concat(parts)

    def for_evaluation(self, cohort: Cohort) -> "Batched":
        rows = cohort.federation.val.shape[1] + cohort.federation.test.shape[1]
        return replace(self, chunk=min(self.chunk or len(cohort), max(1, EVALUATED // max(1, rows))))


def _run_stacked(function: Callable[..., Tree], slices: tuple[Tree, ...], part: Cohort, mode: ExecutionMode) -> Tree:
    padded = bool((part.plan < 0).any())

    def run_client(tree: tuple[tuple[Tree, ...], Tree]) -> Tree:
        args, tensors = tree
        data: ClientData = part.view(tensors, padded)
        return function(*args, data)

    with use_mode(mode), use_products(part.federation.ids.device.type), guards.forbid_values():
        return map_stacked(run_client, (slices, part.client_tensors()), len(part))


def _take_only(stacks: Tree, args: Tree) -> Tree:
    """The tree of the one client in `stacks` [1, ...], as this client alone would give it.

    What is one tensor for the client is one here, or that of `args`; no other is a view. So large tensors are moved and
    not copied.
    """
    taken = {_place(tensor): tensor for tensor in tree_leaves(args)}

    def take(stack: Tensor) -> Tensor:
        return taken.setdefault(_place(stack[0]), stack[0].data)

    return trees.tree_map(take, stacks)


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def halve(size: int) -> int:
    """The chunk to try after one of `size` clients did not fit.

    Raises:
        BadInput: not even one client fits.
    """
    if size == 1:
        raise BadInput(
            "train.chunk",
            "not even 1 client at a time fits into the GPU's memory; "
            "lower train.batch_size, or set train.executor to loop or train.device to cpu",
        )
    return size // 2


def choose_device(name: str) -> str:
    """The device called `name`.

    Raises:
        BadInput: for 'cuda' on a machine without a visible GPU.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput(
            "train.device", "'cuda' but no CUDA device is visible; use auto or cpu, or check CUDA_VISIBLE_DEVICES"
        )
    return "cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu"


def choose_executor(
    name: str, network: nn.Module, device: str, chunk: int = 0, steps: int = 0, pooled: bool = False
) -> Executor:
    """The executor called `name`; "auto" stacks small models, and all models on a GPU; long trainings use the kernel.

    On a CPU, stacked convolutions are slower (0.6-0.8 of the plain loop's speed), and so are dense models whose
    optimiser step is limited by memory, which the loop's fused kernels read once. So their clients are computed one by
    one on each core, small convolutions by the kernel. Small models are several times faster stacked, graphs by a half.
    On a GPU, steps of models that are not large are recorded: their kernels take less time than their launches.

    Args:
        steps: local steps of the largest client in the whole run; 0 if the kernel must not run them.
        pooled: one client has the rows of all, and takes two and a half times as long in a batched executor.
    """
    if name == "kernel" and not _can_run_kernel(network, device):
        name = "auto"  # a study that names the kernel runs on every machine
    if pooled and name == "auto":
        return Loop()
    layers = [module for module in network.modules() if has_weights(module)]
    types = {*map(_kind, layers)}
    size, auto_on_cpu = weight_count(network), name == "auto" and device == "cpu"
    images = not types.isdisjoint(CONVOLUTIONS)
    covered = all(_is_covered(layer, images) for layer in layers) and not (images and size > LARGE_IMAGES)
    kernel = name == "kernel" or (auto_on_cpu and covered and steps >= LONG and bool(native.find_compiler()))
    slow_stacked = images or (GraphConv not in types and size > LARGE)
    if name == "processes":
        return _processes(device)
    by_kernel = kernel and images
    if by_kernel or (auto_on_cpu and slow_stacked):
        return (Processes if size <= FORKED and forks.can_train_in_forks() else Loop)(kernel=by_kernel)
    if name == "loop":
        return Loop()
    recorded = device != "cpu" and name != "batched" and size <= RECORDED
    return Batched(chunk, kernel, recorded)


def _kind(layer: nn.Module) -> type[nn.Module]:
    """The class of a layer, or of the one that an adapter has taken the place of."""
    kind: type[nn.Module] = getattr(layer, "adapted", type(layer))
    return kind


def _is_covered(layer: nn.Module, images: bool) -> bool:
    if not issubclass(_kind(layer), COVERED if images else COVERED + COVERED_WITHOUT_IMAGES):
        return False
    return not isinstance(layer, CONVOLUTIONS) or (layer.groups == 1 and {*layer.dilation} == {1})


def _can_run_kernel(network: nn.Module, device: str) -> bool:
    """Whether the kernel runs here: on a CPU, with a compiler. It is built now, before repetitions fork."""
    if device != "cpu":
        return False
    if native.find_compiler() is None:
        _warn_of_compiler()
        return False
    return native.load(next(network.parameters()).dtype) is not None  # which warns where the compiler fails


@cache
def _warn_of_compiler() -> None:
    """Print one line in a process, and not one for each method."""
    line = "the kernel needs a C++ compiler, g++ or clang++; runs are computed without it"
    warnings.warn(line, stacklevel=4)  # where the executor is chosen


def _processes(device: str) -> Processes:
    if device != "cpu" or not forks.can_train_in_forks():
        raise BadInput(
            "train.executor",
            "'processes' needs Linux and no visible GPU; use auto, or hide the GPU with an empty CUDA_VISIBLE_DEVICES",
        )
    return Processes()


def set_precision(device: str, tf32: bool = False) -> None:
    """Make a GPU compute in full float32, or with factors of ten bits (TF32), and always in the same order.

    PyTorch's own default is TF32 in convolutions, float32 in matrix products, and an order that cuDNN chooses.

    Raises:
        BadInput: TF32 on a device that has none.
    """
    if device != "cpu":
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.deterministic = True
    elif tf32:
        raise BadInput(
            "train.precision", "'tf32' exists on GPUs only, and train.device is the CPU; use bfloat16, or leave it out"
        )


def describe(executor: Executor) -> str:
    """The executor in words, for the log and the record of a run."""
    match executor:
        case Batched(chunk=chunk, kernel=kernel, recorded=recorded, fitted=fitted):
            size = min(fitted, default=chunk)
            words = ["kernel" if kernel else "batched", "CUDA graphs" if recorded else ""]
            return ", ".join(filter(None, [*words, f"{size} clients at once" if size else ""]))
        case Loop(kernel=kernel):
            words = ["kernel" if kernel else "", "processes" if isinstance(executor, Processes) else ""]
            return ", ".join(filter(None, words)) or "loop"
        case _:
            return type(executor).__name__.lower()
