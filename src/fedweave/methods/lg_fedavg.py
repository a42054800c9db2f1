"""LG-FedAvg (Liang et al., 2020, arXiv:2001.01523).

The reverse of FedPer: the body B, the local representation, stays with the client; the server keeps the head H, the
global model on top of it. Both are trained together; H goes down and up (2|H|).
"""

from dataclasses import dataclass

from fedweave.engine.registry import method
from fedweave.families import GlobalModel, SplitClient
from fedweave.families.heads import body


@method("lg_fedavg")
@dataclass(frozen=True, kw_only=True)
class LgFedAvg(SplitClient, GlobalModel):
    """Private bodies under a shared head."""

    label = "LG-FedAvg"
    point = "pre"

    @property
    def private(self) -> tuple[str, ...]:
        return body(self.task)
