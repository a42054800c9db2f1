"""Executors map a one-client function over the clients of a cohort.

`Loop` runs plain PyTorch, one client after the other. `Batched` runs `chunk` clients at once under `torch.func.vmap`. Both
give the same stacked result; the chunk is a memory knob, never a result knob.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.func import vmap

from fedweave import compiled, trees
from fedweave.descent import compiling
from fedweave.federation import ClientData, Cohort
from fedweave.models import parameter_count
from fedweave.models.gcn import GraphConv
from fedweave.trees import Tree

LARGE = 100_000  # parameters
LONG = 20_000  # local steps after which compiling them has paid for itself: a millisecond each against 10 to 40 seconds
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Executor(ABC):
    """Maps a function of ONE client over stacked arguments."""

    @abstractmethod
    def each(self, function: Callable[..., Tree], stacked: tuple[Tree, ...], cohort: Cohort) -> Tree:
        """[function(*args_i, data_i) for every client i], stacked along a new leading axis [P, ...].

        Args:
            function: takes one slice of every tree in `stacked`, then a `ClientData`; returns a tree of tensors.
            stacked: trees with a leading axis [P, ...].
            cohort: the P participants.
        """


@dataclass(frozen=True)
class Loop(Executor):
    """One client after the other, without padding."""

    def each(self, function: Callable[..., Tree], stacked: tuple[Tree, ...], cohort: Cohort) -> Tree:
        return trees.stack([function(*(trees.at(t, i) for t in stacked), cohort.one(i)) for i in range(len(cohort))])


@dataclass(frozen=True)
class Batched(Executor):
    """`chunk` clients at once.

    Attributes:
        chunk: clients per chunk, 0 for all of them.
        compiled: compile the steps of local training.
    """

    chunk: int = 0
    compiled: bool = False

    def each(self, function: Callable[..., Tree], stacked: tuple[Tree, ...], cohort: Cohort) -> Tree:
        chunk = self.chunk or len(cohort)
        parts = []
        for start in range(0, len(cohort), chunk):
            part = cohort.chunk(start, min(start + chunk, len(cohort)))
            padded = bool((part.plan < 0).any())

            def mapped(args: tuple[Tree, ...], own: Tree, part: Cohort = part, padded: bool = padded) -> Tree:
                data: ClientData = part.view(own, padded)
                return function(*args, data)

            slices = tuple(trees.tree_map(lambda t, start=start: t[start : start + chunk], tree) for tree in stacked)
            with compiling(self.compiled):
                parts.append(vmap(mapped)(slices, part.stacked()))
        return trees.concat(parts)


def choose_executor(name: str, template: nn.Module, device: str, chunk: int = 0, steps: int = 0) -> Executor:
    """The executor called `name`; "auto" stacks small models, and everything on a GPU, and compiles what trains for long.

    On a CPU, stacked convolutions lose (measured 0.6-0.8 of the plain loop), and so do dense models whose optimiser step waits for
    memory, which the loop's fused kernels cross once; small ones win several times over, graphs by a half.

    Args:
        steps: local steps of the whole run, as far as they are known.
    """
    kinds = {type(module) for module in template.modules() if any(True for _ in module.parameters(recurse=False))}
    heavy = not kinds.isdisjoint(CONVOLUTIONS) or (GraphConv not in kinds and parameter_count(template) > LARGE)
    if name == "loop" or (name == "auto" and heavy and device == "cpu"):
        return Loop()
    pays = name == "auto" and kinds <= {nn.Linear} and device == "cpu" and steps >= LONG and compiled.available()
    return Batched(chunk, name == "compiled" or pays)


def describe(executor: Executor) -> str:
    """The executor in words, for the log and the record of a run."""
    match executor:
        case Batched(chunk=chunk, compiled=fused):
            return ("compiled" if fused else "batched") + (f", {chunk} clients at once" if chunk else "")
        case _:
            return "loop"
