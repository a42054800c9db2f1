"""pFedHN (Shamsian et al., ICML 2021, arXiv:2103.04628).

Server keeps a vector v_i per client and one hypernetwork h with a linear head per weight and bias tensor of the client
model. θ̄_i = h(v_i) goes down, the trained θ_i comes up (2P); v and h take one step on ½ ‖θ̄_i − θ_i‖².

Deviations from the public code (AvivSham/pFedHN):
1. A round may have several clients: their losses are averaged and make one step; the code trains one client a step.
2. BatchNorm scales and shifts are generated too; BatchNorm statistics stay with the client.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from fedweave.engine.registry import method
from fedweave.families.hypernetworks import TableHypernetwork
from fedweave.settings import LogSpace


@method("pfedhn")
@dataclass(frozen=True, kw_only=True)
class PFedHN(TableHypernetwork):
    """Every client's model from one hypernetwork and the client's own vector; the defaults are the public code's."""

    server_optimizer: Literal["sgd", "adam"] = "sgd"
    server_lr: Annotated[float, LogSpace(0.001, 0.1)] = 0.01
    server_momentum: float = 0.9
    server_decay: float = 1e-3

    label = "pFedHN"
    point = "pre"
