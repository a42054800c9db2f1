"""Steps of an optimiser to new memory, for states that others may still hold: a server's take up to a gigabyte."""

from dataclasses import replace
from functools import partial

import torch

from fedweave.client.solvers import SGD, Adam, Grouped, Solver, clip_, clone
from fedweave.tensors.trees import Params, Tree

PIECE = 2**17  # elements; a piece of parameters, gradient and moments lies in a core's cache


def renew(solver: Solver, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
    """What `solver.step_` gives on copies of parameters and state, bit for bit; it may write to `grads`.

    The copies are made in pieces, and each piece takes its step while it is in the cache. So the new tensors are
    written to memory once; a step on whole copies writes them twice and reads them twice.
    """
    if isinstance(solver, Grouped):
        return solver.each(lambda part: partial(renew, part), params, grads, state)
    if not isinstance(solver, SGD | Adam) or any(value.device.type != "cpu" for value in params.values()):
        return solver.step_(clone(params), grads, clone(state))
    if solver.clip is not None:
        clip_([*grads.values()], solver.clip)
    return _by_pieces(replace(solver, clip=None), params, grads, state)


def _by_pieces(solver: SGD | Adam, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
    old = [params, *_moments(solver, state)]
    new = [{name: torch.empty_like(v, memory_format=torch.contiguous_format) for name, v in t.items()} for t in old]
    for name, gradient in grads.items():
        rows = [gradient, *(table[name] for table in (*new, *old))]
        for g, *pieces in zip(*(row.reshape(-1).split(PIECE) for row in rows), strict=True):
            values, *moments = targets = pieces[: len(new)]
            for target, source in zip(targets, pieces[len(new) :], strict=True):
                target.copy_(source)
            before = _state(solver, [{name: m} for m in moments], state, 0)
            solver.step_({name: values}, {name: g}, before)
    return new[0], _state(solver, new[1:], state, 1)


def _moments(solver: SGD | Adam, state: Tree) -> list[Params]:
    """The tables of a state that have an entry for every parameter."""
    if isinstance(solver, Adam):
        return [state["m"], state["v"]]
    return [state] if solver.momentum else []


def _state(solver: SGD | Adam, moments: list[Params], before: Tree, steps: int) -> Tree:
    """The state of these `moments`, `steps` after the state `before`."""
    if isinstance(solver, Adam):
        return {"m": moments[0], "v": moments[1], "t": before["t"] + steps}
    return moments[0] if moments else {}
