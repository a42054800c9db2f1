"""Steps of an optimiser into new memory, for states that are still in use: those of a server have up to a gigabyte."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedweave.client.solvers import SGD, Adam, GroupedSolver, Solver, clip_, clone
from fedweave.tensors.trees import Params, Tree

PIECE = 2**18  # elements; a piece of parameters, gradient and moments fits in the last cache of a processor


def step_out_of_place(solver: Solver, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
    """The results of `solver.step_` on copies of parameters and state, bit for bit; it may write to `grads`.

    The copies are made in pieces, and each piece takes its step while it is in the cache. So the new tensors are
    written to memory once; a step on whole copies writes them twice and reads them twice.
    """
    if isinstance(solver, GroupedSolver):
        return solver.step_groups(lambda part: partial(step_out_of_place, part), params, grads, state)
    if not isinstance(solver, SGD | Adam) or any(value.device.type != "cpu" for value in params.values()):
        return solver.step_(clone(params), grads, clone(state))
    if solver.clip is not None:
        clip_([*grads.values()], solver.clip)
    return _step_by_pieces(replace(solver, clip=None), params, grads, state)


def _step_by_pieces(solver: SGD | Adam, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
    old = [params, *_moments(solver, state)]
    new = [{name: torch.empty_like(v, memory_format=torch.contiguous_format) for name, v in t.items()} for t in old]
    gradients, *tables = (_split_into_pieces(table, grads) for table in (grads, *new, *old))
    for part in _group_pieces([len(piece) for _, piece in gradients]):
        gradient, *rows = (dict(table[part]) for table in (gradients, *tables))
        values, *moments = targets = rows[: len(new)]
        for target, source in zip(targets, rows[len(new) :], strict=True):
            torch._foreach_copy_([*target.values()], [*source.values()])
        solver.step_(values, gradient, _build_state(solver, moments, state, 0))
    return new[0], _build_state(solver, new[1:], state, 1)


def _split_into_pieces(table: Params, names: Iterable[str]) -> list[tuple[str, Tensor]]:
    """The tensors `names` of a table, flat and in pieces, each with a name of its own."""
    flat = ((name, table[name].reshape(-1)) for name in names)
    pieces_by_name = ((name, value.split(PIECE) if len(value) > PIECE else (value,)) for name, value in flat)
    return [(f"{name} {position}", piece) for name, pieces in pieces_by_name for position, piece in enumerate(pieces)]


def _group_pieces(sizes: Sequence[int]) -> Iterator[slice]:
    """Groups of consecutive pieces with at most `PIECE` elements: many small tensors take their step in one call."""
    first = total = 0
    for position, size in enumerate(sizes):
        if total + size > PIECE and position > first:
            yield slice(first, position)
            first, total = position, 0
        total += size
    if sizes:
        yield slice(first, len(sizes))


def _moments(solver: SGD | Adam, state: Tree) -> list[Params]:
    """The tables of a state that have an entry for every parameter."""
    if isinstance(solver, Adam):
        return [state["m"], state["v"]]
    return [state] if solver.momentum else []


def _build_state(solver: SGD | Adam, moments: list[Params], before: Tree, steps: int) -> Tree:
    """The state of these `moments`, `steps` after the state `before`."""
    if isinstance(solver, Adam):
        return {"m": moments[0], "v": moments[1], "t": before["t"] + steps}
    return moments[0] if moments else {}
