"""FedPer (Arivazhagan et al., 2019, arXiv:1912.00818).

Server keeps the body B; the head H stays with the client. Both are trained together; B goes down and up (2|B|).
"""

from dataclasses import dataclass

from fedweave.engine.registry import method
from fedweave.families import GlobalModel, SplitClient


@method("fedper")
@dataclass(frozen=True, kw_only=True)
class FedPer(SplitClient, GlobalModel):
    """A shared body with private heads."""

    label = "FedPer"

    @property
    def private(self) -> tuple[str, ...]:
        return self.task.head
