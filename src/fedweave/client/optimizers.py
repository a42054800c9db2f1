"""Optimisers that clients keep over the rounds of a run: moments and step counts by phase of local training.

A client's local round may train in several phases, each with an optimiser of its own. Their states are part of the
client's state and never sent. A state before its first step is zero everywhere, so a state of zeros is the same as no
state. Clients that have never trained, absent clients and newcomers therefore need no special case.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedweave.client.solvers import Solver
from fedweave.tensors import trees
from fedweave.tensors.trees import Params, Tree


@dataclass
class OptimizerMemory:
    """The states of one client during one round.

    Attributes:
        states: phase -> the part of its optimiser's state that the next round needs.
        calls: number of phases without a name so far in this round.
    """

    states: dict[str, Tree] = field(default_factory=dict)
    calls: int = 0

    def recall(self, phase: str | None, solver: Solver, params: Params, state: Tree | None) -> tuple[str, Tree | None]:
        """The name of the phase, and the state from which `solver` continues; `state` in the first round of a phase."""
        name = str(self.calls) if phase is None else phase
        self.calls += phase is None
        earlier = self.states.get(name)
        return name, state if earlier is None else solver.resume(earlier, params)


_MEMORY: ContextVar[OptimizerMemory | None] = ContextVar("memory", default=None)


def current_memory() -> OptimizerMemory | None:
    """The memory of the client that is training; None where optimisers start anew in every round."""
    return _MEMORY.get()


@contextmanager
def optimizer_memory(states: Mapping[str, Tree] | None) -> Iterator[OptimizerMemory | None]:
    """Local training inside this block continues from `states` and stores new ones in the memory; None: no memory."""
    memory = None if states is None else OptimizerMemory(dict(states))
    token = _MEMORY.set(memory)
    try:
        yield memory
    finally:
        _MEMORY.reset(token)


def put(old: Tree, ids: Tensor, new: Tree, clients: int) -> Tree:
    """The states [N, ...] of all `clients`, with `new` [P, ...] as those of clients `ids` [P]."""
    blank = {name: _zeros(state, clients) for name, state in new.items() if name not in old}
    whole = {**old, **blank}
    return {name: trees.put(state, ids, new[name]) if name in new else state for name, state in whole.items()}


def add_newcomers(states: Tree, newcomers: int) -> Tree:
    """The states [N, ...] with rows for `newcomers`, who have not trained."""
    return trees.tree_map(lambda t: torch.cat([t, t.new_zeros(newcomers, *t.shape[1:])]), states)


def _zeros(state: Tree, clients: int) -> Tree:
    return trees.build_table(trees.tree_map(lambda t: t.new_zeros(t.shape[1:]), state), clients)
