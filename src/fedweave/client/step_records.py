"""What the steps of stacked clients work on: stacks, the steps themselves, and settings without tensors."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from fedweave.client.solvers import Solver
from fedweave.tensors.closures import Rebuild
from fedweave.tensors.trees import Params, Tree


class Stacks(NamedTuple):
    """Trained parameters, the solver's state, and everything else of the model."""

    params: Params
    state: Tree
    rest: Params


class Steps(NamedTuple):
    """For every step: rows [K, P, B], keys [K, P], and whether all clients have real rows."""

    rows: Tensor
    keys: Tensor
    all_active: list[bool]


@dataclass(frozen=True)
class StepSettings:
    """Settings of stacked training, without its tensors.

    Attributes:
        form, rebuild: of the captured loss, see `closures.Capture`.
        solver: the local solver.
        masked: whether rows of -1 are padding.
        dims: client axis of each captured tensor, 0 or None.
    """

    form: Any
    rebuild: Rebuild
    solver: Solver
    masked: bool
    dims: tuple[int | None, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for settings whose steps are the same function."""
        return self.form, self.solver, self.masked, self.dims
