"""Central training: one model on the training rows of all clients together.

No federated learning: clients give their rows away. It is a control, the upper bound that privacy forbids. A round is
as many epochs over the pooled rows as clients of the other methods train over their own.
"""

from dataclasses import dataclass

from fedweave.engine.registry import method
from fedweave.families import GlobalModel, SplitClient
from fedweave.tensors.trees import Tree


@method("central")
@dataclass(frozen=True, kw_only=True)
class Central(SplitClient, GlobalModel):
    """One model for all clients, trained where all training rows lie in one place."""

    label = "Central"
    point = "pre"
    needs = frozenset({"pooled_rows"})
    pools = True
    server_steps = False

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of buffers without a mean; BatchNorm statistics are those of the pooled rows, like the whole model."""
        return self.task.integer_buffers

    def traffic(self, shared: Tree, own: Tree, uploads: Tree, participants: int) -> tuple[int, int]:
        """(0, 0): the model stays where the rows are, and traffic counts models, not rows."""
        return 0, 0
