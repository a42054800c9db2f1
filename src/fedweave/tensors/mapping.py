"""`torch.func.vmap` for trees of stacked tensors, and a part of a mapped function that runs outside of it.

They skip what `vmap` and a `torch.autograd.Function` with a rule for it check in every call, which takes a millisecond.
"""

from collections.abc import Callable, Sequence

from torch import Tensor
from torch._C import _functorch as functorch
from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_current_functorch_interpreter
from torch._functorch.vmap import lazy_load_decompositions

from fedweave.tensors import trees
from fedweave.tensors.trees import Tree

# (number of clients, tensors, whether each is stacked [P, ...] or the same for all clients) -> a tree of stacks
Outside = Callable[[int, list[Tensor], tuple[bool, ...]], Tree]


def map_stacked(function: Callable[[Tree], Tree], stacked: Tree, clients: int) -> Tree:
    """`function` of one client's tree over a tree [P, ...], as `torch.func.vmap` does it."""
    lazy_load_decompositions()
    level = functorch._vmap_increment_nesting(clients, "error")
    try:
        result = function(trees.tree_map(lambda stack: functorch._add_batch_dim(stack, 0, level), stacked))
        return trees.tree_map(lambda value: functorch._remove_batch_dim(value, level, clients, 0), result)
    finally:
        functorch._vmap_decrement_nesting()


def can_leave() -> bool:
    """Whether the innermost transform is that of `vmap`, which `run_outside` leaves."""
    return trees.is_mapped() and isinstance(retrieve_current_functorch_interpreter(), VmapInterpreter)


def run_outside(function: Outside, tensors: Sequence[Tensor]) -> Tree:
    """The result of `function`, called outside of the transform that maps the caller; of one client for the caller."""
    interpreter = retrieve_current_functorch_interpreter()
    assert isinstance(interpreter, VmapInterpreter)
    level = interpreter.level()
    pairs = [functorch._unwrap_batched(tensor, level) for tensor in tensors]
    with interpreter.lower():
        stacks = [tensor if axis is None else tensor.movedim(axis, 0) for tensor, axis in pairs]
        result = function(interpreter.batch_size(), stacks, tuple(axis is not None for _, axis in pairs))
    return trees.tree_map(lambda stack: functorch._add_batch_dim(stack, 0, level), result)
