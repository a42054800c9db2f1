"""A check of what a loss returns, which a user may have written."""

from collections.abc import Mapping

from torch import Tensor

from fedweave.errors import BadInput
from fedweave.tensors.trees import Params


def check_loss(result: tuple[Tensor, Params]) -> tuple[Tensor, Params]:
    """The `result` of a loss."""
    is_pair = isinstance(result, tuple) and len(result) == 2
    if is_pair and isinstance(result[0], Tensor) and not result[0].ndim and isinstance(result[1], Mapping):
        return result
    value = result[0] if is_pair else result
    given = f"a tensor {[*value.shape]}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise BadInput(
        f"descend: the loss returned {given}{'' if is_pair else ' alone'}; return (the mean over the rows as a tensor "
        "without axes, the buffers by name), as self.task.objective(data) does"
    )


def check_gradient(value: Tensor) -> None:
    """Refuse the value of a loss on which the model has no effect."""
    if not value.requires_grad:
        raise BadInput(
            "descend: the loss has no gradient, so that nothing is trained; compute it from the model that it gets, "
            "without detach(), .item() and torch.no_grad(), as self.task.objective(data) does"
        )
